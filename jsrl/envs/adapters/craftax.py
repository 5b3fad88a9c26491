"""Environments of Craftax in JAX: ids `craftax:Craftax-Symbolic-v1`, `craftax:Craftax-Classic-Symbolic-v1`, and with `Pixels`.

kwargs are their parameters, such as `max_timesteps`. The variants without an automatic reset are used.
"""

from __future__ import annotations

import jax

from jsrl.envs.adapters.in_jax import JaxStep, spec_seen
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.types import Array, Discrete, EnvSpec, Tree


class Craftax:
    """One environment of Craftax."""

    envs_per_reset = 16  # a reset makes a world

    def __init__(self, config: EnvConfig) -> None:
        craftax = import_extra("craftax.craftax_env", "craftax", f"environment {config.id!r}")
        name = config.id.partition(":")[2]
        try:
            self._env = craftax.make_craftax_env_from_name(name, auto_reset=False)
        except ValueError:
            raise ConfigError(
                f"Craftax has no environment {name!r}; it has Craftax-Symbolic-v1, Craftax-Pixels-v1, "
                "Craftax-Classic-Symbolic-v1 and Craftax-Classic-Pixels-v1"
            ) from None
        params = self._env.default_params
        if unknown := sorted(set(config.kwargs) - set(vars(params))):
            raise ConfigError(f"env.kwargs has {unknown[0]!r}; the parameters of {name} are {', '.join(vars(params))}.")
        self._params = params.replace(**config.kwargs)
        observation, _ = jax.eval_shape(self._env.reset_env, jax.random.key(0), self._params)
        self.spec = EnvSpec(spec_seen(observation), Discrete(self._env.num_actions))

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        observation, state = self._env.reset_env(key, self._params)
        return state, observation

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        observation, state, reward, over, _ = self._env.step_env(key, state, action, self._params)
        terminated = self._env.is_terminal(state.replace(timestep=0), self._params)  # without the limit of steps
        return JaxStep(state, observation, reward, terminated, over & ~terminated)
