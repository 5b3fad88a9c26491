"""Losses per row, by hand, and the optimizer's options."""

import jax.numpy as jnp
import numpy as np

from jsrl.agents.losses import approximate_kl, clipped_surrogate, value_loss


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
    # the clipped prediction 0.5 would be nearer to target 0: the larger loss counts, so clipping never hides an error
    np.testing.assert_allclose(value_loss(value, target, old, clip=0.5), [4.5, 200.0])
    np.testing.assert_allclose(value_loss(jnp.array([19.0]), target[1:], old[1:], clip=0.5), [0.5 * 19.5**2])


def test_approximate_kl_is_zero_at_equality_positive_elsewhere_and_unbiased():
    assert approximate_kl(jnp.zeros(())) == 0
    assert (approximate_kl(jnp.array([-2.0, -0.1, 0.1, 2.0])) > 0).all()
    old, new = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    expected = np.sum(old * np.log(old / new))
    np.testing.assert_allclose(np.sum(old * np.asarray(approximate_kl(jnp.log(new / old)))), expected, rtol=1e-5)
