"""Standings of a run with a director, in reports: ratings and the payoff table."""

from __future__ import annotations

from html import escape

import numpy as np

from jsrl.errors import counted
from jsrl.runs.standings import StandingsTable

MOST = 12  # players of the payoff table: the best ones, and those that learn


def standings_lines(table: StandingsTable) -> list[str]:
    """Return the ratings as lines of text."""
    shown = table.best(MOST)
    names = [f"{player} {_rating(shown, i)}" for i, player in enumerate(shown.players)]
    rest = len(table.players) - len(names)
    return [f"ratings (Elo with 95% intervals, mean 0): {', '.join(names)}" + (f", and {rest} others" if rest else "")]


def standings_page(table: StandingsTable) -> str:
    """Return ratings and payoff table as HTML: each cell is the share of points that the row won against the column."""
    shown = table.best(MOST)
    head = "".join(f"<th>{escape(player)}</th>" for player in shown.players)
    rows = []
    for i, player in enumerate(shown.players):
        cells = "".join(_cell(shown.points[i, j], shown.games[i, j]) for j in range(len(shown.players)))
        rows.append(f"<tr><th>{escape(player)}</th><td>{_rating(shown, i)}</td>{cells}</tr>")
    players = counted(len(table.players), "player")
    note = f"<p>{players}; recent games weigh more. Ratings cannot show cycles: look at the cells.</p>"
    table_html = (
        f'<table class="numbers"><thead><tr><th>row against column</th><th>Elo</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return f'{note}<div class="scroll">{table_html}</div>'


def _rating(table: StandingsTable, player: int) -> str:
    half = table.half[player]
    return f"{table.elo[player]:+.0f}" + ("" if np.isnan(half) else f" ± {half:.0f}")


def _cell(points: float, games: float) -> str:
    if games <= 0:
        return "<td></td>"
    share = points / games
    shade = f"rgba({'46,160,67' if share >= 0.5 else '218,54,51'},{abs(share - 0.5):.2f})"
    return f'<td style="background:{shade}" title="{games:.0f} games">{100 * share:.0f}%</td>'
