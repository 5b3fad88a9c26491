"""Builds the agent from an experiment; errors in the agent's own code are reported as such."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from jsrl.errors import FOUND_BY_CHECK, AgentFault, ConfigError, JsrlError, described, own_traceback
from jsrl.experiment import AgentReference, Experiment
from jsrl.fields import filled
from jsrl.references.importing import MAIN_MODULES, import_target
from jsrl.types import GameSpec, Tree, type_names


def resolved_agent(experiment: Experiment) -> Any:
    """Return the agent's config with the experiment's values filled in: `total_updates` of schedules, `target_period`."""
    agent, values = experiment.agent, dict[str, int]()
    if getattr(agent, "total_updates", 0) is None:
        values["total_updates"] = experiment.total_updates
    if (env_steps := getattr(agent, "target_env_steps", None)) is not None:
        # no env step passes between the updates of one batch
        values["target_period"] = max(experiment.updates_per_batch, experiment.updates_in(env_steps))
    return filled(agent, **values) if values and dataclasses.is_dataclass(agent) else agent


def compute_in_caller() -> None:
    """Run jax's computations on CPU in the calling thread; has no effect once jax has computed something.

    By default jax hands each call to another thread and the caller waits for it, which takes longer than a small
    network takes to act, and far longer when cores are busy.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def build_agent(agent: Any, spec: Tree) -> Any:
    """Build the agent that a config or AgentReference describes, for an environment's spec.

    Of an environment with several seats it plays all. Errors in its functions, also while jax traces them, are AgentFaults
    that name the function.

    Raises:
      ConfigError: the factory cannot be found, or returned no Agent. AgentFault: it raised.
    """
    if isinstance(spec, GameSpec):
        spec = spec.view(spec.names)
    built = _call_factory(agent, spec)
    if not all(hasattr(built, name) for name in ("init", "initial_core", "act", "update")):
        raise ConfigError(
            f"the agent's factory {agent_name(agent)} returned {type_names(built)}, expected an Agent (jsrl.agents.base); "
            "end it with `return Agent(init, initial_core, act, update)`."
        )
    return _with_faults(built, spec) if hasattr(built, "_replace") else built


def _with_faults(agent: Any, spec: Tree) -> Any:
    """Return the agent whose functions raise AgentFault for each of their errors."""

    def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with agent_faults(f"{name}, on environment {spec.name!r},"):
                return function(*args, **kwargs)

        return call

    names = ("init", "initial_core", "act", "update")
    functions = {name: guarded(name, getattr(agent, name)) for name in names}
    if (split := getattr(agent, "split", None)) is not None:
        sides = {side: guarded(f"split.{side}", getattr(split, side)) for side in ("policy", "critic")}
        functions["split"] = split._replace(**sides)
    return agent._replace(**functions)


def _call_factory(agent: Any, spec: Tree) -> Any:
    compute_in_caller()
    is_reference = isinstance(agent, AgentReference)
    holder = agent if is_reference else type(agent)  # as of a class, a method or function is not bound to the config
    factory = getattr(holder, "factory", None)
    if factory is None:
        raise ConfigError(
            f"agent is {agent!r}, which is neither a config such as PPOConfig nor an AgentReference; "
            "wrap your own factory(spec, **kwargs) as AgentReference(factory, kwargs)."
        )
    if isinstance(factory, str) and factory.startswith(MAIN_MODULES):
        advice = "" if is_reference else ", or write it as a method: `def factory(self, spec): ... return Agent(...)`"
        raise ConfigError(
            f"{type(agent).__name__}.factory is {factory!r}, which no other process can import; give the function "
            f"itself{advice}."
        )
    factory = import_target(factory) if isinstance(factory, str) else factory
    with agent_faults(f"factory {agent_name(agent)}"):
        return factory(spec, **agent.kwargs) if is_reference else factory(agent, spec)


def agent_name(agent: Any) -> str:
    factory = agent.factory if isinstance(agent, AgentReference) else getattr(type(agent), "factory", agent)
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", repr(factory))


def check_split(agent: Any, name: str) -> None:
    """Refuse an agent without separate updates of policy and critics."""
    if agent.split is None:
        raise ConfigError(
            f"learner.split is actor-critic, but {name} has no updates of policy and critics apart (Agent.split): sac, td3 "
            "and ddpg have. PPO and IMPALA update both in one gradient of one batch; spread that with learner.num_devices."
        )


@contextlib.contextmanager
def agent_faults(where: str) -> Iterator[None]:
    """Turn an exception of the agent's own code inside the `with` block into an AgentFault that names the place.

    Frames of jax and other packages are left out of its traceback.
    """
    try:
        yield
    except JsrlError:
        raise
    except Exception as error:
        fault = AgentFault(f"the agent's {where} raised {described(error)}.{FOUND_BY_CHECK}")
        raise fault from error.with_traceback(own_traceback(error))
