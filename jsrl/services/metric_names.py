"""The catalogue of metrics: every name that a run may write, and how reports of several workers become one number.

docs/metrics.md shows the same table; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsrl.services.phases import ACTIVITIES

SUFFIX_RULES = (  # the first rule that fits; everything else: mean over the workers that report it
    ("_per_s", "sum"),
    ("_mb", "sum"),
    ("_depth", "sum"),
    ("_max", "max"),
    ("_p95", "max"),
    ("_min", "min"),
    ("_version", "min"),
)
COMBINATIONS = ("total", "sum", "mean", "max", "min")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
      name: `worker/what_unit`. meaning, unit, healthy: columns of the document.
      combine: `total` (counts since the worker's start, summed; a restart does not take them back), `sum`, `mean`,
        `max`, `min`; empty: by SUFFIX_RULES.
      weight: name of a `total` metric whose growth weighs this mean (returns are weighed by episodes).
    """

    name: str
    meaning: str
    unit: str
    healthy: str
    combine: str = ""
    weight: str = ""


def _worker(kind: str, who: str) -> tuple[Metric, ...]:
    return (
        Metric(f"system/{kind}_rss_mb", f"resident memory of all {who}", "MB", "level after warm-up", "sum"),
        Metric(
            f"system/{kind}_cpu_share", f"CPU time of all {who} per second", "cores", "below the cores given", "sum"
        ),
    )


def _shares(kind: str) -> tuple[Metric, ...]:
    return tuple(Metric(f"{kind}/{a.name}_share", a.meaning, "0-1", a.healthy) for a in ACTIVITIES[kind])


_WHO = {
    "actor": "actors",
    "inference": "inference servers",
    "learner": "learners",
    "replay": "replay workers",
    "evaluator": "evaluators",
    "recorder": "recorders",
    "parameter_server": "parameter servers",
}

CATALOGUE: tuple[Metric, ...] = (
    Metric("env_steps", "env steps consumed by the learner so far", "steps", "rises"),
    Metric("updates", "updates so far", "count", "rises"),
    Metric("wall_s", "time since the run began, over all resumes", "s", "rises"),
    Metric("actor/env_steps_per_s", "env steps taken by all actors", "1/s", "as high as the machine allows"),
    Metric("actor/episodes", "episodes finished so far", "count", "rises", "total"),
    Metric(
        "actor/return_mean", "raw return of the episodes since the last line", "reward", "rises", "", "actor/episodes"
    ),
    Metric("actor/length_mean", "length of those episodes", "steps", "depends", "", "actor/episodes"),
    Metric("actor/env_faults", "faulty environments that were built anew so far (env.on_fault)", "count", "0", "total"),
    Metric(
        "actor/recorded", "trajectories copied for the recording so far", "count", "rises, where one is made", "total"
    ),
    Metric(
        "actor/recording_dropped",
        "trajectories not recorded: disk too slow, full, or at its limit",
        "count",
        "0",
        "total",
    ),
    *_shares("actor"),
    Metric("inference/rows_per_s", "observations answered", "1/s", "actor/env_steps_per_s"),
    Metric("inference/batch_rows_mean", "rows per batch, before padding", "rows", "half of the largest size or more"),
    Metric("inference/compilations", "compilations of act so far", "count", "one per batch size", "total"),
    Metric("inference/compilations_after_warmup", "compilations once warm", "count", "0", "total"),
    Metric("inference/refused", "strangers whose hello was turned away", "count", "0", "total"),
    Metric(
        "inference/params_updates", "updates that the oldest params in use have seen", "updates", "updates - 1", "min"
    ),
    *_shares("inference"),
    Metric("parameter_server/relayed", "versions of params passed on", "count", "rises with updates", "total"),
    *_shares("parameter_server"),
    Metric("learner/refused", "strangers and messages that streams turned away", "count", "0", "total"),
    Metric("learner/updates_per_s", "updates", "1/s", "level"),
    Metric("learner/rows_per_s", "rows trained on (reuse counted)", "1/s", "level"),
    Metric("learner/trained_s", "when the line's last update ended, by the host's monotonic clock", "s", "-", "max"),
    Metric(
        "learner/queue_depth", "trajectories that wait for the learner", "count", "1-4; rising: the learner is slow"
    ),
    *_shares("learner"),
    Metric("learner/policy_lag_mean", "learner updates minus those of the row's params", "updates", "below 2 for PPO"),
    Metric("learner/policy_lag_p50", "median of the same", "updates", "below 2 for PPO"),
    Metric("learner/policy_lag_p95", "95th percentile of the same", "updates", "below 10"),
    Metric("learner/policy_lag_max", "largest of the same", "updates", "at most the maximum policy lag"),
    Metric("learner/loss", "the loss that is minimised", "-", "finite"),
    Metric("learner/loss_policy", "policy part of the loss", "-", "small, around 0"),
    Metric("learner/loss_value", "value part of the loss", "reward^2", "falls, or follows the returns"),
    Metric("learner/entropy", "entropy of the policy", "nats", "falls slowly; not to 0 early"),
    Metric("learner/approx_kl", "KL from the acting to the updated policy", "nats", "0.001-0.03"),
    Metric("learner/clip_fraction", "share of rows whose ratio is clipped", "0-1", "0.05-0.3"),
    Metric("learner/explained_variance", "share of the returns' variance that the value explains", "<= 1", "towards 1"),
    Metric("learner/grad_norm", "global gradient norm before clipping", "-", "finite, no growing trend"),
    Metric("learner/learning_rate", "learning rate of the last gradient step", "-", "as scheduled"),
    Metric("learner/epochs_run", "epochs run before the KL stop", "count", "the configured number"),
    Metric("learner/value_mean", "mean value of the sampled actions", "reward", "towards the discounted return"),
    Metric("learner/temperature", "weight of the entropy in SAC", "reward/nat", "falls, then level; above 0"),
    Metric(
        "learner/split_policy_staleness",
        "updates by which the critics in use on the policy's side are old",
        "updates",
        "at most split_lead calls",
    ),
    Metric(
        "learner/split_critic_staleness",
        "updates by which the policy in use on the critics' side is old",
        "updates",
        "at most split_lead calls",
    ),
    Metric("learner/epsilon", "chance of a random action in DQN", "0-1", "as scheduled"),
    *_shares("replay"),
    Metric("replay/inserts_per_s", "env steps inserted", "1/s", "actor/env_steps_per_s"),
    Metric("replay/samples_per_s", "windows drawn", "1/s", "learner/rows_per_s"),
    Metric("replay/samples_per_insert", "windows drawn per env step inserted since min_size", "-", "as configured"),
    Metric("replay/inserted", "env steps inserted so far, over all resumes", "steps", "rises", "sum"),
    Metric("replay/drawn", "windows drawn so far, over all resumes", "count", "rises", "sum"),
    Metric("replay/evicted", "env steps overwritten so far", "steps", "0 until the replay is full", "sum"),
    Metric("replay/priorities_late", "priorities whose window was overwritten meanwhile", "count", "few", "sum"),
    Metric("replay/trajectories_produced", "trajectories committed by actors", "count", "sum of the next three", "sum"),
    Metric("replay/trajectories_inserted", "trajectories inserted", "count", "near produced", "sum"),
    Metric("replay/trajectories_dropped", "trajectories dropped, all reasons", "count", "0", "sum"),
    Metric("replay/trajectories_in_flight", "trajectories between actors and replay", "count", "level", "sum"),
    Metric("replay/refused", "strangers and messages that streams turned away", "count", "0", "total"),
    Metric("replay/size", "env steps that replay holds", "steps", "rises to replay.capacity", "sum"),
    Metric("replay/updates_made", "updates made with the last batch", "count", "0 below replay.min_size, then K"),
    Metric("ledger/produced", "trajectories committed by producers", "count", "the sum of the next three", "sum"),
    Metric("ledger/consumed", "trajectories consumed", "count", "near produced", "sum"),
    Metric("ledger/dropped", "trajectories dropped, all reasons", "count", "0, or few when async", "sum"),
    Metric("ledger/in_flight", "trajectories between producer and consumer", "count", "level", "sum"),
    Metric("evaluator/return_mean", "mean raw return of greedy episodes of one snapshot", "reward", "rises"),
    Metric("evaluator/return_std", "standard deviation over those episodes", "reward", "depends"),
    Metric("evaluator/return_ci95", "half width of the mean's 95% confidence interval", "reward", "small to the mean"),
    Metric("evaluator/length_mean", "mean length of those episodes", "steps", "depends"),
    Metric("evaluator/episodes", "episodes in this evaluation", "count", "as configured", "sum"),
    Metric("evaluator/version_updates", "updates that the evaluated params have seen", "updates", "rises"),
    Metric(
        "evaluator/sampled_return_mean", "mean raw return when actions are sampled", "reward", "below greedy, rises"
    ),
    Metric("evaluator/sampled_return_std", "standard deviation of those", "reward", "depends"),
    Metric(
        "evaluator/sampled_return_ci95", "half width of their 95% confidence interval", "reward", "small to the mean"
    ),
    Metric("evaluator/final_return_mean", "mean raw return after the end, fresh seeds", "reward", "near return_mean"),
    Metric("evaluator/final_return_std", "standard deviation over those episodes", "reward", "depends"),
    Metric("evaluator/final_return_ci95", "half width of the 95% confidence interval", "reward", "small to the mean"),
    Metric("evaluator/final_length_mean", "mean length of those episodes", "steps", "depends"),
    Metric("evaluator/final_episodes", "episodes of the final evaluation", "count", "as configured", "sum"),
    Metric(
        "evaluator/final_version_updates",
        "updates that the finally evaluated params have seen",
        "updates",
        "the best or last",
    ),
    *_shares("evaluator"),
    Metric("recorder/videos", "videos written so far", "count", "rises", "total"),
    Metric("recorder/failed", "videos that could not be written", "count", "0", "total"),
    Metric("recorder/lost", "recorders that ended for good; the run went on without", "count", "0", "sum"),
    Metric("recorder/return_mean", "mean raw return of the filmed episodes", "reward", "rises"),
    Metric("recorder/best_return", "that of the best video", "reward", "rises", "max"),
    Metric("recorder/length_mean", "mean length of the filmed episodes", "steps", "depends"),
    Metric("recorder/version_updates", "updates that the filmed params have seen", "updates", "rises"),
    Metric("recorder/video_frames", "pictures in the video", "count", "fps x max_seconds at most"),
    *_shares("recorder"),
    Metric("snapshots/written", "snapshots on disk so far", "count", "rises", "total"),
    Metric("snapshots/failed", "snapshots that could not be written", "count", "0", "total"),
    Metric("snapshots/superseded", "snapshots given up for a newer one", "count", "0; else the disk is slow", "total"),
    Metric("snapshots/last_write_s", "duration of the last write", "s", "below the snapshot period", "max"),
    *(metric for kind, who in _WHO.items() for metric in _worker(kind, who)),
    *(
        Metric(f"restarts/{kind}", f"{who} that were replaced so far", "count", "0", "sum")
        for kind, who in _WHO.items()
    ),
    Metric("system/others_cpu_share", "CPU time of other programs on this machine per second", "cores", "0", "sum"),
)
BY_NAME = {metric.name: metric for metric in CATALOGUE}


def combination(name: str) -> str:
    """Return how reports of several workers become one: `total`, `sum`, `mean`, `max` or `min`."""
    metric = BY_NAME.get(name)
    if metric is not None and metric.combine:
        return metric.combine
    return next((rule for suffix, rule in SUFFIX_RULES if name.endswith(suffix)), "mean")


def weight_of(name: str) -> str:
    """Return the name of the total whose growth weighs this mean, or an empty string."""
    metric = BY_NAME.get(name)
    return metric.weight if metric is not None else ""


def markdown_table() -> str:
    """Return the catalogue as docs/metrics.md shows it."""
    rows = ["| metric | meaning | unit | healthy | over workers |", "|---|---|---|---|---|"]
    for metric in CATALOGUE:
        how = combination(metric.name) + (f", weighed by {metric.weight}" if metric.weight else "")
        rows.append(f"| `{metric.name}` | {metric.meaning} | {metric.unit} | {metric.healthy} | {how} |")
    return "\n".join(rows) + "\n"
