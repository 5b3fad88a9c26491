"""The learner: batches in, data-parallel updates, params out, snapshots behind its back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jsrl.agents.base import Agent, AgentState
from jsrl.agents.finite import STATE, non_finite_metrics, what_is_bad
from jsrl.errors import NonFiniteUpdate, SnapshotError
from jsrl.metrics.metrics import Recorder
from jsrl.parallel import DataParallel, join_devices
from jsrl.references.reference import spawn_environment
from jsrl.replay.device.agent import OnDevice
from jsrl.runs.control import Command
from jsrl.snapshots.store import SnapshotStore
from jsrl.transport.base import ParamsPublisher, SampleConsumer
from jsrl.types import Trajectory, make_version
from jsrl.workers.acting import INIT_STREAM, UPDATE_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.learner.batching import Batch, Batcher, BatchPlan, Prefetcher
from jsrl.workers.learner.split_update import SplitUpdate
from jsrl.workers.learner.state import begin_state, failed_update, split_metrics
from jsrl.workers.refusals import Refusals

FAILED_UPDATE = "failed-update"  # folder of a run: the state before an update that was not finite, and its batch


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner has to know: seed, how batches are made, when it ends, and where snapshots go.

    `start_trained`: trajectories that the state it begins with was trained on. `name`: of the worker.
    """

    seed: int
    plan: BatchPlan
    total_updates: int
    rows_per_update: int
    updates_per_call: int = 1
    check_finite: bool = True
    snapshot_period_s: float = 60.0
    prefetch: bool = True
    poll_s: float = 0.1
    failure_folder: str = ""
    total_env_steps: int | None = None
    windows_per_call: int | None = None
    start_trained: int = 0
    name: str = "learner"


class Learner:
    """A worker that owns the agent's state.

    Args:
      agent: whose update. state: a restored state, or None for a fresh one. spec: schema of one group's trajectory.
      connect: () -> (sample consumer, params publisher), called when the update is compiled.
      replay: what `agent` was combined with, where its state holds a ring of rows.
    """

    def __init__(
        self,
        agent: Agent,
        update: DataParallel | SplitUpdate,
        settings: LearnerSettings,
        spec: Trajectory,
        connect: Callable[[], tuple[SampleConsumer, ParamsPublisher]],
        store: SnapshotStore,
        reporter: Reporter,
        *,
        state: AgentState | None = None,
        replay: OnDevice | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.name = settings.name
        self._agent, self._update, self._settings, self._spec = agent, update, settings, spec
        self._connect, self._store, self._reporter, self._restored = connect, store, reporter, state
        self._replay, self._replay_metrics = replay, dict[str, float]()
        self.updates = settings.plan.start_updates
        self._trained = settings.start_trained
        self._key = stream_key(settings.seed, UPDATE_STREAM)
        self._metrics: dict[str, float] = {}
        self.recorder = self._recorder = recorder or Recorder("learner")
        self._phases = self.recorder.phases
        self._finished = False
        self._consumer: Any = None
        self._refusals = Refusals(self.name, reporter)
        self._trained_s = 0.0
        self._snapshot_at = time.monotonic() + settings.snapshot_period_s

    @property
    def version(self) -> int:
        """Return the version of the params as they are now."""
        return make_version(self._settings.plan.epoch, self.updates)

    @property
    def settled(self) -> bool:
        """Return whether its updates have taken the memory that they need."""
        plan = self._settings.plan
        return self.updates >= plan.start_updates + 2 * self._settings.updates_per_call

    @property
    def env_steps(self) -> int:
        """Return the env steps trained on so far (with replay workers: those that they had inserted)."""
        if self._settings.total_env_steps is not None:
            return int(self._consumer.env_steps)
        return self.updates // self._settings.plan.reuse * self._settings.rows_per_update

    @property
    def finished(self) -> bool:
        """Return whether all updates are made."""
        if self._settings.total_env_steps is not None:
            return self.env_steps >= self._settings.total_env_steps
        return self.updates >= self._settings.total_updates

    def setup(self) -> None:
        """Make the state, compile the update, bind the streams, publish the first params."""
        self._reporter.stage("making the agent's state")
        key = stream_key(self._settings.seed, INIT_STREAM)
        self._state = begin_state(self._agent, self._update, self._replay, self._restored, key)
        self._reporter.stage("binding streams")
        self._consumer, self._publisher = self._connect()
        prefetch = self._settings.prefetch
        phases = self.recorder.thread("prefetch") if prefetch else self._phases
        batcher = Batcher(self._consumer, self._spec, self._settings.plan, phases, self._refusals)
        self._publish(self._update.fetch(self._state.params))
        self._reporter.stage("compiling the update")
        self._update.compile(self._state, batcher.example(), self._key)
        self._batches: Prefetcher | Batcher = Prefetcher(batcher) if prefetch else batcher
        self.recorder.begin()

    def step(self) -> int:
        """Make the updates of one batch and publish; return how many (0: no batch in time, or all are made)."""
        made = self._train()
        self._phases.rest()
        return made

    def _train(self) -> int:
        if self.finished:
            self._tell_finished()
            time.sleep(self._settings.poll_s)
            return 0
        self._phases.enter("wait_batch")
        batch = self._batches.pump(self._settings.poll_s)
        if batch is None:
            return 0
        if self._phases.tracing:
            self._phases.mark("queue depth", self._consumer.pending())
        for _ in range(self._settings.plan.reuse // self._settings.updates_per_call):
            self._learn(batch)
        self._trained += self._settings.plan.columns // self._settings.plan.group_size
        self._phases.enter("other")
        self._batches.recycle(batch)
        self._recorder.spread("policy_lag", batch.lags)
        if self._settings.windows_per_call is None:
            self._recorder.rate("rows", self._settings.rows_per_update)
        if time.monotonic() >= self._snapshot_at:
            self._snapshot_at = time.monotonic() + self._settings.snapshot_period_s
            self.save(wait=False)
        self._tell_finished()
        return self._settings.plan.reuse

    def _learn(self, batch: Batch) -> None:
        """One call of the update: apart from publishing, what the whole system is for."""
        self._phases.enter("update")
        key = jax.random.fold_in(self._key, self.updates)
        before = self._state if self._settings.check_finite and self._replay is None else None
        self._state, output = self._update(self._state, batch.trajectory, key)
        metrics, params = self._update.fetch((output.metrics, self._state.params))  # waits for the update
        self._metrics = {name: float(value) for name, value in metrics.items()}
        self._phases.enter("other")
        if self._settings.check_finite:
            self._refuse_non_finite(before, batch)
        self._metrics.pop(STATE, None)
        self._metrics, self._replay_metrics = split_metrics(self._metrics)
        self.updates += self._settings.updates_per_call
        self._trained_s = time.monotonic()
        self._recorder.rate("updates", self._settings.updates_per_call)
        self._recorder.means(self._metrics)
        if self._settings.windows_per_call is not None and self._metrics:
            self._recorder.rate("rows", self._settings.windows_per_call)
        if batch.ids and output.priorities is not None:
            self._consumer.feedback(np.concatenate(batch.ids), join_devices(output.priorities))
        self._phases.mark("updates", self.updates)
        self._publish(params)

    def _publish(self, params: Any) -> None:
        self._phases.enter("publish")
        self._publisher.publish(0, self.version, jax.tree.leaves(params))
        self._phases.enter("other")

    def _refuse_non_finite(self, before: AgentState | None, batch: Batch) -> None:
        bad = non_finite_metrics(self._metrics)
        if not bad:
            return
        folder = Path(self._settings.failure_folder)
        failure = SnapshotStore(folder)
        meta = {"updates": self.updates, "bad_metric": bad[0], "devices": self._update.num_devices}
        if self._replay is None:
            assert before is not None
            tree = {"state": self._update.fetch(before), "batch": batch.trajectory}
            self._state = before
        else:  # the state is as it was before already
            tree, facts = failed_update(self._replay, self._state)
            meta |= facts
        meta["python_path"] = spawn_environment().variables["PYTHONPATH"].split(os.pathsep)
        failure.save(self.updates, tree, meta=meta, wait=True)
        self.save(wait=True)  # a resume goes on from here, with other trajectories
        raise NonFiniteUpdate(
            f"update {self.updates + 1} made {what_is_bad(bad, self._metrics)}; nothing of it was published. The state "
            f"before it and its batch lie in {folder}. Replay it with: python -m jsrl.cli.replay_update {folder.parent}"
        )

    def _tell_finished(self) -> None:
        if self.finished and not self._finished:
            self._finished = True
            self._reporter.event("finished", updates=self.updates, env_steps=self.env_steps)

    def save(self, *, wait: bool, tags: tuple[str, ...] = ("latest",)) -> None:
        """Write the whole state as a snapshot; training goes on without it when the disk does not want it."""
        self._phases.enter("snapshot")
        state = self._update.fetch(self._state if self._replay is None else self._replay.pack(self._state))
        meta: dict[str, Any] = {"updates": self.updates, "env_steps": self.env_steps}
        meta |= {"epoch": self._settings.plan.epoch, "ledger": self._counts() | {"trained": self._trained}}
        try:
            self._store.save(self.version, {"state": state}, meta=meta, tags=tags, wait=wait)
        except SnapshotError as error:
            self._reporter.event("warning", f"snapshot of update {self.updates} failed: {error}", once="snapshots")
        self._phases.rest()

    @property
    def state(self) -> AgentState:
        """Return the agent's state as host arrays."""
        return self._update.fetch(self._state)

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the mean of the updates' metrics, rates, lag, and the ledger."""
        self._recorder.last("queue_depth", self._consumer.pending())
        self._recorder.last("refused", self._refusals.count)
        if self._trained_s:
            self._recorder.last("trained_s", self._trained_s)
        ledger = self._consumer.ledger
        dropped = sum((ledger.dropped or {}).values())
        counts = {"received": ledger.received, "consumed": ledger.consumed, "dropped": dropped}
        counts["in_flight"] = ledger.in_flight
        queue = self._store.queue
        snapshots: dict[str, float] = {"written": queue.written, "failed": queue.failed, "superseded": queue.superseded}
        snapshots |= {"last_write_s": queue.last_write_s} if queue.written else {}
        metrics = {f"snapshots/{name}": float(value) for name, value in snapshots.items()}
        metrics |= (
            self._replay_metrics
            | self._recorder.flush()
            | {f"ledger/{name}": float(value) for name, value in counts.items()}
        )
        return metrics, self._facts()

    def _facts(self) -> dict[str, Any]:
        return {"updates": self.updates, "env_steps": self.env_steps, "ledger": self._counts()}

    def _counts(self) -> dict[str, Any]:
        """Return what this consumer counted, over all lives of this run."""
        return self._consumer.ledger.counts

    def command(self, command: Command) -> None:
        """Obey `snapshot`."""
        if command.name == "snapshot":
            self.save(wait=True)
            self._reporter.event("snapshotted", updates=self.updates)

    def drop_pending(self) -> None:
        """Count what waits as dropped and take in nothing more; used where a step failed."""
        if self._consumer is not None:
            self._consumer.close()

    def close(self) -> dict[str, Any]:
        """Write the final snapshot and leave the streams."""
        self.save(wait=True, tags=("latest", "final"))
        if isinstance(self._batches, Prefetcher | Batcher):
            self._batches.close()
        if isinstance(self._update, SplitUpdate):
            self._update.close()
        self._consumer.close()
        facts = self._facts()
        self._publisher.close()
        self._store.close()
        return facts
