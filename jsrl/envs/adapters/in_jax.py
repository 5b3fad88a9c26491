"""Environments that are pure functions in JAX: one compiled call steps a vector of them. gymnax's, and your own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.envs.base import EnvStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import advice_raised
from jsrl.envs.rows import Rows, vector_seed
from jsrl.envs.spaces import action_layout
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.references.importing import import_target, nearest
from jsrl.types import Array, ArraySpec, EnvSpec, Tree, map_tree, spread, to_environment


class JaxStep(NamedTuple):
    """The result of a step of one environment: its state and observation after it, reward, and whether the episode is over."""

    state: Tree
    observation: Tree
    reward: Array
    terminated: Array
    truncated: Array


class JaxEnv(Protocol):
    """One environment as pure functions, which jax traces once. It never resets itself.

    Attributes:
      spec: observation and action of one environment.
    """

    spec: EnvSpec

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        """Return (state, observation) at the start of an episode; the state is a tree of arrays of fixed shapes."""
        ...

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        """Return the state and what else follows from an action; a Continuous one is within its bounds."""
        ...


class JaxVector:
    """A vector of B equal environments, each with its own state and keys, on the CPU."""

    def __init__(
        self, env: JaxEnv, config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0
    ) -> None:
        self.spec, self.num_envs = replace(env.spec, name=str(config.id)), num_envs
        own_seed = vector_seed(seed, group)
        self._key = jax.device_put(jax.random.key(own_seed), jax.local_devices(backend="cpu")[0])
        self._calls, self._most = 0, config.max_episode_steps
        self._rows = Rows(config, num_envs, [own_seed] * num_envs)
        self._rows.watch_masks(self.spec)
        self._reset = jax.jit(partial(reset_all, env, num_envs))
        self._step = jax.jit(partial(step_all, env), donate_argnums=2)
        self._state: Tree = None

    def reset(self) -> EnvStep:
        self._state, observation = self._call("reset", self._reset, self._key, self._next())
        return self._rows.opened(_as_numpy(self.spec, observation))

    def step(self, action: Array) -> EnvStep:
        rows = self._rows
        chosen = to_environment(self.spec.action, np.asarray(action))
        stepped = self._call("step", self._step, self._key, self._next(), self._state, chosen, rows.first)
        self._state = stepped.state
        reward, terminated, truncated = (np.asarray(x) for x in stepped[2:])
        if self._most is not None:
            truncated = truncated | (rows.lengths() + 1 >= self._most)
        return rows.step(_as_numpy(self.spec, stepped.observation), reward, terminated, truncated)

    def _next(self) -> np.uint32:
        self._calls += 1
        return np.uint32(self._calls)

    def _call(self, where: str, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            what = f"raised {type(error).__name__} in {where}: {error}"
            raise self._rows.fault(0, what, advice_raised(error)) from error

    def close(self) -> None:
        self._state = None


def reset_all(env: JaxEnv, num_envs: int, key: Array, call: Array) -> tuple[Tree, Tree]:
    """Return (state, observation) of all environments at the start; `call` numbers the uses of `key`."""
    return jax.tree.map(_strong, jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, call), num_envs)))


def step_all(env: JaxEnv, key: Array, call: Array, state: Tree, action: Array, first: Array) -> JaxStep:
    """Step all environments; those whose episode ended in the last step begin a new one, and their action is ignored."""
    keys = jax.random.split(jax.random.fold_in(key, call), (2, *first.shape))
    stepped = JaxStep(*jax.vmap(env.step)(keys[0], state, action))
    fresh = jax.vmap(env.reset)(keys[1])

    def pick(new: Array, old: Array) -> Array:
        return _strong(jnp.where(spread(first, new), new, old))

    state, observation = jax.tree.map(pick, fresh, (stepped.state, stepped.observation))
    ends = (jnp.broadcast_to(x, first.shape) for x in stepped[2:])
    return JaxStep(state, observation, *ends)


def _strong(x: Array) -> Array:
    """Return x without a weak type, for which the next call would compile again."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.astype(x.dtype)


def _as_numpy(spec: EnvSpec, observation: Tree) -> Tree:
    return map_tree(lambda leaf, x: np.asarray(x, leaf.dtype), spec.observation, observation)


# -- gymnax -----------------------------------------------------------------------------------------------------------


class Gymnax:
    """An environment of gymnax; its own automatic reset is not used, so that truncations keep their last observation."""

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
        self.spec = EnvSpec(jax.tree.map(lambda x: ArraySpec(x.shape, str(x.dtype)), observation), layout.spec)

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        observation, state = self._env.reset_env(key, self._params)
        return state, observation

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        action = jnp.reshape(action, self._shape)
        observation, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(state, self._params)
        return JaxStep(state, observation, reward, terminated, truncated & ~terminated)


def make_one(config: EnvConfig, factory: Any = None) -> JaxEnv:
    """Return one environment: `gymnax:NAME`, or what the id's class or function (or `factory`) makes."""
    if factory is None and config.id.startswith("gymnax:"):
        return Gymnax(config)
    env: JaxEnv = (factory or import_target(config.id))(**config.kwargs)
    if not isinstance(getattr(env, "spec", None), EnvSpec):
        raise ConfigError(
            f"{config.id!r} with env.backend=jax made {type(env).__name__}; expected an environment with spec, reset(key) "
            "and step(key, state, action): see jsrl.extend.JaxEnv"
        )
    return env


def make_jax(
    config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0, factory: Any = None
) -> JaxVector:
    """Return a vector of equal environments, see make_one."""
    return JaxVector(make_one(config, factory), config, num_envs, seed, group)
