"""Distributions against distrax, against samples, and where naive formulas fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.distributions import (
    Distribution,
    categorical,
    diagonal_gaussian,
    distribution,
    mask_logits,
    multi_categorical,
    squashed_gaussian,
)
from jsrl.types import Continuous, Discrete, MultiDiscrete, to_environment

KEY = jax.random.key(0)


def gaussian_outputs(seed: int, shape=(5, 3)):
    mean, log_std = normal(seed, (2, *shape))
    return mean, 0.5 * log_std - 0.5


def normal(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def programs(ours: Distribution) -> Distribution:
    """Return the distribution with one program for each of its functions."""
    return Distribution(*map(jax.jit, ours))


def facts_of(make):
    """Return distrax's (log_prob, entropy, mode) of outputs and an action, as one program."""

    def facts(outputs, action):
        one = make(outputs)
        return one.log_prob(action), one.entropy(), one.mode()

    return jax.jit(facts)


@pytest.fixture
def distrax():
    return pytest.importorskip("distrax", exc_type=ImportError)


def test_categorical_agrees_with_distrax(distrax):
    p = normal(0, (5, 4))
    ours = programs(categorical())
    action = ours.sample(KEY, p)
    assert action.dtype == jnp.int32 and action.shape == (5,)
    log_prob, entropy, mode = facts_of(lambda x: distrax.Categorical(logits=x))(p, action)
    np.testing.assert_allclose(ours.log_prob(p, action), log_prob, rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(p), entropy, rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(p), mode)


def test_categorical_samples_have_its_frequencies():
    probability = np.array([0.1, 0.2, 0.7])
    drawn = programs(categorical()).sample(KEY, np.tile(np.log(probability).astype(np.float32), (20_000, 1)))
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, probability, atol=0.015)


def test_masked_actions_are_never_drawn_and_cost_no_entropy_or_nan():
    logits = np.tile(np.float32([5.0, 1.0, 1.0, 9.0]), (4000, 1))
    masked = np.asarray(jax.jit(mask_logits)(logits, np.array([0, 1, 1, 0], np.uint8)))
    ours = programs(categorical())
    assert set(np.unique(ours.sample(KEY, masked))) == {1, 2}
    np.testing.assert_allclose(ours.entropy(masked[0]), np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(ours.log_prob(masked[0], np.int32(1)), -np.log(2.0), rtol=1e-6)
    assert ours.mode(masked[0]) in (1, 2)
    gradient = jax.jit(jax.grad(lambda x: ours.entropy(mask_logits(x, jnp.array([0, 1, 1, 0])))))(logits[0])
    assert np.isfinite(gradient).all() and gradient[0] == gradient[3] == 0


def test_a_mask_of_zeros_is_uniform_not_nan():
    masked = mask_logits(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3, bool))
    np.testing.assert_allclose(categorical().entropy(masked), np.log(3.0), rtol=1e-6)
    assert np.isfinite(categorical().log_prob(masked, jnp.array(0)))


def test_multi_categorical_is_the_sum_of_its_parts(distrax):
    nums = (3, 2, 4)
    p = normal(0, (6, 9))
    ours = programs(multi_categorical(nums))
    parts_p = np.split(p, [3, 5], axis=-1)
    action = ours.sample(KEY, p)
    assert action.shape == (6, 3) and (np.asarray(action).max(0) < nums).all()
    theirs = facts_of(lambda x: distrax.Categorical(logits=x))
    parts = [theirs(*pair) for pair in zip(parts_p, np.asarray(action).T, strict=True)]
    log_prob, entropy, _ = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    np.testing.assert_allclose(ours.log_prob(p, action), log_prob, rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(p), entropy, rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(p), np.stack([x.argmax(-1) for x in parts_p], -1))


def test_diagonal_gaussian_agrees_with_distrax(distrax):
    p = gaussian_outputs(0)
    ours = programs(diagonal_gaussian())
    action = ours.sample(KEY, p)
    theirs = facts_of(lambda outputs: distrax.MultivariateNormalDiag(outputs[0], jnp.exp(outputs[1])))
    log_prob, entropy, _ = theirs(p, action)
    np.testing.assert_allclose(ours.log_prob(p, action), log_prob, rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(p), entropy, rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(p), p[0])


def test_gaussian_samples_have_its_moments():
    outputs = (np.full((20_000, 1), 2.0, np.float32), np.full((20_000, 1), np.log(0.5), np.float32))
    drawn = np.asarray(programs(diagonal_gaussian()).sample(KEY, outputs))
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [2.0, 0.5], atol=0.02)


def test_squashed_gaussian_agrees_with_distrax_where_it_is_exact(distrax):
    outputs = gaussian_outputs(2)
    ours = programs(squashed_gaussian())

    @jax.jit
    def theirs(outputs, action):
        base = distrax.Independent(distrax.Normal(outputs[0], jnp.exp(outputs[1])), 1)
        return distrax.Transformed(base, distrax.Block(distrax.Tanh(), 1)).log_prob(jnp.tanh(action))

    action = ours.sample(KEY, outputs)
    np.testing.assert_allclose(ours.log_prob(outputs, action), theirs(outputs, action), rtol=1e-3, atol=1e-4)


def test_squashed_log_prob_is_exact_where_tanh_saturates():
    """float32 tanh(20) is 1.0, so an inverse would be infinite; the float64 value is the reference."""
    u = np.array([20.0], np.float64)
    log_slope = np.log(4.0) - 2 * u - 2 * np.log1p(np.exp(-2 * u))
    expected = -0.5 * (u - 19.0) ** 2 - 0.5 * np.log(2 * np.pi) - log_slope
    outputs = (np.float32([19.0]), np.float32([0.0]))
    assert jnp.tanh(jnp.float32(20.0)) == 1.0
    ours = programs(squashed_gaussian())
    np.testing.assert_allclose(ours.log_prob(outputs, np.float32([20.0])), expected[0], rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda a: ours.log_prob(outputs, a)))(np.float32([50.0]))
    np.testing.assert_allclose(gradient, [-31.0 + 2.0], rtol=1e-6)


def test_squashed_density_integrates_to_one_over_the_box():
    """The log_prob is that of tanh(u): its exponential integrates to 1 over a in (-1, 1)."""
    u = np.linspace(-9, 9, 20_001, dtype=np.float32)[:, None]
    outputs = (np.full_like(u, 0.4), np.full_like(u, -0.3))
    density = np.exp(np.asarray(programs(squashed_gaussian()).log_prob(outputs, u), np.float64))
    np.testing.assert_allclose(np.trapezoid(density, np.tanh(u[:, 0].astype(np.float64))), 1.0, atol=1e-4)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.7)])
def test_squashed_entropy_equals_the_mean_of_minus_log_prob(mean, log_std):
    outputs = (np.full((200_000, 1), mean, np.float32), np.full((200_000, 1), log_std, np.float32))
    ours = programs(squashed_gaussian())
    drawn = -ours.log_prob(outputs, ours.sample(KEY, outputs))
    np.testing.assert_allclose(ours.entropy(outputs)[0], drawn.mean(), atol=0.015)


def dense_entropy(mean, log_std):
    """The entropy of tanh(u) in float64, integrated over 20,001 points of u."""
    z = np.linspace(-9, 9, 20_001)
    weight = np.exp(-0.5 * z**2)
    u = mean + np.exp(log_std) * z
    log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    return log_std + 0.5 * np.log(2 * np.pi * np.e) + np.sum(log_slope * weight) / weight.sum()


@pytest.mark.slow
def test_squashed_entropy_equals_a_dense_integral_for_narrow_and_wide_policies():
    mean, log_std = (x.ravel() for x in np.meshgrid(np.linspace(-5, 5, 21), np.linspace(-5, 4, 19)))
    expected = [dense_entropy(*point) for point in zip(mean, log_std, strict=True)]
    outputs = tuple(x.astype(np.float32)[:, None] for x in (mean, log_std))
    ours = programs(squashed_gaussian())
    np.testing.assert_allclose(ours.entropy(outputs), expected, atol=1e-4)
    gradient = jax.device_get(jax.jit(jax.grad(lambda o: ours.entropy(o).sum()))(outputs))
    step = 1e-3
    for i, (m, s) in enumerate(zip(mean, log_std, strict=True)):
        slope_mean = (dense_entropy(m + step, s) - dense_entropy(m - step, s)) / (2 * step)
        slope_log_std = (dense_entropy(m, s + step) - dense_entropy(m, s - step)) / (2 * step)
        np.testing.assert_allclose([g[i, 0] for g in gradient], [slope_mean, slope_log_std], atol=1e-3)


def test_spec_selects_the_distribution_and_the_environment_action():
    low, high = (-2.0, 0.0), (2.0, 1.0)
    stored = np.array([[-3.0, 0.25], [0.5, 9.0]], np.float32)
    clip, rescale, squash = (Continuous(low, high, t) for t in ("clip", "rescale", "squash"))
    np.testing.assert_allclose(to_environment(clip, stored), [[-2.0, 0.25], [0.5, 1.0]])
    np.testing.assert_allclose(to_environment(rescale, stored), [[-2.0, 0.625], [1.0, 1.0]])
    expected = np.tanh(stored) * [2.0, 0.5] + [0.0, 0.5]
    np.testing.assert_allclose(to_environment(squash, stored), expected, rtol=1e-5)
    assert (to_environment(squash, stored * 100) <= high).all()
    outputs = (jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    gaps = [
        distribution(s).log_prob(outputs, stored[:1]) - diagonal_gaussian().log_prob(outputs, stored[:1])
        for s in (clip, rescale, squash)
    ]
    assert gaps[0] == gaps[1] == 0 and gaps[2] > 1
    assert distribution(Discrete(3)).mode(jnp.array([0.0, 2.0, 1.0])) == 1
    assert distribution(MultiDiscrete((2, 2))).mode(jnp.array([0.0, 2.0, 1.0, 0.0])).tolist() == [1, 0]
    with pytest.raises(TypeError, match="expected Discrete"):
        distribution("Discrete")


@pytest.mark.parametrize(
    ("made", "p", "q"),
    [
        (categorical(), normal(0, (4,)), normal(1, (4,))),
        (multi_categorical((3, 2)), normal(0, (5,)), normal(1, (5,))),
        (diagonal_gaussian(), gaussian_outputs(0, (2,)), gaussian_outputs(1, (2,))),
        (squashed_gaussian(), gaussian_outputs(0, (2,)), gaussian_outputs(1, (2,))),
    ],
    ids=["categorical", "multi", "gaussian", "squashed"],
)
def test_kl_is_the_mean_log_ratio_of_samples(made, p, q):
    many = jax.tree.map(lambda x: np.tile(x, (100_000, 1)), (p, q))

    @jax.jit
    def log_ratio(p, q):
        action = made.sample(KEY, p)
        return made.log_prob(p, action) - made.log_prob(q, action)

    np.testing.assert_allclose(jax.jit(made.kl)(p, q), log_ratio(*many).mean(), rtol=0.02)
    np.testing.assert_allclose(made.kl(p, p), 0.0, atol=1e-6)


def test_kl_of_masked_actions_is_finite():
    one, other = (mask_logits(jnp.array(x), jnp.array([1, 1, 0])) for x in ([0.0, 0.0, 9.0], [1.0, 0.0, 3.0]))
    p = np.array([0.5, 0.5]), np.array([np.e, 1.0]) / (np.e + 1.0)
    np.testing.assert_allclose(categorical().kl(one, other), (p[0] * np.log(p[0] / p[1])).sum(), rtol=1e-5)
