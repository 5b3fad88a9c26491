"""A learner's updates: an agent's own update on one device or several, or with a ring of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np

from jsrl.agents.base import MADE, Agent, AgentState
from jsrl.agents.finite import CHECKS
from jsrl.parallel import OnEach, Packed, Replicas, pack
from jsrl.types import Array, Trajectory, Tree, map_trajectory

if TYPE_CHECKING:
    from jsrl.replay.device.agent import OnDevice


class Updater(Protocol):
    """Makes updates of `agent`. Its states are on its devices; their `params` are published."""

    agent: Agent

    def fresh(self, key: Array) -> AgentState:
        """Return the snapshot of a new state."""

    def make(self, key: Array) -> Any:
        """Return a new state."""

    def place(self, saved: AgentState) -> Any:
        """Return the state of a snapshot."""

    def compile(self, state: Any, batch: Trajectory) -> None:
        """Compile for arrays like these; the next call with such arrays starts at once."""

    def __call__(self, state: Any, batch: Trajectory, number: int) -> tuple[Any, Any, Any]:
        """Make an update with a batch [D, T+1, B/D, ...]; return (the new state, what to `fetch`, priorities or None).

        Fetched, the second is (metrics, params). The old state may be donated (deleted), and numpy arrays of the batch may be
        read, until the result is ready.

        Args:
          number: of the update; each has its own random numbers.
        """

    def fetch(self, tree: Tree) -> Tree:
        """Return arrays of a state, or what a call returned, as numpy arrays, once they are ready."""

    def saved(self, state: Any) -> AgentState:
        """Return the snapshot of a state, as numpy arrays."""

    def late(self) -> int:
        """Return the updates that were made, and that no output of a call has counted."""
        return 0

    def close(self) -> None:
        """End its threads."""


class Failed(NamedTuple):
    """An update that failed.

    Attributes:
      state: to continue from. tree: to keep: `state` before the update, and `batch`. facts: what else a repetition needs.
    """

    state: Any
    tree: dict[str, Any]
    facts: dict[str, Any]


class OwnUpdate(Updater):
    """An agent's own update, spread over one device or several.

    Args:
      key: the random numbers of all updates come from it. donate: let an update write the new state over the old one.
    """

    def __init__(self, agent: Agent, devices: Sequence[jax.Device], key: Array, *, donate: bool = True) -> None:
        self.agent, self._key, self._replicas = agent, key, Replicas(devices)

        def call(
            state: AgentState, batch: Trajectory, key: Array, number: Array, axis_name: str
        ) -> tuple[AgentState, Packed, Any]:
            state, output = agent.update(state, batch, jax.random.fold_in(key, number), axis_name=axis_name)
            return state, pack((output.metrics, state.params)), output.priorities

        self._call = OnEach(call, devices, (None, 0, None, None), (None, None, 0), donate=(0,) if donate else ())

    def fresh(self, key: Array) -> AgentState:
        return self.agent.init(key)

    def make(self, key: Array) -> Any:
        return self._replicas.make(self.agent.init, key)

    def place(self, saved: AgentState) -> Any:
        return self._replicas.place(saved)

    def compile(self, state: AgentState, batch: Trajectory) -> None:
        self._call.compile(state, batch, self._key, np.uint32(0))

    def __call__(self, state: AgentState, batch: Trajectory, number: int) -> tuple[AgentState, Packed, Any]:
        return self._call(state, batch, self._key, np.uint32(number))

    def fetch(self, tree: Tree) -> Tree:
        return self._replicas.fetch(tree)

    def saved(self, state: AgentState) -> AgentState:
        return self.fetch(state)

    def failed(self, before: AgentState, after: AgentState, batch: Trajectory) -> Failed:
        """Return the failed update; `before` must not be donated."""
        return Failed(before, {"state": self.fetch(before), "batch": batch}, {"devices": self._replicas.num_devices})

    def close(self) -> None:
        """Do nothing: it has no threads."""


class RingUpdate(OwnUpdate):
    """The update of an agent that was combined with a ring of rows; a snapshot may leave the rows out."""

    def __init__(self, replay: OnDevice, devices: Sequence[jax.Device], key: Array) -> None:
        super().__init__(replay.agent, devices, key)
        self._replay = replay

    def fresh(self, key: Array) -> AgentState:
        return self._replay.pack(self.agent.init(key))

    def place(self, saved: AgentState) -> Any:
        """Return the state of a snapshot, with an empty ring if it has none."""
        return self._replay.unpack(super().place(saved), lambda: self.make(jax.random.key(0)))

    def saved(self, state: AgentState) -> AgentState:
        return self.fetch(self._replay.pack(state))

    def failed(self, before: AgentState, after: AgentState, batch: Trajectory) -> Failed:
        """Return the failed update: the compiled call made no further update, and kept its windows [W+1, M, ...]."""
        own, windows, number = jax.device_get(jax.jit(self._replay.failed)(after))
        tree = {"state": own, "batch": map_trajectory(lambda x: x[None], lambda x: x[None], windows)}
        return Failed(after, tree, {"number": int(number), "windows": True, "devices": 1})


def reported(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return (metrics of the updates, empty if none was made; metrics of the replay, with their full names)."""
    replay = {name: value for name, value in metrics.items() if "/" in name}
    if replay.get(MADE, 1.0) == 0.0:
        return {}, replay
    return {name: value for name, value in metrics.items() if name not in replay and name not in CHECKS}, replay
