"""Orthogonal initialisation without LAPACK.

jaxlib 0.10 shares one thread pool between the operations of a compiled program and the batches inside a LAPACK kernel, which
blocks its thread until they have run. As many concurrent QR factorisations as there are cores (an `init` with a few layers on
2 cores is enough) wait for each other forever. So the columns are made orthonormal here with matrix products only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jsrl.types import Array

BLOCK_COLUMNS = 32  # made orthonormal together: wide enough for matrix products, narrow enough for the cache


def orthogonal(gain: float = 1.0) -> Callable[..., Array]:
    """Return an initialiser of kernels [..., in, out] with orthonormal columns (rows, where fewer) times `gain`.

    Draws the same as `jax.nn.initializers.orthogonal` from the same key, up to rounding; safe inside and outside `jax.jit`.
    The gain is sqrt 2 in hidden layers, 0.01 and 1 in the heads of PPO.

    Source: Saxe, McClelland & Ganguli 2013 (arXiv 1312.6120), section 3.
    """

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = jax.random.normal(key, (max(rows, columns), min(rows, columns)), dtype)
        kernel = orthonormal_columns(normal)
        return gain * (kernel if rows >= columns else kernel.T).reshape(shape)

    return init


@jax.jit
def orthonormal_columns(matrix: Array) -> Array:
    """Return Q of the QR factorisation of a matrix [M, N], M >= N, of full rank, with R's diagonal positive.

    Block Gram-Schmidt, with each step done twice, for orthogonality up to rounding.

    Source: Giraud, Langou & Rozloznik 2005, "The loss of orthogonality in the Gram-Schmidt orthogonalization process".
    """
    num_columns = matrix.shape[1]
    width = min(BLOCK_COLUMNS, num_columns)
    padded = jnp.pad(matrix, ((0, 0), (0, -num_columns % width)))

    def orthonormalise_block(i: Array, q: Array) -> Array:
        start = i // 2 * width
        block = _without(_before(start, q), lax.dynamic_slice_in_dim(q, start, width, axis=1))
        block = lax.fori_loop(0, width, _orthonormalise_column, block)
        return lax.dynamic_update_slice_in_dim(q, block, start, axis=1)

    return lax.fori_loop(0, 2 * padded.shape[1] // width, orthonormalise_block, padded)[:, :num_columns]


def _orthonormalise_column(j: Array, block: Array) -> Array:
    """Make column j of a block orthogonal to those before it, and of length 1 (a column of zeros stays)."""
    column = lax.dynamic_slice_in_dim(block, j, 1, axis=1)
    for _ in range(2):
        column = _without(_before(j, block), column)
    length = jnp.sqrt(jnp.sum(column * column))
    return lax.dynamic_update_slice_in_dim(block, column / jnp.where(length > 0.0, length, 1.0), j, axis=1)


def _before(j: Array, q: Array) -> Array:
    """Return q with zeros from column j on."""
    return jnp.where(jnp.arange(q.shape[1]) < j, q, 0.0)


def _without(q: Array, x: Array) -> Array:
    """Return x minus its part in the span of q's orthonormal columns."""
    product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    return x - product(q, product(q.T, x))
