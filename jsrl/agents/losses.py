"""Losses per row, without reduction, so that the caller can mask and average over all devices."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import jax.numpy as jnp

from jsrl.types import Array

ValueLoss: TypeAlias = Literal["mse", "huber"]


def clipped_surrogate(
    ratio: Array, advantage: Array, *, clip_ratio: Array | float, dual_clip: float | None = None
) -> Array:
    """Return PPO's policy loss [...]: -min(ratio A, clip(ratio, 1 - e, 1 + e) A).

    With `dual_clip` c > 1 the loss of a row with negative advantage is at most -c A, which bounds the effect of a stale
    row with a huge ratio.

    Source: Schulman et al., 2017, arXiv 1707.06347, equation 7. Dual clip: Ye et al., 2020, arXiv 1912.09729, eq. 5.
    """
    clipped = jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    gain = jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        gain = jnp.where(advantage < 0, jnp.maximum(gain, dual_clip * advantage), gain)
    return -gain


def value_loss(
    value: Array,
    target: Array,
    old_value: Array,
    *,
    kind: ValueLoss = "mse",
    huber_delta: float = 1.0,
    clip: float | None = None,
) -> Array:
    """Return the value loss [...]: half the squared error, or Huber's.

    With `clip` the larger of that and the loss of `old_value + clip(value - old_value, -clip, clip)`.
    """

    def error(prediction: Array) -> Array:
        distance = jnp.abs(prediction - target)
        near = jnp.minimum(distance, huber_delta) if kind == "huber" else distance
        return 0.5 * jnp.square(near) + huber_delta * (distance - near)

    loss = error(value)
    if clip is not None:
        loss = jnp.maximum(loss, error(old_value + jnp.clip(value - old_value, -clip, clip)))
    return loss


def approximate_kl(log_ratio: Array) -> Array:
    """Return a non-negative, unbiased estimate [...] of KL(old || new) from log new(a) - log old(a), a from old.

    Source: Schulman, 2020, joschu.net/blog/kl-approx.html (k3).
    """
    return jnp.expm1(log_ratio) - log_ratio


def entropy_excess(entropy: Array, target: float, mask: Array | None) -> Array:
    """Return how far the entropy [...] of a policy is above its target: the gradient of log alpha per row.

    With an action mask [..., A] a row with n legal actions reaches at most log n nats, so its target is
    `target` log n / log A. A row with fewer than two legal actions has no choice and counts 0.
    """
    if mask is None:
        return entropy - target
    legal = jnp.sum(mask.astype(bool), axis=-1)
    share = jnp.log(jnp.maximum(legal, 1)) / math.log(max(mask.shape[-1], 2))
    return jnp.where(legal > 1, entropy - target * share, 0.0)
