"""Prioritised levels in a run: each score belongs to its own game, and the weights follow from the scores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsrl.agents.bc import BCConfig
from jsrl.agents.impala import IMPALAConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.experiment.configs import plr_maze
from jsrl.experiment.configs.plr_maze import SIZE, Maze
from tests.levels import LoggedPLR, ScoringConfig
from tests.marks import nightly, slow

PLAN = Experiment(
    env=EnvConfig("tests.levels:Levels"),
    name="levels",
    policies={"main": PolicyConfig(ScoringConfig())},
    director=LoggedPLR(num_levels=30, min_fill=0.2),
    num_envs=4,
    num_groups=2,
    num_actors=1,
    rollout_length=8,
    total_env_steps=40 * 32,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
)


def state_of(result) -> dict:
    return json.loads(Path(result.folder, "director", "newest.json").read_text())["state"]


def weights_of_log(director: LoggedPLR, log: list) -> dict[int, float]:
    """Return level -> weight, by the equations of the paper, from proposals and scores (no level left the buffer)."""
    level_of, score, proposed = dict[int, int](), dict[int, float](), dict[int, int]()
    for what, number, value in log:
        if what == "score":
            level = level_of[number]
            proposed.setdefault(level, number)
            score[level] = value
        else:
            level_of[number] = value
            if what == "again":
                proposed[value] = number
    levels, assigned = list(score), sum(what != "score" for what, _, _ in log)
    rank = {level: 1 + place for place, level in enumerate(sorted(levels, key=lambda level: -score[level]))}
    by_rank = np.array([rank[level] ** (-1 / director.beta) for level in levels])
    stale = np.array([assigned - proposed[level] for level in levels], float)
    mixed = (1 - director.staleness) * by_rank / by_rank.sum() + director.staleness * stale / stale.sum()
    return dict(zip(levels, mixed.tolist(), strict=True))


@pytest.mark.parametrize(
    ("placement", "robust"),
    [("serial", False), slow("serial", True), slow("inline", False)],
)
def test_scores_belong_to_their_game_and_weights_follow_from_the_log(
    placement: str, robust: bool, tmp_path: Path
) -> None:
    """In robust PLR the rows of new levels are only scored, while those of known levels are trained on too."""
    actors, director = 1 if placement == "serial" else 2, dataclasses.replace(PLAN.director, train_on_new=not robust)
    changes = {"placement": placement, "num_actors": actors, "director": director}
    state = state_of(run(PLAN, runs_dir=tmp_path, display="quiet", **changes))
    only_scored = {number for what, number, _ in state["log"] if what == "new" and robust}
    level_of = {number: level for what, number, level in state["log"] if what != "score"}
    scores = [(number, value) for what, number, value in state["log"] if what == "score"]
    assert len(scores) > 50 and len({number for number, _ in scores}) == len(scores), "each game is scored once"
    assert all(value == level_of[number] + 0.5 * (number in only_scored) for number, value in scores)
    returned, of_learner = state["returns"], state["learner's returns"]
    both = returned.keys() & of_learner.keys()
    assert len(both) > 50 and all(returned[game] == of_learner[game] for game in both)
    if placement == "serial":  # else the director may save its state before the last messages reach it
        assert both == of_learner.keys()
        assert state["finished"] - len(scores) <= 2 * PLAN.num_envs, "except games that ended in the last rows"
    newest = {level_of[number]: value for number, value in scores}
    assert len(state["levels"]) == 30 and state["scores"] == [newest[level] for level in state["levels"]]
    expected = weights_of_log(director, state["log"])
    found = dict(zip(state["levels"], director.weights(state).tolist(), strict=True))
    assert found == pytest.approx(expected)
    if placement == "serial":  # else it depends on speed how late scores come, so how often levels are drawn by them
        again = [level for what, _, level in state["log"] if what == "again"]
        assert np.mean(np.array(again) >= 25) > 0.3, "high scores are replayed (a sixth of the levels)"


@pytest.mark.slow
def test_resumed_run_continues_its_levels_and_scores_a_game_that_ended_at_the_stop(tmp_path: Path) -> None:
    whole = state_of(run(PLAN, runs_dir=tmp_path, display="quiet", num_groups=1, total_env_steps=16 * 32))
    first = run(PLAN, runs_dir=tmp_path, name="parts", display="quiet", num_groups=1, total_env_steps=10 * 32)
    stopped = json.loads(Path(first.folder, "director", "newest.json").read_text())
    scored = {number for what, number, _ in stopped["state"]["log"] if what == "score"}
    ended_there = {lease["before"] for _, _, lease in stopped["leases"]} - scored
    assert ended_there, "no game ended in the last row, so this test shows nothing"
    parts = state_of(
        run(PLAN, runs_dir=tmp_path, resume="parts", display="quiet", num_groups=1, total_env_steps=16 * 32)
    )
    assert ended_there <= {number for what, number, _ in parts["log"] if what == "score"}
    assert parts == whole
    level_of = {number: level for what, number, level in parts["log"] if what != "score"}
    assert all(level_of[number] == value for what, number, value in parts["log"] if what == "score")
    assert parts["discarded"] == 0 and parts["assigned"] == parts["finished"] + len(parts["open"])
    assert parts["scores"] == parts["levels"] and len(parts["levels"]) > 12


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"policies": {"main": PolicyConfig(BCConfig())}}, "scores of games, which.*bc does not give"),
    ],
)
def test_invalid_options_are_refused_before_the_start(changes: dict, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        run(dataclasses.replace(PLAN, **changes), runs_dir=tmp_path, display="quiet")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent", [PPOConfig(num_minibatches=1, num_epochs=1), nightly(IMPALAConfig())], ids=["ppo", "impala"]
)
def test_agents_train_on_levels(agent: Any, tmp_path: Path) -> None:
    """Every level has the score of its newest game, computed by the update that trained on it."""
    policies = {"main": PolicyConfig(agent)}
    result = run(PLAN, runs_dir=tmp_path, display="quiet", policies=policies, total_env_steps=30 * 32)
    state = state_of(result)
    assert (
        len(state["levels"]) > 10 and min(state["scores"]) > 0.0 and len(set(state["scores"])) == len(state["scores"])
    )


def test_a_level_of_the_example_is_one_maze_in_which_every_place_is_reached() -> None:
    maze = Maze()
    seen = set()
    for level in range(20):
        first, _ = maze.reset(seed=1, options={"task": level})
        walls, goal = maze.walls, tuple(maze.goal)
        again, _ = maze.reset(seed=2, options={"task": level})
        assert np.array_equal(first, again) and np.array_equal(walls, maze.walls) and goal == tuple(maze.goal)
        seen.add((walls.tobytes(), goal))
        reached = {tuple(maze.place)}
        while more := {(r + y, c + x) for r, c in reached for y, x in ((-1, 0), (0, 1), (1, 0), (0, -1))} - reached:
            if not (new := {cell for cell in more if not walls[cell]}):
                break
            reached |= new
        assert len(reached) == (~walls).sum() == 2 * ((SIZE - 1) // 2) ** 2 - 1, "a tree over the rooms"
    assert len(seen) == 20


@pytest.mark.nightly
def test_the_example_scores_its_levels(tmp_path: Path) -> None:
    smaller = {"placement": "serial", "num_envs": 8, "total_env_steps": 3 * 8 * 80}
    result = run(
        plr_maze.config(), runs_dir=tmp_path, display="quiet", evaluator=EvaluatorConfig(enabled=False), **smaller
    )
    state = state_of(result)
    assert state["finished"] > 10 and len(state["levels"]) > 10 and min(state["scores"]) > 0.0
