"""Means, gradients, percentiles and noise over devices: four shares of the columns give what one device gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.devices import masked_percentile, mean_gradient, normal_columns
from jsrl.agents.rows import RowMasks

T, B, F, DEVICES = 3, 8, 5, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(T, B, F)).astype(np.float32)
WEIGHT = RNG.random((T, B)).astype(np.float32)
POLICY = np.repeat(np.array([[0, 0, 1, 0, 1, 1, 1, 1]], np.float32), T, axis=0)  # devices have 0, 1, 2 and 2 columns
VALUE = (RNG.random((T, B)) < 0.6).astype(np.float32)


def shares(x):
    return jnp.stack(jnp.split(jnp.asarray(x), DEVICES, axis=1))


def gradients_and_rest(x, weight, masks, axis_name=None):
    """The gradient of a loss with two masks, importance weights, a function of means and a penalty."""

    def loss(weights, mean):
        y = jnp.tanh(x @ weights)
        spread = jnp.sqrt(mean.value(y**2) - mean.value(y) ** 2)
        total = mean.policy(jnp.log(x[..., 0] + 9.0) * y * weight) + 0.3 * spread + 0.1 * jnp.sum(weights**2)
        return total, ({"spread": spread, "loss": total}, y)

    return mean_gradient(loss, jnp.linspace(-1.0, 1.0, F), RowMasks(*masks), axis_name)


def test_gradient_and_metrics_are_those_of_one_device():
    masks = (POLICY, VALUE)
    expected, (metrics, rows) = jax.jit(gradients_and_rest)(X, WEIGHT, masks)
    given = shares(X), shares(WEIGHT), tuple(map(shares, masks))
    spread = jax.vmap(lambda *share: gradients_and_rest(*share, axis_name="devices"), axis_name="devices")
    found, (each, their_rows) = jax.jit(spread)(*given)
    for device in range(DEVICES):
        np.testing.assert_allclose(found[device], expected, rtol=1e-5)
        for name, value in metrics.items():
            np.testing.assert_allclose(each[name][device], value, rtol=1e-5)
    np.testing.assert_array_equal(their_rows, shares(rows))  # values per row stay where they are


def test_gradient_equals_that_of_the_rows_that_count():
    kept = X[POLICY > 0]
    x = np.where(POLICY[..., None] > 0, X, np.nan)  # masked rows do not matter

    def square(weights, x):
        return jnp.square(x @ weights - 1.0)

    weights = jnp.linspace(-1.0, 1.0, F)
    given = jnp.nan_to_num(x)
    found, metric = mean_gradient(
        lambda w, mean: (mean(square(w, given)), mean(square(w, x))), weights, jnp.asarray(POLICY), None
    )
    np.testing.assert_allclose(found, jax.grad(lambda w: jnp.mean(square(w, kept)))(weights), rtol=1e-5)
    np.testing.assert_allclose(metric, jnp.mean(square(weights, kept)), rtol=1e-5)


def test_a_mean_of_something_else_than_rows_is_refused():
    with pytest.raises(ValueError, match=r"values \[3, 8, 5\] got a mask \[3, 8\]"):
        mean_gradient(lambda w, mean: (mean(X * w), ()), jnp.ones(()), jnp.asarray(POLICY), None)


@pytest.mark.slow
def test_percentiles_and_noise_are_those_of_one_device():
    expected = np.percentile(WEIGHT[POLICY > 0], [5, 95])
    np.testing.assert_allclose(masked_percentile(WEIGHT, POLICY, jnp.array([5, 95])), expected, rtol=1e-5)

    def of_share(value, mask):
        found = masked_percentile(value, mask, jnp.array([5, 95]), "devices")
        return found, normal_columns(jax.random.key(0), (2, 3), "devices")

    found, noise = jax.vmap(of_share, axis_name="devices")(shares(WEIGHT), shares(POLICY))
    np.testing.assert_allclose(found, np.broadcast_to(expected, (DEVICES, 2)), rtol=1e-5)
    np.testing.assert_array_equal(np.concatenate(noise), normal_columns(jax.random.key(0), (B, 3), None))
