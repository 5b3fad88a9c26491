"""The opponents of an evaluator: frozen players of its own run, once they are frozen, and players of other runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jsrl.agents.base import Agent
from jsrl.envs.seats import SeatView
from jsrl.matches.players import Contestant, SeatPolicy
from jsrl.snapshots.players import PlayerStore
from jsrl.transport.base import Request
from jsrl.types import Array, EnvSpec, Tree
from jsrl.workers.acting import Engine, GroupSlots


class Opponent(Protocol):
    """An opponent of the evaluated policy."""

    name: str

    def contestant(self, slots: int) -> Contestant | None:
        """Return the contestant for matches in `slots` slots; None: it does not exist yet."""
        ...


class Acting:
    """An engine as a match calls it: it counts its own steps, on which random numbers depend."""

    def __init__(self, engine: Engine, slots: int) -> None:
        self.engine, self._step = engine, 0
        self._served = GroupSlots(0, np.arange(slots, dtype=np.int32))

    def __call__(self, observation: Tree, is_first: Array) -> np.ndarray:
        self._step += 1
        return np.array(self.engine.act(self._served, Request(observation, is_first, step=self._step)).action)


@dataclass(frozen=True)
class FrozenPolicy:
    """A policy of the run whose frozen versions may be opponents: its store, and the engine for their params."""

    store: PlayerStore
    agent: Agent
    spec: EnvSpec
    view: SeatView
    seed: int


@dataclass
class FrozenOpponent:
    """The policies of a run that have a frozen player of this name."""

    name: str
    player: str
    policies: Sequence[FrozenPolicy]
    _made: dict[int, Contestant] = field(default_factory=dict)

    def contestant(self, slots: int) -> Contestant | None:
        """Return the contestant, once all of these policies have the player."""
        if slots in self._made:
            return self._made[slots]
        versions = [policy.store.names().get(self.player) for policy in self.policies]
        parts = [
            SeatPolicy(policy.view.places, _acting(policy, version, slots))
            for policy, version in zip(self.policies, versions, strict=True)
            if version is not None
        ]
        if len(parts) < len(self.policies):
            return None
        self._made[slots] = Contestant(self.name, tuple(parts))
        return self._made[slots]


def _acting(policy: FrozenPolicy, version: int, slots: int) -> Acting:
    engine = Engine(policy.agent, policy.spec, num_slots=slots, sizes=[slots], seed=policy.seed)
    engine.set_params(version, policy.store.load(version))
    return Acting(engine, slots)


class LoadedOpponent:
    """A player of another run; `load` returns it; it samples its actions."""

    def __init__(self, name: str, load: Callable[[str], Any]) -> None:
        self.name, self._found = name, load(name)

    def contestant(self, slots: int) -> Contestant | None:
        return self._found
