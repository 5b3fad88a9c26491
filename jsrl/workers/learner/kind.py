"""Learners, their further ranks, and fused workers: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.base import end_hint
from jsrl.workers.kinds import Headline, Kind, Lifecycle, Port, Resources, Shown, Travel
from jsrl.workers.memory import learner_keeps

if TYPE_CHECKING:
    from jsrl.workers.jobs import Job

WAIT_OTHERS = Activity(
    "wait_others",
    "wait",
    "share of time after its last update, until the run ends",
    "depends",
    waits_for="the end of the run",
)
JOINING = (
    Activity("transport", "transport", "share of time joining rows into batches in the main thread (serial)"),
    Activity("prefetch_wait_batch", "wait", "share of the joining thread's time waiting for rows", "above 0.2"),
    Activity("prefetch_transport", "transport", "share of the joining thread's time joining rows", "below 0.5"),
    Activity("prefetch_wait_learner", "wait", "share of the joining thread's time with a batch ready", "depends"),
    Activity("prefetch_other", "other", "share of the joining thread's time in none of these", "near 0"),
)
UPDATE = Activity("update", "train", "share of time in updates", "above 0.7")
PUBLISH = Activity("publish", "publish", "share of time publishing params", "below 0.05")
SNAPSHOT = Activity("snapshot", "publish", "share of time copying the state for a snapshot", "near 0")
ACTIVITIES = (
    Activity("wait_batch", "wait", "share of time waiting for a batch", "below 0.2 (else: more actors)", "batch"),
    WAIT_OTHERS,
    UPDATE,
    PUBLISH,
    SNAPSHOT,
    *JOINING,
)

READING = (
    Metric("refused", "rejected connections and messages", "count", "0", "total"),
    Metric("queue_depth", "trajectories that wait here", "count", "1-4; rising: the learner is slow"),
    Metric(
        "policy_lag_mean",
        "age of the params that chose a row's action, in updates, when the row reaches the learner",
        "updates",
        "below 2 for PPO",
    ),
    Metric("policy_lag_p50", "median of the same", "updates", "below 2 for PPO"),
    Metric("policy_lag_p95", "95th percentile of the same", "updates", "below 10"),
    Metric("policy_lag_max", "largest of the same", "updates", "at most the maximum policy lag"),
)
MEASURED = (  # by the worker itself; all other metrics of a learner come from the algorithm's update
    *READING,
    Metric(
        "priorities_lost",
        "priorities that a replay worker did not take: it had no room, or had ended",
        "count",
        "0",
        "total",
    ),
    Metric(
        "skipped",
        "updates without training so far: rows collected before a director's reset or copy",
        "count",
        "few",
        "total",
    ),
    Metric("updates_per_s", "updates", "1/s", "level"),
    Metric("rows_per_s", "rows trained on (reuse counted)", "1/s", "level"),
    Metric("trained_s", "when the line's last update ended, by the host's monotonic clock", "s", "-", "max"),
    Metric("window_age_mean", "with replay workers: the same of a window, when it is drawn", "updates", "depends"),
    Metric("window_age_p50", "median of the same", "updates", "depends"),
    Metric("window_age_p95", "95th percentile of the same", "updates", "depends"),
    Metric("window_age_max", "largest of the same", "updates", "depends"),
)

SAID = (  # by the updates of our own algorithms; those of other algorithms are reported under their own names
    Metric("loss", "the loss that is minimised", "-", "finite"),
    Metric("loss_policy", "policy part of the loss", "-", "small, around 0"),
    Metric("loss_value", "value part of the loss", "reward^2", "falls, or follows the returns"),
    Metric("entropy", "entropy of the policy", "nats", "falls slowly; not to 0 early"),
    Metric("approx_kl", "KL from the acting to the updated policy", "nats", "0.001-0.03"),
    Metric("clip_fraction", "share of rows whose ratio is clipped", "0-1", "0.05-0.3"),
    Metric("explained_variance", "share of the returns' variance that the value explains", "<= 1", "towards 1"),
    Metric("grad_norm", "global gradient norm before clipping", "-", "finite, no growing trend"),
    Metric("learning_rate", "learning rate of the last gradient step", "-", "as scheduled"),
    Metric("epochs_run", "epochs run before the KL stop", "count", "the configured number"),
    Metric("value_mean", "mean value of the sampled actions", "reward", "towards the discounted return"),
    Metric("loss_auxiliary", "value loss of the policy's features in PPG's last auxiliary phase", "reward^2", "falls"),
    Metric(
        "kl_clone",
        "KL from the policy before that phase to the policy in it, mean over its steps",
        "nats",
        "below 0.03",
    ),
    Metric("temperature", "weight of the entropy in SAC", "reward/nat", "falls, then level; above 0"),
    Metric(
        "split_policy_staleness",
        "age of the critics that the policy's device uses",
        "updates",
        "at most two calls",
    ),
    Metric(
        "split_critic_staleness",
        "age of the policy that the critics' device uses",
        "updates",
        "at most two calls",
    ),
    Metric("epsilon", "chance of a random action in DQN and PQN", "0-1", "as scheduled"),
    Metric(
        "hyperparameter_learning_rate",
        "learning rate that a population explores; others: `hyperparameter_NAME`",
        "-",
        "varies",
    ),
)

SETTINGS = ("agent", "seed", "learner", "replay", "batch_envs", "max_policy_lag", "total_env_steps")


def check_settings(worker: Any) -> None:
    """Refuse unknown settings of a learner in a graph: settings are options of its experiment, by name."""
    settings = worker.settings
    if settings is None:
        return
    if not isinstance(settings, dict) or (unknown := sorted(set(settings) - set(SETTINGS))):
        given = (
            f"has the settings {', '.join(map(repr, unknown))}"
            if isinstance(settings, dict)
            else f"is told {settings!r}"
        )
        raise ConfigError(
            f"{worker.name} {given}; a learner takes a dict with any of: {', '.join(SETTINGS)}. All other options "
            "of the experiment hold for the whole run."
        )
    for name, value in settings.items():
        if isinstance(value, dict):
            raise ConfigError(
                f"{worker.name} has a dict as its setting {name!r}; give the value of the experiment's option, such as "
                "LearnerConfig(reuse=2)."
            )


def needs_folder(e: Experiment) -> str:
    """Return what a learner does in the run folder besides writing snapshots; empty: nothing."""
    if e.director is not None:
        return "it freezes players there"
    return "it reads a recording" if e.recording is not None else ""


def keeps_files(job: Job) -> tuple[str, ...]:
    """Return the folders of a learner's files: its snapshots, an update that failed, the params that it begins with."""
    folders = (job.snapshots / "state", job.failed_update, job.begins_with)
    return tuple(str(folder.relative_to(job.folder)) for folder in folders)


RESOURCES = Resources(device="learns", threads=lambda e: e.learner.threads, memory_bytes=learner_keeps)

KIND = Kind(
    name="learner",
    plural="learners",
    build="jsrl.workers.learner.build:build_learner",
    ports=(
        Port("samples", "samples", "reads", optional=True, schemas=("trajectory", "batches")),
        Port("priorities", "samples", "writes", optional=True, schemas=("priorities",)),
        Port("params", "params", "writes"),
        Port("ranks", "ranks", "answers", optional=True),
    ),
    sends=("finished", "saved", "saving", "done", "scores", "stand_in"),
    check=check_settings,
    resources=RESOURCES,
    lifecycle=Lifecycle("snapshot", saves=True, must_finish=True, check_resume="jsrl.workers.frozen:check_players"),
    shown=Shown(
        ACTIVITIES,
        (*MEASURED, *SAID),
        Headline("updates_per_s", "updates/s", "queue_depth", ("publish",)),
        prefixes=("snapshots", "ledger", "replay"),
    ),
    travel=Travel(needs_folder, keeps_files),
)

RANK = Kind(  # a process of a learner besides the first
    name="rank",
    plural="ranks",
    build="jsrl.workers.learner.build:build_learner",
    ports=(Port("ranks", "ranks", "asks"), Port("samples", "samples", "reads", schemas=("trajectory",))),
    sends=("stand_in",),
    resources=RESOURCES,
    lifecycle=Lifecycle(saves=True),  # it waits for the learner's last snapshot
    shown=Shown(
        (
            Activity(
                "wait_batch",
                "wait",
                "share of time waiting for a batch, here or on another rank",
                "below 0.2 (else: more actors)",
                "batch",
            ),
            WAIT_OTHERS,
            UPDATE,
            *JOINING,
        ),
        (*READING, Metric("updates_per_s", "updates", "1/s", "as the learner's")),
        Headline("updates_per_s", "updates/s", "queue_depth"),
    ),
    travel=Travel(needs_folder=""),
)

FUSED = Kind(  # a learner whose batches are played in the program that learns from them
    name="fused",
    plural="fused workers",
    build="jsrl.workers.fused.worker:build_fused",
    ports=(Port("params", "params", "writes"),),
    sends=("finished", "saved", "saving", "done"),
    check=check_settings,
    resources=RESOURCES,
    lifecycle=Lifecycle("snapshot", saves=True, must_finish=True),
    shown=Shown(
        (
            WAIT_OTHERS,
            Activity(
                "update", "train", "share of time in the compiled program: environments, acting, updates", "above 0.9"
            ),
            PUBLISH,
            SNAPSHOT,
        ),
        (*MEASURED, *SAID),
        Headline("updates_per_s", "updates/s", others=("publish",)),
        prefixes=("actor", "snapshots", "ledger", "replay"),
        death_hint=end_hint,
        named="learner",
    ),
    travel=Travel("", keeps_files),
)

# names that metrics of an agent cannot have
RESERVED = frozenset([*(metric.name for metric in MEASURED), *(f"{a.name}_share" for a in KIND.all_activities)])
