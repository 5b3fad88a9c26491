"""Matches as an evaluation: the newest params against each opponent in turn; the score is the mean result.

Opponents are frozen players of the own run, once they are frozen, and players of other runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jsrl.agents.base import Agent
from jsrl.directors.ratings import win_rate_interval
from jsrl.envs.base import VectorGame
from jsrl.envs.seats import SeatView
from jsrl.intervals import return_facts
from jsrl.matches.match import Match, MatchScore
from jsrl.matches.players import Contestant, SeatPolicy, places_of_sides
from jsrl.services.snapshots.players import PlayerStore
from jsrl.tools.contest import contestant_of, load_player
from jsrl.transport.base import Request
from jsrl.types import Array, EnvSpec, Tree, version_updates
from jsrl.workers.acting import Engine, GroupSlots, make_agent
from jsrl.workers.frozen import players_of
from jsrl.workers.jobs import Job
from jsrl.workers.play import Seated


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


class ScoreOfMatches:
    """Results of the matches of one snapshot."""

    def __init__(self, version: int) -> None:
        self.version, self.is_opposed = version, False
        self.matches: list[MatchScore] = []

    @property
    def against(self) -> list[str]:
        return [match.away for match in self.matches]

    def facts(self) -> dict[str, Any]:
        """Return the win rate over all opponents with its 95% interval, and return, length and number of games."""
        games = [game for match in self.matches for game in match.games]
        points = sum(game.points for game in games)
        low, high = win_rate_interval(points, len(games))
        return {
            "win_rate": points / len(games),
            "win_rate_low": low,
            "win_rate_high": high,
            "draw_rate": sum(game.points == 0.5 for game in games) / len(games),
            "opponents": len(self.matches),
            **return_facts([game.home_return for game in games]),
            "length_mean": float(np.mean([game.length for game in games])),
            "episodes": len(games),
            "version_updates": version_updates(self.version),
        }

    def by_opponent(self) -> dict[str, float]:
        return {
            f"win_rate_{re.sub('[^a-zA-Z0-9_.-]', '_', match.away)}": match.points / len(match.games)
            for match in self.matches
        }


class Matches:
    """Matches of one snapshot against some opponents, in bounded steps; see jsrl.workers.play.Play.

    Args:
      policies: play the seats of the run, the scored one first. episodes: games against each opponent. options: of Episodes.
    """

    def __init__(
        self,
        policies: Sequence[Seated],
        opponents: Sequence[Contestant],
        env: VectorGame,
        episodes: int,
        **options: Any,
    ) -> None:
        self.score = ScoreOfMatches(policies[0].engine.version)
        home = Contestant("newest", tuple(_seat_policy(policy, env.num_envs) for policy in policies))
        scored = policies[0].view
        assert scored is not None
        sides = [side for side, own in enumerate(places_of_sides(env.spec)) if own & set(scored.places)]
        self._matches = [Match(env, home, one, episodes, sides=sides, **options) for one in opponents]
        self._over = 0  # env steps of the matches that are over

    @property
    def endless(self) -> bool:
        return bool(self._matches) and self._matches[0].endless

    @property
    def env_steps(self) -> int:
        return self._over + (self._matches[0].env_steps if self._matches else 0)

    def advance(self, budget_s: float) -> bool:
        """Play until all matches are over (True), a game seems endless, or the time budget is used (False)."""
        if self._matches[0].advance(budget_s):
            self._over = self.env_steps
            self.score.matches.append(self._matches.pop(0).score)
        return not self._matches


def _seat_policy(policy: Seated, slots: int) -> SeatPolicy:
    assert policy.view is not None
    return SeatPolicy(policy.view.places, Acting(policy.engine, slots))


def make_opponents(job: Job) -> list[Opponent]:
    of_group: dict[str, Job] = {}
    for own in job.by_policy:
        of_group.setdefault(own.part.seat_group, own)
    found: list[Opponent] = []
    for number, name in enumerate(job.experiment.evaluator.against):
        if "@" in name:
            found.append(LoadedOpponent(name, functools.partial(_load, number)))
            continue
        policy, _, player = name.rpartition("/")
        parts = [part for part in job.by_policy if part.policy == policy] if policy else list(of_group.values())
        found.append(FrozenOpponent(name, player, [_frozen(part, number) for part in parts]))
    return found


def _frozen(part: Job, number: int) -> FrozenPolicy:
    assert part.view is not None
    seed = part.experiment.seed + 2 + number
    return FrozenPolicy(players_of(part), make_agent(part), part.schemas.env, part.view, seed)


def _load(number: int, name: str) -> Contestant:
    run, _, tag = name.rpartition("@")
    label = f"{Path(run).parent.name}/{Path(run).name}@{tag}"
    return contestant_of(load_player(name)._replace(name=label), number + 1, greedy=False)
