"""Standings of several players: a table of win rates, and Elo ratings from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jsrl.directors.ratings import Ratings, rate
from jsrl.matches.match import MatchScore


class Standings:
    """The results of all pairs that played. Elo ratings have mean 0; they cannot show cycles, but the table can.

    Attributes:
      names: of the players. scores: of the matches so far.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.scores: list[MatchScore] = []
        self._points, self._games = np.zeros((2, len(self.names), len(self.names)))

    def add(self, home: int, away: int, score: MatchScore) -> None:
        """Add a match of two players, by their numbers."""
        self.scores.append(score)
        games, points = len(score.games), score.points
        self._points[home, away] += points
        self._points[away, home] += games - points
        self._games[home, away] += games
        self._games[away, home] += games

    @property
    def win_rates(self) -> np.ndarray:
        """Return each row's share of points against each column, [P, P]; NaN for pairs that did not play."""
        rates = np.full_like(self._points, np.nan)
        return np.divide(self._points, self._games, out=rates, where=self._games > 0)

    @property
    def ratings(self) -> Ratings:
        """Return the ratings of the players."""
        return rate(self._points, self._games)

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON values; pairs that did not play are null."""
        ratings = self.ratings
        return {
            "players": self.names,
            "win_rates": [[None if np.isnan(rate) else float(rate) for rate in row] for row in self.win_rates],
            "games": self._games.astype(int).tolist(),
            "elo": [float(value) for value in ratings.elo],
            "elo_low": [float(value) for value in ratings.low],
            "elo_high": [float(value) for value in ratings.high],
            "matches": [score.facts() for score in self.scores],
        }

    def __str__(self) -> str:
        """Return the table, the best player first: win rates of rows against columns, then Elo."""
        ratings, rates = self.ratings, self.win_rates
        order = sorted(range(len(self.names)), key=lambda player: -ratings.elo[player])
        heads = [str(place + 1) for place in range(len(order))]
        rows = [["", "player", *heads, "Elo", "95%"]]
        for place, player in enumerate(order):
            cells = ["-" if np.isnan(rate) else f"{rate:.2f}" for rate in rates[player][order]]
            interval = f"{ratings.low[player]:+.0f} to {ratings.high[player]:+.0f}"
            rows.append([heads[place], self.names[player], *cells, f"{ratings.elo[player]:+.0f}", interval])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [_aligned(row, widths) for row in rows]
        return "\n".join(["Win rates of rows against columns (a draw counts half), and Elo ratings:", *lines])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    cells[1] = row[1].ljust(widths[1])
    return "  ".join(cells).rstrip()
