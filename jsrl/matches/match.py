"""A match: a fixed number of games of two players on the seats of one environment.

Each game gives one player a side of the environment and the other player all the rest; the next game gives them the next
sides. Every slot plays its share of the games, so that short games count no more than long ones.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jsrl.directors.ratings import win_rate_interval
from jsrl.envs.base import Episode, GameStep, VectorGame
from jsrl.errors import ConfigError
from jsrl.matches.players import Contestant, find_sides, places_of_sides
from jsrl.types import Array, Tree, map_tree, spread


class Game(NamedTuple):
    """One finished game: home's side, its points (1, 0.5, 0), the mean return of home's and away's seats, env steps."""

    side: int
    points: float
    home_return: float
    away_return: float
    length: int


@dataclass
class MatchScore:
    """The results of a match so far, from the view of `home`.

    Attributes:
      home, away: names. sides: names of the seats of each side. games: finished ones.
    """

    home: str
    away: str
    sides: tuple[str, ...] = ()
    games: list[Game] = field(default_factory=list)

    @property
    def points(self) -> float:
        """Return the points of home: 1 for a win, 0.5 for a draw."""
        return sum(game.points for game in self.games)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return how many games home won, drew and lost."""
        points = [game.points for game in self.games]
        return points.count(1.0), points.count(0.5), points.count(0.0)

    @property
    def repeats_itself(self) -> bool:
        """Return whether all games with the same sides were equal, so that more games add no information."""
        return len(self.games) >= 2 * len(self.sides) and len(set(self.games)) == len({g.side for g in self.games})

    def facts(self) -> dict[str, Any]:
        """Return numbers of games, the win rate with its 95% interval, mean returns with half widths, and by side."""
        won, drawn, lost = self.counts
        low, high = win_rate_interval(self.points, len(self.games))
        home, home_half = _mean([game.home_return for game in self.games])
        away, away_half = _mean([game.away_return for game in self.games])
        by_side = {
            self.sides[side]: {"games": len(own), "win_rate": sum(g.points for g in own) / len(own)}
            for side in sorted({game.side for game in self.games})
            if (own := [game for game in self.games if game.side == side])
        }
        return {
            "home": self.home,
            "away": self.away,
            "games": len(self.games),
            "won": won,
            "drawn": drawn,
            "lost": lost,
            "win_rate": self.points / max(1, len(self.games)),
            "win_rate_low": low,
            "win_rate_high": high,
            "return_mean": home,
            "return_ci95": home_half,
            "opponent_return_mean": away,
            "opponent_return_ci95": away_half,
            "length_mean": _mean([float(game.length) for game in self.games])[0],
            "by_side": by_side,
        }

    def __str__(self) -> str:
        """Return it as a line."""
        f = self.facts()
        sides = "; ".join(f"as {side} {own['win_rate']:.3f}" for side, own in f["by_side"].items())
        return (
            f"{self.home} against {self.away}: {f['won']} won, {f['drawn']} drawn, {f['lost']} lost of {f['games']} games; "
            f"win rate {f['win_rate']:.3f} (95%: {f['win_rate_low']:.3f} to {f['win_rate_high']:.3f}; {sides}); return "
            f"{f['return_mean']:.2f} ± {f['return_ci95']:.2f}, opponent {f['opponent_return_mean']:.2f} ± "
            f"{f['opponent_return_ci95']:.2f}; mean length {f['length_mean']:.0f}"
        )


class Match:
    """Games of two players, in bounded steps.

    Args:
      game: with each seat as a group (`make_game` without groups). games: how many to play.
      sides: that home plays; None: all that it can, while away plays the others.
      watch: entered around each call of the environment. enter: called with "env", "act" or "other" when these begin.

    Attributes:
      score: of the games that ended so far.

    Raises:
      ConfigError: the players cannot fill the seats.
    """

    def __init__(
        self,
        game: VectorGame,
        home: Contestant,
        away: Contestant,
        games: int,
        *,
        sides: Collection[int] | None = None,
        watch: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        enter: Callable[[str], Any] = lambda activity: None,
    ) -> None:
        self._sides = find_sides(game.spec, home, away, sides)
        if any(len(seats) != 1 for seats in game.groups.values()):
            raise ConfigError("matches need an environment of which each seat is a group; make it without `groups`.")
        self._game, self._players, self._watch, self._enter = game, (home, away), watch, enter
        self._places = places_of_sides(game.spec)
        self._side_of = np.array(game.spec.sides)
        self._group_of = {seats[0]: group for group, seats in game.groups.items()}
        slots = game.num_envs
        self._left = np.array([games // slots + (slot < games % slots) for slot in range(slots)])
        self._number = np.cumsum(self._left) - self._left  # of the game that each slot plays
        names = tuple(", ".join(game.spec.names[place] for place in sorted(own)) for own in self._places)
        self.score = MatchScore(home.name, away.name, names)
        self._latest: GameStep | None = None

    @property
    def home_side(self) -> np.ndarray:
        """Return the side that home plays in each slot, [B]."""
        return np.array(self._sides)[self._number % len(self._sides)]

    @property
    def complete(self) -> bool:
        """Return whether all games are played."""
        return not self._left.any()

    def advance(self, budget_s: float = math.inf) -> bool:
        """Play until all games are over (True) or the time budget is used (False)."""
        until = time.perf_counter() + budget_s
        if self._latest is None:
            self._enter("env")
            with self._watch():
                self._latest = self._game.reset()
        while not self.complete:
            self._enter("act")
            actions = self._act(self._latest)
            self._enter("env")
            with self._watch():
                self._latest = self._game.step(actions)
            self._enter("other")
            for episode in self._latest.episodes:
                self._count(episode)
            if time.perf_counter() >= until:
                break
        return self.complete

    def _act(self, step: GameStep) -> dict[str, Array]:
        """Return the actions of all seats, by group: home's for home's seats, else away's."""
        home_side, names = self.home_side, self._game.spec.names
        actions: dict[str, Array] = {}
        for player in self._players:
            for policy in player.policies:
                groups = [self._group_of[names[place]] for place in policy.places]
                action = policy.act(stack_seats([step.observation[group] for group in groups]), step.is_first)
                for seat, (place, group) in enumerate(zip(policy.places, groups, strict=True)):
                    own = np.array(action[:, seat : seat + 1])
                    if group in actions:  # home has chosen as well, and has priority
                        is_home = self._side_of[place] == home_side
                        own = np.where(spread(is_home, own), actions[group], own)
                    actions[group] = own
        return actions

    def _count(self, episode: Episode) -> None:
        """Count a game, unless its slot has played its share, and give the slot the next sides."""
        slot = episode.slot
        if not self._left[slot]:
            return
        side, returns = int(self.home_side[slot]), np.array(episode.returns)
        totals = [float(sum(returns[sorted(own)].tolist())) for own in self._places]
        best = max(total for other, total in enumerate(totals) if other != side)
        points = 0.5 if totals[side] == best else float(totals[side] > best)
        is_home = self._side_of == side
        means = float(returns[is_home].mean()), float(returns[~is_home].mean())
        self.score.games.append(Game(side, points, *means, episode.length))
        self._left[slot] -= 1
        self._number[slot] += 1


def stack_seats(observations: list[Tree]) -> Tree:
    """Return the observations [B, N, ...] of seats that are separate groups, each [B, 1, ...]."""
    if len(observations) == 1:
        return observations[0]
    return map_tree(lambda *seats: np.concatenate(seats, axis=1), *observations)


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95% interval."""
    if not values:
        return 0.0, 0.0
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), 1.96 * std / math.sqrt(len(values))
