"""The table of win rates in reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsrl.control.status_writer import player_rows
from jsrl.services.runs.standings import read_standings
from jsrl.tools.report.html import standings_page
from jsrl.tools.report.text import standings_lines


def write(folder: Path, players: list[str]) -> None:
    n = len(players)
    games = [[0.0 if i == j else 10.0 for j in range(n)] for i in range(n)]
    points = [[0.0 if i == j else 7.5 if i > j else 2.5 for j in range(n)] for i in range(n)]
    (folder / "director").mkdir()
    ratings = {"elo": [10.0 * i for i in range(n)], "half": [30.0 + i for i in range(n)]}
    table = {"players": players, "points": points, "games": games} | ratings
    (folder / "director" / "standings.json").write_text(json.dumps(table))


def test_players_are_ranked_with_their_cells(tmp_path: Path) -> None:
    write(tmp_path, ["main@frozen-1", "main@latest", "main@<b>"])
    table = read_standings(tmp_path)
    assert table is not None and table.players == ("main@<b>", "main@latest", "main@frozen-1")
    assert table.points[0].tolist() == [0.0, 7.5, 7.5]
    (line,) = standings_lines(table)
    assert line.endswith("intervals, mean 0): main@<b> +20 ± 32, main@latest +10 ± 31, main@frozen-1 +0 ± 30")
    page = standings_page(table)
    assert "<b>" not in page and page.count(">75%<") == 3 and page.count(">25%<") == 3


def test_large_tables_show_the_best_and_the_learning_players(tmp_path: Path) -> None:
    write(tmp_path, ["main@latest", *(f"main@frozen-{i}" for i in range(40))])
    table = read_standings(tmp_path)
    assert table is not None
    (line,) = standings_lines(table)
    assert "main@latest +0" in line and "main@frozen-39 +400" in line and line.endswith("and 29 others")
    first, *_, last = player_rows(table.best(4))
    assert (first.name, first.elo, first.half, first.shares) == (
        "main@frozen-39",
        400.0,
        70.0,
        (None, 0.75, 0.75, 0.75),
    )
    assert (last.name, last.shares) == ("main@latest", (0.25, 0.25, 0.25, None))


@pytest.mark.parametrize(
    "content", ["", "[]", '{"players": ["a"]}', '{"players": ["a", "b"], "elo": [1], "points": [], "games": []}']
)
def test_broken_file_drops_only_its_section(content: str, tmp_path: Path) -> None:
    (tmp_path / "director").mkdir()
    (tmp_path / "director" / "standings.json").write_text(content)
    assert read_standings(tmp_path) is None
    assert read_standings(tmp_path / "elsewhere") is None
