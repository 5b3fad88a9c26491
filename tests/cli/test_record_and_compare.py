"""`jsrl record`, and `jsrl report` of two runs, on a small run, as a user calls them."""

import dataclasses
from types import SimpleNamespace

import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli import main
from jsrl.cli.record import _play, record_policy
from jsrl.control.run import run
from jsrl.envs.base import Episode
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, ReplayConfig
from jsrl.networks.model import NetworkConfig
from jsrl.services.metrics.metrics import Meter
from jsrl.services.recordings.recordings import open_recording
from jsrl.workers.actor.environments import Tally
from jsrl.workers.actor.worker import ActorSettings


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
@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_a_policy_is_recorded_with_batches_and_schedules_that_its_update_could_not_use(agent, tmp_path):
    """DQN's exploration follows the updates of a run; 21 rows cannot be divided into PPO's four minibatches."""
    agents = {
        "dqn": DQNConfig(network=NetworkConfig(hidden=(4,))),
        "ppo": PPOConfig(network=NetworkConfig(hidden=(4,))),
    }
    experiment = Experiment(
        name="small",
        env=EnvConfig("probe:action_matters"),
        agent=agents[agent],
        replay=ReplayConfig(capacity=64, batch_size=4, min_size=8) if agent == "dqn" else None,
        placement="serial",
        num_envs=2,
        rollout_length=8,
        total_env_steps=32,
        evaluator=EvaluatorConfig(enabled=False),
    )
    run(experiment, runs_dir=tmp_path / "runs", name="one", display="quiet")
    told = record_policy(
        "small/one",
        tmp_path / "rows",
        tag="latest",
        episodes=2,
        num_envs=3,
        rollout_length=7,
        runs_dir=str(tmp_path / "runs"),
    )
    assert told.episodes >= 2 and open_recording(tmp_path / "rows").env_steps == told.env_steps


class ScriptedActor:
    """An actor of one env step per call; episode n has the return n, and the 150th is the last that ends."""

    def __init__(self) -> None:
        self.steps, self.returns = 0, list[float]()

    def step(self) -> int:
        self.steps += 1
        if self.steps % 4 == 0 and len(self.returns) < 150:
            self.returns.append(float(len(self.returns)))
        return 1

    def report(self):
        return {"actor/return_mean": sum(self.returns) / len(self.returns)}, {"episodes": len(self.returns)}


def test_a_recording_ends_with_its_last_episode_or_where_none_ends():
    writer = SimpleNamespace(dropped=0)
    assert _play(ScriptedActor(), 120, 4, writer, 40) == (59.5, False)
    actor = ScriptedActor()
    assert _play(actor, 200, 4, writer, 40) == (74.5, True) and actor.steps == 640


def test_an_actor_may_report_means_over_all_of_its_episodes():
    assert ActorSettings(4).mean_over == 100
    tally = Tally(Meter("actor"), None, None)
    tally.stepped(1, [Episode(0, float(number), 1, True) for number in range(200)])
    assert tally.report()[0]["actor/return_mean"] == 99.5


@pytest.mark.slow
def test_a_report_of_two_runs_prints_how_they_differ(runs, capsys):
    assert main.main(["report", "small/one", "two", "--runs-dir", runs]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("setting") and "\nseed" in shown and "\nsmall/two" in shown and "comparison.html" in shown
    assert main.main(["report", "small/*", "--runs-dir", runs]) == 0
    assert "setting" not in capsys.readouterr().out
