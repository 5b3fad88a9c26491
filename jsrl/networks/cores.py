"""Recurrent cores: modules over [T, B, F] that restart where `is_first` is set.

`core, outputs = scan(step, core, rows)`; before `step` reads a row, it resets the core to zeros in environments whose row
opens an episode. The products with the inputs are made for all rows at once, outside the scan.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jsrl.networks.orthogonal import orthogonal
from jsrl.types import Array, Tree


class GRU(nn.Module):
    """Gated recurrent unit; its core is h [B, H].

    Source: Cho et al., 2014, arXiv 1406.1078, with the reset gate applied after the recurrent product.
    """

    size: int

    @nn.compact
    def __call__(self, x: Array, is_first: Array, core: Array) -> tuple[Array, Array]:
        """Read rows x [T, B, F] with is_first [T, B] from core [B, H]; return (outputs [T, B, H], core [B, H])."""
        inputs = _input_gates(3 * self.size)(x)
        recurrent = self.param("recurrent", _recurrent_init(3), (self.size, 3 * self.size))
        bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,))

        def step(h: Array, gates: Array) -> tuple[Array, Array]:
            reset_x, update_x, new_x = jnp.split(gates, 3, axis=-1)
            reset_h, update_h, new_h = jnp.split(h @ recurrent, 3, axis=-1)
            reset, update = jax.nn.sigmoid(reset_x + reset_h), jax.nn.sigmoid(update_x + update_h)
            new = jnp.tanh(new_x + reset * (new_h + bias))
            h = (1.0 - update) * new + update * h
            return h, h

        return _resetting_scan(step, inputs, is_first, core)

    @staticmethod
    def initial(batch_size: int, size: int) -> Array:
        return jnp.zeros((batch_size, size), jnp.float32)


class LSTM(nn.Module):
    """Long short-term memory with forget bias 1; its core is (cell [B, H], h [B, H]).

    Source: Hochreiter and Schmidhuber, 1997; forget gate: Gers et al., 2000.
    """

    size: int

    @nn.compact
    def __call__(self, x: Array, is_first: Array, core: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        """Read rows x [T, B, F] with is_first [T, B] from the core; return (outputs [T, B, H], core)."""
        inputs = _input_gates(4 * self.size)(x)
        recurrent = self.param("recurrent", _recurrent_init(4), (self.size, 4 * self.size))

        def step(core: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], Array]:
            cell, h = core
            enter, forget, new, leave = jnp.split(gates + h @ recurrent, 4, axis=-1)
            cell = jax.nn.sigmoid(forget + 1.0) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            h = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (cell, h), h

        return _resetting_scan(step, inputs, is_first, core)

    @staticmethod
    def initial(batch_size: int, size: int) -> tuple[Array, Array]:
        return jnp.zeros((batch_size, size), jnp.float32), jnp.zeros((batch_size, size), jnp.float32)


def _input_gates(features: int) -> nn.Dense:
    return nn.Dense(features, kernel_init=orthogonal(1.0), name="input")


def _recurrent_init(num_gates: int) -> Callable[..., Array]:
    """Return an initialiser of [H, num_gates * H] in which each gate's matrix is orthogonal."""

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        gates = [orthogonal(1.0)(k, (shape[0], shape[0]), dtype) for k in jax.random.split(key, num_gates)]
        return jnp.concatenate(gates, axis=1)

    return init


def _resetting_scan(step: Callable, inputs: Array, is_first: Array, core: Tree) -> tuple[Array, Tree]:
    def reset_and_step(core: Tree, row: tuple[Array, Array]) -> tuple[Tree, Array]:
        gates, first = row
        core = jax.tree.map(lambda x: jnp.where(first[:, None], jnp.zeros_like(x), x), core)
        return step(core, gates)

    if inputs.shape[0] == 1:  # acting: no loop
        core, output = reset_and_step(core, (inputs[0], is_first[0]))
        return output[None], core
    core, outputs = lax.scan(reset_and_step, core, (inputs, is_first))
    return outputs, core
