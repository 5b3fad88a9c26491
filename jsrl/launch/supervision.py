"""Restarts: the budget of each worker, and the start point of a replacement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsrl.control.supervision import Budgets, Limits, Rules
from jsrl.errors import counted
from jsrl.experiment import Experiment
from jsrl.launch.resume import newest_good
from jsrl.snapshots.store import SnapshotStore
from jsrl.transport.ledger.hops import ledger_path
from jsrl.transport.ledger.page import read_page
from jsrl.types import version_updates
from jsrl.workers.jobs import Job, StartPoint
from jsrl.workers.kinds import Kind, find_kind, value_of


def restarts(e: Experiment, kind: Kind) -> int:
    own = e.supervision.restarts.get(kind.prefix)
    return max(e.restart, value_of(kind.lifecycle.min_restarts, e)) if own is None else own


def budgets_of(e: Experiment, jobs: Sequence[Job]) -> Budgets:
    """Return the budgets of a run's workers."""
    rules = {}
    for job in jobs:
        kind = find_kind(job.kind)
        rules[job.name] = Rules(kind.prefix, restarts(e, kind) if job.restart is None else job.restart)
    return Budgets(rules, Limits(e.supervision.window_s, e.supervision.backoff_s, e.supervision.max_backoff_s))


@dataclass(frozen=True)
class Restart:
    """A planned restart: at `due_s` by the monotonic clock, as incarnation `count` + 1 of the job."""

    due_s: float
    job: Job
    count: int


def replacement_job(job: Job, folder: Path) -> tuple[Job, list[str]]:
    """Return the job that replaces a dead worker, and warnings: a higher incarnation; its state is the last good snapshot."""
    job = dataclasses.replace(job, incarnation=job.incarnation + 1)
    if find_kind(job.kind).lifecycle.state != "snapshot":
        return job, []
    start_point, broken = last_committed(job.start_point, job.snapshots / "state", page_of(job, folder))
    used = [f"{job.name} continues from update {start_point.made:,} instead"] if broken else []
    return dataclasses.replace(job, start_point=start_point), broken + used


def lost_text(job: Job, updates: int) -> str:
    """Return how many updates a learner's replacement makes again, as text; empty: none.

    Args:
      job: of the replacement. updates: of the dead learner, when it last reported them.
    """
    start, lost = job.start_point.made, updates - job.start_point.made
    if not find_kind(job.kind).lifecycle.must_finish or lost <= 0:
        return ""
    why = "" if job.start_point.restore and not job.start_point.params_only else ", as there is no snapshot yet"
    return f"{job.name} continues from update {start:,}{why}; at least {counted(lost, 'update')} are lost"


def page_of(job: Job, folder: Path) -> Path:
    return ledger_path(folder, job.input_hop)


def last_committed(start_point: StartPoint, snapshots: Path, ledger: Path) -> tuple[StartPoint, list[str]]:
    """Return a learner's new start point in a new epoch, and what is wrong with newer snapshots.

    It is the last good snapshot, or the run's start if none was committed yet.

    Args:
      start_point: of the run. snapshots: folder of the learner's states. ledger: the page of its counts.

    Raises:
      SnapshotError: there are snapshots, and all are damaged; from the start it would replace them.
    """
    content = read_page(ledger)
    epoch = max(start_point.epoch, content.epoch if content is not None else 0) + 1
    store = SnapshotStore(snapshots)
    if not store.versions():
        return dataclasses.replace(start_point, epoch=epoch), []
    version, broken = newest_good(store)
    meta = store.meta(version)
    number, env_steps = version_updates(version), int(meta.get("env_steps", 0))
    unmade = number - int(meta["updates"])
    return StartPoint(epoch, number, f"{store.folder}@{version}", env_steps=env_steps, unmade=unmade), broken
