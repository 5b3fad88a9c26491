"""Agents that learn nothing.

The score of the one is known: for `probe:continuous` its mean return is 1 - (offset - best)^2. The other plays action 0;
jax traces it in no time, for tests that plan runs whatever their agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference


@dataclass(frozen=True)
class TinyConfig:
    """Options of the agent that learns nothing.

    Attributes:
      offset: added to the right action, minus `best`. best: the offset whose actions are right.
      repeats: an integer without effect. mode: `nan` has a loss that is not finite; other texts have no effect.
    """

    factory: ClassVar[str] = "tests.tiny_agent:tiny"

    offset: float = 0.0
    best: float = 0.0
    repeats: int = 1
    mode: str = "plain"

    def __post_init__(self) -> None:
        if not 0 < self.repeats < 100:
            raise ConfigError(f"agent.repeats is {self.repeats}; it must be between 1 and 99.")


def tiny(config: TinyConfig, spec: object) -> Agent:
    """Return the agent of a config."""

    def init(key):
        return AgentState(ActParams({"unused": jnp.zeros(1)}), (), (), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        action = observation[..., :1] + config.offset - config.best + params.weights["unused"]
        return ActOutput(action, jnp.zeros(is_first.shape[0])), core

    def update(state, trajectory, key, *, axis_name=None):
        del trajectory, axis_name
        loss = jax.random.uniform(key) if config.mode != "nan" else jnp.nan * jax.random.uniform(key)
        return state._replace(updates=state.updates + 1), UpdateOutput({"loss": loss}, None)

    return Agent(init, lambda batch_size: (), act, update)


def still(spec: object) -> Agent:
    """Return the agent that plays action 0 in environments with discrete actions."""
    del spec

    def act(params, key, observation, is_first, core, *, greedy=False):
        rows = is_first.shape[0]
        return ActOutput(jnp.zeros(rows, jnp.int32), jnp.zeros(rows)), core

    def update(state, trajectory, key, *, axis_name=None):
        return state._replace(updates=state.updates + 1), UpdateOutput({})

    return Agent(
        lambda key: AgentState(ActParams(jnp.zeros(3)), (), (), (), jnp.int32(0)), lambda batch_size: (), act, update
    )


STILL = AgentReference("tests.tiny_agent:still")
