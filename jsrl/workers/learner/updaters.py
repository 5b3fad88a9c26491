"""A learner's updates: an agent's own update on one device or several, or with a ring of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax

from jsrl.agents.base import MADE, Agent, AgentState, UpdateOutput
from jsrl.agents.finite import CHECKS
from jsrl.parallel import DataParallel
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

    def compile(self, state: Any, batch: Trajectory, key: Array) -> None:
        """Compile for arrays like these; the next call with such arrays starts at once."""

    def __call__(self, state: Any, batch: Trajectory, key: Array) -> tuple[Any, UpdateOutput]:
        """Return (the new state, metrics and priorities) of an update with a batch [D, T+1, B/D, ...].

        The old state may be donated (deleted), and numpy arrays of the batch may be read, until the result is ready.
        """

    def fetch(self, tree: Tree) -> Tree:
        """Return arrays of a state or an output as numpy arrays, once they are ready."""

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
    """An agent's own update, spread over one device or several."""

    def __init__(self, agent: Agent, spread: DataParallel) -> None:
        self.agent, self._spread = agent, spread

    def fresh(self, key: Array) -> AgentState:
        return self.agent.init(key)

    def make(self, key: Array) -> Any:
        return self._spread.make(self.agent.init, key)

    def place(self, saved: AgentState) -> Any:
        return self._spread.place(saved)

    def compile(self, state: AgentState, batch: Trajectory, key: Array) -> None:
        self._spread.compile(state, batch, key)

    def __call__(self, state: AgentState, batch: Trajectory, key: Array) -> tuple[AgentState, UpdateOutput]:
        return self._spread(state, batch, key)

    def fetch(self, tree: Tree) -> Tree:
        return self._spread.fetch(tree)

    def saved(self, state: AgentState) -> AgentState:
        return self.fetch(state)

    def failed(self, before: AgentState, after: AgentState, batch: Trajectory) -> Failed:
        """Return the failed update; `before` must not be donated."""
        return Failed(before, {"state": self.fetch(before), "batch": batch}, {"devices": self._spread.num_devices})

    def close(self) -> None:
        """Do nothing: it has no threads."""


class RingUpdate(OwnUpdate):
    """The update of an agent that was combined with a ring of rows; a snapshot may leave the rows out."""

    def __init__(self, replay: OnDevice, spread: DataParallel) -> None:
        super().__init__(replay.agent, spread)
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
