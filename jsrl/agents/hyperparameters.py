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

from jsrl.agents.base import Agent, AgentState, UpdateOutput, with_extra
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

    def begin(own: Tree) -> WithHyperparameters:
        return WithHyperparameters(own, {name: jnp.asarray(value, jnp.float32) for name, value in first.items()})

    def update(
        own: AgentState, kept: WithHyperparameters, trajectory: Trajectory, key: Array, axis_name: str | None
    ) -> tuple[AgentState, WithHyperparameters, UpdateOutput]:
        now = build(with_fields(config, kept.values))  # only when the update is traced
        own, output = now.update(own, trajectory, key, axis_name=axis_name)
        metrics = output.metrics | {METRIC + name: value for name, value in kept.values.items()}
        return own, kept, output._replace(metrics=metrics)

    return with_extra(build(config), begin, update)


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
