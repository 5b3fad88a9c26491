"""Environments of JaxMARL, several agents in JAX: ids `jaxmarl:MPE_simple_spread_v3`, `jaxmarl:overcooked`, `jaxmarl:SMAX`.

kwargs are the environment's; `layout` of overcooked is a name, such as cramped_room. `shaping: C` adds C times the
environment's `shaped_reward` to its reward. Agents whose names differ in their number only are a side. A unit of SMAX that
has died may only stop, and stays until the episode ends.

JaxMARL does not tell truncation from termination: an end at the limit of steps is a truncation.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

import jax
import numpy as np

from jsrl.envs.adapters.in_jax import JaxStep, spec_seen
from jsrl.envs.config import EnvConfig
from jsrl.envs.spaces import MASK_KEY, continuous_spec
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.references.importing import nearest
from jsrl.types import ActionSpec, Array, Discrete, GameSpec, MultiDiscrete, Seat, Tree


class JaxMARL:
    """One environment of JaxMARL; all of its agents act in every step."""

    def __init__(self, config: EnvConfig) -> None:
        with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):  # importing it sets both
            jaxmarl = import_extra("jaxmarl", "jaxmarl", f"environment {config.id!r}")
        name, kwargs = config.id.partition(":")[2], dict(config.kwargs)
        if name not in jaxmarl.registered_envs:
            raise ConfigError(f"JaxMARL has no environment {name!r}{nearest(name, jaxmarl.registered_envs)}")
        self._shaping = kwargs.pop("shaping", 0.0)
        if name == "overcooked" and "layout" in kwargs:
            layouts = import_extra("jaxmarl.environments.overcooked", "jaxmarl", config.id).overcooked_layouts
            if kwargs["layout"] not in layouts:
                raise ConfigError(f"overcooked has no layout {kwargs['layout']!r}{nearest(kwargs['layout'], layouts)}")
            kwargs["layout"] = layouts[kwargs["layout"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # overcooked recommends its second version
            self._env = jaxmarl.make(name, **kwargs)
        self._limit = getattr(self._env, "max_steps", np.inf)
        _, seen = jax.eval_shape(self.reset, jax.random.key(0))
        spaces = {agent: self._env.action_space(agent) for agent in self._env.agents}
        self.spec = GameSpec(
            tuple(
                Seat(agent, spec_seen(seen[agent]), _action(space, config.action_transform), agent.rpartition("_")[0])
                for agent, space in spaces.items()
            )
        )

    def reset(self, key: Array) -> tuple[Tree, dict[str, Tree]]:
        observation, state = self._env.reset(key)
        return state, self._seen(state, observation)

    def step(self, key: Array, state: Any, action: dict[str, Array]) -> JaxStep:
        observation, state, reward, over, info = self._env.step_env(key, state, action)
        shaped = info["shaped_reward"] if self._shaping else dict.fromkeys(action, 0.0)
        reward = {agent: reward[agent] + self._shaping * shaped[agent] for agent in action}
        late = getattr(state, "state", state).step >= self._limit  # SMAX has its opponent's state beside its own
        return JaxStep(state, self._seen(state, observation), reward, over["__all__"] & ~late, over["__all__"] & late)

    def _seen(self, state: Tree, observation: dict[str, Array]) -> dict[str, Tree]:
        """Return what the agents see; of SMAX without the global state."""
        try:
            masks = self._env.get_avail_actions(state)
        except NotImplementedError:
            return {agent: observation[agent] for agent in self._env.agents}
        return {agent: {"observation": observation[agent], MASK_KEY: masks[agent]} for agent in self._env.agents}


def _action(space: Any, transform: Any) -> ActionSpec:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(int(n) for n in space.num_categories))
    low, high = (np.broadcast_to(bound, space.shape).ravel() for bound in (space.low, space.high))
    return continuous_spec(tuple(low.tolist()), tuple(high.tolist()), transform)
