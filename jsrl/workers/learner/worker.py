"""The learner: batches in, updates, params out; snapshots are written in the background."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jsrl.agents.base import MADE, AgentState, ReplayExtra, UpdateOutput
from jsrl.errors import AgentFault, SnapshotError
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import ParamsPublisher
from jsrl.types import make_version
from jsrl.workers.acting import UPDATE_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.sources import ONE_RANK, OneRank, Source
from jsrl.workers.learner.updaters import NO_DIRECTOR, Check, DirectorLink, LearnerState, Updater, reported

if TYPE_CHECKING:
    from jsrl.workers.attached.ranks import RankLink


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of a learner: when it ends, where it starts, and how it makes updates and snapshots.

    Attributes:
      total_env_steps: the end. epoch: of this process. start_updates, start_unmade: see StartPoint.
      start_trained: trajectories that its first state was trained on.
      updates_per_call: of the updater. calls_per_batch: with each batch. name: of the worker.
      drains: before it leaves it trains on the whole batches that are there, so that all learners leave after the same update.
      ages: metric of the age of the params that chose a batch's actions.
      shares_rows: its stream has other readers, or its environments have other policies: they would wait if it stopped
        reading.
    """

    seed: int
    total_env_steps: int
    epoch: int = 0
    start_updates: int = 0
    start_unmade: int = 0
    start_trained: int = 0
    updates_per_call: int = 1
    calls_per_batch: int = 1
    snapshot_period_s: float = 60.0
    poll_s: float = 0.1
    shares_rows: bool = False
    name: str = "learner"
    drains: bool = False
    ages: str = "policy_lag"


class Learner:
    """A worker that owns the agent's state.

    Args:
      updater: makes the updates. begin: () -> the first state, on its devices.
      connect: () -> (source of batches, params publisher), called when the update is compiled.
      check: checks each update before it is published. store: of snapshots.
      directed: the director's commands. ranks: the connection to its other ranks.

    Attributes:
      number: of its version. It rises with every call of the update, also where replay only fills, so that actors go on.
    """

    _counts_rows = True

    def __init__(
        self,
        updater: Updater,
        begin: Callable[[], Any],
        connect: Callable[[], tuple[Source, ParamsPublisher]],
        check: Check,
        store: SnapshotStore,
        settings: LearnerSettings,
        reporter: Reporter,
        meter: Meter | None = None,
        directed: DirectorLink = NO_DIRECTOR,
        ranks: RankLink | OneRank = ONE_RANK,
    ) -> None:
        self.name = settings.name
        self._directed, self._ranks = directed, ranks
        self._updater, self._begin, self._connect, self._check = updater, begin, connect, check
        self._store, self._settings, self._reporter = store, settings, reporter
        self.number, self._unmade = settings.start_updates, settings.start_unmade
        self._trained = settings.start_trained
        self._key = stream_key(settings.seed, UPDATE_STREAM)
        self.meter = self._meter = meter or Meter("learner")
        self._phases = self.meter.phases
        self._replay_metrics: dict[str, float] = {}
        self._finished = self._counts_checked = False
        self._unsaved = ""  # why the final snapshot was not written
        self._open = contextlib.ExitStack()  # the source, once it is bound
        self._trained_s = 0.0
        self._snapshot_at = time.monotonic() + settings.snapshot_period_s

    @property
    def version(self) -> int:
        return make_version(self._settings.epoch, self.number)

    @property
    def updates(self) -> int:
        return self.number - self._unmade

    @property
    def counts(self) -> dict[str, Any]:
        return {"updates": self.updates, "version": self.version, "env_steps": self.env_steps}

    def _now(self) -> LearnerState:
        return LearnerState(self.version, self.number, self._state)

    @property
    def turn_limit_s(self) -> float | None:
        """Return the time limit of one turn of the loop; None: as for any worker."""
        return self._ranks.limit.seconds

    @property
    def env_steps(self) -> int:
        """Return the env steps trained on so far (with replay workers: those they inserted)."""
        return self._source.env_steps(self.number)

    @property
    def finished(self) -> bool:
        return self.env_steps >= self._settings.total_env_steps

    def setup(self) -> None:
        """Make the state, compile the update, bind the streams, publish the first params."""
        self._reporter.stage("making the agent's state")
        self._state = self._begin()
        self._reporter.stage("binding streams")
        self._source, self._publisher = self._connect()
        self._open.callback(self._source.close)
        self._publish(self._updater.fetch(self._state.params))
        self._directed.begin(self._now())
        self._reporter.stage("compiling the update")
        self._updater.compile(self._state, self._source.example(), self._key)
        self._source.begin()

    def step(self) -> int:
        """Make the updates of one batch and publish; return their number (0: no batch in time, or all are made)."""
        made = self._train()
        self._phases.rest()
        return made

    def _train(self) -> int:
        if self.finished:
            self._report_finished()
            self._save_when_due()  # other policies may be trained for long
            self._wait_for_others()
            return 0
        self._phases.enter("wait_batch")
        batch = self._source.next(self._settings.poll_s)
        if batch is None:
            return 0
        return self._train_on(batch)

    def _train_on(self, batch: Batch) -> int:
        if self._phases.tracing:
            self._phases.mark("queue depth", self._source.pending())
        before = self.number
        for _ in range(self._settings.calls_per_batch):
            output = self._update(batch)
        batches = self.number // (self._settings.calls_per_batch * self._settings.updates_per_call)
        self._directed.trained(batch, output, batches)
        self._trained += len(batch.lags)
        self._phases.enter("other")
        rows = self._source.used(batch, output)
        self._meter.spread(self._settings.ages, batch.lags)
        if rows and self._counts_rows:
            self._meter.rate("rows", rows)
        self._save_when_due()
        self._report_finished()
        return self.number - before

    def _update(self, batch: Batch) -> UpdateOutput:
        """Make the next update: learn, take a director's state, or skip rows from before it.

        Rows in replay on the device stay: the new state takes them over, and learns from them and this batch.
        """
        replaced = self._directed.next_state(self.number)
        if replaced is not None:
            before, self._state = self._state, replaced
            if not isinstance(getattr(before, "extra", None), ReplayExtra):
                return self._skip()
            self._state = replaced._replace(extra=replaced.extra._replace(ring=before.extra.ring))
        return self._learn(batch) if self._directed.trains(batch) else self._skip()

    def _learn(self, batch: Batch) -> UpdateOutput:
        """Make one call of the update."""
        self._phases.enter("update")
        key = jax.random.fold_in(self._key, self.number)
        before = self._state
        own_count = None if self._counts_checked else own_updates(before)
        self._reporter.entering("an update")
        self._state, output = self._updater(before, batch.trajectory, key)
        fetched, params = self._updater.fetch((output.metrics, self._state.params))  # waits for the update
        self._reporter.left()
        metrics = {name: float(value) for name, value in fetched.items()}
        self._phases.enter("other")
        refused = self._check((self.number, self.updates), before, self._state, batch.trajectory, metrics)
        if refused is not None:
            self._state = refused.state
            self.save(wait=True)  # a resume starts here, with other trajectories
            raise refused.error
        made = int(metrics.get(MADE, self._settings.updates_per_call))
        if own_count is not None and made:
            check_own_updates(own_updates(self._state), own_count + made)
            self._counts_checked = True
        metrics, self._replay_metrics = reported(metrics)
        self._count(made)
        self._trained_s = time.monotonic()
        self._meter.rate("updates", made)
        self._note(metrics)
        self._phases.mark("updates", self.updates)
        self._publish(params)
        return UpdateOutput(metrics, output.priorities)

    def _count(self, made: int) -> None:
        self.number += self._settings.updates_per_call
        self._unmade += self._settings.updates_per_call - made

    def _note(self, metrics: dict[str, float]) -> None:
        self._meter.means(metrics)

    def _skip(self) -> UpdateOutput:
        """Publish a version without learning, so that actors continue."""
        self._count(0)
        self._meter.count("skipped", self._settings.updates_per_call)
        self._publish(self._updater.fetch(self._state.params))
        return UpdateOutput({}, None)

    def _publish(self, params: Any) -> None:
        self._phases.enter("publish")
        self._publisher.publish(0, self.version, jax.tree.leaves(params))
        self._phases.enter("other")

    def _wait_for_others(self) -> None:
        """Wait until the run ends; read and drop batches if the writers serve other readers as well."""
        self._phases.enter("wait_others")
        batch = self._source.next(self._settings.poll_s) if self._settings.shares_rows else None
        if batch is not None:
            self._source.used(batch, UpdateOutput({}, None))
        elif not self._settings.shares_rows:
            time.sleep(self._settings.poll_s)

    def _report_finished(self) -> None:
        if self.finished and not self._finished:
            self._finished = True
            self._reporter.event("finished", **self.counts)

    def _save_when_due(self) -> None:
        """Write a snapshot periodically; none without a change once all updates are made."""
        now_s = time.monotonic()
        if now_s >= self._snapshot_at:
            self._snapshot_at = math.inf if self.finished else now_s + self._settings.snapshot_period_s
            self.save(wait=False)

    def save(self, *, wait: bool, tags: tuple[str, ...] = ("latest",)) -> None:
        """Write the whole state as a snapshot; training continues without it if the disk fails."""
        self._phases.enter("snapshot")
        self._reporter.event("saving", version=self.version)
        with self._ranks.limit.lifted(self._reporter) if wait else contextlib.nullcontext():
            state = self._updater.saved(self._state)
            self._unmade -= self._updater.late()
            meta: dict[str, Any] = {"updates": self.updates, "env_steps": self.env_steps}
            meta |= {"epoch": self._settings.epoch, "ledger": self._ledger | {"trained": self._trained}}
            meta |= self._directed.meta()
            try:
                self._store.save(self.version, {"state": state}, meta=meta, tags=tags, wait=wait)
            except SnapshotError as error:
                last = "final" in tags  # shown even if an earlier one failed: nothing newer will be written
                which, once = ("the final snapshot", "final snapshot") if last else ("snapshot", "snapshots")
                failed = f"{which} of update {self.updates} failed"
                self._unsaved = f"{failed}: {str(error).partition('. ')[0]}" if last else ""
                self._reporter.event("warning", f"{failed}: {error}", once=once)
        self._phases.rest()

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        self._meter.last("queue_depth", self._source.pending())
        for name, count in self._source.counts.items():
            self._meter.last(name, count)
        if self._trained_s:
            self._meter.last("trained_s", self._trained_s)
        ledger = self._source.ledger
        dropped = sum((ledger.dropped or {}).values())
        counts = {"received": ledger.received, "consumed": ledger.consumed, "dropped": dropped}
        counts["in_flight"] = ledger.in_flight
        queue = self._store.queue
        snapshots: dict[str, float] = {"written": queue.written, "failed": queue.failed, "superseded": queue.superseded}
        snapshots |= {"last_write_s": queue.last_write_s} if queue.written else {}
        metrics = {f"snapshots/{name}": float(value) for name, value in snapshots.items()}
        metrics |= (
            self._replay_metrics
            | self._meter.flush()
            | {f"ledger/{name}": float(value) for name, value in counts.items()}
        )
        return metrics, self._facts()

    def _facts(self) -> dict[str, Any]:
        return self.counts | {"ledger": self._ledger, "finished": self.finished}

    @property
    def _ledger(self) -> dict[str, Any]:
        return self._source.ledger.counts

    def command(self, command: Command) -> None:
        """Execute `snapshot`, `absent`: groups that nobody steps now, and a director's commands."""
        if command.name == "absent":
            self._source.stand_in(command.facts["groups"])
        elif command.name == "snapshot":
            self.save(wait=True)
            self._reporter.event("snapshotted", updates=self.updates)
        else:
            self._directed.execute(command.name, command.facts, self._now(), functools.partial(self.save, wait=True))

    def drop_pending(self) -> None:
        """Count waiting trajectories as dropped and read no more; used when a step failed."""
        self._open.close()

    def close(self) -> dict[str, Any]:
        while self._settings.drains and not self.finished and self._train():
            pass
        self._ranks.halt()
        self.save(wait=True, tags=("latest", "final"))
        self._ranks.leave()  # not earlier: jax's processes write snapshots while they form a group
        self._updater.close()
        self._open.close()
        facts = self._facts() | ({"unsaved": self._unsaved} if self._unsaved else {})
        self._publisher.close()
        self._store.close()
        return facts


def own_updates(state: Any) -> int | None:
    """Return the updates that an agent has counted in its state; None: they are spread over two devices."""
    return int(np.ravel(state.updates)[0]) if isinstance(state, AgentState) else None


def check_own_updates(counted: int | None, expected: int) -> None:
    """Check that an update counts itself: schedules and exploration follow this count."""
    if counted != expected:
        raise AgentFault(
            f"update returned a state with updates={counted}, expected {expected}: return updates=state.updates + 1, which "
            "schedules and resumes follow"
        )
