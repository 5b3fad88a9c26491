"""The checks of a director's games in a run folder: nothing to report of a real state, and every planted contradiction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jsrl.directors.league import League
from jsrl.services.snapshots.players import PlayerStore
from jsrl.workers.director.state_file import StateFile
from tests.directors.scripted import beaten, run
from tests.workers.director_audit import read_games

LEAGUE = League(
    main=("main",), main_exploiters=("hunter",), league_exploiters=(), min_env_steps=2_000, max_env_steps=4_000
)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    """Return a run folder of a league of 1,000 games, some of which are discarded or open, and of two frozen players."""
    folder = tmp_path_factory.mktemp("run")
    state, _ = run(LEAGUE, 1_000, beaten(0.8))
    lease = [0, 0, {"id": int(min(state["open"], key=int))}]
    StateFile(folder / "director", None, lambda text: None).write_periodically(
        lambda: {"state": state, "leases": [lease], "orders": []}, now=True
    )
    for name, policy in (("frozen-1", ""), ("frozen-1", "hunter")):
        PlayerStore(folder / "players" / policy).freeze(name, 5, [np.arange(3.0)])
    return folder


def test_the_games_of_a_league_balance(played: Path) -> None:
    games = read_games(played)
    assert games is not None and games.faults == ()
    assert games.finished + games.discarded == 1_000 and games.discarded > 20 and games.open > 0 and games.players == 2
    assert games.assigned == games.finished + games.discarded + games.open


def test_a_run_without_a_director_has_no_games(tmp_path: Path) -> None:
    assert read_games(tmp_path) is None


def lose_a_game(content: dict) -> None:
    content["state"]["open"].popitem()


def count_twice(content: dict) -> None:
    content["state"]["finished"] += 1


def count_twice_in_a_cell(content: dict) -> None:
    next(iter(content["state"]["payoff"].values()))["finished"] += 1


def hold_an_ended_game(content: dict) -> None:
    content["leases"][0][2]["id"] = content["state"]["assigned"]


@pytest.mark.parametrize(
    ("plant", "sentences"),
    [
        (lose_a_game, ("are finished, discarded or open",)),
        (count_twice, ("are finished, discarded or open",)),
        (count_twice_in_a_cell, ("games have not ended by its counts",)),
        (hold_an_ended_game, ("actors hold 1 games that are not open",)),
    ],
)
def test_contradictions_are_found(plant, sentences: tuple[str, ...], played: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(played, tmp_path / "run")
    content = json.loads((folder / "director" / "newest.json").read_text())
    plant(content)
    (folder / "director" / "newest.json").write_text(json.dumps(content))
    games = read_games(folder)
    assert games is not None
    for sentence in sentences:
        assert any(sentence in fault for fault in games.faults), games.faults


def test_a_game_that_a_payoff_waits_for_in_vain_is_found(played: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(played, tmp_path / "run")
    content = json.loads((folder / "director" / "newest.json").read_text())
    state = content["state"]
    waiting = {str(game) for cell in state["payoff"].values() for game, ended, _ in cell["queue"] if not ended}
    assert waiting and waiting <= set(state["open"])
    del state["open"][min(waiting)]
    state["discarded"] += 1
    content["leases"] = []
    (folder / "director" / "newest.json").write_text(json.dumps(content))
    games = read_games(folder)
    assert games is not None and len(games.faults) == 1 and "waits for 1 games that are not open" in games.faults[0]


def test_a_changed_player_and_a_broken_state_are_found(played: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(played, tmp_path / "run")
    path = next((folder / "players" / "hunter").glob("*.npz"))
    path.write_bytes(path.read_bytes() + b"x")
    games = read_games(folder)
    assert games is not None and len(games.faults) == 1 and "has changed" in games.faults[0]
    (folder / "director" / "newest.json").write_text('{"state": ')
    games = read_games(folder)
    assert games is not None and "cannot be read" in games.faults[0]


def test_a_resume_without_the_state_of_its_director_says_so(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert StateFile(tmp_path / "director", 3, warnings.append).read() is None
    assert warnings == [
        f"{tmp_path / 'director'} has no state of the director; it starts over, without ratings and frozen players"
    ]
