"""Torsos: modules that turn observations [..., *shape] into features [..., F], with any leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.networks.kernels.conv import Conv
from jsrl.networks.kernels.pooling import max_pool
from jsrl.networks.kernels.products import Precision, rounded_dense
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
MIN_NATURE_SIDE = 36  # below this the input of the Nature CNN's third convolution is too small


def dense(
    features: int, gain: float = math.sqrt(2.0), name: str | None = None, precision: Precision = "float32"
) -> nn.Dense:
    """Return a linear layer with orthogonal kernel [in, features] and zero bias."""
    product = rounded_dense if precision == "bfloat16" else None
    return nn.Dense(features, kernel_init=orthogonal(gain), name=name, dot_general=product)


class MLP(nn.Module):
    """Linear layers, each with an activation: [..., F_in] -> [..., hidden[-1]]; the identity when `hidden` is ().

    The first one multiplies in float32 for every `precision`, because its inputs have any scale.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, features in enumerate(self.hidden):
            layer = dense(features, precision=self.precision if i else "float32")
            x = ACTIVATIONS[self.activation](layer(x))
        return x


def _pixel_scale(image: Array) -> float:
    return 1.0 / 255.0 if image.dtype == jnp.uint8 else 1.0


def _rows(image: Array) -> tuple[Array, tuple[int, ...]]:
    """Return images [N, H, W, C] and the leading axes that were merged into N."""
    return image.reshape(-1, *image.shape[-3:]), image.shape[:-3]


MAX_CHUNK, MIN_CHUNK = 48, 12  # images whose intermediate values stay in a core's cache


def _chunk(number: int) -> int:
    """Return how many images to process at a time: on CPUs few, so that intermediate values stay in the cache.

    All at once if the number is a symbol, as in an exported policy.
    """
    if not isinstance(number, int) or jax.default_backend() != "cpu" or number <= MAX_CHUNK:
        return number
    return next((size for size in range(MAX_CHUNK, MIN_CHUNK - 1, -1) if number % size == 0), number)


class _Convolutions(nn.Module):
    """The common part of both image torsos: convolutions over chunks of images, flat features.

    Attributes:
      layers: (images [N, H, W, C], pixel scale) -> [h, w, N, C], called inside this module.
    """

    layers: Callable[[Array, float], Array]

    @nn.compact
    def __call__(self, carry: tuple[()], image: Array) -> tuple[tuple[()], Array]:
        """Encode [N, H, W, C] to [N, h * w * C]; signature of a scan's body."""
        x = self.layers(image, _pixel_scale(image))
        return carry, x.transpose(2, 0, 1, 3).reshape(image.shape[0], -1)


def _convolve(layers: Callable[[Array, float], Array], image: Array) -> Array:
    """Apply convolutional layers to images [..., H, W, C], by chunks: [..., h * w * C]."""
    x, leading = _rows(image)
    size = _chunk(x.shape[0])
    if size == x.shape[0]:
        _, features = _Convolutions(layers, name="convolutions")((), x)
    else:
        scanned = nn.scan(_Convolutions, variable_broadcast="params", split_rngs={"params": False})
        _, features = scanned(layers, name="convolutions")((), x.reshape(-1, size, *x.shape[1:]))
    return features.reshape(*leading, -1)


def _nature_layers(x: Array, scale: float, *, precision: Precision) -> Array:
    conv = partial(Conv, precision=precision)
    x = nn.relu(conv(32, 8, 4, scale=scale, batch_first=True)(x))
    x = nn.relu(conv(64, 4, 2)(x))
    return nn.relu(conv(64, 3, 1)(x))


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255.

    Source: Mnih et al., 2015, Human-level control through deep reinforcement learning.
    """

    features: int = 512
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, image: Array) -> Array:
        layers = partial(_nature_layers, precision=self.precision)
        return nn.relu(dense(self.features, precision=self.precision)(_convolve(layers, image)))


def _resnet_layers(
    x: Array, scale: float, *, channels: tuple[int, ...], num_blocks: int, precision: Precision
) -> Array:
    conv = partial(Conv, kernel_size=3, padding="SAME", precision=precision)
    for stage, features in enumerate(channels):
        first = stage == 0
        x = max_pool(conv(features, scale=scale if first else 1.0, batch_first=first)(x))
        for _ in range(num_blocks):
            inside = conv(features)(nn.relu(x))
            x = x + conv(features)(nn.relu(inside))
    return nn.relu(x)


class ImpalaResNet(nn.Module):
    """Stages of convolution, max pooling and two residual blocks: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255. Works for images of any size.

    Source: Espeholt et al., 2018, arXiv 1802.01561, figure 3 (the deep architecture, without its LSTM).
    """

    channels: tuple[int, ...] = (16, 32, 32)
    num_blocks: int = 2
    features: int = 256
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, image: Array) -> Array:
        layers = partial(_resnet_layers, channels=self.channels, num_blocks=self.num_blocks, precision=self.precision)
        return nn.relu(dense(self.features, precision=self.precision)(_convolve(layers, image)))


class Leaf(NamedTuple):
    """One leaf of an observation: its path, shape of one observation, whether it is an image, and its dtype."""

    path: str
    shape: tuple[int, ...]
    is_image: bool
    dtype: str

    @property
    def channels_first(self) -> bool:
        """Return whether the leaf is an image [C, H, W]."""
        return self.is_image and has_channels_first(self.shape)


def as_vector(x: Array, leading: int) -> Array:
    """Return a leaf that is no image, flat behind its first axes: float32 [..., F]; bytes are scaled as pixels are."""
    flat = x.reshape(*x.shape[:leading], math.prod(x.shape[leading:])).astype(jnp.float32)
    return flat * _pixel_scale(x) if x.dtype == jnp.uint8 else flat


class Encoder(nn.Module):
    """Encode an observation (an array or a tree of them, each with the same leading axes) into features [..., F].

    Each image is read by its own convolutional torso; all other leaves are flattened, cast to float (bytes are scaled by
    1 / 255), joined and read by one MLP. The features are concatenated. Leaves not in `leaves` (an action mask) are not read.

    Attributes:
      leaves: to read. make_image_torso: () -> a module for images [..., H, W, C], called once per image leaf.
      hidden, activation, precision: of the MLP.
    """

    leaves: tuple[Leaf, ...]
    make_image_torso: Callable[[], nn.Module] = NatureCNN
    hidden: tuple[int, ...] = (64, 64)
    activation: ActivationName = "tanh"
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        arrays = dict(named_leaves(observation))
        features, vectors = [], []
        for leaf in self.leaves:
            x = arrays[leaf.path]
            if leaf.is_image:
                features.append(self.make_image_torso()(jnp.moveaxis(x, -3, -1) if leaf.channels_first else x))
            else:
                vectors.append(as_vector(x, x.ndim - len(leaf.shape)))
        if vectors:
            read = MLP(self.hidden, self.activation, self.precision)
            features.append(read(jnp.concatenate(vectors, axis=-1)))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)
