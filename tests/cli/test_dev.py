"""`jsrl dev replay-update`: the first NaN of a replayed update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.cli.replay_update import first_nan


def update(state, batch, key, *, axis_name=None):
    """Descend on a sum inside compiled loops, as agents do; the logarithm of a negative number is NaN."""

    def loss(state):
        def row(total, value):
            return total + jnp.log(state * value), None

        return jax.lax.pmean(jax.lax.scan(row, 0.0, batch)[0], axis_name)

    return state - jax.grad(loss)(state) * jax.random.permutation(key, 2)[0]


def test_first_operation_that_makes_a_nan_is_named() -> None:
    good, bad = np.array([[1.0, 2.0]], np.float32), np.array([[1.0, -2.0]], np.float32)
    compiled = jax.jit(update, static_argnames="axis_name")
    told = first_nan(compiled, np.float32(1), bad, jax.random.key(0))
    assert told.startswith("log, ") and told.endswith("in row: return total + jnp.log(state * value), None")
    assert f"{__file__}:" in told
    assert first_nan(compiled, np.float32(1), good, jax.random.key(0)) == ""
