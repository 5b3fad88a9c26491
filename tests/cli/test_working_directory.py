"""An environment that changes the working directory (EnergyPlus, SUMO) does not move the user's files."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import main
from jsrl.cli.main import Parser
from jsrl.control.run import run, with_paths
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.contest import located


class Moves(gymnasium.Env):
    """Episodes of ten steps, in a directory of its own."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        os.chdir(folder)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.clock += 1
        return np.zeros(1, np.float32), 1.0, False, self.clock == 10, {}


@pytest.mark.slow
def test_files_are_where_the_user_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir(), other.mkdir()
    experiment = Experiment(
        name="t",
        env=EnvConfig(Moves, kwargs={"folder": str(other)}),
        agent=PPOConfig(network=NetworkConfig(hidden=(4,)), num_epochs=1, num_minibatches=1),
        placement="serial",
        num_envs=2,
        rollout_length=16,
        total_env_steps=64,
        record="recorded",
        evaluator=EvaluatorConfig(enabled=False),
    )
    monkeypatch.chdir(home)
    assert run(experiment, name="one", display="quiet").folder == home / "runs" / "t" / "one"
    for words in (
        ["evaluate", "runs/t/one@latest", "--episodes", "2", "--json", "scores.json"],
        ["record", "t@latest", "--to", "rows", "--episodes", "2", "--num-envs", "2"],
        ["export", "t/one@latest", "policy.zip"],
    ):
        os.chdir(home)
        assert main.main(words) == 0
    assert {path.name for path in home.iterdir()} == {"runs", "recorded", "scores.json", "rows", "policy.zip"}
    assert not list(other.iterdir())


def test_paths_are_absolute_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    RunFolder.create("runs", "ppo", "x", config={})
    assert with_paths(Experiment(agent=PPOConfig(), record="rows")).record == str(tmp_path / "rows")
    assert located("ppo", "runs") == f"{tmp_path}/runs/ppo/x@best" == located("runs/ppo/x@best", "elsewhere")
    parser = Parser()
    parser.add_runs_dir()
    assert parser.parse_args([]).runs_dir == tmp_path / "runs"
    assert parser.parse_args(["--runs-dir", "a"]).runs_dir == tmp_path / "a"
