"""Matches as an evaluation: the newest params against each opponent in turn; the score is the mean result.

Opponents are frozen players of the own run, once they are frozen, and players of other runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.directors.ratings import win_rate_interval
from jsrl.envs.base import VectorGame
from jsrl.intervals import return_facts
from jsrl.matches.match import Match, MatchScore
from jsrl.matches.players import Contestant, SeatPolicy, places_of_sides
from jsrl.tools.contest import contestant_of, load_player
from jsrl.transport.base import Request
from jsrl.types import Array, Tree, version_updates
from jsrl.workers.acting import Engine, GroupSlots, make_agent
from jsrl.workers.frozen import players_of
from jsrl.workers.jobs import Job
from jsrl.workers.play import Seated, one_per_group

# Returns the contestant for matches in so many slots; None: it does not exist yet.
Opponent = Callable[[int], Contestant | None]


class Acting:
    """An engine as a match calls it: it counts its own steps, on which random numbers depend."""

    def __init__(self, engine: Engine, slots: int) -> None:
        self.engine, self._step = engine, 0
        self._served = GroupSlots(0, np.arange(slots, dtype=np.int32))

    def __call__(self, observation: Tree, is_first: Array) -> np.ndarray:
        self._step += 1
        return np.array(self.engine.act(self._served, Request(observation, is_first, step=self._step)).action)


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
    found: list[Opponent] = []
    for number, name in enumerate(job.experiment.evaluator.against):
        if "@" in name:
            found.append(_loaded(name, number))
            continue
        policy, _, player = name.rpartition("/")
        parts = [part for part in job.by_policy if part.policy == policy] if policy else one_per_group(job)
        found.append(_frozen(name, player, parts, number))
    return found


def _frozen(name: str, player: str, parts: Sequence[Job], number: int) -> Opponent:
    """Return the policies of the run that have a frozen player of this name, once all of them have it."""
    policies = [(part, players_of(part), make_agent(part)) for part in parts]
    made: dict[int, Contestant] = {}

    def contestant(slots: int) -> Contestant | None:
        if slots in made:
            return made[slots]
        seated = []
        for part, store, agent in policies:
            version = store.names().get(player)
            if version is None:
                return None
            seed = part.experiment.seed + 2 + number
            engine = Engine(agent, part.schemas.env, num_slots=slots, sizes=[slots], seed=seed)
            engine.set_params(version, store.load(version))
            seated.append(_seat_policy(Seated(engine, part.view), slots))
        return made.setdefault(slots, Contestant(name, tuple(seated)))

    return contestant


def _loaded(name: str, number: int) -> Opponent:
    """Return a player of another run; it samples its actions."""
    run, _, tag = name.rpartition("@")
    label = f"{Path(run).parent.name}/{Path(run).name}@{tag}"
    found = contestant_of(load_player(name)._replace(name=label), number + 1, greedy=False)
    return lambda slots: found
