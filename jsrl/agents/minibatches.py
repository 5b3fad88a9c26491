"""Cutting one update's rows into minibatches, and several updates in one call, inside the compiled update.

A batch is a NamedTuple with leaves [T, C, ...] and a field `core` [C, ...]; minibatches consist of some of its C columns.
Recurrent networks keep sequences together: a column is an environment, or a chunk of its rows (`chunked`). For
feed-forward networks every row is a column (`flat`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jsrl.agents.base import Agent, AgentState, UpdateOutput
from jsrl.errors import ConfigError, nearest_divisors
from jsrl.types import Array, Trajectory, map_trajectory


def flat(batch: Any) -> Any:
    """Return a feed-forward batch [T, B, ...] as [1, T * B, ...].

    Leaves may have one more row, [T + 1, B, ...]: it is never selected, and large images need not be copied to drop it.
    """
    return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)


def chunked(batch: Any, length: int | None) -> Any:
    """Return a recurrent batch [T, B, ...] as [length, T/length * B, ...], chunk by chunk; None: unchanged.

    Its core, [T/length * B, ...], is that of the first row of each chunk, in the same order.
    """
    if length is None:
        return batch

    def cut(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(-1, length, *x.shape[1:]), 0, 1).reshape(length, -1, *x.shape[2:])

    return jax.tree.map(cut, batch._replace(core=()))._replace(core=batch.core)


def take(batch: Any, columns: Array) -> Any:
    rows = jax.tree.map(lambda x: jnp.take(x, columns, axis=1, mode="clip"), batch._replace(core=()))
    return rows._replace(core=jax.tree.map(lambda x: jnp.take(x, columns, axis=0, mode="clip"), batch.core))


def minibatches_of(size: int, columns: int, rows: int, axis_name: str | None) -> int:
    """Return the largest number of minibatches that divides this device's columns and leaves `size` rows in each.

    Args:
      size: rows of a minibatch, over all devices. columns: of this device. rows: of a column.
    """
    devices = 1 if axis_name is None else jax.lax.psum(1, axis_name)
    most = min(columns, max(1, columns * rows * devices // size))
    return next(number for number in range(most, 0, -1) if columns % number == 0)


def plan_minibatches(
    num_columns: int, *, num_epochs: int, num_minibatches: int, key: Array, axis_name: str | None
) -> Array:
    """Return which columns each gradient step reads: int32 [epochs * minibatches, columns per minibatch].

    Every epoch reads each column once, in its own order (different on each device).
    """
    if num_columns % num_minibatches:
        raise ConfigError(
            f"num_minibatches={num_minibatches} does not divide the {num_columns} columns on this device (rows x "
            "environments when feed-forward, environments when recurrent); choose a divisor of that number"
        )
    if num_minibatches == 1:
        return jnp.broadcast_to(jnp.arange(num_columns, dtype=jnp.int32), (num_epochs, num_columns))
    if axis_name is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    keys = jax.random.split(key, num_epochs)
    orders = jax.vmap(lambda k: jax.random.permutation(k, num_columns))(keys)
    return orders.astype(jnp.int32).reshape(num_epochs * num_minibatches, -1)


def check_divides(option: str, value: int, number: int, what: str) -> None:
    """Check that a number of minibatches divides the columns of a device's batch; `what` they are.

    Raises:
      ConfigError: they do not; with the nearest numbers that do.
    """
    if number % value:
        nearest = nearest_divisors(number, value)
        raise ConfigError(f"agent.{option}={value} does not divide the {number} {what} of a batch; use {nearest}.")


def update_keys(key: Array, number: int | Array) -> tuple[Array, Array]:
    """Return (key to draw with, key of the agent's update) for update `number` of a call."""
    draws, updates = jax.random.split(jax.random.fold_in(key, number))
    return draws, updates


def several_updates(agent: Agent, number: int) -> Agent:
    """Return `agent` whose update makes `number` updates, each with its part of the batch's columns.

    Priorities come back for all columns, in their order; metrics are means over the updates.
    """
    if number == 1:
        return agent

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        def rows(x: Array) -> Array:
            return jnp.moveaxis(x.reshape(x.shape[0], number, -1, *x.shape[2:]), 1, 0)

        def columns(x: Array) -> Array:
            return x.reshape(number, -1, *x.shape[1:])

        def one(now: AgentState, part: tuple[Trajectory, Array]) -> tuple[AgentState, UpdateOutput]:
            return agent.update(now, part[0], part[1], axis_name=axis_name)

        parts = map_trajectory(rows, columns, trajectory), jax.random.split(key, number)
        state, output = jax.lax.scan(one, state, parts)
        metrics = {name: values.astype(jnp.float32).mean() for name, values in output.metrics.items()}
        priorities = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), output.priorities)
        return state, UpdateOutput(metrics, priorities)

    return agent._replace(update=update)
