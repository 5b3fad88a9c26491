"""A population with known ranking: the agent's height rises by its step in each update, and its reward is the height."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jsrl.agents import actor_critic as ac
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput


class Climb(gymnasium.Env):
    """One agent whose reward is its action, for a random number of steps."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(action[0]), self.left == 0, False, {}


@dataclass(frozen=True)
class ClimbConfig:
    """Options of the climbing agent. step: of each update. scale: an option that runs cannot change."""

    factory: ClassVar[str] = "tests.climb:climbing"
    explorable: ClassVar[tuple[str, ...]] = ("step", "limit")

    step: float = 1.0
    limit: float | None = None
    scale: int = 1


def climbing(config: ClimbConfig, spec) -> Agent:
    """Return the agent; its loss counts the trained rows that other params chose. Every part of its state changes."""

    def init(key):
        params = ActParams({"height": jnp.zeros(1)}, {"seen": jnp.zeros(())})
        return AgentState(params, {"target": jnp.zeros(())}, {"momentum": jnp.zeros(())}, {"noise": jnp.zeros(())},
                          jnp.zeros((), jnp.int32))  # fmt: skip

    def act(params, key, observation, is_first, core, *, greedy=False):
        action = jnp.broadcast_to(params.weights["height"], (*is_first.shape, 1))
        return ActOutput(action, jnp.zeros(is_first.shape)), core

    def update(state, trajectory, key, *, axis_name=None):
        height = state.params.weights["height"]
        going_on = jnp.logical_not(trajectory.is_first[1:])
        trained = (trajectory.acts[:-1] == 1) & going_on.reshape(*going_on.shape, *[1] * (trajectory.acts.ndim - 2))
        wrong = (trained & (trajectory.action[:-1, ..., 0] != height[0])).sum()
        metrics = {"loss": wrong.astype(jnp.float32), "trained": trained.mean()}
        params = ActParams({"height": height + config.step}, {"seen": state.params.moments["seen"] + trained.sum()})
        momentum = 0.5 * state.opt_state["momentum"] + jax.random.uniform(key)
        new = AgentState(params, {"target": height[0]}, {"momentum": momentum}, {"noise": jax.random.normal(key)},
                         state.updates + 1)  # fmt: skip
        return new, UpdateOutput(metrics, None)

    return ac.for_agents(Agent(init, lambda batch_size: (), act, update), spec.num_agents)
