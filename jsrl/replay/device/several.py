"""Several updates in one compiled call: a batch of K times as many columns is split into K, one update after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jsrl.agents.base import Agent, AgentState, UpdateOutput
from jsrl.types import Array, Trajectory, map_trajectory


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
