"""Hyperparameters in the state: each can be traced, and acts like the config's number; dtypes are those of 64-bit JAX."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import adopt
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.hyperparameters import METRIC, set_hyperparameters, with_hyperparameters
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.mappo import MAPPOConfig, mappo
from jsrl.agents.ppg import PPGConfig, ppg
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.pqn import PQNConfig, pqn
from jsrl.agents.qmix import QMIXConfig, qmix
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, map_tree, spec_of
from tests.marks import marked

SMALL = NetworkConfig(hidden=(8,))
DISCRETE = EnvSpec(ArraySpec((3,), "float32"), Discrete(4))
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,), (1.0,)))
TEAM = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
PAIR = {"network": SMALL, "critic_network": SMALL, "target_kl": 0.02}
CASES = {
    "ppo": (ppo, PPOConfig(network=SMALL, value_clip=0.2, target_kl=0.02), DISCRETE),
    "impala": (impala, IMPALAConfig(network=SMALL), DISCRETE),
    "sac": (sac, SACConfig(network=SMALL, max_grad_norm=10.0), REAL),
    "td3": (td3, TD3Config(network=SMALL, max_grad_norm=10.0), REAL),
    "dqn": (dqn, DQNConfig(network=SMALL, total_updates=100), DISCRETE),
    "r2d2": (r2d2, R2D2Config(burn_in=2), DISCRETE),
    "ppg": (ppg, PPGConfig(network=SMALL, value_clip=0.2, target_kl=0.02, phase_rows=64), DISCRETE),
    "pqn": (pqn, PQNConfig(network=SMALL, total_updates=100), DISCRETE),
    "mappo": (mappo, MAPPOConfig(**PAIR), TEAM),
    "happo": (happo, HAPPOConfig(**PAIR), TEAM),
    "qmix": (qmix, QMIXConfig(network=SMALL, total_updates=100), TEAM),
}


def explored(name: str):
    make, config, spec = CASES[name]
    first = {option: getattr(config, option) for option in config.explorable}
    return with_hyperparameters(config, lambda changed: make(changed, spec), first), first


def rows_for(agent, spec):
    core = agent.initial_core(8) if agent.store_core else ()
    return random_trajectory(spec, np.random.default_rng(0), num_rows=8, num_envs=8, extras=(), core=core)


@pytest.mark.parametrize("name", marked(CASES, slow=CASES.keys() - {"ppo"}))
def test_every_explorable_hyperparameter_can_be_traced(name: str) -> None:
    agent, first = explored(name)
    key = jax.random.key(0)
    state = jax.eval_shape(agent.init, key)
    after, output = jax.eval_shape(agent.update, state, rows_for(agent, CASES[name][2]), key)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert {METRIC + option for option in first} <= set(output.metrics)


@pytest.mark.slow
def test_hyperparameters_in_the_state_act_like_those_in_the_config() -> None:
    make, config, spec = CASES["ppo"]
    agent, first = explored("ppo")
    other = {option: value * 0.7 for option, value in first.items()}
    rows, key = rows_for(agent, spec), jax.random.key(1)
    state = jax.jit(agent.init)(jax.random.key(0))
    update = jax.jit(agent.update)
    for values in (first, other):
        plain = make(dataclasses.replace(config, **values), spec)
        expected, _ = jax.jit(plain.update)(jax.jit(plain.init)(jax.random.key(0)), rows, key)
        found, output = update(set_hyperparameters(jax.device_get(state), values), rows, key)
        assert {n: float(v) for n, v in found.extra.values.items()} == {
            n: float(np.float32(v)) for n, v in values.items()
        }
        assert float(output.metrics[METRIC + "gamma"]) == np.float32(values["gamma"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found._replace(extra=found.extra.agent),
                     expected)  # fmt: skip
    assert update._cache_size() == 1, "other values must not compile another program"


def test_loaded_params_keep_the_agents_own_hyperparameters() -> None:
    agent, first = explored("td3")
    state, given = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.init)(jax.random.key(1))
    found = adopt(agent, state, given.params)
    jax.tree.map(np.testing.assert_array_equal, found.params.weights.network, given.params.weights.network)
    assert jax.tree.structure(found) == jax.tree.structure(state) and set(found.extra.values) == set(first)
    assert float(found.extra.values["tau"]) == jnp.float32(first["tau"])


@pytest.mark.parametrize(
    "name",
    marked(CASES, slow={"dqn", "sac", "r2d2", "qmix"}, nightly={"impala", "td3", "mappo", "happo", "ppg", "pqn"}),
)
def test_64_bit_jax_changes_no_dtype_of_a_state(name):
    make, config, spec = CASES[name]
    wanted = {"normalize_observations", "normalize_values"} & {field.name for field in dataclasses.fields(config)}
    agent = make(dataclasses.replace(config, **dict.fromkeys(wanted, True)), spec)
    observation = map_tree(lambda leaf: leaf.batched(2).zeros(), spec.observation)

    def shapes():
        state, core = jax.eval_shape(agent.init, jax.random.key(0)), jax.eval_shape(lambda: agent.initial_core(2))

        def act(params, core):
            return agent.act(params, jax.random.key(0), observation, np.ones(2, bool), core)[1]

        rows = rows_for(agent, spec)
        learned = jax.eval_shape(agent.update, state, rows, jax.random.key(0))[0]
        return spec_of((state, core, jax.eval_shape(act, state.params, core), learned))

    usual = shapes()
    with jax.enable_x64(True):
        assert shapes() == usual
