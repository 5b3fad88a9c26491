"""The program of a fused run as a learner's updater: its state is the agent's, and the environments of every device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jsrl.agents.base import ActParams, AgentState
from jsrl.errors import EnvironmentFault
from jsrl.parallel import OnEach
from jsrl.types import Array, Tree
from jsrl.workers.fused.program import Envs, Made, Program
from jsrl.workers.learner.seams import Lifecycle
from jsrl.workers.learner.updaters import Failed, OwnUpdate, Updater


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


CALL_S = 0.25  # of one call: then params are published, metrics reported, commands executed


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
