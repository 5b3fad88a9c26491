"""The learner: batches in, updates, params out; snapshots are written in the background."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jsrl.agents.base import MADE, UpdateOutput
from jsrl.services.runs.control_bodies import Command
from jsrl.types import make_version
from jsrl.workers.base import Reporter
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.outlet import Outlet
from jsrl.workers.learner.seams import Gate, LearnerState, Lifecycle, Skip, Snapshot, Source
from jsrl.workers.learner.updaters import Updater, reported


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of a learner: when it ends, where it starts, and how it makes updates and snapshots.

    Attributes:
      total_env_steps: the end. generation: of this process.
      start_updates, start_unmade: see StartPoint. start_trained: trajectories that its first state was trained on.
      updates_per_call: of the updater. calls_per_batch: with each batch. name: of the worker.
      drains: before it leaves it trains on the whole batches that are there, so that all learners leave after the same update.
      ages: metric of the age of the params that chose a batch's actions.
      shares_rows: its stream has other readers, or its environments have other policies: they would wait if it stopped
        reading.
    """

    total_env_steps: int
    generation: int = 0
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
      connect: () -> source of batches, called when the update is compiled.
      gates, lifecycle: see jsrl.workers.learner.seams.

    Attributes:
      number: its version's. Every call of the update raises it, also one in which a replay only fills: actors wait for it.
    """

    def __init__(
        self,
        updater: Updater,
        begin: Callable[[], Any],
        connect: Callable[[], Source],
        outlet: Outlet,
        settings: LearnerSettings,
        reporter: Reporter,
        gates: Sequence[Gate] = (),
        lifecycle: Lifecycle | None = None,
    ) -> None:
        self.name, self.meter = settings.name, outlet.meter
        self._updater, self._begin, self._connect = updater, begin, connect
        self._outlet, self._gates, self._lifecycle = outlet, gates, lifecycle or Lifecycle()
        self._settings, self._reporter = settings, reporter
        self.number, self._unmade = settings.start_updates, settings.start_unmade
        self._trained = settings.start_trained
        self._phases = self.meter.phases
        self._finished = False
        self._open = contextlib.ExitStack()  # the source, once it is bound
        self._snapshot_at = time.monotonic() + settings.snapshot_period_s

    @property
    def version(self) -> int:
        return make_version(self._settings.generation, self.number)

    @property
    def updates(self) -> int:
        return self.number - self._unmade

    @property
    def counts(self) -> dict[str, Any]:
        return {"updates": self.updates, "version": self.version, "env_steps": self.env_steps}

    @property
    def turn_limit_s(self) -> float | None:
        """Return the time limit of one turn of the loop; None: as for any worker."""
        return self._lifecycle.limit_s

    @property
    def env_steps(self) -> int:
        """Return the env steps trained on so far (with replay workers: those they inserted)."""
        return self._source.env_steps(self.number)

    @property
    def finished(self) -> bool:
        return self.env_steps >= self._settings.total_env_steps

    def _now(self) -> LearnerState:
        return LearnerState(self.version, self.number, self.updates, self._state)

    def setup(self) -> None:
        """Make the state, compile the update, bind the streams, publish the first params."""
        self._reporter.stage("making the agent's state")
        self._state = self._begin()
        self._reporter.stage("binding streams")
        self._source = self._connect()
        self._open.callback(self._source.close)
        self._outlet.open()
        self._outlet.publish(self.version, self._updater.fetch(self._state.params))
        for gate in self._gates:
            gate.begin(self._now())
        self._reporter.stage("compiling the update")
        self._updater.compile(self._state, self._source.example())
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
        return 0 if batch is None else self._train_on(batch)

    def _train_on(self, batch: Batch) -> int:
        if self._phases.tracing:
            self._phases.mark("queue depth", self._source.pending())
        before = self.number
        for _ in range(self._settings.calls_per_batch):
            output = self._update(batch)
        batches = self.number // (self._settings.calls_per_batch * self._settings.updates_per_call)
        for gate in self._gates:
            gate.trained(batch, output, batches)
        self._trained += len(batch.lags)
        self._phases.enter("other")
        self._outlet.trained(self._source.used(batch, output))
        self.meter.spread(self._settings.ages, batch.lags)
        self._save_when_due()
        self._report_finished()
        return self.number - before

    def _update(self, batch: Batch) -> UpdateOutput:
        """Make the next update, unless a gate skips it."""
        now = self._now()
        for gate in self._gates:
            state = gate.before(now, batch)
            if isinstance(state, Skip):
                self._state = state.state
                return self._skip()
            if state is not now.state:
                now = now._replace(state=state)
        return self._learn(now, batch)

    def _learn(self, before: LearnerState, batch: Batch) -> UpdateOutput:
        """Make one call of the update."""
        self._phases.enter("update")
        self._reporter.entering("an update")
        self._state, told, priorities = self._updater(before.state, batch.trajectory, self.number)
        fetched, params = self._updater.fetch(told)  # waits for the update
        self._reporter.left()
        metrics = {name: float(value) for name, value in fetched.items()}
        self._phases.enter("other")
        for gate in self._gates:
            refused = gate.after(before, self._state, batch, metrics)
            if refused is not None:
                self._state = refused.state
                self.save(wait=True)  # a resume starts here, with other trajectories
                raise refused.error
        made = int(metrics.get(MADE, self._settings.updates_per_call))
        metrics, replay = reported(metrics)
        self._count(made)
        self.meter.rate("updates", made)
        self._outlet.learned(metrics, replay)
        self._phases.mark("updates", self.updates)
        self._outlet.publish(self.version, params)
        return UpdateOutput(metrics, priorities)

    def _count(self, made: int) -> None:
        self.number += self._settings.updates_per_call
        self._unmade += self._settings.updates_per_call - made

    def _skip(self) -> UpdateOutput:
        """Publish a version without learning, so that actors continue."""
        self._count(0)
        self.meter.count("skipped", self._settings.updates_per_call)
        self._outlet.publish(self.version, self._updater.fetch(self._state.params))
        return UpdateOutput({}, None)

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
            self._outlet.event("finished", **self.counts)

    def _save_when_due(self) -> None:
        """Write a snapshot periodically; none without a change once all updates are made."""
        now_s = time.monotonic()
        if now_s >= self._snapshot_at:
            self._snapshot_at = math.inf if self.finished else now_s + self._settings.snapshot_period_s
            self.save(wait=False)

    def save(self, *, wait: bool, tags: tuple[str, ...] = ("latest",)) -> None:
        with self._lifecycle.saving() if wait else contextlib.nullcontext():
            self._outlet.save(self.version, self._snapshot, tags, wait=wait)

    def _snapshot(self) -> Snapshot:
        state = self._updater.saved(self._state)
        self._unmade -= self._updater.late()
        meta: dict[str, Any] = {
            "updates": self.updates,
            "env_steps": self.env_steps,
            "generation": self._settings.generation,
        }
        meta["ledger"] = self._source.ledger().counts | {"trained": self._trained}
        for gate in self._gates:
            meta |= gate.meta()
        return state, meta

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        self.meter.last("queue_depth", self._source.pending())
        for name, count in self._source.counts().items():
            self.meter.last(name, count)
        return self._outlet.report(self._source.ledger(), self._facts())

    def _facts(self) -> dict[str, Any]:
        return self.counts | {"ledger": self._source.ledger().counts, "finished": self.finished}

    def command(self, command: Command) -> None:
        """Execute `snapshot`, `absent` (groups that nobody steps now), and the commands of the gates."""
        if command.name == "absent":
            self._source.stand_in(command.facts["groups"])
        elif command.name == "snapshot":
            self.save(wait=True)
            self._outlet.event("snapshotted", updates=self.updates)
        for gate in self._gates:
            gate.command(command.name, command.facts, self._now(), functools.partial(self.save, wait=True))

    def drop_pending(self) -> None:
        """Count waiting trajectories as dropped and read no more; used when a step failed."""
        self._open.close()

    def close(self) -> dict[str, Any]:
        while self._settings.drains and not self.finished and self._train():
            pass
        while (batch := self._lifecycle.last()) is not None:
            self._train_on(batch)
        self.save(wait=True, tags=("latest", "final"))
        self._lifecycle.leave()
        self._updater.close()
        self._open.close()
        return self._outlet.close(self._facts())
