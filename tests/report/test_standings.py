"""Who beats whom, in reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsrl.report.standings import read_standings, standings_lines, standings_page


def write(folder: Path, players: list[str]) -> None:
    n = len(players)
    games = [[0.0 if i == j else 10.0 for j in range(n)] for i in range(n)]
    points = [[0.0 if i == j else 7.5 if i > j else 2.5 for j in range(n)] for i in range(n)]
    (folder / "director").mkdir()
    table = {"players": players, "points": points, "games": games, "elo": [10.0 * i for i in range(n)]}
    (folder / "director" / "standings.json").write_text(json.dumps(table))


def test_players_are_ranked_and_cells_belong_to_them(tmp_path: Path) -> None:
    write(tmp_path, ["main@frozen-1", "main@latest", "main@<b>"])
    table = read_standings(tmp_path)
    assert table is not None and table.players == ("main@<b>", "main@latest", "main@frozen-1")
    assert table.points[0].tolist() == [0.0, 7.5, 7.5]
    assert standings_lines(table) == ["ratings (Elo, mean 0): main@<b> +20, main@latest +10, main@frozen-1 +0"]
    page = standings_page(table)
    assert "<b>" not in page and page.count(">75%<") == 3 and page.count(">25%<") == 3


def test_of_many_the_best_and_those_that_learn_are_shown(tmp_path: Path) -> None:
    write(tmp_path, ["main@latest", *(f"main@frozen-{i}" for i in range(40))])
    table = read_standings(tmp_path)
    assert table is not None
    (line,) = standings_lines(table)
    assert "main@latest +0" in line and "main@frozen-39 +400" in line and line.endswith("and 29 others")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"players": ["a"]}', '{"players": ["a", "b"], "elo": [1], "points": [], "games": []}']
)
def test_a_broken_file_costs_the_section_alone(content: str, tmp_path: Path) -> None:
    (tmp_path / "director").mkdir()
    (tmp_path / "director" / "standings.json").write_text(content)
    assert read_standings(tmp_path) is None
    assert read_standings(tmp_path / "elsewhere") is None
