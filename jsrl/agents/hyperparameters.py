"""Hyperparameters that may change during training: they are part of the agent's state, so a change recompiles nothing.

A config lists in `explorable` those of its numbers that its update only computes with, and never branches on. Population-based
training changes them between two updates (docs/populations.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput, adopt
from jsrl.types import Array, Trajectory, Tree

METRIC = "hyperparameter_"  # and the name: the metric of each hyperparameter


class WithHyperparameters(NamedTuple):
    """AgentState.extra of an agent whose hyperparameters may change. agent: its own extra. values: name -> float32 []."""

    agent: Tree
    values: dict[str, Array]


def with_hyperparameters(config: Any, build: Callable[[Any], Agent], first: Mapping[str, float]) -> Agent:
    """Return the agent of a config, with some of its numbers taken from the state.

    Args:
      config: a frozen dataclass. build: (config) -> its agent.
      first: name of a field of the config -> its value in a new state.
    """
    agent = build(config)

    def with_values(state: AgentState) -> AgentState:
        values = {name: jnp.asarray(value, jnp.float32) for name, value in first.items()}
        return state._replace(extra=WithHyperparameters(state.extra, values))

    def init(key: Array) -> AgentState:
        return with_values(agent.init(key))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        own, values = state.extra
        now = build(with_fields(config, values))  # only when the update is traced
        after, output = now.update(state._replace(extra=own), trajectory, key, axis_name=axis_name)
        metrics = output.metrics | {METRIC + name: value for name, value in values.items()}
        return after._replace(extra=WithHyperparameters(after.extra, values)), output._replace(metrics=metrics)

    def adopted(state: AgentState, params: ActParams) -> AgentState:
        return with_values(adopt(agent, state._replace(extra=state.extra.agent), params))

    return agent._replace(init=init, update=update, adopt=adopted)


def set_hyperparameters(state: AgentState, values: Mapping[str, float]) -> AgentState:
    """Return a state, as numpy arrays, with other hyperparameters; those not in `values` stay."""

    def changed(node: Any) -> Any:
        if not isinstance(node, WithHyperparameters):
            return node
        return node._replace(values=node.values | {name: np.float32(value) for name, value in values.items()})

    return jax.tree.map(changed, state, is_leaf=lambda node: isinstance(node, WithHyperparameters))


def with_fields(config: Any, values: Mapping[str, Array | None]) -> Any:
    """Return a config with other numbers; skips its checks, which cannot compare traced numbers."""
    changed = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed
