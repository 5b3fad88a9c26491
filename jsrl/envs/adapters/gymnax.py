"""Environments of gymnax in JAX: ids `gymnax:CartPole-v1`, `gymnax:Breakout-MinAtar`; kwargs are their parameters.

Their automatic reset is not used, so that truncations keep their last observation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jsrl.envs.adapters.in_jax import JaxStep, spec_seen
from jsrl.envs.config import EnvConfig
from jsrl.envs.spaces import action_layout
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.references.importing import nearest
from jsrl.types import Array, EnvSpec, Tree


class Gymnax:
    """One environment of gymnax."""

    def __init__(self, config: EnvConfig) -> None:
        modules = ("gymnax", "gymnax.environments.spaces")
        gymnax, spaces = (import_extra(module, "gymnax", f"environment {config.id!r}") for module in modules)
        name = config.id.partition(":")[2]
        if name not in gymnax.registered_envs:
            raise ConfigError(f"gymnax has no environment {name!r}{nearest(name, gymnax.registered_envs)}")
        self._env, params = gymnax.make(name)
        unknown = sorted(set(config.kwargs) - set(vars(params)))
        if unknown:
            raise ConfigError(f"env.kwargs has {unknown[0]!r}; the parameters of {name} are {', '.join(vars(params))}.")
        self._params = params.replace(**config.kwargs)
        space = spaces.gymnax_space_to_gym_space(self._env.action_space(self._params))
        self._shape, layout = space.shape, action_layout(space, config.id, config.action_transform)
        observation, _ = jax.eval_shape(self._env.reset_env, jax.random.key(0), self._params)
        self.spec = EnvSpec(spec_seen(observation), layout.spec)

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        observation, state = self._env.reset_env(key, self._params)
        return state, observation

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        action = jnp.reshape(action, self._shape)
        observation, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(state, self._params)
        return JaxStep(state, observation, reward, terminated, truncated & ~terminated)
