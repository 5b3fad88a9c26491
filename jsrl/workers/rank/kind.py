"""Ranks: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Headline, Kind, Lifecycle, Port, Shown, Travel
from jsrl.workers.learner.kind import RESOURCES, WAIT_OTHERS

ACTIVITIES = (
    Activity(
        "wait_batch",
        "wait",
        "share of time waiting for a batch, here or on another rank",
        "below 0.2 (else: more actors)",
        waits_for="batch",
    ),
    WAIT_OTHERS,
    Activity("update", "train", "share of time in updates", "above 0.7"),
    Activity("prefetch_wait_batch", "wait", "share of the joining thread's time waiting for rows", "above 0.2"),
    Activity("prefetch_transport", "transport", "share of the joining thread's time joining rows", "below 0.5"),
    Activity("prefetch_wait_learner", "wait", "share of the joining thread's time with a batch ready", "depends"),
    Activity("prefetch_other", "other", "share of the joining thread's time in none of these", "near 0"),
    Activity("transport", "transport", "share of time joining rows into batches in the main thread"),
)

METRICS = (
    Metric("refused", "rejected connections and messages", "count", "0", "total"),
    Metric("updates_per_s", "updates", "1/s", "as the learner's"),
    Metric("queue_depth", "trajectories that wait for the rank", "count", "1-4; rising: the learner is slow"),
    Metric("policy_lag_mean", "age of the params that chose a row's action, in updates", "updates", "as the learner's"),
    Metric("policy_lag_p50", "median of the same", "updates", "as the learner's"),
    Metric("policy_lag_p95", "95th percentile of the same", "updates", "as the learner's"),
    Metric("policy_lag_max", "largest of the same", "updates", "at most the maximum policy lag"),
)

KIND = Kind(
    name="rank",
    plural="ranks",
    build="jsrl.workers.learner.build:build_learner",
    ports=(Port("ranks", "ranks", "asks"), Port("samples", "samples", "reads", schemas=("trajectory",))),
    sends=("stand_in",),
    resources=RESOURCES,
    lifecycle=Lifecycle(saves=True),  # it waits for the learner's last snapshot
    shown=Shown(ACTIVITIES, METRICS, Headline("updates_per_s", "updates/s", "queue_depth")),
    travel=Travel(needs_folder=""),
)
