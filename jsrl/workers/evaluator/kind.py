"""Evaluators: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from typing import Any

from jsrl.experiment import Experiment
from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.services.runs.control_bodies import FINAL
from jsrl.workers.base import end_hint
from jsrl.workers.kinds import Kind, LastTask, Lifecycle, Port, Shown, Travel

ACTIVITIES = (
    Activity("env", "simulate", "share of time inside environments", "depends"),
    Activity("act", "infer", "share of time acting", "depends"),
    Activity(
        "wait",
        "wait",
        "share of time with nothing to score",
        "above 0.5 (else: score less often)",
        waits_for="nothing to do",
    ),
    Activity("publish", "publish", "share of time writing the best params", "near 0"),
)

METRICS = (
    Metric("return_mean", "mean raw return of greedy episodes of one snapshot", "reward", "rises"),
    Metric("return_std", "standard deviation over those episodes", "reward", "depends"),
    Metric("return_ci95", "half width of the mean's 95% confidence interval", "reward", "far below the mean"),
    Metric("length_mean", "mean length of those episodes", "steps", "depends"),
    Metric("episodes", "episodes in this evaluation", "count", "as configured", "sum"),
    Metric("version_updates", "updates that the evaluated params have seen", "updates", "rises"),
    Metric("win_rate", "mean result against the opponents: win 1, draw 0.5", "0-1", "rises"),
    Metric("win_rate_low", "lower end of its 95% interval", "0-1", "near win_rate"),
    Metric("win_rate_high", "upper end of its 95% interval", "0-1", "near win_rate"),
    Metric("draw_rate", "share of games that were drawn", "0-1", "depends"),
    Metric(
        "cut", "evaluations without a score, because an episode had no end, or time was over", "count", "0", "total"
    ),
    Metric("opponents", "opponents available so far; others are frozen later", "count", "all named ones"),
    Metric("sampled_win_rate", "mean result against the opponents when the policy samples its actions", "0-1", "rises"),
    Metric("sampled_win_rate_low", "lower end of its 95% interval", "0-1", "near sampled_win_rate"),
    Metric("sampled_win_rate_high", "upper end of its 95% interval", "0-1", "near sampled_win_rate"),
    Metric("sampled_return_mean", "mean raw return when actions are sampled", "reward", "below greedy, rises"),
    Metric("sampled_return_std", "standard deviation of those", "reward", "depends"),
    Metric("sampled_return_ci95", "half width of their 95% confidence interval", "reward", "far below the mean"),
    Metric(
        "confirmation_return_mean",
        "mean raw return of a second evaluation, after one that reached the goal",
        "reward",
        "near return_mean",
    ),
    Metric("confirmation_win_rate", "win rate of that evaluation, where opponents are named", "0-1", "near win_rate"),
    Metric("final_win_rate", "mean result against the opponents after the end, fresh seeds", "0-1", "near win_rate"),
    Metric("final_win_rate_low", "lower end of its 95% interval", "0-1", "near final_win_rate"),
    Metric("final_win_rate_high", "upper end of its 95% interval", "0-1", "near final_win_rate"),
    Metric("final_draw_rate", "share of those games that were drawn", "0-1", "depends"),
    Metric("final_opponents", "opponents of the final evaluation", "count", "all named ones"),
    Metric("final_return_mean", "mean raw return after the end, fresh seeds", "reward", "near return_mean"),
    Metric("final_return_std", "standard deviation over those episodes", "reward", "depends"),
    Metric("final_return_ci95", "half width of the 95% confidence interval", "reward", "far below the mean"),
    Metric("final_length_mean", "mean length of those episodes", "steps", "depends"),
    Metric("final_episodes", "episodes of the final evaluation", "count", "as configured", "sum"),
    Metric(
        "final_version_updates", "updates that the finally evaluated params have seen", "updates", "the best or last"
    ),
)


def final(experiment: Experiment, reason: str) -> dict[str, Any] | None:
    """Return which params the final evaluation scores; None: there is no final evaluation."""
    if experiment.evaluator.final_episodes < 1:
        return None
    several = len(experiment.policies) > 1  # then the newest params reached their goals together
    return {"which": "best" if reason == "stop_at_return" and not several else "latest"}


KIND = Kind(
    name="evaluator",
    plural="evaluators",
    build="jsrl.workers.evaluator.worker:build_evaluator",
    ports=(Port("params", "params", "reads", by_policy=True),),
    sends=("evaluated", "confirmed", FINAL, "saved"),
    lifecycle=Lifecycle(last_task=LastTask(final, "final evaluation")),
    shown=Shown(ACTIVITIES, METRICS, death_hint=end_hint),
    travel=Travel(
        needs_folder=lambda e: (
            "it plays against other runs" if any("@" in name for name in e.evaluator.against) else ""
        ),
        keeps_files=lambda job: (f"{job.snapshots.relative_to(job.folder)}/params",),
    ),
)
