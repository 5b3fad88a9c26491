"""Environments of Brax, physics in JAX: ids `brax:ant`, `brax:hopper`.

kwargs: `episode_length` (1,000 steps, a truncation) and `action_repeat` (1), as in Brax's own training; all others are the
environment's, such as `backend`. Its automatic reset, which returns to the first state, is not used.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jsrl.envs.adapters.in_jax import JaxStep, spec_seen
from jsrl.envs.config import EnvConfig
from jsrl.envs.spaces import continuous_spec
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.types import Array, EnvSpec, Tree


class Brax:
    """One environment of Brax; the state holds the number of steps so far."""

    envs_per_reset = 16  # its episodes are long, and a reset computes the whole pipeline

    def __init__(self, config: EnvConfig) -> None:
        envs = import_extra("brax.envs", "brax", f"environment {config.id!r}")
        name, kwargs = config.id.partition(":")[2], dict(config.kwargs)
        self._limit, self._repeat = kwargs.pop("episode_length", 1_000), kwargs.pop("action_repeat", 1)
        try:
            self._env = envs.get_environment(name, **kwargs)
        except KeyError:
            raise ConfigError(f"Brax has no environment {name!r}; it has ant, halfcheetah, hopper and others") from None
        action = continuous_spec(
            (-1.0,) * self._env.action_size, (1.0,) * self._env.action_size, config.action_transform
        )
        self.spec = EnvSpec(spec_seen(jax.eval_shape(self._env.reset, jax.random.key(0)).obs), action)

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        state = self._env.reset(key)
        return (state, jnp.int32(0)), state.obs

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        def once(before: Tree, _: None) -> tuple[Tree, Array]:
            after = self._env.step(before, action)
            return after, after.reward

        after, rewards = jax.lax.scan(once, state[0], length=self._repeat)
        time = state[1] + self._repeat
        over = after.done > 0
        return JaxStep((after, time), after.obs, rewards.sum(), over, (time >= self._limit) & ~over)
