"""Orthogonal initialisation without LAPACK.

jaxlib 0.10 shares one thread pool between the operations of a compiled program and the batches inside a LAPACK kernel, which
blocks its thread until they have run. As many concurrent QR factorisations as there are cores (an `init` with a few layers on
2 cores is enough) wait for each other forever. So the columns are made orthonormal here with sums and products only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jsrl.types import Array


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

    Gram-Schmidt column by column, each made orthogonal twice, for orthogonality up to rounding. Sums instead of products of
    matrices: they compile faster and, one column at a time, run faster. A column of zeros stays.

    Source: Giraud, Langou & Rozloznik 2005, "The loss of orthogonality in the Gram-Schmidt orthogonalization process".
    """
    num_columns = matrix.shape[1]

    def orthonormalise_column(i: Array, q: Array) -> Array:
        j = i // 2
        column = lax.dynamic_index_in_dim(q, j, axis=1, keepdims=False)
        shares = jnp.where(jnp.arange(num_columns) < j, jnp.sum(q * column[:, None], axis=0), 0.0)
        column = column - jnp.sum(q * shares, axis=1)
        length = jnp.sqrt(jnp.sum(column * column))
        return lax.dynamic_update_index_in_dim(q, column / jnp.where(length > 0.0, length, 1.0), j, axis=1)

    return lax.fori_loop(0, 2 * num_columns, orthonormalise_column, matrix)
