"""What a run says at its start about how it reads the environment."""

from __future__ import annotations

import pytest

from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.launch.run import run
from tests.tiny_agent import TinyConfig

SHORT = {"num_envs": 2, "rollout_length": 4, "total_env_steps": 8, "placement": "serial"}


@pytest.mark.parametrize(("transform", "is_said"), [("auto", 1), ("rescale", 0)])
def test_a_run_says_that_the_default_scales_actions(tmp_path, capsys, transform, is_said):
    env = EnvConfig("Pendulum-v1", action_transform=transform)
    run(
        Experiment(env=env, agent=TinyConfig(), evaluator=EvaluatorConfig(enabled=False), **SHORT),
        runs_dir=tmp_path,
        display="plain",
    )
    told = "".join(capsys.readouterr())
    assert (
        told.count("actions in [-1, 1] are scaled to the bounds of the action space (env.action_transform") == is_said
    )
