"""Results of players against each other: win rates of pairs, without bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jsrl.directors import in_order
from jsrl.directors.messages import Player

UNPLAYED = 0.5
"""Win rate of a pair that has no counted game."""


class Payoff:
    """A table of pairs of players, as a view of JSON values in a director's state.

    A pair's cell counts its games in the order of their assignment (`jsrl.directors.in_order`), and discarded games
    separately. In each cell assigned = finished + discarded + open. A player against itself has no cell: its win rate is
    0.5.

    With each counted game the weight of older ones is multiplied by `decay`: 0.99 remembers about 100 games.
    Source: Vinyals et al. (2019), supplementary pseudocode, class Payoff.
    """

    def __init__(self, cells: dict[str, Any], decay: float = 1.0) -> None:
        self._cells, self._decay = cells, decay

    def assign(self, game: int, home: Player, away: Player) -> None:
        if home != away:
            key, _ = _key(home, away)
            cell = self._cells.setdefault(
                key,
                {
                    "assigned": 0,
                    "finished": 0,
                    "discarded": 0,
                    "games": 0.0,
                    "points": 0.0,
                    "returns": [0.0, 0.0],
                    "queue": [],
                },
            )
            cell["assigned"] += 1
            in_order.assign(cell["queue"], game)

    def end(
        self,
        game: int,
        home: Player,
        away: Player,
        points: float | None,
        returns: Sequence[float] = (0.0, 0.0),
    ) -> None:
        """Record how a game ended; a game assigned before one of its players was forgotten is ignored.

        Args:
          points: of `home`: 1, 0.5 or 0; None: the game is discarded. returns: of home and away.
        """
        key, swapped = _key(home, away)
        cell = self._cells.get(key)
        if cell is None or not any(entry[0] == game for entry in cell["queue"]):
            return
        value = None
        if points is not None:
            ordered = list(reversed(returns)) if swapped else list(returns)
            value = [1.0 - points if swapped else points, *ordered]
        cell["discarded" if value is None else "finished"] += 1
        for won, first, second in in_order.end(cell["queue"], game, value):
            cell["games"] = cell["games"] * self._decay + 1.0
            cell["points"] = cell["points"] * self._decay + won
            sums = cell["returns"]
            cell["returns"] = [sums[0] * self._decay + first, sums[1] * self._decay + second]

    def win_rate(self, home: Player, away: Player) -> float:
        """Return the share of points of `home` against `away`; draws count 0.5, unplayed pairs have 0.5."""
        key, swapped = _key(home, away)
        cell = self._cells.get(key)
        if cell is None or not cell["games"]:
            return UNPLAYED
        rate = cell["points"] / cell["games"]
        return 1.0 - rate if swapped else rate

    def win_rates(self, home: Player, others: Sequence[Player]) -> list[float]:
        return [self.win_rate(home, away) for away in others]

    def mean_returns(self, home: Player, away: Player) -> tuple[float, float]:
        """Return the mean returns of home and away in their counted games; 0 and 0 when unplayed."""
        key, swapped = _key(home, away)
        cell = self._cells.get(key)
        if cell is None or not cell["games"]:
            return 0.0, 0.0
        first, second = (total / cell["games"] for total in cell["returns"])
        return (second, first) if swapped else (first, second)

    def counts(self, home: Player, away: Player) -> dict[str, int]:
        """Return how many games of a pair were assigned, and how many are finished, discarded and open."""
        cell = self._cells.get(_key(home, away)[0], {"assigned": 0, "finished": 0, "discarded": 0})
        counts = {name: cell[name] for name in ("assigned", "finished", "discarded")}
        return counts | {"open": counts["assigned"] - counts["finished"] - counts["discarded"]}

    def forget(self, player: Player) -> None:
        """Drop all cells of a player; its open games are not counted."""
        for key in [key for key in self._cells if str(player) in key.split(" ")]:
            del self._cells[key]

    def matrices(self, players: Sequence[Player]) -> tuple[np.ndarray, np.ndarray]:
        """Return (points, games), float64 [P, P] each: points of row against column, and their games, with decay."""
        points, games = np.zeros((2, len(players), len(players)))
        for i, home in enumerate(players):
            for j, away in enumerate(players):
                cell = self._cells.get(_key(home, away)[0])
                if cell is not None and i != j:
                    games[i, j] = cell["games"]
                    points[i, j] = games[i, j] * self.win_rate(home, away)
        return points, games


def _key(home: Player, away: Player) -> tuple[str, bool]:
    """Return the name of a pair's cell, and whether the cell has the pair in reverse order."""
    first, second = str(home), str(away)
    swapped = second < first
    return (f"{second} {first}" if swapped else f"{first} {second}"), swapped
