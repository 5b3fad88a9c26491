"""The configuration of an environment: frozen and JSON-like, so that another process can build the environment."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jsrl.errors import ConfigError
from jsrl.fields import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, option, suggesting
from jsrl.references.importing import importable_target

# environments with seats: a function of (config) that imports what one needs, and returns its maker of vectors from (num_envs,
# seed, group, groups)
SUITES = {
    "particle": "jsrl.games.particle.game:particle",
    "matrix": "jsrl.games.matrix:matrix",
    "foraging": "jsrl.games.foraging:foraging",
    "hide_and_seek": "jsrl.games.hide_and_seek.game:hide_and_seek",
    "pettingzoo": "jsrl.envs.adapters.pettingzoo:pettingzoo",
    "lbf": "jsrl.envs.adapters.lbf:lbf",
    "openspiel": "jsrl.envs.adapters.openspiel:openspiel",
}
# those in JAX, with seats or without: a function of (config) that returns a jsrl.extend.JaxEnv
JAX_SUITES = {
    "gymnax": "jsrl.envs.adapters.gymnax:Gymnax",
    "brax": "jsrl.envs.adapters.brax:Brax",
    "jaxmarl": "jsrl.envs.adapters.jaxmarl:JaxMARL",
    "craftax": "jsrl.envs.adapters.craftax:Craftax",
}
METRIC_KINDS = ("last", "sum", "mean", "min", "max")
# an id that a module registers, as gymnasium.make takes it
_WITH_MODULE = re.compile(r"(?P<module>(?!envpool:)[\w.]+):(?P<id>(?:[\w.:-]+/)?[\w.:-]+-v\d+)")


@suggesting
@dataclass(frozen=True)
class AtariConfig:
    """Preprocessing of Atari games (ids `ALE/...`), as in ale-py's C++ vector environment."""

    # fmt: off
    frame_skip: PositiveInt = option(4, "game frames per env step.")
    stack: PositiveInt = option(4, "frames per observation.")
    repeat_action_probability: Annotated[float, Range(ge=0, lt=1)] = option(0.0,
        "chance per game frame that the console repeats the last action (sticky actions).")
    full_action_space: bool = option(False, "all 18 actions instead of the game's own few.", in_python=True)
    episodic_life: bool = option(False, "a lost life ends an episode for the learner (discount 0) while the game "
        "continues; `Episode` still reports whole games.")
    noop_max: NonNegativeInt = option(30, "upper limit of no-ops at a game's start.", in_python=True)
    fire_reset: bool = option(True, "press FIRE at a start where the game has it.", in_python=True)
    max_frames: PositiveInt = option(108_000, "game frames after which a game is truncated (108,000 are 30 "
        "minutes).", in_python=True)
    screen_size: PositiveInt = option(84, "height and width of an observation in pixels.", in_python=True)
    num_threads: PositiveInt = option(1, "C++ threads of one vector.", in_python=True)
    # fmt: on


@suggesting
@dataclass(frozen=True)
class EnvConfig:
    """An environment and its options."""

    # fmt: off
    id: str = option("CartPole-v1", "a Gymnasium id (`CartPole-v1`), `ALE/Pong-v5`, `envpool:HalfCheetah-v4`, "
        "one in JAX (`gymnax:Breakout-MinAtar`, `brax:ant`, `jaxmarl:overcooked`, `craftax:Craftax-Symbolic-v1`), "
        "`probe:memory`, one with several agents (`particle:`, `matrix:`, `foraging:`, `hide_and_seek:`, "
        "`pettingzoo:`, `lbf:`, `openspiel:`; see docs/environments.md), `module:ID` if the module registers the id, "
        "your own `module:factory`, or in Python the class or function itself. A factory is called with `kwargs` and "
        "returns a gymnasium.Env; one with a parameter `num_envs` returns a gymnasium or jsrl vector environment. It "
        "also gets `seed`, `group` and `groups` (of seats) if it has such parameters.")
    kwargs: dict[str, Any] = option(help="keyword arguments of the environment.", factory=dict)
    wrappers: tuple[Any, ...] = option((), 'Gymnasium wrappers, innermost first: `module:Class`, or {"wrapper": '
        '"module:Class", "kwargs": {...}}.')
    reward_scale: FiniteFloat | Literal["running"] = option(1.0, "agents learn from clip(raw * scale, -clip, clip); the "
        "learner computes it, so that rows, recordings and returns of episodes are raw. running: 1 / the deviation of the "
        "discounted return so far; its clip is 10 unless given.")
    reward_clip: PositiveFloat | None = option(None, "agents learn from clip(raw * scale, -clip, clip); the learner "
        "computes it, so that rows, recordings and returns of episodes are raw.")
    episode_metrics: tuple[str, ...] = option((), "keys of the environment's `info` to aggregate per episode: `key` "
        "(its last value) or `key:sum`, `key:mean`, `key:min`, `key:max`.")
    max_episode_steps: PositiveInt | None = option(None, "env steps after which an episode is truncated; None leaves "
        "the environment's own limit. Both count steps inside the wrappers: with one that repeats each action k times, "
        "an episode has 1/k as many env steps. To count the agent's steps, put `gymnasium.wrappers:TimeLimit` last "
        "among the wrappers.")
    action_transform: Literal["auto", "clip", "rescale", "squash"] = option("auto",
        "how unclipped actions are mapped to a bounded Box: `clip`, `rescale` (from [-1, 1]) or `squash` (tanh); see "
        "jsrl.extend.Continuous. `auto`: `rescale` where all bounds are finite, else `clip`.")
    backend: Literal["auto", "sync", "native", "jax"] = option("auto", "`auto` takes the fastest that works; "
        "`native` uses the environment's own vector entry point, `sync` a loop over single environments; "
        "`jax`: your class or function makes an environment of pure functions (jsrl.extend.JaxEnv).")
    tasks: tuple[Any, ...] = option((), "one of them is drawn for each episode, as options of its `reset`: a dict "
        "unchanged, another JSON value under `task`.")
    task_weights: tuple[float, ...] = option((), "weights of the draw; none: equal.")
    on_fault: Literal["auto", "stop", "restart-env", "restart-actor"] = option("auto",
        "what to do when an environment of an actor raises, returns NaN or a value outside its space, hangs, or ends "
        "its process. `auto` ends the actor, and `restart` says whether it is replaced; `stop` ends the run; "
        "`restart-env` rebuilds the environment and cuts its episode (if it hangs or ends the process: as `auto`); "
        "`restart-actor` replaces the actor.")
    fault_limit: PositiveInt = option(10, "maximum environments that `restart-env` rebuilds in each group within 600 s, "
        "and times that `restart-actor` replaces each actor.")
    atari: AtariConfig = option(AtariConfig(), "options of `ALE/...` ids.", needs=("id ALE/",))
    # fmt: on

    def __post_init__(self) -> None:
        if isinstance(self.id, functools.partial) and not self.id.args:
            object.__setattr__(self, "kwargs", {**self.id.keywords, **self.kwargs})
            object.__setattr__(self, "id", self.id.func)
        object.__setattr__(self, "id", named(self.id))
        object.__setattr__(self, "wrappers", tuple(named(wrapper) for wrapper in self.wrappers))
        if not self.id:
            raise ConfigError("the environment's id is empty; give a Gymnasium id, `probe:NAME` or `module:factory`")
        # functools.partial with positional arguments and gymnasium.make return objects without this name.
        if not isinstance(self.id, str) and not hasattr(self.id, "__qualname__"):
            raise ConfigError(
                f"the environment's id is a {type(self.id).__name__} object; give an id, or the class or function that makes "
                "the environment, and its arguments as kwargs: EnvConfig(MyEnv, kwargs={...})"
            )
        self._check_tasks()
        for metric in self.episode_metrics:
            split_metric(metric)
        for wrapper in self.wrappers:
            split_wrapper(wrapper)

    def _check_tasks(self) -> None:
        for name in ("tasks", "task_weights"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        weights = self.task_weights
        if weights and (len(weights) != len(self.tasks) or not all(0 < weight < math.inf for weight in weights)):
            raise ConfigError(
                f"task_weights are {', '.join(map(str, weights))} for {len(self.tasks)} tasks; give one number above 0 for "
                "each"
            )

    @property
    def in_jax(self) -> bool:
        """Return whether its functions are in JAX, so that actors load it."""
        return self.backend == "jax" or (isinstance(self.id, str) and self.id.partition(":")[0] in JAX_SUITES)

    @property
    def is_atari(self) -> bool:
        return isinstance(self.id, str) and split_module(self.id)[1].startswith("ALE/")


def named(thing: Any) -> Any:
    """Return `module:qualname` of a class or function that every process can import; anything else unchanged.

    Definitions in a notebook or script have no such name yet; `run` writes their source to the run folder and names it.
    """
    return (importable_target(thing) or thing) if callable(thing) else thing


def split_module(name: str) -> tuple[str, str]:
    """Return (module, id) of `module:Name-v0`; the module of any other id is empty."""
    found = _WITH_MODULE.fullmatch(name)
    return (found["module"], found["id"]) if found else ("", name)


def main_target(thing: Any) -> str:
    """Return the `module:qualname` by which only this process finds a class or function of its main module."""
    return f"{thing.__module__}:{thing.__qualname__}"


def split_metric(metric: str) -> tuple[str, str]:
    key, _, kind = metric.partition(":")
    if kind and kind not in METRIC_KINDS:
        raise ConfigError(
            f"episode metric {metric!r}: {kind!r} is not an aggregation; choose {', '.join(METRIC_KINDS)}"
        )
    return key, kind or "last"


def split_wrapper(wrapper: Any) -> tuple[str, dict[str, Any]]:
    if callable(wrapper) and hasattr(wrapper, "__qualname__"):
        return main_target(wrapper), {}
    if isinstance(wrapper, str):
        return wrapper, {}
    if isinstance(wrapper, dict) and isinstance(wrapper.get("wrapper"), str) and set(wrapper) <= {"wrapper", "kwargs"}:
        return wrapper["wrapper"], dict(wrapper.get("kwargs", {}))
    raise ConfigError(
        f'wrapper {wrapper!r}: give a class, "module:Class", or {{"wrapper": "module:Class", "kwargs": {{...}}}}'
    )
