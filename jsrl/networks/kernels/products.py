"""Matrix products with factors rounded to bfloat16 and sums in float32: mixed precision.

Source: Micikevicius et al., 2018, Mixed Precision Training, arXiv 1710.03740; bfloat16 has the range of float32, so that no
loss needs scaling. Weights, gradients and optimizer stay in float32.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jsrl.types import Array

Precision: TypeAlias = Literal["float32", "bfloat16"]


def dot(x: Array, y: Array, dimensions: Any, precision: Precision = "float32") -> Array:
    """Return `lax.dot_general(x, y, dimensions)` of operands rounded to `precision`, summed in float32."""
    if precision == "float32":
        return lax.dot_general(x, y, dimensions)
    kind = jnp.dtype(precision)
    return lax.dot_general(x.astype(kind), y.astype(kind), dimensions, preferred_element_type=jnp.float32)


def flat_dense(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    """Return x [..., F] times kernel [F, O], as `dot_general` for `flax.linen.Dense`: one product of two matrices.

    With several leading axes, as in x [T, B, F], XLA's products of the gradient take twice the time on a CPU.
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def rounded_dense(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    """Return x [..., F] times kernel [F, O] in bfloat16, as `dot_general` for `flax.linen.Dense`."""
    return _rounded(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_vjp
def _rounded(x: Array, kernel: Array) -> Array:
    return dot(x, kernel, (((1,), (0,)), ((), ())), "bfloat16")


def _rounded_fwd(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rounded(x, kernel), (x, kernel)


def _rounded_bwd(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    d_x = dot(gradient, kernel, (((1,), (1,)), ((), ())), "bfloat16")
    return d_x, _kernel_gradient(x, gradient)


_rounded.defvjp(_rounded_fwd, _rounded_bwd)


def _kernel_gradient(x: Array, gradient: Array) -> Array:
    """Return x^T gradient, rounded except on CPUs, where the transpose costs what rounding saves."""
    rows = (((0,), (0,)), ((), ()))
    return lax.platform_dependent(
        x,
        gradient,
        cpu=lambda x, g: dot(x, g, rows),
        default=lambda x, g: dot(x, g, rows, "bfloat16"),
    )
