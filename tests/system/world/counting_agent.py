"""An agent whose core counts the rows since its episode started; its update fails if the count does not match."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.types import EnvSpec


@dataclasses.dataclass(frozen=True)
class CountingConfig:
    """Options; `width`: extra float32 in the params, so that a snapshot takes time."""

    width: int = 0
    factory: ClassVar[str] = "counting_agent:counting"


def counting(config: CountingConfig, spec: EnvSpec) -> Agent:
    """Return the agent; environments must show the rows since their reset (worlds:Counts)."""

    def init(key):
        return AgentState(ActParams({"w": jnp.zeros(1 + config.width)}, ()), (), (), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        count = jnp.where(is_first[:, None], 0.0, core)
        action = jax.random.randint(key, is_first.shape, 0, 2)
        return ActOutput(action, jnp.full(is_first.shape, jnp.log(0.5)), {"count": count[:, 0]}), count + 1.0

    def update(state, trajectory, key, *, axis_name=None):
        shown = trajectory.observation[:-1, :, 0]
        wrong = jnp.abs(trajectory.extras["count"][:-1] - shown).max()
        begun = jnp.where(trajectory.is_first[0], 0.0, trajectory.core[:, 0])
        wrong = jnp.maximum(wrong, jnp.abs(begun - shown[0]).max())
        # rows follow each other: the next one shows one more, or starts an episode
        follows = (trajectory.observation[1:, :, 0] == shown + 1.0) | trajectory.is_first[1:]
        wrong = jnp.maximum(wrong, 1.0 - follows.min())
        params = jax.tree.map(lambda w: w + 1.0, state.params.weights)
        metrics = {"loss": jnp.where(wrong > 0.0, jnp.nan, 0.0), "weight": params["w"][0]}
        return AgentState(ActParams(params, ()), (), (), (), state.updates + 1), UpdateOutput(metrics, None)

    return Agent(init, lambda batch_size: jnp.zeros((batch_size, 1)), act, update)
