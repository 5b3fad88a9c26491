"""Means, gradients, percentiles and noise over the rows of all devices.

With several devices `update` runs on each of them, with the same state and key, and with its share of the batch's columns. The
new state and the metrics must be the same on all devices. `axis_name` is None on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jsrl.types import Array, Tree

Mean: TypeAlias = Callable[[Array], Array]
Means: TypeAlias = Any  # a Mean, or a NamedTuple or dict of them, with the fields of the masks


def psum(value: Tree, axis_name: str | None) -> Tree:
    """Sum over devices; the value itself on one device."""
    return value if axis_name is None else jax.lax.psum(value, axis_name)


def masked_sum(value: Array, mask: Array) -> Array:
    """Return the sum of the values with mask 1; masked values, NaN included, are ignored."""
    return jnp.sum(jnp.where(mask > 0, value, 0.0))


def row_count(mask: Array, axis_name: str | None) -> Array:
    """Return the number of rows with mask 1 of all devices, at least 1."""
    return jnp.maximum(psum(jnp.sum(mask), axis_name), 1.0)


def masked_mean(value: Array, mask: Array, axis_name: str | None) -> Array:
    """Return the global sum over the global count of the rows with mask 1 (not a mean of per-device means).

    Raises:
      ValueError: value and mask differ in shape; the count would not match the values.
    """
    return _mean_over(mask, axis_name)(value)


def standardized(value: Array, mean: Mean) -> Array:
    """Return values with mean 0 and standard deviation 1 over the rows of `mean`."""
    away = value - mean(value)
    return away * jax.lax.rsqrt(mean(jnp.square(away)) + 1e-8)


def _mean_over(mask: Array, axis_name: str | None) -> Mean:
    count = row_count(mask, axis_name)

    def mean(value: Array) -> Array:
        given, expected = list(jnp.shape(value)), list(jnp.shape(mask))
        if given != expected:
            raise ValueError(f"a mean of values {given} got a mask {expected}; give one of the same shape")
        return psum(masked_sum(value, mask), axis_name) / count

    return mean


def mean_gradient(
    loss: Callable[[Tree, Means], tuple[Array, Any]], weights: Tree, mask: Any, axis_name: str | None
) -> tuple[Tree, Any]:
    """Return the gradient of a loss over the rows of all devices, and what the loss returns beside its value.

    The loss is one number, the same on all devices: it takes every mean over rows, metrics included, with `mean`. Functions of
    means, and penalties on weights, need nothing else.

    Args:
      loss: `(weights, mean) -> (loss, rest)`. `mean(x)` is the mean of `x`, one value for each row, over the rows with mask 1
        of all devices. rest: metrics, and what else the caller needs; it is returned as it is.
      mask: like the rows, 1 where a row counts. For several masks a NamedTuple or dict of them; `mean` then has a function for
        each, under the same names.
    """
    mean = jax.tree.map(lambda each: _mean_over(each, axis_name), mask)
    gradients, rest = jax.grad(loss, has_aux=True)(weights, mean)
    # On every device jax.grad is the gradient of the sum of all devices' equal losses, by this device's copy of the weights.
    return (gradients if axis_name is None else jax.lax.pmean(gradients, axis_name)), rest


def masked_percentile(value: Array, mask: Array, q: Any, axis_name: str | None = None) -> Array:
    """Return the percentiles q (0 to 100) of the values with mask 1 of all devices; NaN if there are none."""
    kept = jnp.where(mask > 0, value, jnp.nan)
    return jnp.nanpercentile(kept if axis_name is None else jax.lax.all_gather(kept, axis_name), q)


def normal_columns(key: Array, shape: tuple[int, ...], axis_name: str | None) -> Array:
    """Return normal noise [B, ...]; a column's numbers do not depend on how columns are spread over devices."""
    if axis_name is None:
        return jax.random.normal(key, shape, jnp.float32)
    every = jax.random.normal(key, (jax.lax.axis_size(axis_name) * shape[0], *shape[1:]), jnp.float32)
    return jax.lax.dynamic_slice_in_dim(every, jax.lax.axis_index(axis_name) * shape[0], shape[0])
