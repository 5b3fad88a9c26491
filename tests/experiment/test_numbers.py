"""Numbers that the user does not set follow those that he sets; two that are set and contradict each other are refused."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli.command_line import parse
from jsrl.cli.experiments import experiments, load
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, LearnerConfig
from jsrl.experiment.numbers import fits, followed, with_changes
from jsrl.graph.plan import decided, make_plan
from jsrl.networks.model import NetworkConfig
from tests.marks import slow

VALUES = {"num_actors": (1, 3, 16), "num_envs": (1, 7, 16, 100), "num_groups": (1, 3, 16)}


def contradict(actors: int = 1, envs: int | None = None, groups: int | None = None) -> bool:
    """Return whether no other numbers could make these work."""
    if groups is None:
        return envs is not None and envs % actors != 0
    return groups % actors != 0 or (envs is not None and envs % groups != 0)


def replaced(experiment: Experiment, changes: dict) -> Experiment | None:
    """Return an experiment with changes as they are; None: they are refused."""
    try:
        return dataclasses.replace(experiment, **changes)
    except ConfigError:
        return None


@pytest.mark.parametrize("name", experiments())
def test_any_number_alone_and_any_two_that_agree_suit_every_experiment(name):
    experiment = load(name)
    for names in (*itertools.combinations(VALUES, 1), *itertools.combinations(VALUES, 2)):
        for values in itertools.product(*(VALUES[n] for n in names)):
            changes = dict(zip(names, values, strict=True))
            given = {n.removeprefix("num_"): v for n, v in changes.items()}
            if experiment.where.processes and contradict(**given):
                with pytest.raises(ConfigError, match=r"; use num_.*, or num_"):
                    followed(experiment, changes, [n.replace("_", "-") for n in names])
                continue
            found, line = with_changes(experiment, changes)
            assert changes == {n: getattr(found, n) for n in names} and fits(found)
            assert found.groups % found.actors == 0 and found.envs % found.groups == 0
            assert found.batch_columns % found.group_size == 0 and found.batch_columns <= found.envs
            assert (line == "") == (found == replaced(experiment, changes))
            again, _ = with_changes(experiment, {**changes, "num_envs": found.num_envs})
            assert again == found  # naming what followed changes nothing


@pytest.mark.parametrize("name", experiments())
def test_without_numbers_an_experiment_keeps_its_own(name):
    experiment = load(name)
    assert parse([], experiment).experiment == experiment and fits(experiment)
    assert parse(["--seed", "3"], experiment).experiment == dataclasses.replace(experiment, seed=3)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("impala --num-actors 16 --num-envs 16", "auto: --num-groups 16 (to fit --num-envs 16 --num-actors 16)"),
        ("impala --num-envs 1", "auto: --batch-envs 1 --num-groups 1 (to fit --num-envs 1)"),
        ("impala --num-envs 1024", "auto: --num-groups 64 (to fit --num-envs 1024)"),  # the batch stays
        ("impala --num-actors 3", "auto: --num-envs 30 --batch-envs 15 --num-groups 6 (to fit --num-actors 3)"),
        ("impala --batch-envs 12", "auto: --num-groups 8 (to fit --batch-envs 12)"),
        ("impala --max-policy-lag 0", "auto: --batch-envs 32 (to fit the other options)"),
        ("ppo_cartpole --num-actors 3", "auto: --num-envs 15 (to fit --num-actors 3)"),
        ("ppo_cartpole --num-actors 2", ""),
        ("ppo_cartpole --learner.num-ranks 4", "auto: --num-actors 4 (to fit the other options)"),
        ("ppo_memory --num-envs 2", "auto: --agent.num-minibatches 2 (to fit --num-envs 2)"),
        ("ppo_memory --num-actors 3 --agent.num-minibatches 4", "auto: --num-envs 36 (to fit --num-actors 3 "
         "--agent.num-minibatches 4)"),
        ("dqn --num-actors 16", "auto: --num-envs 16 (to fit --num-actors 16)"),
        ("hide_and_seek --policies.hiders.agent.num-minibatches 3 --num-envs 1", "auto: "
         "--policies.seekers.agent.num-minibatches 9 (to fit --num-envs 1 --policies.hiders.agent.num-minibatches 3)"),
    ],
)  # fmt: skip
def test_one_line_says_what_follows(words, line):
    name, *arguments = words.split()
    assert parse(arguments, load(name)).followed == line


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("impala --num-actors 3 --num-envs 10", "use num_actors 2 or 5, or num_envs 9 or 12."),
        ("impala --num-groups 4 --num-envs 1", "use num_groups 1, or num_envs 4."),
        ("impala --num-groups 4 --num-actors 16", "use num_actors 4, or num_groups 16."),
        ("impala --num-actors 3 --resume impala", "4 groups cannot be divided evenly among 3 actors; use num_actors"),
    ],
)
def test_given_numbers_that_contradict_each_other_are_refused(words, hint):
    name, *arguments = words.split()
    with pytest.raises(ConfigError) as refused:
        parse(arguments, load(name))
    assert hint in str(refused.value) and type(refused.value) is ConfigError


@pytest.mark.parametrize(
    "words", ["impala --num-actors 16 --num-envs 16", slow("chase --num-envs 1"), slow("dqn --num-actors 3")]
)
def test_the_numbers_can_be_planned(words):
    name, *arguments = words.split()
    experiment, _ = decided(parse(arguments, load(name)).experiment)
    assert make_plan(experiment, "(not run)", Path("/dev/shm/jsrl")).experiment.envs == experiment.num_envs


@pytest.mark.parametrize(
    ("values", "envs"),
    [
        ({}, 16),
        ({"num_actors": 3}, 15),
        ({"num_actors": 16}, 16),
        ({"num_actors": 100}, 100),
        ({"num_groups": 5}, 15),
        ({"batch_envs": 6}, 6),
        ({"batch_envs": 6, "max_policy_lag": None}, 16),
        ({"learner": LearnerConfig(num_devices=3)}, 15),
        ({"agent": PPOConfig(num_minibatches=6, network=NetworkConfig(core="gru")), "num_actors": 4}, 12),
        ({"agent": DQNConfig(), "num_actors": 7}, 14),
    ],
)
def test_environments_in_python_fit_the_other_numbers(values, envs):
    experiment = Experiment(**{"agent": PPOConfig(), "placement": "inline", **values})
    assert (experiment.num_envs, experiment.envs) == ("auto", envs)
    assert dataclasses.replace(experiment, num_envs=envs).envs == envs
    found, line = decided(dataclasses.replace(experiment, env=EnvConfig("CartPole-v1")))
    assert found.num_envs == envs and f"--num-envs {envs}" in line
