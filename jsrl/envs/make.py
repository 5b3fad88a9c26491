"""From a config to a vector environment: chooses the adapter of an id, and draws tasks."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import gymnasium
import numpy as np

from jsrl.envs.base import Episode, VectorEnv, VectorGame
from jsrl.envs.config import JAX_SUITES, SUITES, AtariConfig, EnvConfig, main_target, split_module, split_wrapper
from jsrl.envs.faults import close_quietly, in_making, unfit
from jsrl.envs.rows import slot_seeds
from jsrl.errors import ConfigError, JsrlError, MissingExtra
from jsrl.extras import import_extra, install_command
from jsrl.references.importing import import_named, import_target, nearest, shown_target
from jsrl.types import EnvSpec, GameSpec

Seed = int | tuple[int, ...]
Groups = Mapping[str, tuple[str, ...]] | None

# start of ids, the module that registers them, the extra that installs it
_REGISTERED_BY = (
    (("ALE/",), "ale_py", "atari"),
    (("MiniGrid-", "BabyAI-"), "minigrid", "minigrid"),
    (("Vizdoom",), "vizdoom.gymnasium_wrapper", "vizdoom"),
)
TYPO = 0.8  # similarity of names from which a wrong one is taken for a typing error
GYMNASIUM_GAME = (
    ". The preprocessing of env.atari (grey stacked frames, no-ops, FIRE) does not apply here: these are Gymnasium's "
    "environments, with sticky actions of probability 0.25 unless env.kwargs sets repeat_action_probability"
)
# makers of vectors, imported where an environment needs one
ADAPTERS = {
    "own": "jsrl.envs.contract:CheckedVector",
    "watched": "jsrl.envs.contract:WatchedBox",
    "single": "jsrl.envs.sync:SyncVectorEnv",
    "vector": "jsrl.envs.vector:GymVectorEnv",
    "repaired": "jsrl.envs.sync:repaired",
    "probe": "jsrl.games.probes:make_probe",
    "envpool": "jsrl.envs.adapters.envpool:make_pool",
    "atari": "jsrl.envs.adapters.atari:make_atari",
    "jax": "jsrl.envs.adapters.in_jax:make_jax",
}
# names of the base classes of PettingZoo's environments, also of those without `possible_agents`
PETTINGZOO_BASES = ("ParallelEnv", "AECEnv")
OTHER_JAX_SUITES = ("pgx", "jumanji", "navix", "playground")


def make_game(
    config: EnvConfig,
    num_envs: int,
    seed: Seed,
    *,
    group: int = 0,
    groups: Groups = None,
    warn: Callable[[str], None] | None = None,
) -> VectorGame:
    """Build a vector of `num_envs` environments with seats.

    Args:
      groups: group of seats -> their names, in stacking order; None: each seat is a group.
      config, num_envs, seed, group, warn: as in `make`.

    Raises:
      ConfigError: the environment has no seats, or as in `make`.
    """
    env = make(config, num_envs, seed, group=group, groups=groups, warn=warn)
    if not isinstance(env.spec, GameSpec):
        raise ConfigError(
            f"environment {config.id!r} has one agent, so it has no seats for several policies; give one `agent` instead"
        )
    return cast(VectorGame, env)


def make(
    config: EnvConfig,
    num_envs: int,
    seed: Seed,
    *,
    group: int = 0,
    groups: Groups = None,
    warn: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> VectorEnv:
    """Build a vector of `num_envs` environments.

    Args:
      config: which environment. num_envs: B, slots of this vector (one group).
      seed: the experiment's; different (seed, group, slot) give different episodes, equal ones the same run.
      group: index of this group of environments.
      groups: see `make_game`; ignored for environments with one agent.
      warn: called with a line of text whenever a faulty environment is rebuilt (`on_fault` restart-env).
      note: called with a line of text at the first observation outside its Box, if that is among the first 1,000 steps.

    Raises:
      ConfigError: unknown id, unsupported space, or options that do not fit together.
      MissingExtra: the suite is not installed.
      EnvironmentFault: the environment raised during construction.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; give at least 1")

    def build(fresh: Seed) -> VectorEnv:
        return _make(config, num_envs, fresh, group, groups)

    env = build(seed) if config.on_fault != "restart-env" else adapter("repaired")(build, config, seed, warn)
    if note is not None and any(np.isfinite(ends).any() for ends in getattr(env, "box_bounds", {}).values()):
        env = adapter("watched")(env, note)
    return cast(VectorEnv, DrawnTasks(env, config, seed, group)) if config.tasks else env


def _make(config: EnvConfig, num_envs: int, seed: Seed, group: int, groups: Groups = None) -> VectorEnv:
    factory = None
    if callable(config.id):
        factory, config = config.id, replace(config, id=main_target(config.id))
    if config.in_jax:
        _refuse_wrappers(config)
        return cast(VectorEnv, _built(config, lambda: adapter("jax")(config, num_envs, seed, group, groups, factory)))
    if factory is not None:
        return _from_factory(config, num_envs, seed, group, factory, groups)
    scheme = config.id.partition(":")[0]
    if scheme.lower() in OTHER_JAX_SUITES:
        raise ConfigError(
            f"{config.id!r}: of the suites in JAX, {', '.join(JAX_SUITES)} have adapters; write this environment's functions "
            "as a jsrl.extend.JaxEnv of about 30 lines (docs/environments.md), with env.backend=jax"
        )
    if scheme == "probe":
        _refuse_wrappers(config)
        return adapter(scheme)(config, num_envs, seed, group)
    if scheme in SUITES:
        _refuse_wrappers(config)
        with _naming_kwargs(config):
            return _suite(config)(num_envs, seed, group, groups)
    if scheme == "envpool":
        _refuse_wrappers(config)
        return adapter("envpool")(config, num_envs, seed, group)
    config = without_module(config)
    if config.id.startswith("ALE/") and config.backend in ("auto", "native") and not config.wrappers:
        return adapter("atari")(config, num_envs, seed, group)
    if ":" in config.id:
        return _from_factory(config, num_envs, seed, group, groups=groups)
    return _from_registry(config, num_envs, seed, group)


def _suite(config: EnvConfig) -> Callable[[int, Seed, int, Groups], VectorEnv]:
    """Return the maker of vectors of one environment of a suite; what it needs is imported then."""
    return import_target(SUITES[config.id.partition(":")[0]])(config)


@contextlib.contextmanager
def _naming_kwargs(config: EnvConfig) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:  # an option of another name or type
        raise unfit(config.id, config.kwargs, error) from error


def adapter(name: str) -> Callable[..., VectorEnv]:
    """Return a maker of vectors."""
    return cast(Callable[..., VectorEnv], import_target(ADAPTERS[name]))


def is_pettingzoo(factory: Any) -> bool:
    """Return whether a factory is a class of environments in one of PettingZoo's forms."""
    if not inspect.isclass(factory):
        return False
    return hasattr(factory, "possible_agents") or any(base.__name__ in PETTINGZOO_BASES for base in factory.__mro__)


def make_spec(config: EnvConfig) -> EnvSpec | GameSpec:
    """Return the environment's spec; makes one slot and closes it again."""
    env = make(config, 1, 0)
    try:
        return env.spec
    finally:
        env.close()


def import_modules(config: EnvConfig) -> None:
    """Import what `make` needs for an environment, and create nothing: for a process that will fork."""
    for target, _ in map(split_wrapper, config.wrappers):
        import_target(target)
    scheme = config.id.partition(":")[0]
    if scheme == "probe":
        adapter(scheme)
        return
    if scheme in SUITES:
        with _naming_kwargs(config):
            _suite(config)
        return
    if scheme == "envpool":
        import_module("jsrl.envs.adapters.envpool")
        return
    config = without_module(config)
    if ":" in config.id:
        import_target(config.id)
        adapter("single")
        return
    register_suites(config.id)
    for name in ("single", "vector", *(["atari"] if config.id.startswith("ALE/") else [])):
        adapter(name)
    spec = gymnasium.registry.get(config.id)
    if spec is None:
        raise _unknown_id(config.id)
    for entry in (spec.entry_point, spec.vector_entry_point):
        if isinstance(entry, str):
            _built(config, partial(import_module, entry.partition(":")[0]))


def _from_registry(config: EnvConfig, num_envs: int, seed: Seed, group: int) -> VectorEnv:
    register_suites(config.id)
    spec = gymnasium.registry.get(config.id)
    if spec is None:
        raise _unknown_id(config.id)
    is_game = config.id.startswith("ALE/")
    if is_game:
        _refuse_atari_options(config)
    has_vector = spec.vector_entry_point is not None and not config.id.startswith("phys2d/")
    if config.backend == "native" and (not has_vector or config.wrappers):
        why = "wrappers rule it out" if has_vector else "it has no vector entry point"
        raise ConfigError(f"environment {config.id!r} with backend 'native': {why}; use backend 'auto' or 'sync'")
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if has_vector and not config.wrappers and config.backend != "sync":
        vector = _built(
            config,
            lambda: gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **kwargs),
        )
        return adapter("vector")(_of_size(num_envs, vector, config), config, seed, group)
    single = _wrapped(config, lambda: gymnasium.make(config.id, disable_env_checker=True, **kwargs))
    env = adapter("single")(lambda: _built(config, single), config, num_envs, seed, group)
    if has_vector and config.backend == "auto" and config.wrappers:
        note = (
            "it has a vectorised implementation, which cannot be wrapped: the environments are stepped one after another, "
            f"several times slower{GYMNASIUM_GAME if is_game else ''}"
        )
        env.spec = replace(env.spec, notes=(*env.spec.notes, note))
    return env


def _refuse_atari_options(config: EnvConfig) -> None:
    """Refuse options of env.atari for Gymnasium's single Atari environments, which do not read them."""
    given, usual = vars(config.atari), vars(AtariConfig())
    if changed := [f"env.atari.{name}={value!r}" for name, value in given.items() if value != usual[name]]:
        cause = "env.wrappers" if config.wrappers else f"env.backend={config.backend}"
        raise ConfigError(
            f"environment {config.id!r}: {', '.join(changed)} would have no effect, because {cause} selects Gymnasium's "
            "single environments, which do not read env.atari. Leave that out, or set the game's options as env.kwargs (such "
            "as repeat_action_probability, frameskip) and add wrappers for the preprocessing"
        )


def _from_factory(
    config: EnvConfig,
    num_envs: int,
    seed: Seed,
    group: int,
    factory: Callable[..., Any] | None = None,
    groups: Groups = None,
) -> VectorEnv:
    factory = factory or import_target(config.id)
    if is_pettingzoo(factory):
        _refuse_wrappers(config)
        return import_target(SUITES["pettingzoo"])(config, factory)(num_envs, seed, group, groups)
    if not callable(factory):
        raise ConfigError(f"{config.id!r} is {type(factory).__name__}; expected a function or class to call")
    try:
        parameters = set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        parameters = set()
    if "num_envs" not in parameters:
        single = _wrapped(config, lambda: _single(config, factory))
        return adapter("single")(lambda: _built(config, single), config, num_envs, seed, group)
    given: dict[str, Any] = {"num_envs": num_envs, "seed": seed, "group": group, "groups": groups}
    if config.max_episode_steps is not None:
        if "max_episode_steps" not in parameters:
            raise ConfigError(
                f"{config.id!r} makes its slots itself and has no parameter `max_episode_steps`; give it one, or leave "
                "env.max_episode_steps out"
            )
        given["max_episode_steps"] = config.max_episode_steps
    vector = _built(config, lambda: factory(**{k: v for k, v in given.items() if k in parameters}, **config.kwargs))
    _refuse_wrappers(config)
    if isinstance(vector, gymnasium.vector.VectorEnv):
        return adapter("vector")(_of_size(num_envs, vector, config), config, seed, group)
    if all(hasattr(vector, name) for name in ("spec", "num_envs", "reset", "step", "close")):
        return adapter("own")(_of_size(num_envs, vector, config), config)
    raise ConfigError(
        f"{config.id!r} has a parameter `num_envs` but returned {type(vector).__name__}; expected a "
        "gymnasium.vector.VectorEnv or jsrl's VectorEnv (for a single gymnasium.Env, drop the parameter)"
    )


def _of_size(num_envs: int, vector: Any, config: EnvConfig) -> Any:
    """Return a vector after checking how many slots it has: rows of another one could be filled by broadcasting."""
    if vector.num_envs == num_envs:
        return vector
    close_quietly(vector)
    raise ConfigError(
        f"environment {shown_target(config.id)!r} was asked for num_envs={num_envs} and made a vector of {vector.num_envs}; "
        "expected as many slots as asked for"
    )


def _single(config: EnvConfig, factory: Callable[..., Any]) -> gymnasium.Env:
    env = factory(**config.kwargs)
    if not isinstance(env, gymnasium.Env) and hasattr(env, "possible_agents"):
        raise ConfigError(f"{config.id!r} is an environment of PettingZoo; name it pettingzoo:{config.id}")
    if isinstance(getattr(env, "spec", None), EnvSpec | GameSpec) and not hasattr(env, "num_envs"):
        raise ConfigError(
            f"{config.id!r} made an environment in JAX (jsrl.extend.JaxEnv), {type(env).__name__}; add --env.backend jax"
        )
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"{config.id!r} returned {type(env).__name__}; expected a gymnasium.Env (a vector environment's factory has a "
            "parameter `num_envs`)"
        )
    if config.max_episode_steps is not None:
        return gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    return env


def _wrapped(config: EnvConfig, single: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    wrappers = [(target, import_target(target), kwargs) for target, kwargs in map(split_wrapper, config.wrappers)]

    def build() -> gymnasium.Env:
        env = single()
        for target, wrapper, kwargs in wrappers:
            try:
                env = wrapper(env, **kwargs)
            except TypeError as error:
                raise ConfigError(
                    f"wrapper {target} could not be made with kwargs {kwargs}: {error}. Its arguments are given as "
                    f'--env.wrappers \'[{{"wrapper": "{target}", "kwargs": {{"NAME": VALUE}}}}]\''
                ) from error
        return env

    return build


def _built(config: EnvConfig, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise MissingExtra(_missing(config.id, str(error))) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise unfit(config.id, config.kwargs, error) from error
    except JsrlError:
        raise
    except (Exception, SystemExit) as error:
        raise in_making(config.id, config.kwargs, error) from error


def _missing(name: str, error: str) -> str:
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    cures = {"mujoco": install_command("mujoco")}
    cures |= {
        suite: f"pip install 'gymnasium[{extra}]'" for suite, extra in (("box2d", "box2d"), ("toy_text", "toy-text"))
    }
    hint = next((cure for suite, cure in cures.items() if suite in entry), "pip install what it names")
    return f"environment {name!r} needs a package that is not installed ({error}): {hint}"


def _unknown_id(name: str) -> ConfigError:
    known = list(gymnasium.registry)
    close = nearest(name, known)
    if not close:
        lowered = {known_id.lower(): known_id for known_id in known}
        close = nearest(name.lower(), lowered)
    nearly = get_close_matches(name, known, 1, TYPO)
    # Not if only the version differs: that may mean a suite's environment, which another scheme names.
    if nearly and nearly[0].rpartition("-v")[0] != name.rpartition("-v")[0]:
        return ConfigError(f"no environment is registered as {name!r}{close}.")
    module, dot, own = name.rpartition(".")
    if dot and module.isidentifier() and find_spec(module) is not None:
        return ConfigError(f"no environment is registered as {name!r}; that of the module {module} is {module}:{own}.")
    return ConfigError(
        f"no environment is registered as {name!r}{close}; a class of your own is given as module:Class, an id that a module "
        "registers as module:ID, Atari's as ALE/NAME-v5, probes as probe:NAME, EnvPool's as envpool:NAME, environments with "
        f"several agents as {', '.join(f'{scheme}:NAME' for scheme in SUITES)}, those in JAX as "
        f"{', '.join(f'{scheme}:NAME' for scheme in JAX_SUITES)}"
    )


def without_module(config: EnvConfig) -> EnvConfig:
    """Return the config with the id alone if it is `module:Name-v0`, as in `gymnasium.make`, after importing the module."""
    module, name = split_module(config.id)
    if not module:
        return config
    import_named(module, config.id)
    return replace(config, id=name)


def register_suites(name: str) -> None:
    """Register the ids of an optional suite, when one of them is used."""
    for beginnings, module, extra in _REGISTERED_BY:
        if name.startswith(beginnings):
            gymnasium.register_envs(import_extra(module, extra, f"environment {name!r}"))


def _refuse_wrappers(config: EnvConfig) -> None:
    if config.wrappers:
        raise ConfigError(
            f"environment {config.id!r} is a vector from the start, so Gymnasium's wrappers {list(config.wrappers)} cannot "
            "wrap its slots; remove them, or use an id of single environments"
        )


STREAM = 1  # of a slot's seed: tasks are drawn independently of everything else


class DrawnTasks:
    """A vector of environments that gives each episode a task.

    Args:
      env: the vector. config: with `tasks` and `task_weights`. seed, group: see jsrl.envs.make.make.

    Raises:
      ConfigError: the vector accepts no tasks.
    """

    def __init__(self, env: Any, config: EnvConfig, seed: int | tuple[int, ...], group: int) -> None:
        if not hasattr(env, "set_tasks"):
            raise ConfigError(
                f"environment {config.id!r} takes no tasks; env.tasks is for those whose reset has options."
            )
        self._env, self._tasks, self._over = env, config.tasks, list[Episode]()
        weights = np.array(config.task_weights or [1.0] * len(config.tasks))
        self._shares = weights / weights.sum()
        self._random = [np.random.default_rng((own, STREAM)) for own in slot_seeds(seed, group, env.num_envs)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> Any:
        self._draw(range(self._env.num_envs))
        return self._env.reset()

    def step(self, action: Any) -> Any:
        """Step every slot; slots whose episode ended begin another one with a new task."""
        self._draw(episode.slot for episode in self._over)
        latest = self._env.step(action)
        self._over = latest.episodes
        return latest

    def _draw(self, slots: Any) -> None:
        drawn = {slot: self._random[slot].choice(len(self._tasks), p=self._shares) for slot in slots}
        self._env.set_tasks({slot: self._tasks[number] for slot, number in drawn.items()})
