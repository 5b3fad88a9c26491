"""Max pooling of [H, W, N, C] images that is fast on every backend, with the same outputs and gradients.

On CPUs one axis after the other, with maxima of shifted slices; elsewhere `lax.reduce_window`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jsrl.networks.kernels.conv import Padding, Pads, pads_of
from jsrl.types import Array


def max_pool(x: Array, *, size: int = 3, stride: int = 2, padding: Padding = "SAME") -> Array:
    """Return the maxima over size x size windows of x [H, W, N, C]: [h, w, N, C].

    The gradient goes to the first maximum of a window (row by row), as with `lax.reduce_window`.
    """
    pads = (pads_of(x.shape[0], size, stride, padding), pads_of(x.shape[1], size, stride, padding))
    return _max_pool(size, stride, pads, x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _max_pool(size: int, stride: int, pads: Pads, x: Array) -> Array:
    return lax.platform_dependent(
        x,
        cpu=lambda x: _pool_axis(size, stride, pads[0], 0, _pool_axis(size, stride, pads[1], 1, x)),
        default=partial(native_max_pool, size, stride, pads),
    )


def _max_pool_fwd(size: int, stride: int, pads: Pads, x: Array):
    return _max_pool(size, stride, pads, x), x


def _max_pool_bwd(size: int, stride: int, pads: Pads, x: Array, gradient: Array):
    def on_cpu(x: Array, gradient: Array) -> Array:
        across = _pool_axis(size, stride, pads[1], 1, x)
        d_across = _pool_axis_gradient(size, stride, pads[0], 0, across, gradient)
        return _pool_axis_gradient(size, stride, pads[1], 1, x, d_across)

    def elsewhere(x: Array, gradient: Array) -> Array:
        return jax.vjp(partial(native_max_pool, size, stride, pads), x)[1](gradient)[0]

    return (lax.platform_dependent(x, gradient, cpu=on_cpu, default=elsewhere),)


_max_pool.defvjp(_max_pool_fwd, _max_pool_bwd)


def native_max_pool(size: int, stride: int, pads: Pads, x: Array) -> Array:
    """Pool with `lax.reduce_window`; shapes as in `max_pool`."""
    window, strides = (size, size, 1, 1), (stride, stride, 1, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, (*pads, (0, 0), (0, 0)))


def _slices(size: int, stride: int, pad: tuple[int, int], axis: int, x: Array) -> list[Array]:
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (*pad, 0)
    padded = lax.pad(x, jnp.asarray(-jnp.inf, x.dtype), edges)
    count = (padded.shape[axis] - size) // stride + 1
    return [lax.slice_in_dim(padded, i, i + (count - 1) * stride + 1, stride, axis) for i in range(size)]


def _pool_axis(size: int, stride: int, pad: tuple[int, int], axis: int, x: Array) -> Array:
    first, *others = _slices(size, stride, pad, axis, x)
    for other in others:
        first = jnp.maximum(first, other)
    return first


def _pool_axis_gradient(size: int, stride: int, pad: tuple[int, int], axis: int, x: Array, gradient: Array) -> Array:
    slices, transpose = jax.vjp(partial(_slices, size, stride, pad, axis), x)
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
