"""Standings of a run with a director, for reports: ratings and the payoff table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from jsrl.runs.files import read_json

FILE = Path("director") / "standings.json"
MOST = 12  # players of the payoff table: the best ones, and those that learn
LEARNS = "@latest"


@dataclass(frozen=True)
class StandingsTable:
    """The players of a run, best first: points[i, j] that i won against j in games[i, j] games, and Elo ratings."""

    players: tuple[str, ...]
    elo: np.ndarray
    points: np.ndarray
    games: np.ndarray

    def best(self, most: int) -> StandingsTable:
        """Return the table of the best players and those that learn."""
        learning = [i for i, player in enumerate(self.players) if player.endswith(LEARNS)]
        kept = sorted({*learning, *range(len(self.players))[: max(0, most - len(learning))]})
        inside = np.ix_(kept, kept)
        names = tuple(self.players[i] for i in kept)
        return StandingsTable(names, self.elo[kept], self.points[inside], self.games[inside])


def read_standings(folder: Path) -> StandingsTable | None:
    """Return the standings in a run's folder; None: there are none, or the file is not a director's."""
    try:
        values = read_json(folder / FILE)
        players, elo = list(map(str, values["players"])), np.array(values["elo"], float)
        points, games = np.array(values["points"], float), np.array(values["games"], float)
        order = np.argsort(-elo, kind="stable")
        inside = np.ix_(order, order)
        return StandingsTable(tuple(players[i] for i in order), elo[order], points[inside], games[inside])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def standings_lines(table: StandingsTable) -> list[str]:
    """Return the ratings as lines of text."""
    shown = table.best(MOST)
    names = [f"{player} {elo:+.0f}" for player, elo in zip(shown.players, shown.elo, strict=True)]
    rest = len(table.players) - len(names)
    return [f"ratings (Elo, mean 0): {', '.join(names)}" + (f", and {rest} others" if rest else "")]


def standings_page(table: StandingsTable) -> str:
    """Return ratings and payoff table as HTML: each cell is the share of points that the row won against the column."""
    shown = table.best(MOST)
    head = "".join(f"<th>{escape(player)}</th>" for player in shown.players)
    rows = []
    for i, player in enumerate(shown.players):
        cells = "".join(_cell(shown.points[i, j], shown.games[i, j]) for j in range(len(shown.players)))
        rows.append(f"<tr><th>{escape(player)}</th><td>{shown.elo[i]:+.0f}</td>{cells}</tr>")
    note = (
        f"<p>{len(table.players)} players; recent games weigh more. Ratings cannot show cycles: look at the cells.</p>"
    )
    table_html = (
        f'<table class="numbers"><thead><tr><th>row against column</th><th>Elo</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return f'{note}<div class="scroll">{table_html}</div>'


def _cell(points: float, games: float) -> str:
    if games <= 0:
        return "<td></td>"
    share = points / games
    shade = f"rgba({'46,160,67' if share >= 0.5 else '218,54,51'},{abs(share - 0.5):.2f})"
    return f'<td style="background:{shade}" title="{games:.0f} games">{100 * share:.0f}%</td>'
