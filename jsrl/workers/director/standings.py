"""Standings of the players: ratings as metrics, and the payoff table as a file for reports."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.directors.messages import LATEST
from jsrl.directors.ratings import rate
from jsrl.runs.files import write_json
from jsrl.runs.standings import LEARNS, StandingsTable

FILE = "standings.json"
MOST = 100  # rated players besides the latest ones: the newest
CHARTED = 8  # players with metrics of their own: those that learn, and the best
PERIOD_S = 5.0  # between two ratings, which take a while for many players


class Standings:
    """The newest ratings of a director's players. folder: for the table."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._due_s, self._metrics = folder, 0.0, dict[str, float]()

    def look(self, director: Any, state: dict[str, Any]) -> dict[str, float]:
        """Return the metrics of the players, at most a few seconds old; new ones also by player and by pair."""
        if time.monotonic() < self._due_s:
            return self._metrics
        table = self.write(director, state)
        self._due_s = time.monotonic() + PERIOD_S
        return self._metrics | (by_player(table) if table is not None else {})

    def write(self, director: Any, state: dict[str, Any]) -> StandingsTable | None:
        if not hasattr(director, "results"):
            return None
        players, points, games = director.results(state)
        if not players:
            return None
        shown = [i for i, player in enumerate(players) if player.version == LATEST or i >= len(players) - MOST]
        players, points, games = [players[i] for i in shown], points[np.ix_(shown, shown)], games[np.ix_(shown, shown)]
        elo, low, _ = rate(points, games)
        self._metrics = {"players": float(len(players)), "elo_best": float(np.max(elo))}
        if latest := [i for i, player in enumerate(players) if player.version == LATEST]:
            best = max(latest, key=lambda i: elo[i])
            self._metrics |= {"elo_latest": float(elo[best]), "elo_latest_ci95": float(elo[best] - low[best])}
            if (games[best] > 0).any():
                rates = points[best][games[best] > 0] / games[best][games[best] > 0]
                self._metrics |= {"win_rate_mean": float(rates.mean()), "win_rate_least": float(rates.min())}
        table = {
            "players": [str(player) for player in players],
            "points": points,
            "games": games,
            "elo": elo,
            "elo_ci95": elo - low,
        }
        with contextlib.suppress(OSError):  # a full disk: the run continues without a table
            self._folder.mkdir(exist_ok=True)
            write_json(self._folder / FILE, table)
        return StandingsTable(tuple(table["players"]), elo, elo - low, points, games).ranked()


def by_player(table: StandingsTable) -> dict[str, float]:
    """Return `elo/PLAYER`, and `payoff/A/B`: the share of points that A won against B, once for each pair that played."""
    shown = table.best(CHARTED)
    found = {f"elo/{player}": float(elo) for player, elo in zip(shown.players, shown.elo, strict=True)}
    in_order = sorted(
        range(len(shown.players)), key=lambda i: (not shown.players[i].endswith(LEARNS), shown.players[i])
    )
    for home, away in itertools.combinations(in_order, 2):
        if (share := shown.share(home, away)) is not None:
            found[f"payoff/{shown.players[home]}/{shown.players[away]}"] = share
    return found
