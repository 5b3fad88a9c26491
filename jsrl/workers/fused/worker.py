"""The fused worker: a learner whose batches are played where it learns from them, many in each compiled call."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from jsrl.agents.base import MADE, AgentState, UpdateOutput
from jsrl.envs.adapters.in_jax import make_single
from jsrl.envs.rows import vector_seed
from jsrl.references.importing import shown_target
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger
from jsrl.types import Array
from jsrl.workers.acting import ACT_STREAM, INIT_STREAM, UPDATE_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.fused.program import Program
from jsrl.workers.fused.updater import FusedUpdate, Pace
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.build import begin_counting, gates_of, open_outlet, restore_state, settings_of, with_total
from jsrl.workers.learner.build_updater import devices_for, make_updater, trained_agent
from jsrl.workers.learner.seams import Source
from jsrl.workers.learner.updaters import OwnUpdate
from jsrl.workers.learner.worker import Learner

MEAN_OVER = 100  # newest episodes, at least
ENVS = "state/extra/envs/"  # in the names of a snapshot's leaves


class FromProgram(Source):
    """A learner's source whose batches are numbers of trajectories to play.

    Args:
      rows: of one trajectory of all environments. windows: that one trajectory's updates learn from; 0: from its rows.
    """

    def __init__(self, updater: FusedUpdate, ledger: Ledger, rows: int, updates: int, windows: int) -> None:
        self._updater, self._ledger = updater, ledger
        self._rows, self._updates, self._windows, self._number = rows, updates, windows, 0
        self.has_replay = windows > 0

    def example(self) -> Any:
        return np.int32(1)

    def begin(self) -> None:
        """Do nothing: trajectories are played in the update."""

    def next(self, timeout_s: float) -> Batch:
        self._number += 1
        trajectories: Any = np.int32(min(self._updater.pace.size, self._updater.left))
        return Batch(trajectories, [0], self._number)

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        made = self._updater.made
        assert made is not None
        return int(made.batches) * self._rows if not self._windows else int(made.metrics[MADE]) * self._windows

    def stand_in(self, absent: Collection[int]) -> None:
        """Do nothing: no groups are elsewhere."""

    def env_steps(self, updates: int) -> int:
        return updates // self._updates * self._rows

    def pending(self) -> int:
        return 0

    def counts(self) -> dict[str, int]:
        return {}

    def ledger(self) -> Ledger:
        """Return the counts of a run in which no trajectory travels."""
        return self._ledger

    def close(self) -> None:
        self._updater.close()


class Fused(Learner):
    """The worker; it reports as learner and actors do elsewhere. `updater`: see FusedUpdate. For the rest see Learner."""

    _updater: FusedUpdate
    _source: FromProgram

    def setup(self) -> None:
        super().setup()
        self._updater.left = self._left
        self._played = Meter("actor")
        # Of each call: its episodes, and the sums of their returns and lengths.
        self._ended: deque[tuple[int, float, float]] = deque()

    @property
    def _left(self) -> int:
        """Return the trajectories until the end."""
        return math.ceil((self._settings.total_env_steps - self.env_steps) / self._source.env_steps(self._each))

    @property
    def _each(self) -> int:
        """Return the updates of one trajectory."""
        return self._settings.updates_per_call

    def _count(self, made: int) -> None:
        """Count the updates of a call, and what was played."""
        found = self._updater.made
        assert found is not None
        batches, ended = int(found.batches), found.episodes
        self.number += batches * self._each
        self._unmade += batches * self._each - made
        self._played.rate("env_steps", self._source.env_steps(batches * self._each))
        self._played.count("episodes", int(ended.count))
        if ended.count:
            self._ended.append((int(ended.count), float(ended.return_), float(ended.length)))
            while sum(count for count, _, _ in self._ended) - self._ended[0][0] >= MEAN_OVER:
                self._ended.popleft()

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        metrics, facts = super().report()
        if not self._source.has_replay:
            metrics.pop(MADE, None)
        if self._ended:
            count, return_, length = (sum(column) for column in zip(*self._ended, strict=True))
            self._played.last("return_mean", return_ / count)
            self._played.last("length_mean", length / count)
        return metrics | self._played.flush(), facts


def build_fused(job: Job, reporter: Reporter, make: Callable[..., FusedUpdate] = FusedUpdate) -> Fused:
    """`make`: the updater, a FusedUpdate or one of several in a program (jsrl/workers/fused/together.py)."""
    e, start, meter = job.experiment, begin_counting(job), make_meter(job)
    agent = trained_agent(with_total(job), job.schemas.env, job.part.hyperparameters)
    own: Any = make_updater(agent, job)[0]
    updater = fused_update(job, own, make)

    def begin() -> Any:
        key = stream_key(e.seed, INIT_STREAM)
        return updater.place(restored(job, own, updater, key)) if job.start_point.restore else updater.make(key)

    def connect() -> Source:
        windows = 0 if e.buffer is None else e.buffer.batch_size
        return FromProgram(updater, start.ledger, e.rows_per_update, e.updates_per_batch, windows)

    settings = dataclasses.replace(settings_of(job, start), start_trained=0)  # it counts trajectories that travel
    outlet = open_outlet(job, meter, reporter)
    gates = gates_of(job, start, updater, reporter)
    return Fused(updater, begin, connect, outlet, settings, reporter, gates, updater.lifecycle())


def fused_update(job: Job, own: OwnUpdate, make: Callable[..., FusedUpdate]) -> FusedUpdate:
    """Return the program of a job, whose agent makes its updates by `own`."""
    e, devices = job.experiment, devices_for(job.experiment)
    program = Program(
        own.agent,
        make_single(e.env, e.env.id if callable(e.env.id) else None),
        job.schemas.env,
        job.schemas.act.extras,
        num_rows=e.rollout_length,
        num_envs=e.envs // len(devices),
        updates=e.updates_per_batch,
        max_steps=e.env.max_episode_steps,
        checks=e.learner.check_finite,
        keeps=e.learner.check_finite and e.buffer is None,
    )
    keys = np.stack([group_keys(e.seed, job.incarnation_seed, group) for group in range(len(devices))])
    begun, most = job.start_point.updates // e.updates_per_batch, max(1, e.evaluation_period // e.updates_per_batch)
    return make(own, program, devices, keys, begun, Pace(most), shown_target(e.env.id))


def group_keys(seed: int, episodes: int, group: int) -> np.ndarray:
    """Return the key data of a group, see Envs; episodes: seed of environments and actions, another one after a restart."""
    acting = jax.random.fold_in(stream_key(episodes, ACT_STREAM), group)
    keys = (jax.random.key(vector_seed(episodes, group)), acting, stream_key(seed, UPDATE_STREAM))
    return np.stack([np.asarray(jax.random.key_data(key)) for key in keys])


def restored(job: Job, own: OwnUpdate, updater: FusedUpdate, key: Array) -> AgentState:
    """Return the state of a snapshot, with its environments if it has any: that of another placement has none."""
    start = job.start_point
    folder, _, selector = str(start.restore).rpartition("@")
    exact = not start.params_only and any(name.startswith(ENVS) for name in SnapshotStore(folder).specs(selector))
    return restore_state(start, own.agent, functools.partial(updater.fresh if exact else own.fresh, key))
