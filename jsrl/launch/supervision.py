"""Restarts: the budget and pause of each worker, and the start point of a replacement."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jsrl.errors import counted
from jsrl.experiment import Experiment
from jsrl.launch.resume import newest_good
from jsrl.rate_limit import RateLimit
from jsrl.snapshots.store import SnapshotStore
from jsrl.transport.ledger.hops import ledger_path
from jsrl.transport.ledger.page import read_page
from jsrl.types import version_updates
from jsrl.workers.jobs import Job, StartPoint
from jsrl.workers.kinds import Kind, find_kind, value_of


class Budget(RateLimit):
    """The restarts of one worker within a window of time.

    Args:
      limit: restarts within `window_s`. backoff_s: before the first, doubled for each further one up to `max_backoff_s`.
      clock: returns seconds.
    """

    def __init__(
        self,
        limit: int,
        window_s: float,
        backoff_s: float,
        max_backoff_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(limit, window_s)
        self._backoff_s, self._max_backoff_s, self._clock = backoff_s, max_backoff_s, clock

    def take(self) -> float | None:
        """Use one restart: return the seconds to wait before it, or None when the budget is exhausted."""
        pause_s = self.pause_s
        return pause_s if self.spend(self._clock()) else None

    @property
    def num_used(self) -> int:
        return self.used(self._clock())

    @property
    def pause_s(self) -> float:
        return min(self._backoff_s * 2.0 ** min(self.num_used, 60), self._max_backoff_s)


def restarts(e: Experiment, kind: Kind) -> int:
    own = e.supervision.restarts.get(kind.prefix)
    return max(e.restart, value_of(kind.lifecycle.min_restarts, e)) if own is None else own


class Supervision:
    """The budgets of all workers of a run, and their restarts so far."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self._experiment, self._clock = experiment, clock
        self._budgets: dict[str, Budget] = {}
        self.restarts: dict[str, int] = {}

    def budget(self, job: Job) -> Budget:
        if job.name not in self._budgets:
            s = self._experiment.supervision
            limit = restarts(self._experiment, find_kind(job.kind)) if job.restart is None else job.restart
            self._budgets[job.name] = Budget(limit, s.window_s, s.backoff_s, s.max_backoff_s, self._clock)
        return self._budgets[job.name]

    def take(self, job: Job, *, is_free: bool = False) -> float | None:
        """Use one restart of this worker: return the seconds to wait before it, or None when the budget is exhausted.

        `is_free`: it is not charged to the worker's budget, if the worker may be restarted at all.
        """
        budget = self.budget(job)
        pause_s = budget.pause_s if is_free and budget.limit else budget.take()
        if pause_s is not None:
            kind = find_kind(job.kind).prefix
            self.restarts[kind] = self.restarts.get(kind, 0) + 1
        return pause_s

    def metrics(self) -> dict[str, float]:
        return {f"restarts/{kind}": float(count) for kind, count in self.restarts.items()}

    def text(self, job: Job) -> str:
        budget = self.budget(job)
        return f"restart {budget.num_used} of {budget.limit} within {budget.window_s:g} s"

    def used_up(self, job: Job) -> str:
        """Return why this worker is not restarted any more, as text; empty: it never was restarted."""
        budget = self.budget(job)
        if not budget.num_used:
            return ""
        return (
            f"{job.name} has used its {counted(budget.limit, 'restart')} within {budget.window_s:g} s. "
            "Restarts do not repair it: see the reason above, or allow more with --restart."
        )


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
