"""Gaps of a ring on the device: bootstrap rows whose trajectory was not followed by the next one.

Row 0 of a trajectory replaces the bootstrap row before it. If an environment started over in between (its actor
was replaced), that row is lost, and with it the last transition before the gap. So it is kept here, and windows that cross
the gap get it back. Each environment keeps its last KEPT gaps; at an older one a window ends one row earlier.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jsrl.types import Array, Trajectory, Tree, spread

KEPT = 8


class Gaps(NamedTuple):
    """Bootstrap rows before gaps, of N environments.

    Attributes:
      row: int32 [KEPT, N], the row's position in the ring (-1: none). used: int32 [N], gaps so far.
      seen: (observation, state), leaves [KEPT * N, ...], as the ring stores them.
      acts: uint8 [KEPT * N, ...]: whether its value may bootstrap.
      newest: (seen [N, ...], acts [N, ...], is_first [N]) of the newest bootstrap row. It is outside the ring: reading a row
        of the ring before it is overwritten makes XLA copy the ring.
    """

    row: Array
    used: Array
    seen: Tree
    acts: Array
    newest: tuple[Tree, Array, Array]


def no_gaps(seen: Tree, acts: Array, num_envs: int) -> Gaps:
    """Return the state before the first gap, for (observation, state) and acts stored as leaves [C * N, ...]."""

    def blank(rows: int) -> tuple[Tree, Array]:
        return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype), (seen, acts))

    row = jnp.full((KEPT, num_envs), -1, jnp.int32)
    last, acts_of = blank(num_envs)
    newest = (last, acts_of, jnp.ones(num_envs, bool))  # the first trajectory follows
    stored, kinds = blank(KEPT * num_envs)
    return Gaps(row, jnp.zeros(num_envs, jnp.int32), stored, kinds, newest)


def keep(gaps: Gaps, seen: Tree, acts: Array, is_first: Array, row: Array, overwritten: Array) -> Gaps:
    """Return gaps with the bootstrap rows that a trajectory overwrites without following them.

    Args:
      seen: (observation, state), like acts and is_first of the trajectory, [T+1, N, ...]. row: of its row 0 in the ring.
      overwritten: the row of its own bootstrap row; a gap kept there is dropped.
    """
    kept, ended = gaps.newest[:2], gaps.newest[2]
    gap, num_envs = is_first[0] & ~ended, is_first.shape[1]
    envs, slot = jnp.arange(num_envs), gaps.used % KEPT
    place = jnp.where(gap, slot * num_envs + envs, KEPT * num_envs)  # beyond the end: ignored
    rows = jnp.where(gaps.row == overwritten, -1, gaps.row)
    rows = rows.at[slot, envs].set(jnp.where(gap, row, rows[slot, envs]))
    before = (gaps.seen, gaps.acts)
    stored = jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), before, kept)
    newest = jax.tree.map(lambda old, new: new[-1].astype(old.dtype), gaps.newest, (seen, acts, is_first))
    return Gaps(rows, gaps.used + gap, stored[0], stored[1], newest)


def is_kept(gaps: Gaps, row: Array, env: Array) -> Array:
    """Return bool [..]: whether a bootstrap row is kept for these rows of the ring."""
    return (gaps.row[:, env] == row).any(axis=0)


class FirstGap(NamedTuple):
    """The first gap of each window [M]. found: whether there is one. at: its row in the window. place: index in Gaps."""

    found: Array
    at: Array
    place: Array


def find_gaps(gaps: Gaps, rows: Array, env: Array) -> FirstGap:
    """Return the first gap after row 0 of windows at rows `rows` [W+1, M] of the ring."""
    hits = (gaps.row[:, env][:, None] == rows).at[:, 0].set(False)  # [KEPT, W+1, M]
    first = jnp.argmax(hits.any(axis=0), axis=0)
    slot = jnp.argmax(hits[:, first, jnp.arange(len(env))], axis=0)
    return FirstGap(hits.any(axis=(0, 1)), first, slot * gaps.row.shape[1] + env)


def end_at_gaps(gaps: Gaps, found: FirstGap, windows: Trajectory) -> Trajectory:
    """Return windows [W+1, M, ...] that end at their first gap: its original row bootstraps, and no later row acts.

    `put_stored` restores the observation of that row.
    """
    number = jnp.arange(windows.is_first.shape[0])[:, None] - found.at
    at, behind = found.found & (number == 0), found.found & (number > 0)

    def where(condition: Array, value: float, leaf: Array) -> Array:
        return jnp.where(spread(condition, leaf), jnp.asarray(value, leaf.dtype), leaf)

    return windows._replace(
        is_first=(windows.is_first & ~at) | (found.found & (number == 1)),
        reward=where(at, 0.0, windows.reward),
        discount=where(at, 1.0, windows.discount),
        acts=where(behind, 0.0, jnp.where(spread(at, windows.acts), gaps.acts[found.place], windows.acts)),
    )


def put_stored(kept: Tree, found: FirstGap, seen: Tree, first: int = 0) -> Tree:
    """Return leaves [first + W+1, M, ...] with the gaps' kept values (leaves [KEPT * N, ...]) in their rows."""

    def put(leaf: Array, before: Array) -> Array:
        row, column = found.at + first, jnp.arange(leaf.shape[1])
        there = found.found.reshape(-1, *(1,) * (leaf.ndim - 2))
        return leaf.at[row, column].set(jnp.where(there, before[found.place], leaf[row, column]))

    return jax.tree.map(put, seen, kept)
