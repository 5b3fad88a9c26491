"""Rewards as an agent learns from them: scaled and clipped as the environment's options say. In rows they are raw."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents.base import Agent, AgentState, Update, UpdateOutput, with_extra
from jsrl.agents.normalization import Moments, init_moments, merge_moments
from jsrl.types import Array, ArraySpec, Trajectory, Tree

RUNNING_CLIP = 10.0  # of rewards divided by the running deviation, as in VecNormalize of Stable-Baselines3


def with_rewards(agent: Agent, scale: float, clip: float | None) -> Agent:
    """Return the agent, whose updates get clip(reward * scale, -clip, clip)."""

    def learning(update: Update) -> Update:
        def learn(
            state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
        ) -> tuple[AgentState, UpdateOutput]:
            reward = trajectory.reward * scale
            reward = reward if clip is None else jnp.clip(reward, -clip, clip)
            return update(state, trajectory._replace(reward=reward), key, axis_name=axis_name)

        return learn

    split = agent.split and agent.split._replace(
        policy=learning(agent.split.policy), critic=learning(agent.split.critic)
    )
    return agent._replace(update=learning(agent.update), split=split)


class WithReturns(NamedTuple):
    """AgentState.extra of an agent whose rewards are divided by the deviation of their discounted sums.

    agent: its own extra. moments: of the discounted returns. returns: the last of each column, [C] or [C, N], all devices.
    """

    agent: Tree
    moments: Moments
    returns: Array


def with_running_scale(agent: Agent, *, gamma: float, clip: float | None, columns: tuple[int, ...]) -> Agent:
    """Return the agent, whose updates get rewards divided by the deviation of the discounted return so far.

    The return of a column, G_t = gamma G_(t-1) + r_t from 0 at an episode's begin, goes on in the next batch, which has fresh
    trajectories. (Where a column is another environment's by then, the distribution of returns stays the same.)

    Args:
      clip: of the scaled rewards; None: 10. columns: [C], or [C, N] with N agents; C is over all devices.

    Source: VecNormalize of Stable-Baselines3, which takes the deviation step by step, not once for each batch.
    """
    most = RUNNING_CLIP if clip is None else clip

    def begin(own: Tree) -> WithReturns:
        return WithReturns(own, init_moments(ArraySpec((), "float32")), jnp.zeros(columns, jnp.float32))

    def update(
        own: AgentState, kept: WithReturns, trajectory: Trajectory, key: Array, axis_name: str | None
    ) -> tuple[AgentState, WithReturns, UpdateOutput]:
        moments, returns = covering(kept.moments, kept.returns, trajectory, gamma, axis_name)
        deviation = jnp.sqrt(moments.variance + 1e-8)
        trajectory = trajectory._replace(reward=jnp.clip(trajectory.reward / deviation, -most, most))
        own, output = agent.update(own, trajectory, key, axis_name=axis_name)
        metrics = output.metrics | {"reward_deviation": deviation}
        return own, WithReturns((), moments, returns), output._replace(metrics=metrics)

    return with_extra(agent, begin, update)._replace(split=None)


def covering(
    moments: Moments, before: Array, trajectory: Trajectory, gamma: float, axis_name: str | None
) -> tuple[Moments, Array]:
    """Return moments that also cover a batch's discounted returns, and the returns at its end; all devices have the same."""
    rows: Any = (trajectory.reward[:-1], trajectory.is_first)
    if axis_name is not None:
        rows = jax.lax.all_gather(rows, axis_name, axis=1, tiled=True)
    reward, is_first = rows
    opens = is_first.reshape(*is_first.shape, *[1] * (reward.ndim - 2))
    counts = jnp.broadcast_to(~opens[1:], reward.shape)  # not last observations: nothing is earned there

    def step(so_far: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        earned, opens, counts = row
        now = gamma * jnp.where(opens, 0.0, so_far) + earned
        return jnp.where(counts, now, so_far), now

    returns, each = jax.lax.scan(step, before, (reward, opens[:-1], counts))
    return merge_moments(moments, each, counts.astype(jnp.float32)), returns
