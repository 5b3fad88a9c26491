"""Environments that are pure functions in JAX: one compiled call steps a vector of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.config import JAX_SUITES, EnvConfig
from jsrl.envs.faults import advice_raised
from jsrl.envs.games.rows import VectorisedGame
from jsrl.envs.rows import Rows, vector_seed
from jsrl.envs.spaces import MASK_KEY
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.references.importing import import_target
from jsrl.types import Array, ArraySpec, EnvSpec, GameSpec, Tree, map_tree, spread, to_environment


class JaxStep(NamedTuple):
    """The result of a step of one environment: its state and observation after it, reward, and whether the episode is over."""

    state: Tree
    observation: Tree
    reward: Array
    terminated: Array
    truncated: Array


class JaxEnv(Protocol):
    """One environment as pure functions, which jax traces once. It never resets itself.

    In an environment with seats, observations, actions and rewards are dicts, seat -> its own; all seats act in each step, and
    an episode ends for all of them.

    Attributes:
      spec: observation and action of one environment, or its seats.
      envs_per_reset: optional. A vector of B computes B / this resets in each step, for the environments that begin an
        episode; those beyond that number share a start. More than 1 (the default) where `reset` costs more than `step`.
    """

    spec: EnvSpec | GameSpec

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        """Return (state, observation) at the start of an episode; the state is a tree of arrays of fixed shapes."""
        ...

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        """Return the state and what else follows from an action; a Continuous one is within its bounds."""
        ...


class Compiled:
    """An environment with its functions for many, which are compiled once for each number of them."""

    def __init__(self, env: JaxEnv) -> None:
        self.spec = env.spec
        self.reset = jax.jit(partial(reset_all, env), static_argnums=0)
        self.step = jax.jit(partial(step_all, env), donate_argnums=2)


class Envs:
    """B equal environments, each with its own state and keys, on the CPU; `fault` makes the error of one that raised."""

    def __init__(
        self, functions: Compiled, num_envs: int, seed: int, fault: Callable[[int, str, str], EnvironmentFault]
    ) -> None:
        self._functions, self._num_envs, self._calls, self._fault = functions, num_envs, 0, fault
        self._key = jax.device_put(jax.random.key(seed), jax.local_devices(backend="cpu")[0])
        self._state: Tree = None

    def reset(self) -> Tree:
        """Return the observations at the start of all episodes."""
        self._state, observation = self._call("reset", partial(self._functions.reset, self._num_envs))
        return observation

    def step(self, action: Tree, first: np.ndarray) -> JaxStep:
        """Step all; `first`: see step_all."""
        stepped = self._call("step", self._functions.step, self._state, action, first)
        self._state = stepped.state
        return stepped

    def _call(self, where: str, function: Any, *args: Any) -> Any:
        self._calls += 1
        try:
            return function(self._key, np.uint32(self._calls), *args)
        except Exception as error:
            what = f"raised {type(error).__name__} in {where}: {error}"
            raise self._fault(0, what, advice_raised(error)) from error

    def close(self) -> None:
        self._state = None


class JaxVector:
    """A vector of B equal environments."""

    def __init__(
        self, functions: Compiled, config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0
    ) -> None:
        assert isinstance(functions.spec, EnvSpec)
        self.spec, self.num_envs = replace(functions.spec, name=str(config.id)), num_envs
        self._most, own_seed = config.max_episode_steps, vector_seed(seed, group)
        self.another = partial(type(self), functions, config)  # (num_envs, seed): a vector that compiles nothing again
        self._rows = Rows(config, num_envs, [own_seed] * num_envs)
        self._rows.watch_masks(self.spec)
        self._envs = Envs(functions, num_envs, own_seed, self._rows.fault)

    def reset(self) -> EnvStep:
        return self._rows.opened(_as_numpy(self.spec, self._envs.reset()))

    def step(self, action: Array) -> EnvStep:
        rows = self._rows
        stepped = self._envs.step(to_environment(self.spec.action, np.asarray(action)), rows.first)
        reward, terminated, truncated = (np.asarray(x) for x in stepped[2:])
        if self._most is not None:
            truncated = truncated | (rows.lengths() + 1 >= self._most)
        return rows.step(_as_numpy(self.spec, stepped.observation), reward, terminated, truncated)

    def close(self) -> None:
        self._envs.close()


class JaxGame(VectorisedGame):
    """A vector of B equal environments with seats."""

    def __init__(
        self,
        functions: Compiled,
        config: EnvConfig,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        assert isinstance(functions.spec, GameSpec)
        super().__init__(replace(functions.spec, name=str(config.id)), config, num_envs, seed, group, groups)
        self._envs = Envs(functions, num_envs, vector_seed(seed, group), self._rows.fault)
        self.another = partial(type(self), functions, config)  # (num_envs, seed)

    def reset(self) -> GameStep:
        return self._rows.opened(self._seen(self._envs.reset()))

    def step(self, action: Mapping[str, Array]) -> GameStep:
        chosen = zip(self.spec.seats, self._groups.actions(action), strict=True)
        actions = {seat.name: to_environment(seat.action, own) for seat, own in chosen}
        stepped = self._envs.step(actions, self._rows.first)
        reward = np.stack([np.asarray(stepped.reward[name]) for name in self.spec.names], axis=1)
        terminated, truncated = (np.broadcast_to(np.asarray(x)[:, None], reward.shape) for x in stepped[3:])
        return self._rows.step(self._seen(stepped.observation), reward, terminated, truncated)

    def _seen(self, observation: Mapping[str, Tree]) -> dict[str, Tree]:
        return self._groups.stacked([_as_numpy(seat, observation[seat.name]) for seat in self.spec.seats])

    def close(self) -> None:
        self._envs.close()


class AllSeats:
    """An environment with seats as the one policy that plays all of them sees it: arrays have a leading axis of seats."""

    def __init__(self, env: JaxEnv) -> None:
        assert isinstance(env.spec, GameSpec)
        self._env, self._names = env, env.spec.names
        self.spec: EnvSpec | GameSpec = env.spec.view(self._names)
        self.envs_per_reset = getattr(env, "envs_per_reset", 1)

    def reset(self, key: Array) -> tuple[Tree, Tree]:
        state, observation = self._env.reset(key)
        return state, self._stacked(observation)

    def step(self, key: Array, state: Tree, action: Array) -> JaxStep:
        stepped = JaxStep(*self._env.step(key, state, dict(zip(self._names, action, strict=True))))
        observation, reward = self._stacked(stepped.observation), self._stacked(stepped.reward)
        return stepped._replace(observation=observation, reward=reward)

    def _stacked(self, seats: Mapping[str, Tree]) -> Tree:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(seats[name] for name in self._names))


def reset_all(env: JaxEnv, num_envs: int, key: Array, call: Array) -> tuple[Tree, Tree]:
    """Return (state, observation) of all environments at the start; `call` numbers the uses of `key`."""
    return jax.tree.map(_strong, jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, call), num_envs)))


def step_all(env: JaxEnv, key: Array, call: Array, state: Tree, action: Array, first: Array) -> JaxStep:
    """Step all environments; those whose episode ended in the last step begin a new one, and their action is ignored."""
    keys = jax.random.split(jax.random.fold_in(key, call), (2, *first.shape))
    stepped = JaxStep(*jax.vmap(env.step)(keys[0], state, action))
    fresh = _starts(env, keys[1], first)

    def pick(new: Array, old: Array) -> Array:
        return _strong(jnp.where(spread(first, new), new, old))

    state, observation = jax.tree.map(pick, fresh, (stepped.state, stepped.observation))
    return stepped._replace(state=state, observation=observation)


def _starts(env: JaxEnv, keys: Array, first: Array) -> tuple[Tree, Tree]:
    """Return (state, observation) of starts, of which those at `first` count."""
    shared = getattr(env, "envs_per_reset", 1)
    if shared == 1:
        return jax.vmap(env.reset)(keys)
    count = -(-len(keys) // shared)
    which = (jnp.cumsum(first) - 1) % count
    return jax.tree.map(lambda x: x[which], jax.vmap(env.reset)(keys[:count]))


def _strong(x: Array) -> Array:
    """Return x without a weak type, for which the next call would compile again."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.astype(x.dtype)


def _as_numpy(spec: Any, observation: Tree) -> Tree:
    return map_tree(lambda leaf, x: np.asarray(x, leaf.dtype), spec.observation, observation)


def spec_seen(observation: Tree) -> Tree:
    """Return the schema of a suite's observation, given as arrays or their shapes: numbers become float32."""

    def spec(path: tuple[Any, ...], x: Array) -> ArraySpec:
        if path and getattr(path[-1], "key", None) == MASK_KEY:
            return ArraySpec(x.shape, "uint8")
        return ArraySpec(x.shape, "bool" if x.dtype == bool else "float32")

    return jax.tree_util.tree_map_with_path(spec, observation)


def make_one(config: EnvConfig, factory: Any = None) -> JaxEnv:
    """Return one environment: of a suite (`gymnax:NAME`), or what the id's class or function (or `factory`) makes."""
    scheme = "" if factory is not None else config.id.partition(":")[0]
    if scheme in JAX_SUITES:
        return import_target(JAX_SUITES[scheme])(config)
    env: JaxEnv = (factory or import_target(config.id))(**config.kwargs)
    if not isinstance(getattr(env, "spec", None), EnvSpec | GameSpec):
        raise ConfigError(
            f"{config.id!r} with env.backend=jax made {type(env).__name__}; expected an environment with spec, reset(key) "
            "and step(key, state, action): see jsrl.extend.JaxEnv"
        )
    check_shapes(env, config.id)
    return env


def check_shapes(env: JaxEnv, name: str) -> None:
    """Check what reset and step return, from shapes alone: nothing is computed or compiled.

    Raises:
      EnvironmentFault: `step` changes the state's tree, shapes or dtypes, an observation is not the spec's, or a reward or end
        is not one number; or one of them raised.
    """
    spec = env.spec

    def of_seats(read: Callable[[Any], Any]) -> Any:
        return {seat.name: read(seat) for seat in spec.seats} if isinstance(spec, GameSpec) else read(spec)

    def call(where: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return jax.eval_shape(function, *args)
        except Exception as error:
            what = f"environment {name!r} raised {type(error).__name__} in {where}: {error}"
            raise EnvironmentFault(f"{what}. {advice_raised(error)}") from error

    def compare(given: Tree, wanted: Tree, what: str, like: str, *, whole: bool = False) -> None:
        """Compare leaves; whole: also dtypes, and leaves that are not wanted."""
        found, expected = _leaves(given), _leaves(wanted)
        for leaf in sorted({*expected, *(found if whole else ())}):
            one, other = found.get(leaf), expected.get(leaf)
            if one is None or other is None or one.shape != other.shape or (whole and one.dtype != other.dtype):
                raise EnvironmentFault(
                    f"environment {name!r}: {what}{leaf} is {_shown(one)}; expected {_shown(other)}, {like}. Convert it, for "
                    "example with .astype or .reshape, or correct the other"
                )

    key = jax.eval_shape(jax.random.key, 0)
    state, first = call("reset", env.reset, key)
    action = of_seats(lambda seat: _struct(seat.action.array))
    stepped = call("step", lambda *args: JaxStep(*env.step(*args)), key, state, action)
    compare(stepped.state, state, "the state of step", "as in the state of reset", whole=True)
    observation = of_seats(lambda seat: map_tree(_struct, seat.observation))
    for where, seen in (("reset", first), ("step", stepped.observation)):
        compare(seen, observation, f"the observation of {where}", "as its spec says")
    number, flag = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), bool)
    compare(stepped.reward, of_seats(lambda _: number), "the reward of step", "one number")
    for end in ("terminated", "truncated"):
        compare(getattr(stepped, end), flag, f"{end} of step", "one flag")


def _struct(leaf: ArraySpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _leaves(tree: Tree) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _shown(leaf: Any) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}"


def make_single(config: EnvConfig, factory: Any = None) -> JaxEnv:
    """Return one environment without seats, or with all of them for one policy; see make_one."""
    env = make_one(config, factory)
    return AllSeats(env) if isinstance(env.spec, GameSpec) else env


def make_jax(
    config: EnvConfig,
    num_envs: int,
    seed: int | tuple[int, ...],
    group: int = 0,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    factory: Any = None,
) -> JaxVector | JaxGame:
    """Return a vector of equal environments, see make_one."""
    functions = Compiled(make_one(config, factory))
    if isinstance(functions.spec, GameSpec):
        return JaxGame(functions, config, num_envs, seed, group, groups)
    return JaxVector(functions, config, num_envs, seed, group)
