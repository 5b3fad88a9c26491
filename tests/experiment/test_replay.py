"""What an agent learns from: `auto`, none, and a replay of one's own; agents and data that do not fit are refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from jsrl.agents.bc import BCConfig
from jsrl.agents.ddpg import DDPGConfig
from jsrl.agents.dqn import DQNConfig
from jsrl.agents.happo import HAPPOConfig
from jsrl.agents.impala import IMPALAConfig
from jsrl.agents.mappo import MAPPOConfig
from jsrl.agents.ppg import PPGConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.pqn import PQNConfig
from jsrl.agents.qmix import QMIXConfig, RecurrentQMIXConfig
from jsrl.agents.r2d2 import R2D2Config
from jsrl.agents.sac import SACConfig
from jsrl.agents.td3 import TD3Config
from jsrl.agents.vdn import RecurrentVDNConfig, VDNConfig
from jsrl.cli.command_line import parse, spelled
from jsrl.cli.tuned import tuned
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, PolicyConfig, ReplayConfig
from jsrl.experiment.automatic import with_replays
from jsrl.experiment.building import resolved_agent
from jsrl.graph.graph import Graph
from jsrl.graph.placements import make_graph
from jsrl.graph.policies import policies_of

FRESH = [PPOConfig, PPGConfig, PQNConfig, IMPALAConfig, MAPPOConfig, HAPPOConfig]
REPLAY = [DQNConfig, R2D2Config, DDPGConfig, TD3Config, SACConfig, VDNConfig, RecurrentVDNConfig, QMIXConfig]
REPLAY += [RecurrentQMIXConfig]
GIVEN = ReplayConfig(batch_size=9, window=7)
MIXED = Experiment(
    policies={
        "dqn": PolicyConfig(DQNConfig(), "a"),
        "sac": PolicyConfig(SACConfig(), "b"),
        "ppo": PolicyConfig(PPOConfig(), "c"),
    }
)


@dataclass(frozen=True)
class OwnConfig:
    """A user's agent that declares nothing."""

    factory: ClassVar[str] = "nowhere:agent"


@pytest.mark.parametrize("config", FRESH)
def test_an_agent_of_fresh_trajectories_has_no_replay_and_cannot_be_given_one(config) -> None:
    assert Experiment(config()).buffer is None and Experiment(config(), replay=None).buffer is None
    for values in ({"replay": ReplayConfig()}, {"recording": "folder"}):
        with pytest.raises(ConfigError, match=f"{config.__name__} learns from fresh trajectories"):
            Experiment(config(), **values)


@pytest.mark.parametrize("config", REPLAY)
def test_an_agent_of_replay_has_its_usual_one_and_cannot_be_without(config) -> None:
    agent = config()
    usual = Experiment(agent).buffer
    assert usual == ReplayConfig(**agent.usual_replay) and usual.window > getattr(agent, "burn_in", 0)
    own = ReplayConfig(batch_size=7, window=70)
    assert Experiment(agent, replay=own).buffer is own
    for values, words in (
        ({"replay": None}, "replay is none, but"),
        ({"recording": "folder"}, "recording='folder' is neither"),
    ):
        with pytest.raises(ConfigError, match=words):
            Experiment(agent, **values)


@pytest.mark.parametrize("config", [BCConfig, OwnConfig])
def test_an_agent_of_either_learns_from_fresh_trajectories_unless_it_is_given_others(config) -> None:
    assert Experiment(config()).buffer is None and Experiment(config(), recording="folder").buffer is None
    assert Experiment(config(), replay=ReplayConfig(batch_size=7)).buffer.batch_size == 7


def test_a_users_agent_may_declare_what_it_learns_from() -> None:
    @dataclass(frozen=True)
    class Replayed(OwnConfig):
        learns_from: ClassVar[str] = "replay"
        usual_replay: ClassVar[dict[str, Any]] = {"window": 5}

    @dataclass(frozen=True)
    class Misspelt(OwnConfig):
        learns_from: ClassVar[str] = "replays"

    assert Experiment(Replayed()).buffer == ReplayConfig(window=5)
    with pytest.raises(ConfigError, match=r"Misspelt.learns_from is 'replays'; use fresh, replay or either"):
        Experiment(Misspelt())


def test_another_agent_gets_its_own_usual_replay() -> None:
    sac = Experiment(SACConfig())
    assert dataclasses.replace(sac, agent=PPOConfig()).buffer is None
    assert dataclasses.replace(sac, agent=DQNConfig()).buffer.batch_size == 32


def test_each_policy_has_data_of_its_own() -> None:
    parts = {name: part.experiment for name, part in policies_of(make_graph(MIXED), MIXED).items()}
    assert parts["ppo"].buffer is None and parts["dqn"].buffer == ReplayConfig(**DQNConfig.usual_replay)
    assert parts["sac"].buffer.batch_size == 256
    assert [e.updates_per_call for e in parts.values()] == [512, 2048, 1]
    for given, words in (
        (
            {"dqn": PolicyConfig(DQNConfig(), replay=None)},
            r"policies\.dqn\.replay is none, but DQNConfig learns from replay",
        ),
        ({"ppo": PolicyConfig(PPOConfig(), replay=ReplayConfig())}, r"PPOConfig .* leave policies\.ppo\.replay out"),
    ):
        with pytest.raises(ConfigError, match=words):
            Experiment(policies=given)
    for replay in (None, ReplayConfig()):
        with pytest.raises(ConfigError, match="a replay beside its policies; each policy has its own"):
            dataclasses.replace(MIXED, replay=replay)


def test_policies_may_have_replay_workers_beside_others_that_have_none() -> None:
    host = dataclasses.replace(MIXED.policies["sac"], replay=ReplayConfig(kind="host", updates_per_env_step=1.0))
    e = dataclasses.replace(MIXED, policies={**MIXED.policies, "sac": host}, placement="inline", num_actors=1)
    graph: Graph = make_graph(e)
    assert [worker.name for worker in graph.workers if worker.kind == "replay"] == ["replay-sac-0"]
    read = {name: graph.stream(graph.worker(name).link("samples").stream).schema for name in ("learner", "learner-sac")}
    assert read == {"learner": "trajectory", "learner-sac": "batches"}
    assert list(policies_of(graph, e)) == ["dqn", "sac", "ppo"]


def test_the_line_at_the_start_gives_the_usual_replay_as_options() -> None:
    decided, lines = with_replays(Experiment(SACConfig()))
    assert decided.replay == ReplayConfig(updates_per_env_step=1.0)
    assert lines == [
        "auto: --replay.capacity 1000000 --replay.batch-size 256 --replay.min-size 1000 --replay.updates-per-env-step 1.0 "
        "(usual for SACConfig)"
    ]
    assert with_replays(decided) == (decided, [])
    decided, lines = with_replays(MIXED)
    assert decided.policies["ppo"].replay is None and decided.policies["dqn"].replay.window == 3
    assert [line[:26] for line in lines] == ["auto: --policies.dqn.repla", "auto: --policies.sac.repla"]
    assert with_replays(Experiment(PPOConfig()))[1] == []


@pytest.mark.parametrize(
    ("words", "default", "name", "replay"),
    [
        ("", Experiment(SACConfig()), "", "auto"),
        ("--replay auto", Experiment(SACConfig(), replay=ReplayConfig(batch_size=7)), "", "auto"),
        ("--replay.batch-size 9", Experiment(SACConfig()), "", ReplayConfig(batch_size=9, updates_per_env_step=1.0)),
        ("--replay.batch-size 9", Experiment(SACConfig(), replay=ReplayConfig(window=7)), "", GIVEN),
        ("--replay none", Experiment(PPOConfig()), "", None),
        ("--replay none", Experiment(BCConfig(), replay=ReplayConfig()), "", None),
        ("--policies.sac.replay.batch-size 9", MIXED, "sac", ReplayConfig(batch_size=9, updates_per_env_step=1.0)),
        ("--policies.ppo.replay none", MIXED, "ppo", None),
    ],
)  # fmt: skip
def test_options_give_the_replay(words, default, name, replay) -> None:
    e = parse(words.split(), default).experiment
    assert (e.policies[name] if name else e).replay == replay
    again = parse(spelled(e, default), default).experiment
    assert with_replays(again)[0] == with_replays(e)[0]


@pytest.mark.parametrize(
    ("words", "default", "message"),
    [
        ("--replay none", Experiment(SACConfig()), "replay is none, but SACConfig learns from replay"),
        ("--replay many", Experiment(SACConfig()), r"--replay is 'many'; expected replay=ReplayConfig"),
        ("--replay.window 3", Experiment(PPOConfig()), "no option --replay.window: this experiment has no replay"),
        ("--replay none --replay.window 3", Experiment(SACConfig()), "--replay none leaves no replay for --replay.NAME"),
        ("--replay.window 3", MIXED, "each policy has its own: --policies.dqn.replay.window or"),
        ("--policies.ppo.replay.window 3", MIXED, "this experiment has no policies.ppo.replay"),
        ("--policies.dqn.replay none", MIXED, "policies.dqn.replay is none, but DQNConfig"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_the_agent_are_refused(words, default, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(words.split(), default)


@pytest.mark.parametrize(
    ("env_id", "period", "updates"),
    [("CartPole-v1", 128, 1664), ("MountainCar-v0", 300, 1504), ("Acrobot-v1", 250, 4000 - 124)],
)
def test_updates_and_target_periods_are_those_of_stable_baselines3(env_id, period, updates) -> None:
    """With the zoo's settings, in 4,000 env steps; Acrobot's replay fills first here, with the 128 rows of a batch.

    Gradient steps between its copies are 128 in CartPole, 304 and 296 in MountainCar, 252 and 248 in Acrobot.
    """
    experiment = tuned("dqn", env_id)
    assert resolved_agent(experiment).target_period == period
    assert dataclasses.replace(experiment, total_env_steps=4_000).total_updates == updates
