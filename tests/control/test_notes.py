"""What a run says about how it reads the environment, and that it blames the agent for the agent's actions."""

from __future__ import annotations

import pytest

from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import AgentFault
from jsrl.experiment import EvaluatorConfig, Experiment
from tests.tiny_agent import TinyConfig

SHORT = {"num_envs": 2, "rollout_length": 4, "total_env_steps": 8, "placement": "serial"}


def said(tmp_path, capsys, env: EnvConfig, **agent: float) -> str:
    experiment = Experiment(env=env, agent=TinyConfig(**agent), evaluator=EvaluatorConfig(enabled=False), **SHORT)
    run(experiment, runs_dir=tmp_path, display="plain")
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(("transform", "is_said"), [("auto", 1), ("rescale", 0)])
def test_a_run_says_that_the_default_scales_actions(tmp_path, capsys, transform, is_said):
    env = EnvConfig("Pendulum-v1", action_transform=transform)
    told = said(tmp_path, capsys, env)
    begins = f"experiment: TinyConfig on Pendulum-v1, placement serial, in {next(tmp_path.glob('experiment/*'))}\n"
    assert f"{begins}  2 environments = 1 actor x 1 group of 2; batch 2 x 4 rows; 1 update\n" in told
    assert (
        told.count("actions in [-1, 1] are scaled to the bounds of the action space (env.action_transform") == is_said
    )


def test_the_agent_is_blamed_for_its_actions(tmp_path, capsys):
    with pytest.raises(AgentFault, match=r"the agent's act chose \[nan\] for slot 0; expected finite actions"):
        said(tmp_path, capsys, EnvConfig("Pendulum-v1"), offset=float("nan"))
