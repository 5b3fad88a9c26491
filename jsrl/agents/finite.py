"""Checks of an update's output: its type, the names of its metrics, and NaN and infinity in the new state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import AgentState, Update, UpdateOutput
from jsrl.errors import AgentFault, ConfigError
from jsrl.types import Array, Trajectory, Tree, changed_leaves, is_pair, type_names

# 0, or NaN where the new state is not finite, or priorities are not finite and 0 or more; never reported as metrics
CHECKS = STATE, PRIORITIES = "state_finite", "priorities_finite"
SMALL = 1 << 14  # values


def with_output_check(update: Update, reserved: Collection[str], *, prioritised: bool = False) -> Update:
    """Return `update` that refuses, while jax traces its first call, an output that breaks the contract of an agent.

    Args:
      reserved: names that metrics cannot have. prioritised: its priorities are needed.
    """

    def checked(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        returned = update(state, trajectory, key, axis_name=axis_name)
        if not is_pair(returned) or not isinstance(returned[1], UpdateOutput):
            raise AgentFault(
                f"the agent's update returned {type_names(returned)}, expected (AgentState, UpdateOutput); "
                "metrics belong into UpdateOutput(metrics)."
            )
        check_layout("update: the new state", state, returned[0])
        check_metrics(returned[1].metrics, reserved)
        if prioritised:
            _check_priorities(returned[1].priorities, trajectory.is_first.shape[1])
        return returned

    return checked


def check_layout(what: str, before: Tree, after: Tree) -> None:
    """Check that two trees have the same leaves, with equal shapes and dtypes."""
    was, now = ({jax.tree_util.keystr(path): _spec(leaf) for path, leaf in _paths(tree)} for tree in (before, after))
    remedy = "keep names, shapes and dtypes, or it would be compiled again each time"
    if changed := changed_leaves(was, now):
        raise AgentFault(f"{what}: {changed}; {remedy}")
    structures = jax.tree.structure(before), jax.tree.structure(after)
    if str(structures[0]) != str(structures[1]):
        raise AgentFault(f"{what}: the tree was {structures[0]} and is {structures[1]} now; {remedy}")


def _paths(tree: Tree) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _check_priorities(priorities: Any, columns: int) -> None:
    if priorities is None:
        raise ConfigError(
            "prioritised replay needs an agent that returns priorities ([B], such as absolute TD errors); this one returns "
            "none. Set replay.prioritised to false, or choose another agent."
        )
    if jnp.shape(priorities) != (columns,):
        raise AgentFault(
            f"update returned priorities of shape {list(jnp.shape(priorities))}, expected [{columns}]: one for each window of "
            "its batch"
        )


def check_metrics(metrics: Any, reserved: Collection[str] = ()) -> None:
    """Check the metrics of an update: a flat dict of scalars, which are shown as `learner/NAME`."""
    if not isinstance(metrics, dict):
        raise AgentFault(f"update: metrics is {type(metrics).__name__}, expected a dict")
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
            raise AgentFault(
                f"update: metric {name!r} is {type(value).__name__}, expected a scalar; give flat names and numbers"
            )
        if jnp.shape(value) != ():
            raise AgentFault(
                f"update: metric {name!r} has shape {jnp.shape(value)}, expected a scalar; average it over rows"
            )
        why = "a slash names another worker" if "/" in name else ""
        if name.endswith("_share"):
            why = "NAME_share is the share of its time that a worker spends in an activity"
        elif name in (*CHECKS, *reserved):
            why = "jsrl's own metric of that name stands there"
        if why:
            other = f"agent_{name.rpartition('/')[2]}".removesuffix("_share")
            raise AgentFault(
                f"the agent's update returned the metric {name!r}, but {why}; metrics of an agent are shown as learner/NAME: "
                f"choose another name, such as {other!r}."
            )


def with_state_check(update: Update, *, prioritised: bool = False) -> Update:
    """Return `update` with the metrics `CHECKS`, so that a check of the metrics also finds a bad state or priorities."""

    def checked(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        state, output = update(state, trajectory, key, axis_name=axis_name)
        checks = {STATE: nan_unless_finite((*state[:2], state.extra))}
        if prioritised:
            checks[PRIORITIES] = nan_unless_finite(jnp.where(output.priorities >= 0, output.priorities, jnp.nan))
        return state, output._replace(metrics=output.metrics | checks)

    return checked


def nan_unless_finite(tree: Tree) -> Array:
    """Return 0, or NaN where a tree, such as params, learner_params and extra of a state, holds NaN or infinity.

    The optimizer's state is left out: a bad gradient reaches the params in the same update, unless the optimizer skips it on
    purpose. Small leaves are checked together, because on CPU one reduction costs more than the leaves themselves.
    """
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    small = [leaf.astype(jnp.float32).reshape(-1) for leaf in floats if leaf.size < SMALL]
    looked_at = [leaf for leaf in floats if leaf.size >= SMALL] + ([jnp.concatenate(small)] if small else [])
    # no maximum: XLA's max reductions lose NaN on CPU
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in looked_at]))
    return jnp.where(finite, 0.0, jnp.nan).astype(jnp.float32)


def non_finite_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of metrics that are not finite, `CHECKS` last."""
    return sorted((name for name, value in metrics.items() if not np.isfinite(value)), key=CHECKS.__contains__)


def describe_non_finite(bad: list[str], metrics: Mapping[str, Any]) -> str:
    if bad[0] in CHECKS:
        found = {
            STATE: "a state with NaN or infinity in it",
            PRIORITIES: "priorities that are not all finite and 0 or more",
        }
        return f"{found[bad[0]]}, although its metrics are finite"
    ordinary = [name for name in metrics if name not in CHECKS]
    count = len([name for name in bad if name not in CHECKS])
    return f"{bad[0]} = {metrics[bad[0]]} ({count} of {len(ordinary)} metrics are not finite)"
