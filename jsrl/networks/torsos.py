"""Torsos: modules that turn observations [..., *shape] into features [..., F], with any leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jsrl.networks.conv import Conv, max_pool
from jsrl.types import Array, Tree, named_leaves

ActivationName: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
MIN_NATURE_SIDE = 36  # below, the third convolution of the Nature CNN has nothing left to read


def orthogonal(gain: float) -> Any:
    """Return the orthogonal initialiser with this gain: sqrt 2 in hidden layers, 0.01 and 1 in heads."""
    return nn.initializers.orthogonal(gain)


def dense(features: int, gain: float = math.sqrt(2.0), name: str | None = None) -> nn.Dense:
    """Return a linear layer with orthogonal kernel [in, features] and zero bias."""
    return nn.Dense(features, kernel_init=orthogonal(gain), name=name)


class MLP(nn.Module):
    """Linear layers, each with an activation: [..., F_in] -> [..., hidden[-1]]; the identity when `hidden` is ()."""

    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Encode."""
        for features in self.hidden:
            x = ACTIVATIONS[self.activation](dense(features)(x))
        return x


def _pixel_scale(image: Array) -> float:
    return 1.0 / 255.0 if image.dtype == jnp.uint8 else 1.0


def _rows(image: Array) -> tuple[Array, tuple[int, ...]]:
    """Return images [N, H, W, C] and the leading axes that were merged into N."""
    return image.reshape(-1, *image.shape[-3:]), image.shape[:-3]


def _flat(x: Array, leading: tuple[int, ...]) -> Array:
    """Return [*leading, h * w * C] of [h, w, N, C]."""
    return x.transpose(2, 0, 1, 3).reshape(*leading, -1)


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255.

    Source: Mnih et al., 2015, Human-level control through deep reinforcement learning.
    """

    features: int = 512

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Encode."""
        x, leading = _rows(image)
        x = nn.relu(Conv(32, 8, 4, scale=_pixel_scale(image), batch_first=True)(x))
        x = nn.relu(Conv(64, 4, 2)(x))
        x = nn.relu(Conv(64, 3, 1)(x))
        return nn.relu(dense(self.features)(_flat(x, leading)))


class ImpalaResNet(nn.Module):
    """Stages of convolution, max pooling and two residual blocks: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255. Works for images of any size.

    Source: Espeholt et al., 2018, arXiv 1802.01561, figure 3 (the deep architecture, without its LSTM).
    """

    channels: tuple[int, ...] = (16, 32, 32)
    num_blocks: int = 2
    features: int = 256

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Encode."""
        x, leading = _rows(image)
        for stage, channels in enumerate(self.channels):
            first = stage == 0
            scale = _pixel_scale(image) if first else 1.0
            x = max_pool(Conv(channels, 3, padding="SAME", scale=scale, batch_first=first)(x))
            for _ in range(self.num_blocks):
                inside = Conv(channels, 3, padding="SAME")(nn.relu(x))
                x = x + Conv(channels, 3, padding="SAME")(nn.relu(inside))
        return nn.relu(dense(self.features)(_flat(nn.relu(x), leading)))


class Leaf(NamedTuple):
    """One leaf of an observation: its path, shape of one observation, and whether it is an image."""

    path: str
    shape: tuple[int, ...]
    is_image: bool

    @property
    def channels_first(self) -> bool:
        """Return whether the image is [C, H, W]: few channels in front of two long sides."""
        return self.is_image and self.shape[0] <= 16 < min(self.shape[1:])


class Encoder(nn.Module):
    """Encode an observation (an array or a tree of them, each with the same leading axes) into features [..., F].

    Each image is read by its own convolutional torso; all other leaves are flattened, cast to float, joined and read by
    one MLP. The features stand side by side. Leaves that `leaves` does not name (an action mask) are not read.

    Attributes:
      leaves: what to read. make_image_torso: () -> a module for images [..., H, W, C], called once per image leaf.
      hidden, activation: of the MLP.
    """

    leaves: tuple[Leaf, ...]
    make_image_torso: Callable[[], nn.Module] = NatureCNN
    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        """Encode."""
        arrays = dict(named_leaves(observation))
        features, vectors = [], []
        for leaf in self.leaves:
            x = arrays[leaf.path]
            if leaf.is_image:
                features.append(self.make_image_torso()(jnp.moveaxis(x, -3, -1) if leaf.channels_first else x))
            else:
                leading = x.shape[: x.ndim - len(leaf.shape)]
                vectors.append(x.reshape(*leading, int(np.prod(leaf.shape))).astype(jnp.float32))
        if vectors:
            features.append(MLP(self.hidden, self.activation)(jnp.concatenate(vectors, axis=-1)))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)
