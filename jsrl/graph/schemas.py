"""The schemas of an experiment's streams, by tracing the agent's functions on shapes alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.experiment import Experiment
from jsrl.experiment.building import agent_faults, agent_name, build_agent, check_split, resolved_agent
from jsrl.experiment.numbers import device_columns
from jsrl.experiment.policies import wants_scores
from jsrl.interrupts import deadline
from jsrl.references.importing import shown_target
from jsrl.transport.base import InferenceSpec
from jsrl.types import (
    ArraySpec,
    EnvSpec,
    GameSpec,
    is_pair,
    make_trajectory_spec,
    map_tree,
    spec_for_one,
    type_names,
)
from jsrl.workers.jobs import Schemas

SILENT_S = 10.0  # a longer wait for an environment is named


def make_schemas(experiment: Experiment, spec: EnvSpec | None = None, *, learns: bool = True) -> Schemas:
    """Return the schemas of all streams, by tracing the agent's functions on shapes alone.

    Args:
      experiment: of the agent. spec: of its environment; None: one environment is made.
      learns: the agent updates itself, so that batches and devices must suit it.

    Raises:
      ConfigError: the environment cannot be made, or the agent does not fit its spaces.
      EnvironmentFault: making it raised or hung. AgentFault: the agent's code raised.
    """
    spec = spec_for_one(find_spec(experiment)) if spec is None else spec
    check_batch = getattr(experiment.agent, "check_batch", None)
    if learns and check_batch is not None:
        seats = 1 if getattr(experiment.agent, "joins_seats", False) else spec.num_agents or 1
        check_batch(experiment.rollout_length, device_columns(experiment) * seats)
    agent = build_agent(resolved_agent(experiment), spec)
    if experiment.learner.split != "none":
        check_split(agent, agent_name(experiment.agent))
    with agent_faults(f"functions, traced on shapes of {spec.name!r},"):
        state, act_spec = trace_agent(agent, spec)
    _check_act(spec, act_spec)
    core = act_spec.core if agent.store_core else ()
    trajectory = make_trajectory_spec(
        spec,
        act_spec.extras,
        core,
        num_rows=experiment.rollout_length,
        num_envs=experiment.group_size,
        scored=wants_scores(experiment.director),
    )
    if learns:
        from jsrl.workers.learner.build_updater import trace_update

        trace_update(agent, experiment, state, trajectory)
    return Schemas(spec, act_spec, trajectory, _size_bytes(state.params), _size_bytes(state))


def find_spec(experiment: Experiment) -> EnvSpec | GameSpec:
    """Return the environment's spec; makes one environment, which may take as long as one step of an actor.

    Raises:
      EnvironmentFault: it did not return in time, or ended the interpreter.
    """
    limit_s, name = experiment.actor.step_deadline_s, shown_target(experiment.env.id)
    too_late = TimeoutError(f"{limit_s:g} s are over")
    try:
        with deadline(limit_s, too_late), wait_named(f"environment {name!r}", limit_s):
            return make_spec(experiment.env)
    except (TimeoutError, EnvironmentFault) as error:
        if too_late not in (
            error,
            error.__cause__,
        ):  # the cause: it came in a reset, and was taken for the environment's own
            raise
        raise EnvironmentFault(
            f"environment {name!r} was not made and closed within {limit_s:g} s; the traceback above shows where it was. "
            "If it is only slow, raise --actor.step-deadline-s."
        ) from too_late
    except SystemExit as error:
        raise EnvironmentFault(
            f"environment {name!r} called sys.exit({error.code!r}) while it was made; raise an error instead."
        ) from error


@contextlib.contextmanager
def wait_named(what: str, limit_s: float) -> Iterator[None]:
    """Say on standard error that jsrl waits for `what`, if the `with` block takes longer than SILENT_S."""

    def show() -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"waiting for {what} to be made, since {SILENT_S:g} s; the limit is {limit_s:g} s\n")
            sys.stderr.flush()

    timer = threading.Timer(SILENT_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def trace_agent(agent: Any, spec: EnvSpec) -> tuple[Any, InferenceSpec]:
    """Return (shapes of the agent's state, schema of one environment's request and reply)."""
    import jax
    import jax.numpy as jnp

    def init(seed):
        state = agent.init(jax.random.key(seed))
        if not hasattr(state, "params"):
            raise ConfigError(
                f"the agent's init returned {type_names(state)}, expected an AgentState (jsrl.agents.base)."
            )
        return state

    state = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
    observation = map_tree(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), spec.observation)
    core = jax.eval_shape(lambda: agent.initial_core(1))

    def act(params, seed, observation, is_first, core):
        returned = agent.act(params, jax.random.key(seed), observation, is_first, core)
        if not is_pair(returned) or not hasattr(returned[0], "action"):
            raise ConfigError(
                f"the agent's act returned {type_names(returned)}, expected (ActOutput, core); an agent without a recurrent "
                "state returns the core that it was given."
            )
        return returned

    is_first = jax.ShapeDtypeStruct((1,), jnp.bool_)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    output, core_after = jax.eval_shape(act, state.params, seed, observation, is_first, core)
    if _specs(core_after) != _specs(core):
        raise ConfigError(
            f"act returns a core of {_specs(core_after)}, initial_core one of {_specs(core)}; they must agree."
        )
    for leaf in jax.tree.leaves((output.action, output.log_prob, output.extras)):
        if leaf.shape[:1] != (1,):
            raise ConfigError(
                f"act returns an array of shape {list(leaf.shape)} for one observation; expected [1, ...]: actions, "
                "log-probabilities and extras begin with the batch axis."
            )
    one = jax.tree.map(_without_batch, (output.action, output.log_prob, output.extras, core))
    act_spec = InferenceSpec(spec.observation, *one)
    return state, act_spec


def _without_batch(leaf: Any) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape[1:]), str(leaf.dtype))


def _specs(tree: Any) -> list[tuple[tuple[int, ...], str]]:
    import jax

    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


def _size_bytes(tree: Any) -> int:
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _check_act(spec: EnvSpec, given: InferenceSpec) -> None:
    """Refuse an agent whose `act` returns other arrays than rows hold."""
    agents = () if spec.num_agents is None else (spec.num_agents,)
    wanted = {"actions": spec.action.array.batched(*agents), "log-probabilities": ArraySpec(agents, "float32")}
    for (name, expected), found in zip(wanted.items(), (given.action, given.log_prob), strict=True):
        if found != expected:
            seats = (
                f" One policy plays {spec.num_agents} seats of {spec.name!r}: after the batch axis, observations, actions "
                "and log-probabilities have an axis for them. See Several seats in docs/algorithm.md."
            )
            raise ConfigError(
                f"act returns {name} of shape {found.shape} and dtype {found.dtype} per environment; rows hold "
                f"shape {expected.shape} and dtype {expected.dtype}. Return exactly that from `act`.{seats if agents else ''}"
            )
