"""Standings of several players: a table of win rates, and Elo ratings from it.

In a game of n sides each pair of its players has a result: the side with the higher return wins. The n (n - 1) / 2 results
of one game depend on each other, so each counts as 3 / (n + 1) games: then the intervals are exact for equal
players, for whom all n! orders of a game are equally likely. With two sides this is 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jsrl.directors.ratings import Ratings, rate, win_rate_interval
from jsrl.intervals import mean_interval, with_half
from jsrl.matches.match import MatchScore, TableGame


class Standings:
    """The results of all pairs that played. Elo ratings have mean 0; they cannot show cycles, but the table can.

    Args:
      sides: of the game.

    Attributes:
      names: of the players. scores: of the matches so far. returns: of each player, a number a game, in games of more than
        two sides. firsts: in how many of these games each was first; several firsts share one.
    """

    def __init__(self, names: Sequence[str], sides: int = 2) -> None:
        self.names, self._sides = list(names), sides
        self.scores: list[MatchScore] = []
        self.returns: list[list[float]] = [[] for _ in self.names]
        self.firsts = np.zeros(len(self.names))
        self.repeats_itself = (
            False  # the games of some match or table were equal, so that more of them add no information
        )
        self._points, self._games = np.zeros((2, len(self.names), len(self.names)))

    def add(self, home: int, away: int, score: MatchScore) -> None:
        self.scores.append(score)
        games, points = len(score.games), score.points
        self.repeats_itself |= score.repeats_itself
        self._points[home, away] += points
        self._points[away, home] += games - points
        self._games[home, away] += games
        self._games[away, home] += games

    def add_table(self, players: Sequence[int], games: Sequence[TableGame]) -> None:
        """Add games of a table. players: the numbers of its players here."""
        orders = len({game.players for game in games})
        self.repeats_itself |= len(games) >= 2 * orders and len(set(games)) == orders
        for game in games:
            seated, best = [players[number] for number in game.players], max(game.totals)
            first = [total == best for total in game.totals]
            for player, total, is_first in zip(seated, game.totals, first, strict=True):
                self.returns[player].append(total)
                self.firsts[player] += is_first / sum(first)
            for (one, own), (other, rival) in itertools.permutations(zip(seated, game.totals, strict=True), 2):
                if one != other:
                    self._points[one, other] += (float(own > rival) + float(own >= rival)) / 2.0
                    self._games[one, other] += 1

    @property
    def win_rates(self) -> np.ndarray:
        """Return each row's share of points against each column, [P, P]; NaN for pairs that did not play."""
        rates = np.full_like(self._points, np.nan)
        return np.divide(self._points, self._games, out=rates, where=self._games > 0)

    @property
    def ratings(self) -> Ratings:
        weight = 3.0 / (self._sides + 1)
        return rate(weight * self._points, weight * self._games)

    def of_each(self) -> list[dict[str, Any]]:
        """Return each player's games, mean return and share of first places, with 95% intervals; more than two sides."""
        found = []
        for name, returns, firsts in zip(self.names, self.returns, self.firsts.tolist(), strict=True):
            (mean, half), (low, high) = mean_interval(returns), win_rate_interval(firsts, len(returns))
            share = firsts / max(1, len(returns))
            found.append(
                {
                    "player": name,
                    "games": len(returns),
                    "return_mean": mean,
                    "return_ci95": half,
                    "first_share": share,
                    "first_share_low": low,
                    "first_share_high": high,
                }
            )
        return found

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
            **({"each": self.of_each()} if self._sides > 2 else {}),
        }

    def __str__(self) -> str:
        """Return the table, the best player first: win rates of rows against columns, then Elo."""
        ratings, rates = self.ratings, self.win_rates
        order = sorted(range(len(self.names)), key=lambda player: -ratings.elo[player])
        heads, each = [str(place + 1) for place in range(len(order))], self.of_each() if self._sides > 2 else None
        rows = [["", "player", *heads, "Elo", "95%", *(["first", "95%", "return"] if each else [])]]
        for place, player in enumerate(order):
            cells = ["-" if np.isnan(rate) else f"{rate:.2f}" for rate in rates[player][order]]
            interval = f"{ratings.low[player]:+.0f} to {ratings.high[player]:+.0f}"
            rows.append([heads[place], self.names[player], *cells, f"{ratings.elo[player]:+.0f}", interval])
            if each:
                rows[-1] += [
                    f"{each[player]['first_share']:.2f}",
                    f"{each[player]['first_share_low']:.2f} to {each[player]['first_share_high']:.2f}",
                    with_half(each[player]["return_mean"], each[player]["return_ci95"]),
                ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [_aligned(row, widths) for row in rows]
        return "\n".join(["Win rates of rows against columns (a draw counts half), and Elo ratings:", *lines])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    cells[1] = row[1].ljust(widths[1])
    return "  ".join(cells).rstrip()
