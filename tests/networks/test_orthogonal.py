"""The orthogonal initialiser against jax's, which needs LAPACK, and every agent's start without LAPACK."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.networks.orthogonal import orthogonal, orthonormal_columns
from tests.marks import nightly, slow


@pytest.mark.parametrize(
    "shape",
    [(4, 64), slow((64, 64)), slow((64, 6)), nightly((1, 5)), (96, 1), (3, 3, 4, 16), (100, 35), nightly((96, 96))],
    ids=str,
)
def test_equals_jax_orthogonal_for_the_same_key(shape):
    key = jax.random.key(7)
    expected = jax.nn.initializers.orthogonal(1.5)(key, shape, jnp.float32)
    np.testing.assert_allclose(orthogonal(1.5)(key, shape), expected, atol=2e-5)


@pytest.mark.slow
def test_columns_of_an_ill_conditioned_matrix_are_orthonormal():
    random = np.random.default_rng(0)
    left, _ = np.linalg.qr(random.normal(size=(200, 80)))
    right, _ = np.linalg.qr(random.normal(size=(80, 80)))
    matrix = (left * np.logspace(0, -4, 80)) @ right.T  # a condition number of 10^4, more than a normal matrix has
    q = np.asarray(orthonormal_columns(jnp.asarray(matrix, jnp.float32)), np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(80), atol=1e-5)
    r = q.T @ matrix
    np.testing.assert_allclose(np.tril(r, -1), 0.0, atol=1e-5)
    assert (np.diag(r) > 0).all()


def test_no_lapack_kernel_is_compiled():
    """In jaxlib 0.10, as many concurrent LAPACK kernels as cores wait for each other forever."""
    init = orthogonal()
    compiled = (
        jax.jit(lambda key: [init(k, (8, 8)) for k in jax.random.split(key, 4)]).lower(jax.random.key(0)).as_text()
    )
    assert "lapack" not in compiled
    factorised = jax.jit(jnp.linalg.qr).lower(jnp.eye(3)).as_text()
    assert "lapack" in factorised or jax.default_backend() != "cpu"
