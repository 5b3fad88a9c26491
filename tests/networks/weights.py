"""Weights without a compiled initialiser, and networks as two programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jsrl.networks.model import ActorCritic


def drawn(init: Callable[..., Any], *args: Any, seed: int = 1) -> Any:
    """Return a tree like that of `init(key, *args)`, drawn with NumPy: no bias is 0, no scale is 1."""
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        scale = 1.0 if len(leaf.shape) < 2 else np.prod(leaf.shape[:-1]) ** -0.5
        return (scale * rng.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree.map(draw, jax.eval_shape(init, jax.random.key(0), *args))


def programs(network: ActorCritic) -> ActorCritic:
    """Return the network with one program for each of its functions and shapes."""
    return network._replace(policy=jax.jit(network.policy), value=jax.jit(network.value))
