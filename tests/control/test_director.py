"""A director in a run: assigned players play, frozen players never change, and only rows of learning seats train."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.directors.fixed import LatestSelfPlay, Match
from jsrl.directors.plr import PLR
from jsrl.directors.stages import Stage
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, LearnerConfig, PolicyConfig
from jsrl.services.snapshots.players import PlayerStore
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import make_version, version_updates
from tests.duel import MarkedConfig, ResetOnce, Watched, WatchedLeague, WatchedMatches, WatchedStages
from tests.marks import nightly

DUEL = Experiment(
    env=EnvConfig("tests.duel:Duel"),
    name="duel",
    policies={"main": PolicyConfig(MarkedConfig())},
    director=Watched(freeze_env_steps=60, latest_share=0.2),
    num_envs=4,
    num_groups=2,
    num_actors=1,
    rollout_length=8,
    total_env_steps=30 * 32,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
)


def state_of(result) -> dict:
    return json.loads(Path(result.folder, "director", "newest.json").read_text())["state"]


def written(result) -> dict:
    """Return the files beside the last snapshot: the director's state, and the assignment of each slot."""
    path = max(
        Path(result.folder, "director").glob("state-*.json"), key=lambda path: version_updates(int(path.stem[6:]))
    )
    found = json.loads(path.read_text())
    for _, _, lease in found["leases"]:  # learner and director are new incarnations after a resume
        lease["players"] = [(policy, version_updates(version)) for policy, version in lease["players"]]
        del lease["session"]
    return found


def store_of(result, policy: str = "") -> PlayerStore:
    return PlayerStore(Path(result.folder, "players", policy))


def versions_of(result) -> dict[str, int]:
    return store_of(result).names()


def check_games(result, *, discarded: int = 0) -> Counter:
    """Check every counted game: each frozen side earned what its params play, at each step. Return games per player."""
    state, players, marks = state_of(result), Counter[str](), dict[str, float]()
    assert state["assigned"] == state["finished"] + state["discarded"] + len(state["open"])
    assert state["discarded"] <= discarded and len(state["seen"]) == state["finished"] + state["discarded"] > 100
    for _, names, sides, length, returns, why in state["seen"]:
        players.update(names)
        for name, side in zip(names, sides, strict=True):
            policy, _, version = name.partition("@")
            if not why and version != "latest":
                if name not in marks:
                    store = store_of(result, "" if policy == "main" else policy)
                    marks[name] = float(store.load(store.version(version))[0][0])
                assert returns[side] == length * marks[name], (name, length, returns)
    return players


@pytest.mark.slow
@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize(
    "placement",
    ["serial", nightly("inline"), nightly("served")],
)
def test_each_seat_is_played_by_the_version_that_is_assigned(placement: str, core: bool, tmp_path: Path) -> None:
    actors = 1 if placement == "serial" else 2
    policies = {"main": PolicyConfig(MarkedConfig(core=core))}
    duel = dataclasses.replace(DUEL, placement=placement, num_actors=actors, policies=policies, total_env_steps=60 * 32)
    result = run(duel, runs_dir=tmp_path, display="quiet")
    assert result.updates == 60 and result.ledger["in_flight"] == 0
    players = check_games(result)
    frozen = {name for name in players if name != "main@latest"}
    assert len(frozen) >= (10 if placement == "serial" else 1), players
    assert all("frozen-" in name for name in frozen)
    assert versions_of(result)["initial"] & 0xFFFFFFFFFF == 0
    lines = [json.loads(line) for line in Path(result.folder, "metrics.jsonl").read_text().splitlines()]
    assert all(line["learner/loss"] == 0 for line in lines if "learner/loss" in line), "rows of others were trained on"
    shares = [line["learner/trained"] for line in lines if "learner/trained" in line]
    assert 0.5 <= np.mean(shares) < 1.0


POLICIES = ("main", "hunter", "rover")


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", nightly("served")])
def test_several_policies_may_play_the_same_seats(placement: str, tmp_path: Path) -> None:
    """A league: three policies of one symmetric game, frozen and reset; each trains only on its own rows."""
    league = WatchedLeague(
        main=("main",), main_exploiters=("hunter",), league_exploiters=("rover",), min_env_steps=100, max_env_steps=200
    )
    policies = {name: PolicyConfig(MarkedConfig()) for name in POLICIES}
    changes = {"policies": policies, "director": league, "placement": placement, "total_env_steps": 60 * 32}
    result = run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
    players = check_games(result)
    assert {name.partition("@")[0] for name in players} == set(POLICIES)
    assert any("@" in name and not name.endswith("latest") for name in players)
    lines = [json.loads(line) for line in Path(result.folder, "metrics.jsonl").read_text().splitlines()]
    for prefix in ("", "hunter/", "rover/"):
        losses = [line[f"{prefix}learner/loss"] for line in lines if f"{prefix}learner/loss" in line]
        assert losses and max(losses) == 0.0, prefix
    names = [f"{prefix}learner/trained" for prefix in ("", "hunter/", "rover/")]
    trained = sum(np.mean([line[name] for line in lines if name in line]) for name in names)
    assert 0.4 < trained < 1.0
    if placement == "serial":
        assert store_of(result, "hunter").names()["initial"] == 0


def test_a_serial_run_is_the_same_whether_it_is_resumed_or_not(tmp_path: Path) -> None:
    """12 updates at once, and 6 + 6: the same pool, payoffs, open games and random numbers."""
    whole = run(DUEL, runs_dir=tmp_path, name="whole", display="quiet", total_env_steps=12 * 32)
    first = run(DUEL, runs_dir=tmp_path, name="half", display="quiet", total_env_steps=6 * 32)
    assigned = state_of(first)["assigned"]
    second = run(DUEL, runs_dir=tmp_path, resume="half", display="quiet", total_env_steps=12 * 32)
    assert assigned < state_of(second)["assigned"]
    assert state_of(whole) == state_of(second)
    updates = [{name: version_updates(v) for name, v in versions_of(result).items()} for result in (whole, second)]
    assert updates[0] == updates[1]
    assert state_of(whole)["discarded"] == 0


@pytest.mark.slow
def test_processes_assign_the_same_games_as_a_serial_run_also_after_a_resume(tmp_path: Path) -> None:
    """12 updates in one process, and 6 with inline actors + 6 with servers: the same games, random numbers, pool and rows."""
    duel = dataclasses.replace(DUEL, deterministic=True, num_actors=1)
    whole = run(duel, runs_dir=tmp_path, name="whole", display="quiet", total_env_steps=12 * 32)
    changes = {"runs_dir": tmp_path, "display": "quiet", "num_actors": 2}
    first = run(duel, name="half", placement="inline", total_env_steps=6 * 32, **changes)
    assert written(first)["state"]["finished"] > 10
    second = run(duel, resume="half", placement="served", total_env_steps=12 * 32, **changes)
    assert written(second) == written(whole)
    # a freeze at the last update may come after the learner has left: the director sends it again to the next incarnation
    before_last = [
        {
            name: version_updates(version)
            for name, version in versions_of(result).items()
            if version_updates(version) < 12
        }
        for result in (whole, second)
    ]
    assert before_last[0] == before_last[1] != {}


@pytest.mark.slow
def test_a_run_with_tasks_is_the_same_whether_it_is_resumed_or_not(tmp_path: Path) -> None:
    """The lengths of games are tasks: the journals hold them."""
    stages = (Stage("first", ({"length": 3}, {"length": 5}), max_env_steps=200), Stage("then", ({"length": 2},)))
    director = WatchedStages(policies=("main",), stages=stages)
    walk = dataclasses.replace(DUEL, director=director, env=EnvConfig("tests.duel:Walk"))
    whole = run(walk, runs_dir=tmp_path, name="whole", display="quiet", total_env_steps=12 * 32)
    run(walk, runs_dir=tmp_path, name="half", display="quiet", total_env_steps=5 * 32)
    second = run(walk, runs_dir=tmp_path, resume="half", display="quiet", total_env_steps=12 * 32)
    assert "continuing exactly" in (second.folder / "logs" / "controller.log").read_text()
    assert written(whole) == written(second) and state_of(whole)["discarded"] == 0
    played = [length for _, length in lengths_of(whole)]
    assert set(played[:20]) == {3, 5} and played[-1] == 2


@pytest.mark.nightly
def test_frozen_players_are_the_same_files_after_a_thousand_updates(tmp_path: Path) -> None:
    short = {"num_envs": 2, "num_groups": 1, "rollout_length": 2, "director": Watched(freeze_env_steps=50)}
    duel = dataclasses.replace(DUEL, **short)
    result = run(duel, runs_dir=tmp_path, display="quiet", total_env_steps=60 * 4)
    before = {path: path.read_bytes() for path in store_of(result).folder.glob("*.npz")}
    again = run(duel, runs_dir=tmp_path, display="quiet", resume=str(result.folder), total_env_steps=1_060 * 4)
    assert again.updates == 1_060 and len(before) >= 3
    assert {path: path.read_bytes() for path in before} == before
    store_of(again).check()  # the digests in the names of all of them


@pytest.mark.slow
def test_announced_reset_is_carried_out_after_a_resume(tmp_path: Path) -> None:
    """The params count their updates, and so does the run: the reset, which replaces one, is none."""
    changes = {"director": ResetOnce(num_sides=2), "total_env_steps": 40 * 32}
    first = run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, name="one", display="quiet")
    assert "for now" in first.ended and 2 < first.updates < 40
    second = run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, resume="one", display="quiet")
    made = [SnapshotStore(Path(second.folder, "snapshots", "state")).load(tag).tree["state"]["params"]["weights"]["made"]
            for tag in (make_version(0, first.updates), "final")]  # fmt: skip
    assert [float(value[0]) for value in made] == [first.updates, second.updates - first.updates]


def test_a_resume_refuses_a_frozen_player_that_changed(tmp_path: Path) -> None:
    result = run(DUEL, runs_dir=tmp_path, name="one", display="quiet", total_env_steps=6 * 32)
    name, version = sorted(versions_of(result).items())[0]
    (file,) = Path(result.folder, "players").glob(f"{version}-*.npz")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ConfigError, match=f"(?s){version}.*changed|cannot be read"):
        run(DUEL, runs_dir=tmp_path, resume="one", display="quiet", total_env_steps=12 * 32)
    assert name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"director": Watched(policies=("other",))}, "other.*main"),
        ({"director": LatestSelfPlay(policies=("main",), num_sides=3)}, "3 sides.*2"),
        ({"director": "pfsp"}, "give a director"),
        ({"director": PLR(policies=("main",), num_sides=2)}, "needs scores of games"),
        ({"director": ResetOnce(), "learner": LearnerConfig(split="actor-critic")}, "split=actor-critic.*director"),
    ],
)
def test_invalid_options_are_refused_before_the_start(changes: dict, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
    assert not any(tmp_path.iterdir())


LENGTHS = {"short": 2, "long": 7}


@pytest.mark.parametrize("placement", ["serial", nightly("inline")])
def test_episodes_are_about_the_task_that_is_assigned(placement: str, tmp_path: Path) -> None:
    """Weighted tasks of a game with two seats: each sets the length of its episode."""
    matches = tuple(Match(("main", "main@initial"), 1.0, {"length": n, "name": name}) for name, n in LENGTHS.items())
    changes = {"director": WatchedMatches(matches, permute_sides=True), "placement": placement}
    result = run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
    check_games(result)
    found = Counter((task["name"], length) for task, length in lengths_of(result))
    assert set(found) == set(LENGTHS.items()), found
    assert min(found.values()) > 20


def test_a_curriculum_teaches_one_agent_stage_by_stage(tmp_path: Path) -> None:
    """An environment without seats; the first stage ends after some env steps."""
    stages = tuple(Stage(name, ({"length": n},), max_env_steps=100) for name, n in LENGTHS.items())
    director = WatchedStages(policies=("main",), stages=stages, stop=True)
    changes = {"director": director, "env": EnvConfig("tests.duel:Walk")}
    result = run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
    assert result.ended.startswith("stopped by director: the last stage, ") and result.as_intended
    played = [length for _, length in lengths_of(result)]
    assert set(played) == {2, 7} and played == sorted(played) and played.count(2) >= 50


def lengths_of(result) -> list[tuple[dict, int]]:
    return [(task, length) for task, length in state_of(result)["tasks"]]


@pytest.mark.slow
def test_an_environment_without_options_takes_no_tasks(tmp_path: Path) -> None:
    director = WatchedMatches((Match(("main", "main"), 1.0, {"length": 3}),))
    changes = {
        "director": director,
        "env": EnvConfig("matrix:biased_rps"),
        "policies": {"main": PolicyConfig(PPOConfig())},
    }
    with pytest.raises(ConfigError, match="takes no tasks"):
        run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
