"""Standings of a run with a director, as its folder keeps them: ratings and the payoff table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jsrl.services.runs.files import read_json, write_json

FILE = Path("director") / "standings.json"
LEARNS = "@latest"


@dataclass(frozen=True)
class StandingsTable:
    """The players of a run, best first: points[i, j] that i won against j in games[i, j] games, and Elo ratings.

    half: half widths of the 95% intervals of the ratings.
    """

    players: tuple[str, ...]
    elo: np.ndarray
    half: np.ndarray
    points: np.ndarray
    games: np.ndarray

    def write(self, folder: Path) -> None:
        """Write it into a director's folder.

        Raises:
          OSError: it cannot be written.
        """
        folder.mkdir(exist_ok=True)
        write_json(folder / FILE.name, vars(self))

    def best(self, most: int) -> StandingsTable:
        """Return the table of the best players and those that learn."""
        learning = [i for i, player in enumerate(self.players) if player.endswith(LEARNS)]
        return self._of(sorted({*learning, *range(len(self.players))[: max(0, most - len(learning))]}))

    def ranked(self) -> StandingsTable:
        return self._of(np.argsort(-self.elo, kind="stable").tolist())

    def share(self, home: int, away: int) -> float | None:
        """Return the share of points that a player won against another, by their numbers; None: they did not play."""
        games = self.games[home, away]
        return float(self.points[home, away] / games) if games > 0 else None

    def _of(self, kept: list[int]) -> StandingsTable:
        inside = np.ix_(kept, kept)
        names = tuple(self.players[i] for i in kept)
        return StandingsTable(names, self.elo[kept], self.half[kept], self.points[inside], self.games[inside])


def read_standings(folder: Path) -> StandingsTable | None:
    """Return the standings in a run's folder; None: there are none, or the file is not a director's."""
    try:
        values = read_json(folder / FILE)
        players, elo = tuple(map(str, values["players"])), np.array(values["elo"], float)
        half, points, games = (np.array(values[name], float) for name in ("half", "points", "games"))
        return StandingsTable(players, elo, half, points, games).ranked()
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None
