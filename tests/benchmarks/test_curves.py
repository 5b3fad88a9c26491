"""The learning curves of the documentation: seeds, curves of another library, and the reference score, in one plot."""

import dataclasses
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import curves
from jsrl.cli.experiments import load
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game

ROOT = Path(__file__).parents[2]


def write(folder, name, kept):
    (folder / f"{name}.json").write_text(json.dumps(kept))


@pytest.fixture
def results(tmp_path):
    means = [[0, 1.0, 20.0], [1000, 2.0, 200.0]]
    halves = [[0, 1.0, 2.0], [1000, 2.0, 5.0]]
    for seed in (0, 2):
        write(
            tmp_path, f"mine-seed{seed}", {"curves": {"evaluator/return_mean": means, "evaluator/return_ci95": halves}}
        )
    write(tmp_path, "theirs-seed0", {"task": {}, "points": [[0, 10.0, 1.0], [2000, 100.0, 3.0]]})
    write(tmp_path, "theirs-seed1", {"points": [[0, 3.5, 10.0], [2000, 7.5, 90.0]]})  # with wall-clock seconds
    return tmp_path


def test_plot_has_seeds_other_library_and_reference(results):
    picture = curves.Plot("Title", "mine-seed", peer=("theirs", "theirs-seed"), reference=(500.0, "a book: 500"))
    drawn = curves.draw(picture, results)
    lines = [part.split('"')[1] for part in drawn.split("<polyline ")[1:]]
    assert lines == ["line6 faint", "line6 faint", "line0", "line2", "line7 faint"]
    assert ">theirs, seeds 0 to 1<" in drawn and ">a book: 500<" in drawn and ">2k<" in drawn
    assert ">seed 0<" in drawn and ">seed 2<" in drawn and ">seed 1<" not in drawn


def test_the_other_library_has_the_settings_of_the_experiments(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    tasks = importlib.import_module("run_curve").TASKS
    ppo, task = load("ppo_cartpole"), tasks["ppo_cartpole"]
    ours = ppo.num_envs, ppo.rollout_length, ppo.num_envs * ppo.rollout_length // ppo.agent.num_minibatches
    assert (task.num_envs, task.settings["n_steps"], task.settings["batch_size"]) == ours
    assert (task.env_steps, task.goal, task.hidden) == (
        ppo.total_env_steps,
        ppo.stop_at_return,
        ppo.agent.network.hidden,
    )
    same = {"n_epochs": "num_epochs", "clip_range": "clip_ratio", "ent_coef": "entropy_coef", "vf_coef": "value_coef"}
    for name in ("gamma", "gae_lambda", "learning_rate", "max_grad_norm", *same):
        assert task.settings[name] == getattr(ppo.agent, same.get(name, name)), name
    for name, experiment in (("sac_pendulum", "sac_pendulum"), ("td3-pendulum", "td3"), ("ddpg-pendulum", "ddpg")):
        ours, task = load(experiment), tasks[name]
        replay = {"batch_size": "batch_size", "buffer_size": "capacity", "learning_starts": "min_size"}
        assert (task.num_envs, task.hidden) == (ours.num_envs, ours.agent.network.hidden)
        assert ours.buffer.updates_per_env_step == 1.0
        assert {their: task.settings[their] for their in replay} == {
            their: dataclasses.asdict(ours.buffer)[name] for their, name in replay.items()
        }
        for name in ("gamma", "tau", "learning_rate"):
            assert task.settings[name] == getattr(ours.agent, name), (experiment, name)


def test_other_libraries_with_several_seats_have_the_settings_of_the_experiments(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    work = importlib.import_module("seats_work")
    same = {
        "EPOCHS": "num_epochs", "MINIBATCHES": "num_minibatches", "LEARNING_RATE": "learning_rate", "GAMMA": "gamma",
        "LAMBDA": "gae_lambda", "CLIP": "clip_ratio", "ENTROPY": "entropy_coef", "MAX_GRAD_NORM": "max_grad_norm",
    }  # fmt: skip
    for experiment in map(load, ("mappo", "ippo")):
        assert experiment.num_envs == work.NUM_ENVS
        assert experiment.rollout_length == work.ROWS + 1  # with the row of an episode's last observation
        assert experiment.agent.network.hidden == experiment.agent.critic_network.hidden == work.HIDDEN
        for theirs, name in same.items():
            assert getattr(experiment.agent, name) == getattr(work, theirs), name
    games = {"spread": "particle:simple_spread_v3", "foraging": "foraging:8x8-2p-2f-coop"}
    assert {game: steps_of_an_episode(env) for game, env in games.items()} == work.LIMITS


def steps_of_an_episode(env):
    game = make_game(EnvConfig(env), num_envs=1, seed=0)
    game.reset()
    still = {group: np.zeros((1, len(seats)), np.int64) for group, seats in game.groups.items()}
    return next(number for number in range(1, 100) if game.step(still).episodes)
