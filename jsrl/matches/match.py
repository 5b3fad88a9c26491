"""A fixed number of games on the seats of one environment: of two players (a match), or of a player for each side (a table).

Players take other sides from game to game. Every slot plays its share of the games, so that short games count no more than
long ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jsrl.directors.ratings import win_rate_interval
from jsrl.envs.base import Episode, GameStep, VectorGame
from jsrl.envs.episodes import Episodes
from jsrl.errors import ConfigError, counted
from jsrl.intervals import mean_interval, with_half
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
        home, home_half = mean_interval([game.home_return for game in self.games])
        away, away_half = mean_interval([game.away_return for game in self.games])
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
            "length_mean": mean_interval([float(game.length) for game in self.games])[0],
            "by_side": by_side,
        }

    def __str__(self) -> str:
        f = self.facts()
        sides = "; ".join(f"as {side} {own['win_rate']:.3f}" for side, own in f["by_side"].items())
        return (
            f"{self.home} against {self.away}: {f['won']} won, {f['drawn']} drawn, {f['lost']} lost of "
            f"{counted(f['games'], 'game')}; win rate {f['win_rate']:.3f} (95%: {f['win_rate_low']:.3f} to "
            f"{f['win_rate_high']:.3f}; {sides}); return {with_half(f['return_mean'], f['return_ci95'])}, opponent "
            f"{with_half(f['opponent_return_mean'], f['opponent_return_ci95'])}; mean length {f['length_mean']:.0f}"
        )


class TableGame(NamedTuple):
    """One finished game of a table. players: of each side, by number. returns: of each seat. totals: of each side."""

    players: tuple[int, ...]
    returns: tuple[float, ...]
    totals: tuple[float, ...]
    length: int


class Table(Episodes):
    """Games of some players at the sides of one environment, in bounded steps.

    Args:
      game: with each seat as a group (`make_game` without groups). games: how many to play.
      seatings: who plays which side, by number, in one game after the other (jsrl.matches.players).
      options: of Episodes.

    Attributes:
      finished: the games that ended so far.
    """

    def __init__(
        self,
        game: VectorGame,
        players: Sequence[Contestant],
        seatings: Sequence[tuple[int, ...]],
        games: int,
        **options: Any,
    ) -> None:
        super().__init__(game, games, **options)
        if any(len(seats) != 1 for seats in game.groups.values()):
            raise ConfigError("matches need an environment of which each seat is a group; make it without `groups`.")
        self._game, self._players = game, tuple(players)
        self._seatings = np.array(seatings)
        self._places = places_of_sides(game.spec)
        self._side_of = np.array(game.spec.sides)
        self._group_of = {seats[0]: group for group, seats in game.groups.items()}
        self._number = np.cumsum(self.left) - self.left  # of the game that each slot plays
        self.finished: list[TableGame] = []

    def _seated(self) -> np.ndarray:
        return self._seatings[self._number % len(self._seatings)]

    def act(self, latest: GameStep) -> dict[str, Array]:
        """Return the actions of all seats, by group, each by the player of its side."""
        names, owner = self._game.spec.names, self._seated()[:, self._side_of]
        actions: dict[str, Array] = {}
        for number, player in enumerate(self._players):
            for policy in player.policies:
                groups = [self._group_of[names[place]] for place in policy.places]
                action = policy.act(stack_seats([latest.observation[group] for group in groups]), latest.is_first)
                for seat, (place, group) in enumerate(zip(policy.places, groups, strict=True)):
                    own = np.array(action[:, seat : seat + 1])
                    mine = spread(owner[:, place] == number, own)
                    actions[group] = np.where(mine, own, actions[group]) if group in actions else own
        return actions

    def count(self, episode: Episode) -> None:
        """Count a game, and give its slot the next seating."""
        returns = np.array(episode.returns).tolist()
        totals = tuple(float(sum(returns[place] for place in sorted(own))) for own in self._places)
        players = tuple(self._seated()[episode.slot].tolist())
        self._add(TableGame(players, tuple(returns), totals, episode.length))
        self._number[episode.slot] += 1

    def _add(self, game: TableGame) -> None:
        self.finished.append(game)


class Match(Table):
    """Games of two players: home plays one side and away all others.

    Args:
      sides: that home plays; None: all that it can, while away plays the others. The rest is as for `Table`.

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
        **options: Any,
    ) -> None:
        found = find_sides(game.spec, home, away, sides)
        number = len(places_of_sides(game.spec))
        seatings = [tuple(int(side != own) for side in range(number)) for own in found]
        super().__init__(game, (home, away), seatings, games, **options)
        names = tuple(", ".join(game.spec.names[place] for place in sorted(own)) for own in self._places)
        self.score = MatchScore(home.name, away.name, names)

    def _add(self, game: TableGame) -> None:
        side, returns = game.players.index(0), np.array(game.returns)
        best = max(total for other, total in enumerate(game.totals) if other != side)
        points = 0.5 if game.totals[side] == best else float(game.totals[side] > best)
        is_home = self._side_of == side
        means = float(returns[is_home].mean()), float(returns[~is_home].mean())
        self.score.games.append(Game(side, points, *means, game.length))


def stack_seats(observations: list[Tree]) -> Tree:
    """Return the observations [B, N, ...] of seats that are separate groups, each [B, 1, ...]."""
    if len(observations) == 1:
        return observations[0]
    return map_tree(lambda *seats: np.concatenate(seats, axis=1), *observations)
