"""Kinds of rows: which of them train the policy, which train the value function, and where a value may bootstrap.

`acts` is the kind of a row for its agent (the table of kinds in jsrl.types); with `cut_t = is_first_{t+1}` (row t is a last
observation):

    policy mask_t = (acts_t == 1) (1 - cut_t) known_t
    value mask_t  = (acts_t > 0)  (1 - cut_t) known_t

The critic never learns the value of a waiting row, so no target may bootstrap there. `k_t`: the value seen at row t is known.

    row T, last observations:  k_t = acts_t > 0
    acting, value-only:        k_t = 1
    waiting:                   k_t = (d_t == 0) or k_{t+1}        its reward and the next row's value

`known_t = (d_t == 0) or k_{t+1}`: without it a row has no target. Its own value still bootstraps the rows before.

Near row T that rule alone would keep a move that ends the game and drop one that does not, and values would be biased to games
that end. So algorithms also leave out the last rows, whatever their outcome: rows t > T - margin. `margin` is the number
of rows that the slowest row of the batch waits for its target. It is 2 in a game of two players in turns, and 1, which leaves
out nothing, without waiting. (A time limit in a game of turns has the same effect on the move before it; that is not
corrected.)

All algorithms take their masks from here. A single agent acts on every row, and both masks are 1 - cut_t.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jsrl.types import ACTING, ONLY_SCORED, Array, Trajectory, spread


class RowKinds(NamedTuple):
    """Kinds of rows 0..T-1; bool [T, ...]. Rows of none of these kinds are last observations.

    acting: the agent acts (acts 1). waiting: it does not, and has no value there (acts 0).
    trained: acting and value-only rows (acts > 0) that have a target.
    """

    acting: Array
    waiting: Array
    trained: Array


class RowMasks(NamedTuple):
    """Masks of rows 0..T-1, float32 [T, B] ([T, B, N] where agents exist), of the shape that losses have.

    policy: rows whose action trains the policy. value: rows on which the value function is trained.
    """

    policy: Array
    value: Array


def row_kinds(discount: Array, acts: Array, is_first: Array, margin: Array | int = 1) -> RowKinds:
    """Return the kind of each row.

    Args:
      discount: the environment's, [T, ...]. acts: [T+1, ...], row T included.
      is_first: [T+1, ...]; may lack trailing axes (an environment's, where agents exist).
      margin: rows t > T - margin have no target, see `row_margin`.
    """
    own, waiting = _own_and_waiting(discount, acts, is_first)
    known, _ = _resolved(discount, acts, waiting)
    early = _numbers(own) + margin <= own.shape[0]
    return RowKinds(own & (acts[:-1] == ACTING), waiting, own & known & early)


def row_margin(trajectory: Trajectory, axis_name: str | None = None) -> Array:
    """Return how many rows the slowest row of the batch waits for its target: int32 scalar, the same on all devices.

    At most a quarter of the rows (but at least 2), so that a few long waits do not cost the whole batch.
    """
    own, waiting = _own_and_waiting(trajectory.discount[:-1], trajectory.acts, trajectory.is_first)
    return margin_of(own, *_resolved(trajectory.discount[:-1], trajectory.acts, waiting), axis_name)


def margin_of(own: Array, known: Array, delay: Array, axis_name: str | None = None) -> Array:
    """Return the margin of rows [T, ...]: bool own and known, and their delays."""
    num_rows = own.shape[0]
    at_the_end = _numbers(own) + delay > num_rows  # a time limit is left out: no later row would resolve it
    slowest = jnp.max(jnp.where(own & (known | at_the_end), delay, 1))
    slowest = slowest if axis_name is None else jax.lax.pmax(slowest, axis_name)
    return jnp.minimum(slowest, max(2, num_rows // 4))


def _own_and_waiting(discount: Array, acts: Array, is_first: Array) -> tuple[Array, Array]:
    """Return bool [T, ...]: the agent's own rows (acting or value-only), and waiting rows; last observations are neither."""
    if acts.shape != (discount.shape[0] + 1, *discount.shape[1:]):
        raise ValueError(
            f"acts has shape {list(acts.shape)}, expected {[discount.shape[0] + 1, *discount.shape[1:]]}: with row T, which "
            "says whether its value may bootstrap; pass all of `trajectory.acts`"
        )
    cut = is_first[1:].astype(bool)
    cut = jnp.broadcast_to(spread(cut, discount), discount.shape)
    own = acts[:-1] > 0
    return own & ~cut, ~own & ~cut


def _numbers(rows: Array) -> Array:
    """Return the number of each row, int32 [T, 1, ...] for rows [T, ...]."""
    return jnp.arange(rows.shape[0], dtype=jnp.int32).reshape(-1, *(1,) * (rows.ndim - 1))


def _resolved(discount: Array, acts: Array, waiting: Array) -> tuple[Array, Array]:
    """Return (known bool [T, ...]: the rest of a row's target is known, delay int32: after how many rows it is known).

    The next row that does not wait, or that waits and ends the episode, decides: the smallest of 2 (row + 1 if it ends there)
    + (0 if known else 1). Row T always decides; if the agent waits there, the answer is at least one row later.
    """
    mine, going_on, num_rows = acts > 0, discount > 0, discount.shape[0]
    ends = waiting & ~going_on
    number = _numbers(mine)
    where = number + jnp.concatenate([ends, ~mine[-1:]]).astype(jnp.int32)
    answer = 2 * where + jnp.where(jnp.concatenate([mine[:-1] | ends, mine[-1:]]), 0, 1)
    passes_on = jnp.concatenate([waiting & going_on, jnp.zeros_like(mine[:1])])
    answer = jnp.where(passes_on, 2 * num_rows + 4, answer)
    following = jax.lax.associative_scan(jnp.minimum, answer, reverse=True)[1:]  # cummin on CPUs takes T^2 steps
    known = ~going_on | (following % 2 == 0)
    return known, jnp.where(going_on, following // 2 - number[:-1], 1)


def row_masks(trajectory: Trajectory, margin: Array | int = 1) -> RowMasks:
    """Return the masks of a trajectory [T+1, B, ...]; `margin`: from `row_margin`."""
    kinds = row_kinds(trajectory.discount[:-1], trajectory.acts, trajectory.is_first, margin)
    policy, value = kinds.acting & kinds.trained, kinds.trained
    return RowMasks(policy.astype(jnp.float32), value.astype(jnp.float32))


def acting_mask(trajectory: Trajectory) -> Array:
    """Return 1 where the agent acted, whether or not the row has a target (for imitation): float32, as in RowMasks."""
    kinds = row_kinds(trajectory.discount[:-1], trajectory.acts, trajectory.is_first)
    return kinds.acting.astype(jnp.float32)


def train_only(masks: RowMasks, trajectory: Trajectory) -> RowMasks:
    """Return the masks [T, B] without the rows of games that are only scored, which train nothing.

    Masks may have several columns for each environment ([T, B * N] where agents exist), one after another.
    """
    if isinstance(trajectory.game, tuple):
        return masks
    trains = (trajectory.game[:-1] > ONLY_SCORED).astype(jnp.float32)
    columns = masks.value.shape[1] // trains.shape[1]
    return RowMasks(*(mask * jnp.repeat(trains, columns, axis=1) for mask in masks))


def row_scores(
    trajectory: Trajectory, target: Array, value: Array, mask: Array, num_agents: int | None
) -> Array | None:
    """Return the terms of a game's score for each row: [B, T, 5]; None: no scores wanted.

    With error = target - value (with GAE the advantage) the terms are the sums over a row's trained agents of |error|,
    max(error, 0), the value and 1, and the mean reward of all agents.

    Args:
      trajectory: its `game` says whether scores are wanted.
      target, value: of the value function, raw units, [T, B] ([T, B * N] where agents exist), as are rewards.
      mask: like value, from `row_masks`, 1 where the policy acted; rows that are only scored (`train_only`) included.
    """
    if isinstance(trajectory.game, tuple):
        return None
    error, trained = target - value, mask > 0
    parts = [jnp.where(trained, x, 0.0) for x in (jnp.abs(error), jnp.maximum(error, 0.0), value, 1.0)]
    agents = num_agents or 1
    columns = jnp.stack([*parts, trajectory.reward[:-1] / agents], axis=-1)
    return jnp.swapaxes(columns.reshape(len(columns), -1, agents, len(parts) + 1).sum(axis=2), 0, 1)
