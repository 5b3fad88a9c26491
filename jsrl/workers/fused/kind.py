"""Fused workers: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.phases import Activity
from jsrl.workers.base import end_hint
from jsrl.workers.kinds import Headline, Kind, Lifecycle, Port, Shown, Travel
from jsrl.workers.learner.kind import MEASURED, RESOURCES, SAID, WAIT_OTHERS, check_settings, keeps_files

ACTIVITIES = (
    WAIT_OTHERS,
    Activity("update", "train", "share of time in the compiled program: environments, acting, updates", "above 0.9"),
    Activity("publish", "publish", "share of time publishing params", "below 0.05"),
    Activity("snapshot", "publish", "share of time copying the state for a snapshot", "near 0"),
)

KIND = Kind(
    name="fused",
    plural="fused workers",
    build="jsrl.workers.fused.worker:build_fused",
    ports=(Port("params", "params", "writes"),),
    sends=("finished", "saved", "saving", "done"),
    check=check_settings,
    resources=RESOURCES,
    lifecycle=Lifecycle(state="snapshot", saves=True, must_finish=True),
    shown=Shown(
        ACTIVITIES,
        (*MEASURED, *SAID),
        Headline("updates_per_s", "updates/s", others=("publish",)),
        prefixes=("actor", "snapshots", "ledger", "replay"),
        death_hint=end_hint,
        named="learner",
    ),
    travel=Travel("", keeps_files),
)
