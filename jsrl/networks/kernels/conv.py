"""Convolution that is fast on every backend, with the same parameters, outputs and gradients.

XLA's convolution is fast on GPUs and TPUs and slow on CPUs, especially inside `lax.scan`. On CPUs a convolution here consists
of matrix products over all pixels at once.
The platform is chosen while lowering (`jax.lax.platform_dependent`), so that one process may use both.

Images are kept as [H, W, N, C]: rows and columns outside, the batch third. A shifted window is then a slice of whole
[N, C] blocks. On other backends that order costs nothing, as XLA chooses the memory layout there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jsrl.networks.kernels.products import Precision, dot
from jsrl.networks.orthogonal import orthogonal
from jsrl.types import Array

Padding: TypeAlias = Literal["VALID", "SAME"]
Pads: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

_LAYOUT = ("HWNC", "HWIO", "HWNC")
_LAST, _LAST_TURNED = (((3,), (0,)), ((), ())), (((3,), (1,)), ((), ()))  # [h, w, N, K] times [K, O], or times [O, K]


class Conv(nn.Module):
    """A convolution with bias over [H, W, N, C_in] (or images [N, H, W, C_in] where `batch_first`) to [h, w, N, features].

    Parameters: kernel [k, k, C_in, features], bias [features].

    Attributes:
      features: C_out. kernel_size: k, a multiple of the stride. stride: of both axes. padding: VALID or SAME.
      scale: the input is multiplied by this (1 / 255 for pixels).
      batch_first: the input is [N, H, W, C_in]; the output is [h, w, N, features] all the same.
      kernel_init: initialiser of the kernel.
      precision: bfloat16 rounds the factors, and on other backends than CPUs also the results; parameters and the dtype of
        the output are float32.
    """

    features: int
    kernel_size: int
    stride: int = 1
    padding: Padding = "VALID"
    scale: float = 1.0
    batch_first: bool = False
    kernel_init: Any = orthogonal(math.sqrt(2.0))
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        if self.scale != 1.0:
            kernel = kernel * self.scale
        convolved = conv(
            x,
            kernel,
            stride=self.stride,
            padding=self.padding,
            batch_first=self.batch_first,
            precision=self.precision,
        )
        return convolved + bias


def conv(
    x: Array,
    kernel: Array,
    *,
    stride: int = 1,
    padding: Padding = "VALID",
    batch_first: bool = False,
    precision: Precision = "float32",
) -> Array:
    """Convolve x [H, W, N, C_in] ([N, H, W, C_in] where `batch_first`) with kernel [k, k, C_in, C_out].

    Integer images (uint8 pixels) are cast to the kernel's dtype on the way, at the cheapest point.

    Returns:
      [h, w, N, C_out], equal to `lax.conv_general_dilated` up to rounding (`precision`: of the factors, see `Conv`).
    """
    size = kernel.shape[0]
    if size % stride:
        raise ValueError(f"the {size} x {size} window of a convolution is no multiple of its stride {stride}")
    height, width = x.shape[1:3] if batch_first else x.shape[:2]
    pads = (pads_of(height, size, stride, padding), pads_of(width, size, stride, padding))
    if min(height + sum(pads[0]), width + sum(pads[1])) < size:
        raise ValueError(
            f"an image of {height} x {width} is smaller than the {size} x {size} window of a convolution without "
            "padding; use larger images, or a torso with padding (impala_resnet)"
        )
    return _conv(stride, pads, batch_first, precision, x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _conv(stride: int, pads: Pads, batch_first: bool, precision: Precision, x: Array, kernel: Array) -> Array:
    return lax.platform_dependent(
        x,
        kernel,
        cpu=partial(product_conv, stride, pads, batch_first, precision=precision),
        default=partial(native_conv, stride, pads, batch_first, precision=precision),
    )


def _conv_fwd(stride: int, pads: Pads, batch_first: bool, precision: Precision, x: Array, kernel: Array):
    return _conv(stride, pads, batch_first, precision, x, kernel), (x, kernel)


def _conv_bwd(
    stride: int,
    pads: Pads,
    batch_first: bool,
    precision: Precision,
    residuals: tuple[Array, Array],
    gradient: Array,
):
    x, kernel = residuals
    native = partial(native_conv, stride, pads, batch_first, precision=precision)
    d_kernel = lax.platform_dependent(
        kernel,
        x,
        gradient,
        cpu=partial(_kernel_gradient, stride, pads, batch_first),
        default=lambda k, x, g: jax.vjp(partial(native, x), k)[1](g)[0],
    )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return np.zeros(x.shape, jax.dtypes.float0), d_kernel
    d_x = lax.platform_dependent(
        kernel,
        gradient,
        cpu=partial(_input_gradient, stride, pads, batch_first, precision, x.shape),
        default=lambda kernel, g: jax.vjp(lambda x: native(x, kernel), x)[1](g)[0],
    )
    return d_x, d_kernel


_conv.defvjp(_conv_fwd, _conv_bwd)


# -- XLA's own --------------------------------------------------------------------------------------------------------


def native_conv(
    stride: int, pads: Pads, batch_first: bool, x: Array, kernel: Array, precision: Precision = "float32"
) -> Array:
    """Convolve with `lax.conv_general_dilated`; shapes as in `conv`."""
    layout = ("NHWC", *_LAYOUT[1:]) if batch_first else _LAYOUT
    rounded = kernel if precision == "float32" else kernel.astype(precision)
    out = lax.conv_general_dilated(x.astype(rounded.dtype), rounded, (stride, stride), pads, dimension_numbers=layout)
    return out.astype(kernel.dtype)


# -- matrix products --------------------------------------------------------------------------------------------------
#
# A stride-s convolution with a k x k window, k a multiple of s, is a stride-1 convolution with a k/s x k/s window over the
# image whose s x s cells became channels.
#
# There are two forms; the one that moves fewer numbers is used. `columns` places all k k windows side by side and
# multiplies once
# (k k C_in numbers a pixel). `products` multiplies the image once with all k k weights and adds shifted slices of the result
# (k k C_out numbers a pixel, and no copy of the image). Both gradients of `products` share one array of shifted gradients.


def product_conv(
    stride: int, pads: Pads, batch_first: bool, x: Array, kernel: Array, precision: Precision = "float32"
) -> Array:
    """Convolve by matrix products; shapes as in `conv`."""
    cells, weights = _as_cells(stride, pads, batch_first, x, kernel)
    out = _out_shape(x, kernel.shape[0], stride, pads, batch_first)
    if not _products_first(weights.shape):
        columns = _columns(cells, weights.shape[0], out)
        return dot(columns, weights.reshape(-1, weights.shape[-1]), _LAST, precision)
    features = weights.shape[-1]
    products = dot(cells, _side_by_side(weights), _LAST, precision)
    total = None
    for n, (i, j) in enumerate(np.ndindex(*weights.shape[:2])):
        part = _window(products, i, j, out)[..., n * features : (n + 1) * features]
        total = part if total is None else total + part
    return total


def _kernel_gradient(stride: int, pads: Pads, batch_first: bool, kernel: Array, x: Array, gradient: Array) -> Array:
    cells, weights = _as_cells(stride, pads, batch_first, x, kernel)
    size, _, depth, features = weights.shape
    rows = (((0, 1, 2), (0, 1, 2)), ((), ()))
    if _products_first(weights.shape):
        d_weights = lax.dot_general(cells, _shifted_gradients(gradient, size), rows)
        d_weights = d_weights.reshape(depth, size, size, features).transpose(1, 2, 0, 3)
    else:
        d_weights = lax.dot_general(_columns(cells, size, gradient.shape[:2]), gradient, rows)
        d_weights = d_weights.reshape(weights.shape)
    return _uncell_kernel(d_weights, stride)


def _input_gradient(
    stride: int,
    pads: Pads,
    batch_first: bool,
    precision: Precision,
    shape: tuple[int, ...],
    kernel: Array,
    gradient: Array,
) -> Array:
    like = jax.ShapeDtypeStruct(shape, gradient.dtype)
    size = kernel.shape[0]
    cells = jax.eval_shape(lambda x: _cells(stride, pads, batch_first, size, x), like)
    weights = _cell_kernel(kernel, stride)
    if _products_first(weights.shape):
        shifted = _shifted_gradients(gradient, weights.shape[0])
        d_cells = dot(shifted, _side_by_side(weights), _LAST_TURNED, precision)
    else:
        d_cells = _scatter(weights, gradient, cells.shape[:2], precision)
    return jax.linear_transpose(lambda x: _cells(stride, pads, batch_first, size, x), like)(d_cells)[0]


def _as_cells(stride: int, pads: Pads, batch_first: bool, x: Array, kernel: Array) -> tuple[Array, Array]:
    """Return (cells in the kernel's dtype, weights [k', k', C', O])."""
    cells = _cells(stride, pads, batch_first, kernel.shape[0], x).astype(kernel.dtype)
    return cells, _cell_kernel(kernel, stride)


def _products_first(weights: tuple[int, ...]) -> bool:
    return weights[3] < weights[2]


def _columns(cells: Array, size: int, out: Sequence[int]) -> Array:
    """Return all windows side by side: [h, w, N, k k C]."""
    return jnp.concatenate([_window(cells, i, j, out) for i, j in np.ndindex(size, size)], axis=-1)


def _side_by_side(weights: Array) -> Array:
    """Return weights [k, k, C, O] as [C, k k O]."""
    return weights.transpose(2, 0, 1, 3).reshape(weights.shape[2], -1)


def _shifted_gradients(gradient: Array, size: int) -> Array:
    """Return the gradient [h, w, N, O] at the position each shift read, side by side: [h + k - 1, w + k - 1, N, k k O]."""
    edge = size - 1
    shifted = [jnp.pad(gradient, ((i, edge - i), (j, edge - j), (0, 0), (0, 0))) for i, j in np.ndindex(size, size)]
    return jnp.concatenate(shifted, axis=-1)


def _scatter(weights: Array, gradient: Array, shape: tuple[int, ...], precision: Precision) -> Array:
    """Return sum over shifts of gradient x weights[i, j], each at the position the shift read: [*shape, N, C_in]."""
    size, _, depth, features = weights.shape
    columns = dot(gradient, weights.reshape(-1, features), _LAST_TURNED, precision)
    total: Array | float = 0.0
    for n, (i, j) in enumerate(np.ndindex(size, size)):
        ends = [(at, length - at - count, 0) for at, length, count in zip((i, j), shape, gradient.shape, strict=False)]
        part = columns[..., n * depth : (n + 1) * depth]
        total = total + lax.pad(part, jnp.zeros((), part.dtype), (*ends, (0, 0, 0), (0, 0, 0)))
    return total


def _window(cells: Array, i: int, j: int, out: Sequence[int]) -> Array:
    return cells[i : i + out[0], j : j + out[1]]


def _out_shape(x: Array, size: int, stride: int, pads: Pads, batch_first: bool) -> tuple[int, int]:
    height, width = x.shape[1:3] if batch_first else x.shape[:2]
    return (height + sum(pads[0]) - size) // stride + 1, (width + sum(pads[1]) - size) // stride + 1


def _cells(stride: int, pads: Pads, batch_first: bool, size: int, x: Array) -> Array:
    """Return the padded image as [H', W', N, C']: space-to-depth by the stride."""
    out = _out_shape(x, size, stride, pads, batch_first)
    axes = (1, 2) if batch_first else (0, 1)
    used = [(n - 1) * stride + size for n in out]
    edges = [(0, 0, 0)] * 4
    for axis, length, (low, _) in zip(axes, used, pads, strict=True):
        edges[axis] = (low, length - low - x.shape[axis], 0)
    if any(edge != (0, 0, 0) for edge in edges):
        x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    if stride == 1:
        return jnp.transpose(x, (1, 2, 0, 3)) if batch_first else x
    rows, columns = used[0] // stride, used[1] // stride
    known = all(isinstance(size, int) for size in x.shape)  # in exported policies the number of images is symbolic
    if known and x.dtype == jnp.uint8 and x.shape[-1] == 4:  # a pixel's four bytes move as one number
        words = lax.bitcast_convert_type(x, jnp.uint32)[..., None]
        return lax.bitcast_convert_type(_space_to_depth(words, rows, columns, stride, batch_first), jnp.uint8).reshape(
            rows, columns, -1, 4 * stride * stride
        )
    return _space_to_depth(x, rows, columns, stride, batch_first)


def _space_to_depth(x: Array, rows: int, columns: int, stride: int, batch_first: bool) -> Array:
    channels = x.shape[-1]
    if batch_first:
        x = x.reshape(-1, rows, stride, columns, stride, channels).transpose(1, 3, 0, 2, 4, 5)
    else:
        x = x.reshape(rows, stride, columns, stride, -1, channels).transpose(0, 2, 4, 1, 3, 5)
    return x.reshape(rows, columns, -1, stride * stride * channels)


def _cell_kernel(kernel: Array, stride: int) -> Array:
    """Return kernel [k, k, C, O] as [k/s, k/s, s s C, O]."""
    size, _, channels, features = kernel.shape
    cells = size // stride
    split = kernel.reshape(cells, stride, cells, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return split.reshape(cells, cells, stride * stride * channels, features)


def _uncell_kernel(weights: Array, stride: int) -> Array:
    """Undo `_cell_kernel`."""
    cells, _, depth, features = weights.shape
    channels = depth // stride**2
    split = weights.reshape(cells, cells, stride, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return split.reshape(cells * stride, cells * stride, channels, features)


def pads_of(length: int, size: int, stride: int, padding: Padding) -> tuple[int, int]:
    """Return the padding before and after an axis of `length`."""
    if padding == "VALID":
        return (0, 0)
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return (total // 2, total - total // 2)
