"""The choices of `auto`, on described machines."""

from __future__ import annotations

import dataclasses

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, Experiment, LearnerConfig
from jsrl.experiment.automatic import Machine, decided_for
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec

VECTOR = EnvSpec(ArraySpec((4,), "float32"), Discrete(2))
IMAGE = EnvSpec(ArraySpec((84, 84, 4), "uint8"), Discrete(6))
PPO = Experiment(PPOConfig(), num_envs=64)


def choice(experiment: Experiment, machine: Machine, spec: EnvSpec | None = None) -> tuple[str, int | str]:
    """Return the placement and the number of actors; the environment is built only if `spec` is given."""

    def make() -> EnvSpec:
        assert spec is not None, "this choice does not need the environment"
        return spec

    chosen, said = decided_for(experiment, machine, make)
    assert said is None or all(f"--{name} " in said for name in ("placement",) if experiment.placement == "auto")
    return chosen.placement, chosen.num_actors


@pytest.mark.parametrize(
    ("values", "machine", "expected"),
    [
        ({}, Machine(1), ("inline", 1)),
        ({}, Machine(2), ("inline", 2)),
        ({}, Machine(64), ("inline", 8)),  # 8 environments each
        ({"max_policy_lag": 1}, Machine(2), ("inline", 1)),  # the learner shares the cores with the actors
        ({"num_envs": 48, "num_groups": 6}, Machine(6), ("inline", 6)),
        ({"num_groups": 4}, Machine(3), ("inline", 2)),  # groups are distributed evenly
        ({"num_actors": 4}, Machine(2), ("inline", 4)),  # as given
        ({"placement": "served"}, Machine(2), ("served", 2)),
        ({"deterministic": True}, Machine(3), ("inline", 2)),
    ],
)
def test_choices_on_cpu(values, machine, expected) -> None:
    assert choice(dataclasses.replace(PPO, **values), machine) == expected


@pytest.mark.parametrize(
    ("values", "machine", "threads"),
    [
        ({"placement": "serial"}, Machine(3), 3),
        ({"placement": "inline", "deterministic": True}, Machine(3), 3),
        ({"placement": "serial"}, Machine(3, threads=8), 8),  # jax computes with them already
        ({"placement": "serial", "learner": LearnerConfig(threads=2)}, Machine(3), 2),
        ({"placement": "serial"}, Machine(3, accelerators=1), None),
        ({"placement": "inline"}, Machine(3), None),
    ],
)
def test_a_deterministic_run_has_a_number_of_threads(values, machine, threads) -> None:
    assert decided_for(dataclasses.replace(PPO, **values), machine, lambda: VECTOR)[0].learner.threads == threads


@pytest.mark.parametrize(
    ("network", "spec", "placement"),
    [
        (NetworkConfig(), VECTOR, "inline"),
        (NetworkConfig(), IMAGE, "served"),
        (
            NetworkConfig(),
            EnvSpec(ArraySpec((2, 5, 7), "float32"), Discrete(2)),
            "inline",
        ),  # the network's MLP reads it
        (NetworkConfig(), EnvSpec(ArraySpec((2, 5, 7), "uint8"), Discrete(2), num_agents=2), "inline"),
        (NetworkConfig(), EnvSpec(ArraySpec((2, 84, 84, 4), "uint8"), Discrete(2), num_agents=2), "served"),
        (NetworkConfig(torso="mlp"), None, "inline"),
        (NetworkConfig(hidden=(512, 512)), None, "served"),
        (NetworkConfig(core="lstm"), None, "served"),
        (NetworkConfig(torso="nature_cnn"), None, "served"),
    ],
)
def test_large_networks_act_on_the_accelerator(network, spec, placement) -> None:
    experiment = dataclasses.replace(PPO, agent=PPOConfig(network=network))
    assert choice(experiment, Machine(8, accelerators=1), spec)[0] == placement
    assert choice(experiment, Machine(8))[0] == "inline"


def test_an_unknown_agent_acts_on_the_accelerator() -> None:
    assert choice(Experiment(AgentReference("my_module:agent", {})), Machine(4, 1))[0] == "served"


def test_given_options_stay_and_are_not_announced() -> None:
    given = dataclasses.replace(PPO, placement="served", num_actors=2)
    assert decided_for(given, Machine(8, 1), lambda: IMAGE) == (given, None)
    _, said = decided_for(dataclasses.replace(PPO, placement="serial"), Machine(8), lambda: VECTOR)
    assert said is None  # a serial run has no actor processes


def test_indivisible_numbers_are_refused_before_auto_fills_in() -> None:
    with pytest.raises(ConfigError, match="num_groups"):
        dataclasses.replace(PPO, num_groups=5)
