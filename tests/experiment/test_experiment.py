"""Experiments validate themselves and suggest valid numbers."""

from __future__ import annotations

import dataclasses
import re
import types
from typing import Any

import pytest

from jsrl.agents.base import Agent
from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import (
    AgentReference,
    EvaluatorConfig,
    Experiment,
    LearnerConfig,
    PolicyConfig,
)
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.experiment.checks import nearest_divisors
from jsrl.experiment.numbers import with_changes


def experiment(**values) -> Experiment:
    return Experiment(**({"agent": AgentReference("m:f"), "placement": "served", "num_actors": 1} | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agent": AgentReference}, r"agent is the class AgentReference; make an instance: agent=AgentReference"),
        ({"num_envs": 16, "num_groups": 5}, r"use num_groups 4 or 8, or num_envs 15 or 20\."),
        ({"num_envs": 10, "num_actors": 4}, r"cannot be split into 4 equal groups; use num_actors 2 or 5, or num_envs 8 or"
         r" 12\."),
        ({"num_envs": 12, "num_groups": 6, "num_actors": 4}, r"6 groups .* among 4 actors; use num_actors 3 or 6, or "
         r"num_groups 4\."),
        ({"num_envs": 10, "num_groups": 5, "num_actors": 3}, r"or num_groups 3 with num_envs 9 or 12\."),
        ({"num_envs": 1, "num_groups": 4}, r"use num_groups 1, or num_envs 4\."),
        ({"num_envs": 16, "num_groups": 4, "batch_envs": 6, "max_policy_lag": 1}, r"batch_envs=6 is not a number of whole "
         r"groups of 4 .* the nearest that works is (4|8)\."),
        ({"num_envs": 16, "batch_envs": 32, "max_policy_lag": 1}, r"batch_envs=32 .* the nearest that works is 16\."),
        ({"num_envs": 16, "learner": LearnerConfig(num_devices=3)},
         r"batch of 16 environments .*num_devices=3; use 2 or 4 devices"),
        ({"bind": "0.0.0.0"}, r"bind 0\.0\.0\.0 is for streams over ZeroMQ, but the transport is shared-memory"),
        ({"bind": "127.0.0.1:7000"}, r"add --transport zeromq"),
        ({"encrypt": True}, r"encrypt is for streams over ZeroMQ"),
        *(({"bind": bind, "transport": "zeromq"}, r"bind is .*; expected an IP address of this host, such as 10\.0\.0\.5")
          for bind in ("", "eth0", "10.0.0", "10.0.0.5:", "10.0.0.5:0", "10.0.0.5:70000", "fd00::5:7000:", "[fd00::5]7",
                       "tcp://10.0.0.5", "10.0.0.5:7000:1", "*")),
        ({"num_envs": 16, "batch_envs": 8},
         r"max_policy_lag=0 \(synchronous\) needs batches of one trajectory of every group"),
        ({"learner": LearnerConfig(reuse=3)}, r"learner\.reuse=3 .* allow a lag of at least 2"),
        ({"num_envs": 16, "deterministic": True, "batch_envs": 8, "max_policy_lag": 1},
         r"deterministic mode takes the groups in order"),
        ({"deterministic": True, "max_policy_lag": 1}, r"deterministic mode waits for each version"),
        ({"evaluator": EvaluatorConfig(env={"max_step": 3})}, r"no option 'max_step'; did you mean max_episode_steps\?"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_with_valid_ones(values, message):
    with pytest.raises(ConfigError, match=message):
        experiment(**values)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_actor", r"; did you mean num_actors"),
        ("learning_rate", r"; did you mean agent\.learning_rate\?"),
        ("lr", r"; did you mean agent\.learning_rate\?"),
        ("zzzz", r"\."),
    ],
)
def test_a_wrong_field_name_suggests_the_right_one(name, hint):
    with pytest.raises(ConfigError, match=rf"an experiment has no field '{name}'{hint}"):
        with_changes(experiment(agent=PPOConfig()), {"seed": 1, name: 3})


def test_numbers_suggested_by_a_refusal_are_valid():
    """Follow every suggestion about groups and environments; none may be refused for the same reason again."""
    for num_envs in range(1, 26):
        for actors in range(1, 6):
            try:
                experiment(num_envs=num_envs, num_actors=actors)
            except ConfigError as error:
                fitting, envs = re.search(r"num_actors ([\d or]+), or num_envs ([\d or]+)", str(error)).groups()
                for number in re.findall(r"\d+", envs):
                    experiment(num_envs=int(number), num_actors=actors)
                for number in re.findall(r"\d+", fitting):
                    experiment(num_envs=num_envs, num_actors=int(number))


@pytest.mark.parametrize(("number", "wanted", "text"), [(16, 5, "4 or 8"), (16, 4, "4"), (7, 3, "1 or 7"), (4, 9, "4")])
def test_nearest_divisors(number, wanted, text):
    assert nearest_divisors(number, wanted) == text


@pytest.mark.parametrize(
    ("values", "groups", "size", "ring"),
    [
        ({"placement": "serial"}, 1, 16, 1),
        ({"placement": "serial", "num_actors": 4}, 1, 16, 1),  # one process: the number of actors has no effect
        ({"placement": "inline"}, 1, 16, 1),
        ({"placement": "inline", "num_actors": 4}, 4, 4, 1),
        ({"placement": "served"}, 2, 8, 2),  # one steps while the other waits for its actions
        ({"placement": "served", "num_actors": 2}, 4, 4, 2),
        ({"placement": "served", "num_actors": 16}, 16, 1, 1),
        ({"placement": "served", "num_groups": 8, "num_actors": 2}, 8, 2, 4),
        ({"deterministic": True}, 4, 4, 4),
        ({"deterministic": True, "placement": "inline", "num_actors": 4}, 4, 4, 1),
        ({"deterministic": True, "num_envs": 6}, 2, 3, 2),
        ({"batch_envs": 4, "max_policy_lag": None, "placement": "inline"}, 4, 4, 4),
    ],
)
def test_groups(values, groups, size, ring):
    e = experiment(**values)
    assert (e.groups, e.group_size, e.ring) == (groups, size, ring)
    assert e.ring * e.actors * e.group_size == e.envs


def test_totals_do_not_depend_on_the_placement():
    totals = set()
    for values in ({}, {"placement": "serial"}, {"num_actors": 4}, {"placement": "inline", "num_actors": 2}):
        e = experiment(total_env_steps=100_000, **values)
        totals.add((e.rows_per_update, e.total_updates, e.order, e.evaluation_period, e.min_updates_lag))
    assert totals == {(2048, 49, "by_group", 1, 0)}


def test_reuse_counts_updates_not_batches():
    e = experiment(max_policy_lag=3, total_env_steps=4096, learner=LearnerConfig(reuse=2))
    assert e.total_updates == 2 * 2
    # The second update with a batch is the one that may be 3 ahead.
    assert (e.order, e.min_updates_lag) == ("by_group", 2)


def test_evaluation_uses_full_games():
    env = EnvConfig("ALE/Pong-v5")
    env = dataclasses.replace(env, atari=dataclasses.replace(env.atari, episodic_life=True))
    played = experiment(env=env, evaluator=EvaluatorConfig(env={"max_episode_steps": 9})).evaluation_env
    assert not played.atari.episodic_life
    assert played.max_episode_steps == 9


def test_schedules_get_the_number_of_updates_of_the_run():
    @dataclasses.dataclass(frozen=True)
    class Config:
        total_updates: int | None = None

    assert resolved_agent(experiment(agent=Config(), total_env_steps=20_480)).total_updates == 10
    assert resolved_agent(experiment(agent=Config(7))).total_updates == 7


def test_invalid_agents_are_refused():
    with pytest.raises(ConfigError, match=r"agent is 3, which is neither a config such as PPOConfig nor an AgentRef"):
        build_agent(3, None)
    agent = Agent(*[lambda *_: None] * 4)
    with pytest.raises(
        ConfigError, match=r"agent is an Agent, whose functions .*; give what makes it there: AgentReference"
    ):
        experiment(agent=agent)


def test_a_config_has_its_factory_as_a_name_a_function_or_a_method():
    agent = Agent(*[lambda *_: None] * 4)

    class AsMethod:
        def factory(self, spec):
            return agent

    class AsFunction:
        factory = staticmethod(lambda config, spec: agent)

    class OfNotebook:
        factory = "__main__:make"

    spec = types.SimpleNamespace(name="probe")
    assert [build_agent(config, spec).split for config in (AsMethod(), AsFunction())] == [None, None]
    with pytest.raises(ConfigError, match=r"OfNotebook.factory is '__main__:make', which no other process can import"):
        build_agent(OfNotebook(), spec)
    with pytest.raises(ConfigError, match=r"Reference.factory is '__main__:make', .*; give the function itself\.$"):
        build_agent(AgentReference("__main__:make"), spec)


@pytest.mark.parametrize(
    ("bind", "address", "port", "encrypted"),
    [
        ("127.0.0.1", "127.0.0.1", None, False),
        ("127.0.0.1:7000", "127.0.0.1", 7000, True),
        ("[::1]", "::1", None, False),
        ("10.0.0.5", "10.0.0.5", None, True),
        ("10.0.0.5:7000", "10.0.0.5", 7000, True),
        ("0.0.0.0:65535", "0.0.0.0", 65535, True),
        ("[fd00::5]", "fd00::5", None, True),
        ("[fd00::5]:7000", "fd00::5", 7000, True),
    ],
)
def test_streams_over_tcp_are_encrypted(bind: str, address: str, port: int | None, encrypted: bool) -> None:
    e = experiment(bind=bind, transport="zeromq")
    assert (e.bind_to, e.encrypted) == ((address, port), encrypted)
    assert experiment(bind=bind, transport="zeromq", encrypt=True).encrypted
    assert not experiment(bind=bind, transport="zeromq", placement="serial").encrypted  # there are no sockets


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "ppo_cartpole",
            "given 'ppo_cartpole'; expected an Experiment: `from jsrl.experiment.configs.ppo_cartpole import config`",
        ),
        (None, "given neither an Experiment nor a run to resume; give Experiment"),
    ],
)
def test_run_without_an_experiment_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(given)


@pytest.mark.parametrize(
    ("seeds", "same"),
    [((3, 3), ("a and b", 3)), ((None, 7), ("a and b", 7)), ((8, None, 104_736), ("b and c", 104_736))],
)
def test_policies_with_equal_seeds_are_refused(seeds: tuple, same: tuple[str, int]) -> None:
    def of(seeds: tuple) -> Experiment:
        agent = AgentReference("m:f")
        policies = {name: PolicyConfig(agent, seed=seed) for name, seed in zip("abc", seeds, strict=False)}
        return Experiment(policies=policies, seed=7)

    with pytest.raises(ConfigError, match=rf"the policies {same[0]} have the same seed, {same[1]},.*policies\..\.seed"):
        of(seeds)
    assert of((3, 4, None)).policies["b"].seed == 4 and of((None, None)).seed == 7
