"""Torsos of images: modules that turn images [..., H, W, C] into features [..., F], with any leading axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from jsrl.networks.kernels.conv import Conv
from jsrl.networks.kernels.pooling import max_pool
from jsrl.networks.kernels.products import Precision
from jsrl.networks.torsos import dense, normed, pixel_scale
from jsrl.types import Array


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
        x = self.layers(image, pixel_scale(image))
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


def _nature_layers(x: Array, scale: float, *, precision: Precision, layer_norm: bool) -> Array:
    conv = partial(Conv, precision=precision)
    x = nn.relu(normed(conv(32, 8, 4, scale=scale, batch_first=True)(x), layer_norm))
    x = nn.relu(normed(conv(64, 4, 2)(x), layer_norm))
    return nn.relu(normed(conv(64, 3, 1)(x), layer_norm))


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255.

    Source: Mnih et al., 2015, Human-level control through deep reinforcement learning.
    """

    features: int = 512
    precision: Precision = "float32"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, image: Array) -> Array:
        layers = partial(_nature_layers, precision=self.precision, layer_norm=self.layer_norm)
        features = dense(self.features, precision=self.precision)(_convolve(layers, image))
        return nn.relu(normed(features, self.layer_norm))


def _resnet_layers(
    x: Array, scale: float, *, channels: tuple[int, ...], num_blocks: int, precision: Precision, layer_norm: bool
) -> Array:
    conv = partial(Conv, kernel_size=3, padding="SAME", precision=precision)
    for stage, features in enumerate(channels):
        first = stage == 0
        x = max_pool(conv(features, scale=scale if first else 1.0, batch_first=first)(x))
        for _ in range(num_blocks):
            inside = conv(features)(nn.relu(normed(x, layer_norm)))
            x = x + conv(features)(nn.relu(normed(inside, layer_norm)))
    return nn.relu(normed(x, layer_norm))


class ImpalaResNet(nn.Module):
    """Stages of convolution, max pooling and two residual blocks: images [..., H, W, C] -> [..., features].

    uint8 pixels are scaled by 1 / 255. Works for images of any size.

    Source: Espeholt et al., 2018, arXiv 1802.01561, figure 3 (the deep architecture, without its LSTM).
    """

    channels: tuple[int, ...] = (16, 32, 32)
    num_blocks: int = 2
    features: int = 256
    precision: Precision = "float32"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, image: Array) -> Array:
        sizes: Any = {"channels": self.channels, "num_blocks": self.num_blocks}
        layers = partial(_resnet_layers, **sizes, precision=self.precision, layer_norm=self.layer_norm)
        features = dense(self.features, precision=self.precision)(_convolve(layers, image))
        return nn.relu(normed(features, self.layer_norm))
