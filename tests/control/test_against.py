"""`evaluator.against`: the score of a run is its result against named opponents; uninformative scores are reported."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from jsrl.control.run import run
from jsrl.directors.pools import DeltaUniform
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.graph.opponents import check_scores
from jsrl.services.runs.runs import read_metrics
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.policy import load_policy
from tests.duel import MarkedConfig

EVALUATOR = EvaluatorConfig(episodes=6, num_envs=3, final_episodes=8, period_env_steps=4 * 32, against=("initial",))
DUEL = Experiment(
    env=EnvConfig("tests.duel:Duel"),
    name="duel",
    agent=MarkedConfig(),
    num_envs=4,
    rollout_length=8,
    total_env_steps=20 * 32,
    placement="serial",
    evaluator=EVALUATOR,
)
MAIN = {"main": PolicyConfig(MarkedConfig())}
ROLES = {"left_one": PolicyConfig(MarkedConfig(), "left"), "right_one": PolicyConfig(MarkedConfig(), "right")}


def scores(result, name="evaluator/win_rate"):
    values = read_metrics(result.folder / "metrics.jsonl")[name]
    return values[np.isfinite(values)].tolist()


@pytest.mark.slow
def test_first_params_are_an_opponent_and_the_win_rate_is_the_score(tmp_path):
    """The side with more updates wins, so that every evaluation wins all games and the newest is the best."""
    result = run(DUEL, runs_dir=tmp_path, name="one", display="quiet")
    rates = scores(result)
    assert set(rates) == {1.0} and len(rates) >= 4
    assert scores(result, "evaluator/win_rate_initial") == rates and set(scores(result, "evaluator/opponents")) == {1.0}
    assert result.evaluation["win_rate"] == 1.0 and result.evaluation["episodes"] == 6
    assert result.final["win_rate"] == 1.0 and result.final["episodes"] == 8
    assert "evaluation: win rate 1.000 (95%: 0.610 to 1.000, 6 greedy episodes)" in str(result)
    known = SnapshotStore(result.folder / "snapshots" / "params").meta("best")
    assert result.best == {name: known[name] for name in result.best if name != "load"} | {
        "load": f"{result.folder}@best"
    }
    assert {"win_rate", "env_steps", "version_updates"} <= result.best.keys()
    assert load_policy(result.folder, "best").version & 0xFFFF == scores(result, "evaluator/version_updates")[-1]
    assert load_policy(result.folder, "initial").version & 0xFFFF == 0
    # another run's snapshots as opponents, in processes, with a goal
    goal = dataclasses.replace(EVALUATOR, against=("one@best", "one@initial"))
    second = run(
        dataclasses.replace(DUEL, evaluator=goal, policies=MAIN, agent=None, stop_at_return=0.9, placement="inline"),
        runs_dir=tmp_path, name="two", display="quiet", num_actors=1, total_env_steps=200_000,
    )  # fmt: skip
    assert second.ended == "stop_at_return" and second.final["opponents"] == 2 and second.final["win_rate"] == 1.0
    assert second.evaluation["version_updates"] > scores(result, "evaluator/version_updates")[-1]
    columns = read_metrics(second.folder / "metrics.jsonl")
    assert {"evaluator/win_rate_duel_one_best", "evaluator/win_rate_duel_one_initial"} <= set(columns)
    assert "goal of 0.9 is reached" in (second.folder / "logs" / "controller.log").read_text()
    assert "win rate" in (second.folder / "report.html").read_text()


@pytest.mark.slow
def test_each_of_two_roles_plays_its_own_seats_against_the_others_past(tmp_path):
    e = dataclasses.replace(DUEL, agent=None, policies=ROLES)
    result = run(e, runs_dir=tmp_path, name="roles", display="quiet")
    assert result.evaluation["win_rate"] == 1.0 and result.others["right_one"]["evaluation"]["win_rate"] == 1.0
    resumed = dataclasses.replace(EVALUATOR, against=("right_one/initial",))
    with pytest.raises(ConfigError, match="right_one/initial has right; one must have all seats of a side"):
        run(dataclasses.replace(e, evaluator=resumed), runs_dir=tmp_path, resume="roles", display="quiet")


@pytest.mark.slow
def test_later_frozen_players_join_the_opponents_and_reset_best(tmp_path):
    against = dataclasses.replace(EVALUATOR, against=("initial", "frozen-2"))
    director = DeltaUniform(freeze_env_steps=60, latest_share=0.5)
    e = dataclasses.replace(DUEL, agent=None, policies=MAIN, director=director, evaluator=against)
    result = run(e, runs_dir=tmp_path, name="pool", display="quiet")
    there = scores(result, "evaluator/opponents")
    assert there[0] == 1.0 and there[-1] == 2.0 and there == sorted(there)
    best = json.loads((result.folder / "snapshots" / "params" / "tags" / "best.json").read_text())
    assert best["meta"]["against"] == ["initial", "frozen-2"] and best["meta"]["opponents"] == 2


@pytest.mark.slow
def test_resume_without_saved_first_params_is_refused(tmp_path):
    off = dataclasses.replace(DUEL, evaluator=EvaluatorConfig(enabled=False), total_env_steps=2 * 32)
    run(off, runs_dir=tmp_path, name="one", display="quiet")
    with pytest.raises(ConfigError, match="has no frozen player initial"):
        run(DUEL, runs_dir=tmp_path, resume="one", display="quiet")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"evaluator": {"against": ("frozen-1",)}}, "only a director freezes players"),
        ({"evaluator": {"against": ("initial", "initial")}}, "names one twice"),
        ({"evaluator": {"against": ("nobody@best",)}}, "there is no run nobody"),
        (
            {"evaluator": {"against": ("other/initial",)}},
            "names other/initial, but the policies of this run are policy",
        ),
        ({"evaluator": {"enabled": False}}, "the evaluator is off"),
        ({"stop_at_return": 20.0}, "give a number from 0 to 1"),
        ({"env": EnvConfig("probe:continuous")}, "one agent and no seats"),
        (
            {"env": EnvConfig("tests.duel:Duel", {"sides": {"*": "team"}})},
            "there are no opponents; evaluate without one",
        ),
    ],
)
def test_invalid_options_are_refused_before_the_start(changes, expected, tmp_path):
    changes = dict(changes)
    if "evaluator" in changes:
        changes["evaluator"] = dataclasses.replace(EVALUATOR, **changes["evaluator"])
    with pytest.raises(ConfigError, match=expected):
        run(dataclasses.replace(DUEL, **changes), runs_dir=tmp_path, display="quiet")
    assert not any(tmp_path.iterdir())


def test_a_zero_sum_run_whose_score_is_a_mean_return_is_refused():
    env = EnvConfig("tests.duel:Duel", {"zero_sum": True})
    e = dataclasses.replace(DUEL, env=env, evaluator=EvaluatorConfig())
    spec, seats = make_spec(env), {"policy": {"left": 0, "right": 1}}
    for refused in (e, dataclasses.replace(e, director=DeltaUniform())):
        with pytest.raises(ConfigError, match=r"is zero-sum: .* --evaluator\.against initial"):
            check_scores(refused, spec, seats)
    two, places = (
        dataclasses.replace(e, agent=None, policies=ROLES),
        {"left_one": {"left": 0}, "right_one": {"right": 1}},
    )
    with pytest.raises(ConfigError, match=r"--evaluator\.against initial"):  # this option is for both of them
        check_scores(two, spec, places)
    check_scores(dataclasses.replace(two, evaluator=EVALUATOR), spec, places)
    for scored in (EVALUATOR, EvaluatorConfig(enabled=False)):
        check_scores(dataclasses.replace(e, evaluator=scored), spec, seats)
    check_scores(e, make_spec(EnvConfig("tests.duel:Duel")), seats)
    one = ROLES | {"left_one": dataclasses.replace(ROLES["left_one"], against=("initial",))}
    with pytest.raises(ConfigError, match=r"--policies\.right_one\.against initial"):
        check_scores(
            dataclasses.replace(e, agent=None, policies=one), spec, {"left_one": {"left": 0}, "right_one": {"right": 1}}
        )


@pytest.mark.slow
def test_each_policy_names_its_score_and_the_run_ends_once_all_goals_are_reached(tmp_path):
    """Only the left policy has opponents; the right one's score is its return, which grows with its updates."""
    left = dataclasses.replace(ROLES["left_one"], against=("initial",), stop_at_return=0.9)
    roles = {"left_one": left, "right_one": dataclasses.replace(ROLES["right_one"], stop_at_return=5.0)}
    evaluator = dataclasses.replace(EVALUATOR, against=())
    e = dataclasses.replace(DUEL, agent=None, policies=roles, evaluator=evaluator, total_env_steps=1000 * 32)
    result = run(e, runs_dir=tmp_path, name="goals", display="quiet")
    assert result.ended == "stop_at_return" and result.env_steps < 1000 * 32
    assert result.others["right_one"]["ended"] == "stop_at_return"
    assert result.evaluation["win_rate"] == 1.0 and "win_rate" not in result.others["right_one"]["evaluation"]
    log = (result.folder / "logs" / "controller.log").read_text()
    assert log.count("goal of 0.9 is reached") >= 1 and "policy right_one: " in log
    never = roles | {"right_one": dataclasses.replace(roles["right_one"], stop_at_return=5000.0)}
    result = run(
        dataclasses.replace(e, policies=never, total_env_steps=10 * 32),
        runs_dir=tmp_path,
        name="never",
        display="quiet",
    )
    assert result.ended == "total_env_steps" and result.evaluation["win_rate"] == 1.0
    assert "is reached; not yet those of right_one" in (result.folder / "logs" / "controller.log").read_text()
