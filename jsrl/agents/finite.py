"""Checks of an update's output: its type, the names of its metrics, and NaN and infinity in the new state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import AgentState, Update, UpdateOutput
from jsrl.errors import AgentFault, ConfigError
from jsrl.types import Array, Trajectory, is_pair, type_names

STATE = "state_finite"  # 0, or NaN where the new state is not finite; never reported as a metric
SMALL = 1 << 14  # values


def with_output_check(update: Update, reserved: Collection[str]) -> Update:
    """Return `update` that refuses output of another type, and metrics whose names jsrl uses itself (`reserved`)."""

    def checked(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        returned = update(state, trajectory, key, axis_name=axis_name)
        if not is_pair(returned) or not isinstance(returned[1], UpdateOutput):
            raise ConfigError(
                f"the agent's update returned {type_names(returned)}, expected (AgentState, UpdateOutput); "
                "metrics belong into UpdateOutput(metrics)."
            )
        check_names(returned[1].metrics, reserved)
        return returned

    return checked


def check_names(metrics: Mapping[str, Any], reserved: Collection[str] = ()) -> None:
    """Check the names of an agent's metrics, which are shown as `learner/NAME`.

    Raises:
      AgentFault: one has a slash, or is reserved.
    """
    for name in metrics:
        if "/" in name or name in (STATE, *reserved):
            why = "jsrl's own metric of that name stands there" if "/" not in name else "a slash names another worker"
            raise AgentFault(
                f"the agent's update returned the metric {name!r}, but {why}; metrics of an agent are shown as learner/NAME: "
                f"choose another name, such as {'agent_' + name.rpartition('/')[2]!r}."
            )


def with_state_check(update: Update) -> Update:
    """Return `update` with the metric `STATE`, so that a check of the metrics also finds a bad state."""

    def checked(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        state, output = update(state, trajectory, key, axis_name=axis_name)
        return state, output._replace(metrics=output.metrics | {STATE: state_metric(state)})

    return checked


def state_metric(state: AgentState) -> Array:
    """Return 0, or NaN where params, learner_params or extra of a state hold NaN or infinity.

    The optimizer's state is left out: a bad gradient reaches the params in the same update, unless the optimizer skips it on
    purpose. Small leaves are checked together, because on CPU one reduction costs more than the leaves themselves.
    """
    floats = [leaf for leaf in jax.tree.leaves((*state[:2], state.extra)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    small = [leaf.astype(jnp.float32).reshape(-1) for leaf in floats if leaf.size < SMALL]
    looked_at = [leaf for leaf in floats if leaf.size >= SMALL] + ([jnp.concatenate(small)] if small else [])
    # no maximum: XLA's max reductions lose NaN on CPU
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in looked_at]))
    return jnp.where(finite, 0.0, jnp.nan).astype(jnp.float32)


def non_finite_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of metrics that are not finite, `STATE` last."""
    return sorted((name for name, value in metrics.items() if not np.isfinite(value)), key=lambda name: name == STATE)


def describe_non_finite(bad: list[str], metrics: Mapping[str, Any]) -> str:
    """Return a message that says what in an update is not finite."""
    if bad[0] == STATE:
        return "a state with NaN or infinity in it, although its metrics are finite"
    ordinary = [name for name in metrics if name != STATE]
    count = len([name for name in bad if name != STATE])
    return f"{bad[0]} = {metrics[bad[0]]} ({count} of {len(ordinary)} metrics are not finite)"
