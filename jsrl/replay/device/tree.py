"""Sums over priorities on the device: a tree with a fan-out of 64, as pure functions.

Level 0 holds the weights; each entry of the next level is the sum of 64 of the level below. A parent is recomputed from its
children, never corrected by a difference, so the tree does not drift. A draw goes down one level at a time, for all
draws at once: three gathers of [draws, 64] for 262,144 weights.
"""

from __future__ import annotations

from typing import TypeAlias

import jax.numpy as jnp

from jsrl.types import Array

FAN_OUT = 64
SumTree: TypeAlias = tuple[Array, ...]


def init_tree(size: int) -> SumTree:
    """Return a tree of `size` weights, all 0: its levels, weights first, each padded to whole families of 64."""
    levels = []
    while True:
        families = -(-size // FAN_OUT)
        levels.append(jnp.zeros(families * FAN_OUT, jnp.float32))
        if families == 1:
            return tuple(levels)
        size = families


def set_weights(tree: SumTree, at: Array, weights: Array, families: Array | None = None) -> SumTree:
    """Return the tree with `weights` [M] at the places `at` [M]; a place beyond the tree is ignored.

    Args:
      tree: of `init_tree`. at: int32; if a place occurs twice, either weight may stay. weights: float32, 0 or more.
      families: int32; the families of 64 with these places, if they are known to be fewer than M.
    """
    levels = [tree[0].at[at].set(weights, mode="drop")]
    parents = at // FAN_OUT if families is None else families
    for above in tree[1:]:
        children = levels[-1].reshape(-1, FAN_OUT)
        levels.append(above.at[parents].set(children.at[parents].get(mode="clip").sum(axis=1), mode="drop"))
        parents = parents // FAN_OUT
    return tuple(levels)


def total(tree: SumTree) -> Array:
    return tree[-1].sum()


def find(tree: SumTree, points: Array) -> tuple[Array, Array]:
    """Return (places, their weights) of `points` [M] in [0, 1): place i is found with probability w_i / sum of w.

    A place of weight 0 is never found unless all weights are 0.
    """
    families = jnp.zeros(points.shape, jnp.int32)
    rest = points * total(tree)
    for level in reversed(tree):
        children = level.reshape(-1, FAN_OUT)[families]
        upto = jnp.cumsum(children, axis=1)
        inside = jnp.minimum(rest, upto[:, -1] * (1.0 - 1e-6))  # rounding must not go beyond the last weight
        child = jnp.sum(upto <= inside[:, None], axis=1).astype(jnp.int32)
        child = jnp.minimum(child, FAN_OUT - 1)
        chosen = jnp.take_along_axis(children, child[:, None], axis=1)[:, 0]
        before = jnp.take_along_axis(upto, child[:, None], axis=1)[:, 0] - chosen
        rest = jnp.maximum(inside - before, 0.0)
        families = families * FAN_OUT + child
    return families, chosen
