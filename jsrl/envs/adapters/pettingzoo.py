"""PettingZoo's environments: ids `pettingzoo:MODULE` (`pettingzoo:mpe2.simple_spread_v3`) or `pettingzoo:MODULE:FACTORY`.

A module is played through its `parallel_env` if it has one, else through its `env`; kwargs `api: aec` or `parallel` override
this. `sides: {PATTERN: SIDE}` groups agents that win and lose together; `death: team` keeps the dead for their side (see
jsrl.types.GameSpec; without `sides`, all agents are one side). `symmetric: true`: its seats may be exchanged;
`zero_sum: true`: one side gains what the others lose. All other kwargs are the environment's.

In the AEC form a step is one agent's move: the others wait, and see what the environment observes for them. Rewards are each
agent's entry of `rewards` after a move, so a waiting agent gets a reward in the step that caused it. Dead agents are stepped
with None, as the environment requires. An agent that is missing at the start of an episode is absent until its end.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from gymnasium import spaces

from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import describe, is_number, unfit
from jsrl.envs.games.loop import SyncVectorGame
from jsrl.envs.games.played import EnvState, SeatSpaces
from jsrl.envs.seats import seats_named
from jsrl.errors import ConfigError, EnvironmentFault, MissingExtra
from jsrl.extras import EXTRAS, install_module
from jsrl.references.importing import import_target, nearest

DEATHS, APIS = ("ends", "team"), (None, "aec", "parallel")


def pettingzoo(config: EnvConfig, factory: Callable[..., Any] | None = None) -> Callable[..., SyncVectorGame]:
    """Return the maker of vectors of a PettingZoo environment.

    Raises:
      ConfigError: it does not exist or rejects these options. MissingExtra: a package is not installed.
    """
    kwargs = dict(config.kwargs)
    api, death = kwargs.pop("api", None), kwargs.pop("death", "ends")
    sides = kwargs.pop("sides", {"*": "team"} if death == "team" else {})
    if death not in DEATHS or api not in APIS or not isinstance(sides, dict):
        raise ConfigError(
            f"environment {config.id!r} was given death={death!r}, api={api!r}, sides={sides!r}; death is ends or team, "
            'api is aec or parallel, sides are like {"red_*": "red", "blue_*": "blue"}'
        )
    facts = {name: bool(kwargs.pop(name, False)) for name in ("symmetric", "zero_sum")}
    build = partial(_build, config, factory or find_factory(config.id, api), kwargs, sides, facts)
    return partial(SyncVectorGame, build, config, death=death)


def find_factory(name: str, api: str | None = None) -> Callable[..., Any]:
    target = name.partition(":")[2]
    if ":" in target:
        return import_target(target)
    try:
        with warnings.catch_warnings():
            # modules of 1.27 warn that a registry will replace them, but all versions have them
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            module = import_module(target)
    except ImportError as error:
        if siblings := _siblings(target, error):
            raise ConfigError(
                f"environment {name!r}: there is no module {target}{nearest(target, siblings)}. Their versions change with "
                "the version of the package"
            ) from error
        raise _missing(name, error) from error
    wanted = ("parallel_env", "env") if api is None else ("env",) if api == "aec" else ("parallel_env",)
    for attribute in wanted:
        if hasattr(module, attribute):
            return getattr(module, attribute)
    raise ConfigError(
        f"environment {name!r}: module {target} has no {' and no '.join(wanted)}; PettingZoo's modules do"
    )


def _missing(name: str, error: ImportError) -> MissingExtra:
    own, missing = name.partition(":")[2].partition(".")[0], (error.name or "").partition(".")[0]
    # a package of the name that was typed may be anything, except for those of an extra
    cure = f": {install_module(missing)}" if missing and (missing != own or missing in EXTRAS["games"][0]) else ""
    return MissingExtra(
        f"environment {name!r} needs a package that is not installed ({error}){cure}. Check the module's name, too: "
        "pettingzoo:mpe2.simple_spread_v3"
    )


def _siblings(target: str, error: ImportError) -> list[str]:
    """Return the modules beside `target` if only `target` is missing from an installed package."""
    package = sys.modules.get(parent := target.rpartition(".")[0])
    if error.name != target or package is None:
        return []
    return [f"{parent}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]


def _build(
    config: EnvConfig,
    factory: Callable[..., Any],
    kwargs: dict[str, Any],
    sides: dict[str, str],
    facts: dict[str, bool],
) -> Any:
    try:
        env = factory(**kwargs)
    except ImportError as error:
        raise _missing(config.id, error) from error
    except (TypeError, AssertionError) as error:
        raise unfit(config.id, kwargs, error) from error
    if not hasattr(env, "possible_agents") or inspect.isclass(env):
        raise ConfigError(
            f"environment {config.id!r} is {type(env).__name__} without `possible_agents`; expected a PettingZoo "
            "ParallelEnv or AECEnv that names all agents that may ever play"
        )
    names = [str(agent) for agent in env.possible_agents]
    for pattern in sides:
        if not seats_named(pattern, names):
            raise ConfigError(
                f"environment {config.id!r}: sides has {pattern!r}, which matches none of its agents {', '.join(names)}"
            )
    game = TurnGame(env, sides) if hasattr(env, "last") else ParallelGame(env, sides)
    game.symmetric, game.zero_sum = facts["symmetric"], facts["zero_sum"]
    return game


class _Wrapped:
    """The common part of both forms: the seats, and which of them are out."""

    symmetric = zero_sum = False
    takes_options = True

    def __init__(self, env: Any, sides: Mapping[str, str]):
        self.env = env
        self.names = tuple(str(agent) for agent in env.possible_agents)
        self.seats = tuple(
            SeatSpaces(name, env.observation_space(agent), env.action_space(agent), _side(name, self.names, sides))
            for name, agent in zip(self.names, env.possible_agents, strict=True)
        )
        self._agents = dict(zip(self.names, env.possible_agents, strict=True))
        self.state_space: spaces.Space | None = getattr(env, "state_space", None)
        self._out: set[str] = set()

    def _enter(self) -> None:
        """Record which seats are absent at the start of an episode."""
        here = self._here()
        self._out = set(self.names) - here

    def _here(self) -> set[str]:
        return {str(agent) for agent in self.env.agents}

    def _ended(self, lived: set[str], terminated: set[str], truncated: set[str]) -> list[str]:
        """Record which seats are out now; return those that came back."""
        here = self._here()
        if vanished := sorted(lived - here - terminated - truncated):
            raise EnvironmentFault(f"dropped {vanished[0]!r} from `agents` without terminating or truncating it")
        self._out |= terminated | truncated
        return sorted(here & self._out) if lived - terminated - truncated else []

    def _state(self) -> Any:
        return None if self.state_space is None else self.env.state()

    @property
    def metadata(self) -> Any:
        return getattr(self.env, "metadata", None)

    def render(self) -> Any:
        if not hasattr(self.env, "render"):
            raise NotImplementedError
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class ParallelGame(_Wrapped):
    """A ParallelEnv: all living agents act in every step."""

    def reset(self, seed: int | None, *options: dict[str, Any]) -> EnvState:
        observed, info = self.env.reset(seed=seed, **({"options": options[0]} if options else {}))
        self._enter()
        here = self._here()
        return EnvState(
            {str(agent): seen for agent, seen in observed.items() if str(agent) in here},
            here,
            state=self._state(),
            info=_named(info),
        )

    def step(self, action: Mapping[str, Any]) -> EnvState:
        """Step; reports about agents that lived before the step count, even if they are gone now."""
        lived = set(action)
        observed, reward, terminated, truncated, info = self.env.step(
            {self._agents[name]: chosen for name, chosen in action.items()}
        )
        dead, cut = ({str(a) for a, flag in flags.items() if flag} & lived for flags in (terminated, truncated))
        revived = self._ended(lived, dead, cut)
        left = (lived - dead - cut) or lived
        return EnvState(
            {name: seen for name, seen in _named(observed).items() if name in lived},
            left,
            _rewards(reward, lived),
            dead,
            cut,
            revived,
            self._state(),
            _named(info),
        )


class TurnGame(_Wrapped):
    """An AECEnv: one agent moves in each step, the others wait."""

    def reset(self, seed: int | None, *options: dict[str, Any]) -> EnvState:
        self.env.reset(seed=seed, **({"options": options[0]} if options else {}))
        self._enter()
        return self._moment(self._here())

    def step(self, action: Mapping[str, Any]) -> EnvState:
        """Let the agent in turn move, then step the dead agents."""
        lived = self._here()
        (chosen,) = action.values()
        self.env.step(chosen)
        reward = _rewards(self.env.rewards, lived)
        dead, cut = (
            {str(agent) for agent, flag in flags.items() if flag} & lived
            for flags in (self.env.terminations, self.env.truncations)
        )
        moment = self._moment(lived)  # before the dead are stepped: they still see the last board
        while self.env.agents and self._is_out(self.env.agent_selection):
            self.env.step(None)
        moment.revived = self._ended(lived, dead, cut)
        if self._here():
            moment.acting = {str(self.env.agent_selection)}
        else:  # the end: the agent in turn; if it is dead, the next one that would have acted
            left, place = lived - dead or lived, self.names.index(next(iter(moment.acting)))
            moment.acting = {next(name for name in self.names[place:] + self.names[:place] if name in left)}
        moment.reward, moment.terminated, moment.truncated = reward, dead, cut
        return moment

    def _here(self) -> set[str]:
        """Return the living agents; `agents` keeps the dead until their turn comes, when they are stepped with None."""
        return {str(agent) for agent in self.env.agents if not self._is_out(agent)}

    def _is_out(self, agent: Any) -> bool:
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _moment(self, seen: set[str]) -> EnvState:
        observed = {name: self.env.observe(self._agents[name]) for name in self.names if name in seen}
        return EnvState(observed, {str(self.env.agent_selection)}, state=self._state(), info=_named(self.env.infos))


def _side(name: str, names: Sequence[str], sides: Mapping[str, str]) -> str:
    return next((side for pattern, side in sides.items() if name in seats_named(pattern, names)), "")


def _rewards(values: Mapping[Any, Any], lived: set[str]) -> dict[str, float]:
    """Return the rewards of the agents that lived. Raises EnvironmentFault: one is not a number."""
    paid = {name: value for name, value in _named(values).items() if name in lived}
    for name, value in paid.items():
        if not is_number(value):
            raise EnvironmentFault(f"returned {describe(value)} as reward of {name!r}; expected a number")
    return {name: float(value) for name, value in paid.items()}


def _named(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(agent): value for agent, value in values.items()}
