"""Optimizers and schedules of optax, and networks of flax.nnx, in place of an algorithm's own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jsrl.agents import actor_critic as ac
from jsrl.agents.check import check_agent
from jsrl.agents.dqn import DQNConfig, dqn, dqn_loss
from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.hyperparameters import with_hyperparameters
from jsrl.agents.ppo import PPOConfig, ppo, ppo_loss
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac, sac_critic_loss, sac_policy_loss
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec

SMALL = NetworkConfig(hidden=(8,))
SPEC = EnvSpec(ArraySpec((3,), "float32"), Discrete(4))
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,), (1.0,)))
TEAM = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
COSINE = "optax:cosine_decay_schedule"


class Torso(nnx.Module):
    """A layer of flax.nnx, whose sizes are known before it is called."""

    def __init__(self, size: int = 3, *, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(size, 16, rngs=rngs)

    def __call__(self, observation):
        return nnx.tanh(self.layer(observation))


def rows_for(agent, spec):
    core = agent.initial_core(8) if agent.store_core else ()
    return random_trajectory(spec, np.random.default_rng(0), num_rows=4, num_envs=8, extras=(), core=core)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "config", "spec", "losses"),
    [
        pytest.param(ppo, PPOConfig, SPEC, {"loss": ppo_loss}, marks=pytest.mark.nightly),  # docs run it
        (dqn, functools.partial(DQNConfig, exploration="ladder"), SPEC, {"loss": dqn_loss}),
        (sac, SACConfig, REAL, {"critic_loss": sac_critic_loss, "policy_loss": sac_policy_loss}),
    ],
    ids=["ppo", "dqn", "sac"],
)
def test_a_loss_of_ones_own_takes_the_place_of_the_algorithms(factory, config, spec, losses) -> None:
    """The squared norm of the weights as loss: all weights shrink."""

    def norm_of(name, loss):
        def own(parts, weights, *rest):
            _, found = loss(parts, weights, *rest)
            norm = optax.tree.norm(weights, squared=True)
            added = {name: norm}
            return norm, {**found, **added} if isinstance(found, dict) else ({**found[0], **added}, *found[1:])

        return own

    agent = factory(config(network=SMALL), spec, **{name: norm_of(name, loss) for name, loss in losses.items()})
    state = agent.init(jax.random.key(0))
    new, output = jax.jit(agent.update)(state, rows_for(agent, spec), jax.random.key(1))
    assert {*losses} <= {*output.metrics}
    assert jax.tree.structure(new) == jax.tree.structure(state)
    weights = [getattr(s.params.weights, "network", s.params.weights) for s in (state, new)]
    for before, after in zip(*map(jax.tree.leaves, weights), strict=True):
        assert not np.any(before) or np.linalg.norm(after) < np.linalg.norm(before)


def test_steps_are_those_of_optax_with_its_schedule() -> None:
    weights = start = {"w": jnp.array([1.0, -2.0, 3.0])}
    gradients = [{"w": jnp.array([0.3, -0.1, 9.0]) * (n + 1)} for n in range(4)]
    own = ac.make_optimizer(functools.partial(optax.adamw, weight_decay=0.1), eps=1.0, max_grad_norm=0.5)
    state = own.init(weights)
    for n, gradient in enumerate(gradients):
        rate = ac.scheduled(0.1, COSINE, 4, jnp.asarray(n))
        weights, state = ac.apply_gradients(own, gradient, state, weights, rate)

    rates = optax.cosine_decay_schedule(0.1, 4)
    theirs = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(rates, weight_decay=0.1))
    expected, state = start, theirs.init(start)
    for gradient in gradients:
        steps, state = theirs.update(gradient, state, expected)
        expected = optax.apply_updates(expected, steps)
    np.testing.assert_allclose(weights["w"], expected["w"], rtol=1e-6)
    assert abs(float(weights["w"][0] - start["w"][0])) > 0.05


@pytest.mark.slow
def test_a_run_with_an_optimizer_and_a_schedule_of_optax_resumes_to_the_bit(tmp_path) -> None:
    schedule = {"schedule": COSINE, "total_updates": 6}
    config = PPOConfig(network=SMALL, optimizer="optax:lamb", num_epochs=1, num_minibatches=1, **schedule)
    agent = ppo(config, SPEC)
    rows, update = rows_for(agent, SPEC), jax.jit(agent.update)
    states, rates = [agent.init(jax.random.key(0))], []
    for n in range(4):
        state, output = update(states[-1], rows, jax.random.key(n))
        states.append(state)
        rates.append(float(output.metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [3e-4 * 0.5 * (1 + np.cos(np.pi * n / 6)) for n in range(4)], rtol=1e-5)

    store = SnapshotStore(tmp_path)
    store.save(2, {"state": jax.device_get(states[2])}, wait=True)
    again = store.load(2, template={"state": jax.eval_shape(agent.init, jax.random.key(0))}).tree["state"]
    store.close()
    for n in (2, 3):
        again, _ = update(again, rows, jax.random.key(n))
    jax.tree.map(np.testing.assert_array_equal, again, states[4])
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), states[0].params, states[4].params)
    assert all(step > 0 for step in jax.tree.leaves(moved))


@pytest.mark.parametrize("name", ["sac", "happo", "explored"])
@pytest.mark.slow
def test_an_optimizer_of_optax_serves_several_parts_seats_and_changing_rates(name: str) -> None:
    """Traced alone: SAC steps a scalar too, HAPPO all seats at once, and populations put the rate into the state."""
    options = {"network": SMALL, "optimizer": "optax:lamb"}
    scheduled = PPOConfig(**options, schedule=COSINE, total_updates=6)
    agent, spec = {
        "sac": lambda: (sac(SACConfig(**options), REAL), REAL),
        "happo": lambda: (happo(HAPPOConfig(**options, critic_network=SMALL), TEAM), TEAM),
        "explored": lambda: (with_hyperparameters(scheduled, lambda c: ppo(c, SPEC), {"learning_rate": 0.1}), SPEC),
    }[name]()
    state = jax.eval_shape(agent.init, jax.random.key(0))
    after, _ = jax.eval_shape(agent.update, state, rows_for(agent, spec), jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_what_is_no_factory_is_refused() -> None:
    updates = jnp.zeros((), jnp.int32)
    for value in ("lamb", 3):
        with pytest.raises(ConfigError, match=rf"unknown optimizer {value!r}; choose one of .*module:NAME of an optax"):
            sac(SACConfig(network=SMALL, optimizer=value), REAL)
        with pytest.raises(ConfigError, match=rf"unknown schedule {value!r}; choose one of constant, linear, or"):
            ac.scheduled(0.1, value, 5, updates)
    with pytest.raises(ConfigError, match="has no 'lam'"):
        ppo(PPOConfig(network=SMALL, optimizer="optax:lam"), SPEC)
    with pytest.raises(ConfigError, match=r"called with \(learning_rate, total_updates\): .*missing"):
        ac.scheduled(0.1, "optax:linear_schedule", 5, updates)
    with pytest.raises(ConfigError, match="needs total_updates"):
        ac.scheduled(0.1, COSINE, None, updates)


@pytest.mark.slow
def test_ppo_with_a_network_of_flax_nnx_passes_and_learns() -> None:
    agent = ppo(PPOConfig(network=NetworkConfig(torso=Torso)), SPEC)
    check_agent(agent, SPEC)
    state = agent.init(jax.random.key(0))
    after, _ = agent.update(state, rows_for(agent, SPEC), jax.random.key(1))
    kernels = [s.params.weights["torso"]["layer"]["kernel"] for s in (state, after)]
    assert kernels[0].shape == (3, 16) and float(jnp.abs(kernels[1] - kernels[0]).max()) > 0
