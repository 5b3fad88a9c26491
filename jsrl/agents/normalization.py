"""Running moments of observations and of value targets (PopArt). Only the learner updates them; sums cover all devices."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.devices import psum
from jsrl.types import Array, ArraySpec, Tree, is_image, spread

ACTION_MASK = "action_mask"
_CLIP = 10.0
_EPSILON = 1e-8
VALUE_DECAY = 0.99  # of the moments of values, per update


# -- observations -----------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """Mean and variance of `count` rows; count is a float32 scalar, mean and variance have the leaf's own shape."""

    count: Array
    mean: Array
    variance: Array


def init_moments(observation: Tree, name: str = "") -> Tree:
    """Return moments for a schema of one agent's observations; images, flags, integers and masks are not normalised: ()."""
    if isinstance(observation, dict):
        return {key: init_moments(leaf, key) for key, leaf in observation.items()}
    assert isinstance(observation, ArraySpec)
    is_number = np.issubdtype(np.dtype(observation.dtype), np.floating) or observation.dtype == "uint8"
    if name == ACTION_MASK or not is_number or is_image(observation):
        return ()
    shape = observation.shape
    return Moments(jnp.float32(0.0), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32))


def normalize(moments: Tree, observation: Tree) -> Tree:
    """Return observations [..., *shape] with mean 0 and variance 1, clipped to 10; unchanged where moments are ()."""
    if isinstance(moments, Moments):
        scaled = (observation - moments.mean) * jax.lax.rsqrt(moments.variance + _EPSILON)
        return jnp.clip(scaled, -_CLIP, _CLIP)
    if isinstance(moments, dict):
        return {key: normalize(moments[key], leaf) for key, leaf in observation.items()}
    return observation


def merge_moments(moments: Tree, observation: Tree, mask: Array, axis_name: str | None = None) -> Tree:
    """Return moments that also cover the rows of `observation` [..., *shape] where `mask` [...] is 1, of all devices.

    Source: Chan, Golub, LeVeque, 1979 (pairwise merge): with d = mean_b - mean_a and n = n_a + n_b,
    mean = mean_a + d n_b / n, variance = (n_a var_a + n_b var_b + d^2 n_a n_b / n) / n.
    """
    if isinstance(moments, dict):
        return {key: merge_moments(moments[key], leaf, mask, axis_name) for key, leaf in observation.items()}
    if not isinstance(moments, Moments):
        return moments
    batch = _batch_moments(observation, mask, axis_name)
    count = moments.count + batch.count
    return Moments(count, *_merge(moments, batch, batch.count / jnp.maximum(count, 1.0)))


def _batch_moments(x: Array, mask: Array, axis_name: str | None) -> Moments:
    """Return the moments of the rows of x [..., *shape] where `mask` [...] is 1, of all devices (0 without any).

    Two passes: the second takes deviations from the mean of the first, and corrects the mean by them. So float32 cancels
    nothing where the mean is thousands of standard deviations.
    """
    axes = tuple(range(mask.ndim))
    counts = spread(mask, x) > 0
    count, total = psum((jnp.sum(mask), jnp.sum(jnp.where(counts, x, 0.0), axes)), axis_name)
    share = 1.0 / jnp.maximum(count, 1.0)
    near = total * share
    away = jnp.where(counts, x - near, 0.0)
    sums = jnp.sum(away, axes), jnp.sum(jnp.square(away), axes)
    first, second = (share * total for total in psum(sums, axis_name))
    return Moments(count, near + first, jnp.maximum(second - jnp.square(first), 0.0))


def _merge(old: Moments | ValueMoments, batch: Moments, share: Array) -> tuple[Array, Array]:
    """Return mean and variance of a mixture: weight `share` for the batch, the rest for `old`."""
    distance = batch.mean - old.mean
    spread = jnp.square(distance) * share * (1.0 - share)
    return old.mean + distance * share, (1.0 - share) * old.variance + share * batch.variance + spread


# -- values -----------------------------------------------------------------------------------------------------------


class ValueMoments(NamedTuple):
    """Scale of the value function: raw value = mean + std * normalised value; scalars.

    weight: decayed sum of 1 over the updates so far. mean, variance: decayed averages over their targets.
    """

    weight: Array
    mean: Array
    variance: Array

    @property
    def std(self) -> Array:
        """Standard deviation, at least 0.01."""
        return jnp.sqrt(jnp.maximum(self.variance, 1e-4))


def init_value_moments() -> ValueMoments:
    """Return moments for which normalised and raw values agree."""
    return ValueMoments(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(1.0))


def denormalize_value(moments: ValueMoments, value: Array) -> Array:
    return moments.mean + moments.std * value


def normalize_value(moments: ValueMoments, value: Array) -> Array:
    return (value - moments.mean) / moments.std


def merge_value_moments(
    moments: ValueMoments, target: Array, mask: Array, *, axis_name: str | None = None
) -> ValueMoments:
    """Return moments updated with one update's targets (raw units), of all devices; without a row of mask 1 they stay.

    Exponential moving averages with bias correction, VALUE_DECAY per update.
    """
    batch = _batch_moments(target, mask, axis_name)
    rate = jnp.where(batch.count > 0, 1.0 - VALUE_DECAY, 0.0)
    weight = (1.0 - rate) * moments.weight + rate
    return ValueMoments(weight, *_merge(moments, batch, rate / jnp.maximum(weight, _EPSILON)))


def rescale_head(weights: Tree, path: tuple[str, ...], old: ValueMoments, new: ValueMoments) -> Tree:
    """Return `weights` with the linear layer at `path` (kernel, bias) changed so that raw values do not change.

    kernel' = kernel std / std', bias' = (std bias + (mean - mean')) / std'. The means are subtracted first: both may be large.

    Source: van Hasselt et al., 2016, arXiv 1602.07714, equation 5 (PopArt).
    """
    if not path:
        return {
            **weights,
            "kernel": weights["kernel"] * (old.std / new.std),
            "bias": (old.std * weights["bias"] + (old.mean - new.mean)) / new.std,
        }
    return {**weights, path[0]: rescale_head(weights[path[0]], path[1:], old, new)}
