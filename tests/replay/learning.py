"""A small off-policy agent with a simple update: least squares on row 0 of each window."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import masked_mean, psum


def toy_agent(*, priorities: bool = True, poison: float = jnp.inf, poison_gradient: float = jnp.inf) -> Agent:
    """Return an agent that regresses the reward on the observation.

    A target beyond `poison` makes its loss NaN, one beyond `poison_gradient` only its gradient.
    """

    def init(key):
        weights = {"kernel": jnp.zeros(2), "bias": jnp.zeros(())}
        return AgentState(ActParams(weights), (), (), {"seen": jnp.zeros(())}, jnp.zeros((), jnp.int32))

    def update(state, windows, key, *, axis_name=None):
        weights = state.params.weights
        x, y = windows.observation[0] / 50.0, windows.reward[0] / 50.0
        weight = jnp.ones_like(y) if isinstance(windows.sampling, tuple) else windows.sampling
        error = x @ weights["kernel"] + weights["bias"] - y
        error = jnp.where(windows.reward[0] > poison, jnp.nan, error)
        count = psum(jnp.asarray(error.size, jnp.float32), axis_name)
        kernel = psum((weight * error) @ x, axis_name) / count
        bias = psum((weight * error).sum(), axis_name) / count
        kernel = jnp.where(windows.reward[0].max() > poison_gradient, jnp.nan, kernel)
        after = {"kernel": weights["kernel"] - 0.3 * kernel, "bias": weights["bias"] - 0.3 * bias}
        extra = {"seen": state.extra["seen"] + count}
        metrics = {"loss": masked_mean(jnp.square(error), jnp.ones_like(error), axis_name)}
        new = AgentState(ActParams(after), (), (), extra, state.updates + 1)
        return new, UpdateOutput(metrics, jnp.abs(error) if priorities else None)

    return Agent(init, lambda batch_size: (), None, update)  # type: ignore[arg-type]


def acting_toy(
    spec, poison: float = float("inf"), poison_gradient: float = float("inf"), priorities: bool = True
) -> Agent:
    """Return the toy agent for an environment with two actions: it acts at random and learns from two numbers."""
    agent = toy_agent(priorities=priorities, poison=poison, poison_gradient=poison_gradient)

    def act(params, key, observation, is_first, core, *, greedy=False):
        number = is_first.shape[0]
        return ActOutput(jax.random.randint(key, (number,), 0, 2), jnp.zeros(number)), core

    def update(state, windows, key, *, axis_name=None):
        windows = windows._replace(observation=windows.observation[..., :2])
        return agent.update(state, windows, key, axis_name=axis_name)

    return agent._replace(act=act, update=update)
