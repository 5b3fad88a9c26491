"""Losses per row, by hand; the optimizer's options; how many minibatches a size makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import bc as bc_file
from jsrl.agents import sac as sac_file
from jsrl.agents.devices import masked_mean
from jsrl.agents.distributions import distribution
from jsrl.agents.losses import approximate_kl, clipped_surrogate, entropy_excess, value_loss
from jsrl.agents.minibatches import minibatches_of
from jsrl.agents.off_policy import transition
from jsrl.agents.random_rows import random_trajectory
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.types import ArraySpec, Discrete, EnvSpec


def test_clipped_surrogate_stops_the_gain_but_not_the_loss():
    ratio, advantage = jnp.array([1.5, 0.5, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0, -1.0])
    got = clipped_surrogate(ratio, advantage, clip_ratio=0.2)
    np.testing.assert_allclose(got, [-1.2, -0.5, 1.5, 0.8], rtol=1e-6)


def test_dual_clip_bounds_only_negative_advantages():
    ratio, advantage = jnp.array([50.0, 50.0, 2.0]), jnp.array([1.0, -1.0, -1.0])
    got = clipped_surrogate(ratio, advantage, clip_ratio=0.2, dual_clip=3.0)
    np.testing.assert_allclose(got, [-1.2, 3.0, 2.0], rtol=1e-6)


def test_value_losses():
    value, target, old = jnp.array([3.0, 0.0]), jnp.array([0.0, 20.0]), jnp.array([0.0, 0.0])
    np.testing.assert_allclose(value_loss(value, target, old), [4.5, 200.0])
    np.testing.assert_allclose(value_loss(value, target, old, kind="huber", huber_delta=2.0), [4.0, 38.0])
    # the clipped prediction 0.5 is nearer to target 0: the larger loss is used, so clipping never hides an error
    np.testing.assert_allclose(value_loss(value, target, old, clip=0.5), [4.5, 200.0])
    np.testing.assert_allclose(value_loss(jnp.array([19.0]), target[1:], old[1:], clip=0.5), [0.5 * 19.5**2])


def test_approximate_kl_is_zero_at_equality_positive_elsewhere_and_unbiased():
    assert approximate_kl(jnp.zeros(())) == 0
    assert (approximate_kl(jnp.array([-2.0, -0.1, 0.1, 2.0])) > 0).all()
    old, new = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    expected = np.sum(old * np.log(old / new))
    np.testing.assert_allclose(np.sum(old * np.asarray(approximate_kl(jnp.log(new / old)))), expected, rtol=1e-5)


def test_entropy_excess_is_relative_to_the_legal_actions():
    mask = np.arange(16) < np.array([16, 4, 2, 1, 0])[:, None]
    entropy = jnp.log(
        jnp.array([16.0, 4.0, 2.0, 1.0, 16.0])
    )  # uniform over the legal actions; with no legal action: over all
    excess = entropy_excess(entropy, 0.5 * np.log(16), mask)
    np.testing.assert_allclose(excess, [0.5 * np.log(16), 0.5 * np.log(4), 0.5 * np.log(2), 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(entropy_excess(0.1 * entropy, 0.5 * np.log(16), mask)[:3], -0.8 * excess[:3], rtol=1e-6)
    np.testing.assert_array_equal(entropy_excess(entropy, 1.5, None), entropy - 1.5)
    assert entropy_excess(jnp.zeros(1), 0.0, np.ones((1, 1))) == 0.0  # a single action


@pytest.mark.slow
def test_uniform_policies_over_few_legal_actions_never_raise_the_temperature():
    """2 of 16 actions are legal, fewer than the 4 of 0.5 log 16; every second row has only one legal action."""
    observation = {"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((16,), "uint8")}
    spec = EnvSpec(observation, Discrete(16))
    parts, _ = sac_file.discrete_parts(sac_file.SACConfig(network=NetworkConfig(hidden=(8,))), spec)
    policy = jax.tree.map(lambda w: 0.0 * w, parts.policy.init(jax.random.key(0)))
    critics = parts.critics.init(jax.random.key(1))
    t = random_trajectory(spec, np.random.default_rng(0), num_rows=1, num_envs=8, extras=(), core=())
    t.observation["action_mask"][:] = np.arange(16) < 2
    t.observation["action_mask"][:, ::2, 1] = 0
    batch = transition(t, 0.9)
    fixed = (critics, jnp.zeros(()))
    _, (metrics, _) = sac_file.sac_policy_loss(
        parts, policy, fixed, (batch, jnp.zeros(8)), lambda x: masked_mean(x, batch.acting, None)
    )
    half_log_2 = 0.5 * np.log(2) * np.mean(batch.mask[1::2]) / (2 * np.mean(batch.mask))
    np.testing.assert_allclose(metrics["entropy_excess"], half_log_2, rtol=1e-5)
    assert metrics["entropy_excess"] > 0  # the temperature decreases


def test_imitation_gains_from_entropy():
    spec, network = EnvSpec(ArraySpec((3,), "float32"), Discrete(4)), NetworkConfig(hidden=(4,))
    parts = bc_file.Components(
        bc_file.BCConfig(entropy_coef=0.3, network=network), actor_critic(network, spec), distribution(spec.action)
    )
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 2, 3)).astype(np.float32), np.zeros((5, 2), bool), rng.integers(0, 4, (5, 2))
    batch = bc_file.Batch(*rows)
    weights, _ = parts.network.init(jax.random.key(0))
    total, metrics = jax.jit(lambda weights: bc_file.loss(parts, weights, batch, jnp.mean))(weights)
    assert metrics["entropy"] > 1.0
    np.testing.assert_allclose(total, metrics["loss_policy"] - 0.3 * metrics["entropy"], rtol=1e-5)


@pytest.mark.parametrize(
    ("columns", "rows", "count"),
    [(2048, 1, 32), (16, 128, 16), (30, 1, 1), (2047, 1, 23), (128, 1, 2), (1, 5000, 1)],
)
def test_at_least_64_rows_are_in_each_and_they_divide_the_columns(columns: int, rows: int, count: int) -> None:
    assert minibatches_of(64, columns, rows, None) == count
    assert minibatches_of(100, 2048, 1, None) == 16  # 128 rows each, as docs/algorithms/ppo.md says


def test_size_counts_the_rows_of_all_devices() -> None:
    """Two devices with half of the columns each make the gradient steps of one device with all."""
    counts = jax.vmap(lambda _: jnp.asarray(minibatches_of(64, 1024, 1, "devices")), axis_name="devices")(jnp.zeros(2))
    assert counts.tolist() == [32, 32]
