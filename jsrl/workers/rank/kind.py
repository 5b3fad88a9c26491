"""Ranks: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Headline, Kind, Lifecycle, Port, Shown, Travel
from jsrl.workers.learner.kind import JOINING, READING, RESOURCES, WAIT_OTHERS

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
    *JOINING,
)
METRICS = (*READING, Metric("updates_per_s", "updates", "1/s", "as the learner's"))

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
