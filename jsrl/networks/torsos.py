"""Torsos: modules that turn observations [..., *shape] into features [..., F], with any leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.networks.kernels.products import Precision, flat_dense, rounded_dense
from jsrl.networks.orthogonal import orthogonal
from jsrl.types import Array, Tree, has_channels_first, named_leaves

ActivationName: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


def dense(
    features: int, gain: float = math.sqrt(2.0), name: str | None = None, precision: Precision = "float32"
) -> nn.Dense:
    """Return a linear layer with orthogonal kernel [in, features] and zero bias."""
    product = rounded_dense if precision == "bfloat16" else flat_dense
    return nn.Dense(features, kernel_init=orthogonal(gain), name=name, dot_general=product)


def normed(x: Array, layer_norm: bool) -> Array:
    """Return x [..., F], normalised over its last axis if `layer_norm`; called inside a compact module."""
    return nn.LayerNorm()(x) if layer_norm else x


class MLP(nn.Module):
    """Linear layers, each with an activation: [..., F_in] -> [..., hidden[-1]]; the identity when `hidden` is ().

    The first one multiplies in float32 for every `precision`, because its inputs have any scale.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"
    precision: Precision = "float32"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, features in enumerate(self.hidden):
            layer = dense(features, precision=self.precision if i else "float32")
            x = ACTIVATIONS[self.activation](normed(layer(x), self.layer_norm))
        return x


def pixel_scale(image: Array) -> float:
    return 1.0 / 255.0 if image.dtype == jnp.uint8 else 1.0


class Leaf(NamedTuple):
    """One leaf of an observation: its path, shape of one observation, whether it is an image, and its dtype."""

    path: str
    shape: tuple[int, ...]
    is_image: bool
    dtype: str

    @property
    def channels_first(self) -> bool:
        """Return whether the leaf is an image [C, H, W], or a stack of such."""
        return self.is_image and has_channels_first(self.shape)


def as_vector(x: Array, leading: int) -> Array:
    """Return a leaf that is no image, flat behind its first axes: float32 [..., F]; bytes are scaled as pixels are."""
    flat = x.reshape(*x.shape[:leading], math.prod(x.shape[leading:])).astype(jnp.float32)
    return flat * pixel_scale(x) if x.dtype == jnp.uint8 else flat


def as_image(leaf: Leaf, x: Array) -> Array:
    """Return images [..., H, W, C]; of a stack [..., k, H, W, C] the frames are joined as channels, in their order."""
    x = jnp.moveaxis(x, -3, -1) if leaf.channels_first else x
    if len(leaf.shape) == 3:
        return x
    x = jnp.moveaxis(x, -4, -2)
    return x.reshape(*x.shape[:-2], -1)


class Encoder(nn.Module):
    """Encode an observation (an array or a tree of them, each with the same leading axes) into features [..., F].

    Each image is read by its own convolutional torso; all other leaves are flattened, cast to float (bytes are scaled by
    1 / 255), joined and read by one MLP. The features are concatenated. Leaves not in `leaves` (an action mask) are not read.

    Attributes:
      leaves: to read. make_image_torso: () -> a module for images [..., H, W, C], called once per image leaf; None: none is.
      hidden, activation, precision, layer_norm: of the MLP.
    """

    leaves: tuple[Leaf, ...]
    make_image_torso: Callable[[], nn.Module] | None = None
    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"
    precision: Precision = "float32"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        arrays = dict(named_leaves(observation))
        features, vectors = [], []
        for leaf in self.leaves:
            x = arrays[leaf.path]
            if leaf.is_image:
                assert self.make_image_torso is not None
                features.append(self.make_image_torso()(as_image(leaf, x)))
            else:
                vectors.append(as_vector(x, x.ndim - len(leaf.shape)))
        if vectors:
            read = MLP(self.hidden, self.activation, self.precision, self.layer_norm)
            features.append(read(jnp.concatenate(vectors, axis=-1)))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)
