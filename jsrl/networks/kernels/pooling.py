"""Max pooling of [H, W, N, C] images that is fast on every backend, with the same outputs and gradients.

On CPUs one axis after the other, with maxima of shifted slices; elsewhere `lax.reduce_window`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jsrl.networks.kernels.conv import pads_of
from jsrl.types import Array

SIZE, STRIDE = 3, 2  # of the windows; edges are padded (SAME)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Return the maxima over 3 x 3 windows, two pixels apart, of x [H, W, N, C]: [h, w, N, C].

    The gradient goes to the first maximum of a window (row by row), as with `lax.reduce_window`.
    """
    return lax.platform_dependent(x, cpu=lambda x: _pool_axis(0, _pool_axis(1, x)), default=_native)


def _forward(x: Array) -> tuple[Array, Array]:
    return max_pool(x), x


def _backward(x: Array, gradient: Array) -> tuple[Array]:
    def on_cpu(x: Array, gradient: Array) -> Array:
        return _pool_axis_gradient(1, x, _pool_axis_gradient(0, _pool_axis(1, x), gradient))

    def elsewhere(x: Array, gradient: Array) -> Array:
        return jax.vjp(_native, x)[1](gradient)[0]

    return (lax.platform_dependent(x, gradient, cpu=on_cpu, default=elsewhere),)


max_pool.defvjp(_forward, _backward)


def _native(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (SIZE, SIZE, 1, 1), (STRIDE, STRIDE, 1, 1), "SAME")


def _slices(axis: int, x: Array) -> list[Array]:
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (*pads_of(x.shape[axis], SIZE, STRIDE, "SAME"), 0)
    padded = lax.pad(x, jnp.asarray(-jnp.inf, x.dtype), edges)
    count = (padded.shape[axis] - SIZE) // STRIDE + 1
    return [lax.slice_in_dim(padded, i, i + (count - 1) * STRIDE + 1, STRIDE, axis) for i in range(SIZE)]


def _pool_axis(axis: int, x: Array) -> Array:
    first, *others = _slices(axis, x)
    for other in others:
        first = jnp.maximum(first, other)
    return first


def _pool_axis_gradient(axis: int, x: Array, gradient: Array) -> Array:
    slices, transpose = jax.vjp(partial(_slices, axis), x)
    maximum = slices[0]
    for other in slices[1:]:
        maximum = jnp.maximum(maximum, other)
    left = gradient
    shares = []
    for candidate in slices:  # the first candidate that is the maximum takes the gradient
        chosen = candidate == maximum
        shares.append(jnp.where(chosen, left, 0.0))
        left = jnp.where(chosen, 0.0, left)
    return transpose(shares)[0]
