"""The fused worker: a learner whose batches are played where it learns from them, many in each compiled call.

Its updater's state is the agent's, and the environments of every device.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jsrl.agents.base import MADE, ActParams, AgentState, UpdateOutput
from jsrl.envs.adapters.in_jax import make_single
from jsrl.envs.rows import vector_seed
from jsrl.errors import EnvironmentFault
from jsrl.parallel import OnEach
from jsrl.references.importing import shown_target
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger
from jsrl.types import Array, Tree
from jsrl.workers.acting import ACT_STREAM, INIT_STREAM, UPDATE_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.fused.program import Envs, Made, Program
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.build import gates_of, open_outlet, restore_state, settings_of, start_of, with_total
from jsrl.workers.learner.build_updater import devices_for, make_updater, trained_agent
from jsrl.workers.learner.seams import Lifecycle, Source
from jsrl.workers.learner.updaters import Failed, OwnUpdate, Updater
from jsrl.workers.learner.worker import Learner

CALL_S = 0.25  # of one call: then params are published, metrics reported, commands executed
MEAN_OVER = 100  # newest episodes, at least
ENVS = "state/extra/envs/"  # in the names of a snapshot's leaves


class FusedState(NamedTuple):
    """agent: on every device. envs: leaves [D, ...], a group on each."""

    agent: AgentState
    envs: Envs

    @property
    def params(self) -> ActParams:
        return self.agent.params


class WithEnvs(NamedTuple):
    """AgentState.extra in the snapshots of a fused run: the agent's own, and the environments [D, ...]."""

    agent: Tree
    envs: Envs


class Pace:
    """How many trajectories the next call plays: as many as take CALL_S, but not more than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 1

    def took(self, call_s: float, trajectories: int) -> None:
        self.size = max(1, min(2 * self.size, self.most, int(CALL_S / call_s * max(1, trajectories))))


class FusedUpdate(Updater):
    """Makes the updates of a number of trajectories in each call.

    Args:
      own: the agent's update, with a ring or without. keys: [D, 3, ...], see Envs. name: of the environment.
      begun: trajectories before new environments.

    Attributes:
      left: trajectories until the end. made: what the last call made, as numpy arrays.
    """

    def __init__(
        self,
        own: OwnUpdate,
        program: Program,
        devices: Sequence[jax.Device],
        keys: np.ndarray,
        begun: int,
        pace: Pace,
        name: str,
    ) -> None:
        self._own, self.program, self._keys, self._name = own, program, keys, name
        self.agent, self.devices = own.agent, list(devices)
        self.pace, self.left = pace, 1
        self._run = OnEach(program.run, devices, (None, 0, None), (None, 0, None), donate=(0, 1))
        self.made: Made | None = None
        self._failed: dict[str, Any] | None = None

        self._begun = np.int32(begun)
        self._begin = lambda keys: program.begin(keys)._replace(batches=self._begun)

        def fresh(key: Array, keys: Array, begun: Array, axis_name: str) -> tuple[AgentState, Envs]:
            return own.agent.init(key), program.begin(keys)._replace(batches=begun)

        self.fresh_on_each = OnEach(fresh, devices, (None, 0, None), (None, 0))

    def _on_devices(self, function: Any, tree: Tree) -> Envs:
        return OnEach(lambda x, axis_name: function(x), self.devices, (0,), 0)(tree)

    def fresh(self, key: Array) -> AgentState:
        state = self._own.fresh(key)
        return state._replace(extra=WithEnvs(state.extra, jax.vmap(self._begin)(self._keys)))

    def make(self, key: Array) -> FusedState:
        return FusedState(*jax.block_until_ready(self.fresh_on_each(key, self._keys, self._begun)))

    def place(self, saved: AgentState) -> FusedState:
        """Return the state of a snapshot; of one without environments, such as another placement's, with new episodes."""
        if not isinstance(saved.extra, WithEnvs):
            return FusedState(self._own.place(saved), self._on_devices(self._begin, self._keys))
        agent = self._own.place(saved._replace(extra=saved.extra.agent))
        return FusedState(agent, self._on_devices(lambda envs: envs, saved.extra.envs))

    def fetch(self, tree: Tree) -> Tree:
        return self._own.fetch(tree)

    def saved(self, state: FusedState) -> AgentState:
        agent = self._own.saved(state.agent)
        return agent._replace(extra=WithEnvs(agent.extra, jax.device_get(state.envs)))

    def compile(self, state: FusedState, batch: Any) -> None:
        self._run.compile(state.agent, state.envs, batch)

    def __call__(self, state: FusedState, batch: Any, number: int) -> tuple[FusedState, Any, None]:
        """Play and learn from `batch` trajectories of each group: an int32.

        A call ends before an update that is not finite, and the next one returns that update's metrics alone.
        """
        if self._failed is not None:
            return state, (self._failed, state.params), None
        state, self.made = self._call(state, batch)
        made, self.left = self.made, self.left - int(self.made.batches)
        if not made.episodes.finite:
            raise EnvironmentFault(
                f"environment {self._name!r} returned NaN or infinity in an observation or a reward; expected finite numbers. "
                "Look at what its step computes there (a division by zero, a square root, a diverged simulation)."
            )
        self._failed = None if made.good else made.last
        return state, (made.metrics if made.good or made.batches else made.last, state.params), None

    def _call(self, state: FusedState, batch: Any) -> tuple[FusedState, Made]:
        begun_s = time.perf_counter()
        agent, envs, made = self._run(state.agent, state.envs, batch)
        made = jax.device_get(made)
        self.pace.took(time.perf_counter() - begun_s, int(made.batches))
        return FusedState(agent, envs), made

    @property
    def goes_on(self) -> bool:
        """Return whether further calls would change the state."""
        return self._failed is None and self.left > 0

    def lifecycle(self) -> Lifecycle:
        return Lifecycle()

    def failed(self, before: FusedState, after: FusedState, batch: Any) -> Failed:
        """Return the failed update: its trajectory is played again, from the state that was kept."""
        play = OnEach(lambda params, envs, axis_name: self.program.play(params, envs)[1], self.devices, (None, 0), 0)
        rows = jax.device_get(play(after.params, after.envs))
        rows = rows._replace(version=rows.version.astype(np.int64))
        return self._own.failed(after.agent, after.agent, rows)._replace(state=after)

    def close(self) -> None:
        """Do nothing: it has no threads."""


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
    e, start, meter = job.experiment, start_of(job), make_meter(job)
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
        keeps=e.buffer is None,
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
