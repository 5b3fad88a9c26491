"""`jsrl record` and `jsrl compare` on a small run, as a user calls them."""

import dataclasses

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import main
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.launch.run import run
from jsrl.networks.model import NetworkConfig
from jsrl.recordings.recordings import open_recording


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run that had a goal for its return."""
    experiment = Experiment(
        name="small",
        env=EnvConfig("probe:action_matters"),
        agent=PPOConfig(network=NetworkConfig(hidden=(4,)), num_epochs=1, num_minibatches=1),
        placement="serial",
        num_envs=2,
        rollout_length=8,
        total_env_steps=32,
        stop_at_return=100.0,
        evaluator=EvaluatorConfig(episodes=2, num_envs=2, final_episodes=0),
    )
    folder = tmp_path_factory.mktemp("runs")
    run(experiment, runs_dir=folder, name="one", display="quiet")
    run(dataclasses.replace(experiment, seed=1), runs_dir=folder, name="two", display="quiet")
    return str(folder)


@pytest.mark.slow
def test_a_run_with_a_goal_is_recorded(runs, tmp_path):
    words = ["record", "small/one@latest", "--to", str(tmp_path / "rows"), "--episodes", "4", "--runs-dir", runs]
    assert main.main(words) == 0
    assert open_recording(tmp_path / "rows").env_steps > 0


@pytest.mark.slow
def test_compare_needs_exactly_two_runs(runs, capsys):
    assert main.main(["compare", "small/one", "two", "--runs-dir", runs]) == 0
    assert "seed" in capsys.readouterr().out
    assert main.main(["compare", "small/one", "one", "--runs-dir", runs]) == 2
    assert "name one run, small/one; give two" in capsys.readouterr().err
    assert main.main(["compare", "small/*", "small/one", "--runs-dir", runs]) == 0
