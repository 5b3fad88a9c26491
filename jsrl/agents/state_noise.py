"""Acting with noise that is a linear function of the features (gSDE): the network's head is a `StateNoiseHead`.

One function is drawn for each environment, and played for `noise_period` rows or until the episode ends. Updates know it
only by its distribution, (mean, log_std) of each row, so they stay as they are.

Source: Raffin et al., 2020, arXiv 2005.05719, and Stable-Baselines3.
Differs: drawn anew at the start of each episode too; the function follows the current log_std; an update of SAC draws the
noise of each row apart, in place of one function for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jsrl.types import Array, Tree


class NoiseCore(NamedTuple):
    """The core of acting.

    draw: N(0, 1) [B, F, A], the weights of the function before they are scaled. age: rows since it was drawn, int32 [B].
    """

    draw: Array
    age: Array


def noise_core(weights: Tree) -> Callable[[int], NoiseCore]:
    """Return `initial_core` for a policy's weights, or their shapes."""
    shape = weights["head"]["log_std"].shape
    return lambda batch_size: NoiseCore(jnp.zeros((batch_size, *shape), jnp.float32), jnp.zeros(batch_size, jnp.int32))


def state_noise(
    weights: Tree, features: Array, core: NoiseCore, key: Array, is_first: Array, period: int
) -> tuple[Array, NoiseCore]:
    """Return the noise [B, A] on the mean actions of rows with features [B, F], and the new core."""
    due = is_first | (core.age + 1 >= period)
    draw = jnp.where(due[:, None, None], jax.random.normal(key, core.draw.shape, jnp.float32), core.draw)
    noise = jnp.einsum("bf,bfa->ba", features, jnp.exp(weights["head"]["log_std"]) * draw)
    return noise, NoiseCore(draw, jnp.where(due, 0, core.age + 1))
