"""The contract of a vector's steps (the protocol of jsrl.envs.base): for `check_env`, and in runs for vectors of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import describe, first_non_finite
from jsrl.envs.spaces import MASK_KEY, allowed_choices, check_paths, mask_starts
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.types import Array, EnvSpec, GameSpec, Tree, named_leaves

SLACK = 1e-5  # of a bound: float32 rounds


class Contract:
    """Checks the steps of one vector, in their order; `reset` and each `step` have one.

    Args:
      env: a VectorEnv or VectorGame. whole_episodes: its rows show the same episodes as it reports.

    Attributes:
      steps: checked since the last reset, without it. ended: bool [B]: slots whose episode ended in the last one.
    """

    def __init__(self, env: Any, num_envs: int, *, whole_episodes: bool = True):
        self.spec: EnvSpec | GameSpec = env.spec
        self.num_envs, self._whole = num_envs, whole_episodes
        self.steps, self.ended = 0, np.ones(num_envs, bool)
        if isinstance(self.spec, GameSpec):
            agents: tuple[int, ...] = (len(self.spec.seats),)
            self._choices = None
            seen = {group: self.spec.view(seats).observation for group, seats in env.groups.items()}
        else:
            agents = () if self.spec.num_agents is None else (self.spec.num_agents,)
            seen, self._choices = self.spec.observation, mask_starts(self.spec)
        state = () if self.spec.state is None else self.spec.state
        declared = {name: (leaf.shape, leaf.dtype) for name, leaf in _observed(seen, state)}
        declared |= {"is_first": ((), "bool"), "acts": (agents, "uint8")}
        declared |= {"reward": (agents, "float32"), "discount": (agents, "float32")}
        self._declared = {name: ((num_envs, *shape), np.dtype(dtype)) for name, (shape, dtype) in declared.items()}

    def check(self, step: EnvStep | GameStep, *, opens: bool = False) -> None:
        """Check one step, or the result of a reset (`opens`)."""
        if opens:
            self.steps, self.ended = 0, np.ones(self.num_envs, bool)
        else:
            self.steps += 1
        kind = GameStep if isinstance(self.spec, GameSpec) else EnvStep
        if not isinstance(step, kind):
            self.expect(False, "it returned {}; expected an {}", describe(step), kind.__name__)
        self._arrays(step)
        first, reward, discount = np.asarray(step.is_first), np.asarray(step.reward), np.asarray(step.discount)
        if opens:
            self.expect(bool(first.all()), "reset returned is_first {}; expected all True", first)
        wrong = first != self.ended if self._whole else self.ended & ~first
        self.expect(
            not wrong.any(), "is_first {} after the endings {}; expected is_first right after", first, self.ended
        )
        if first.any():
            self.expect(not reward[first].any(), "reward {} where is_first is {}; expected 0 there", reward, first)
            self.expect(bool((discount[first] == 1).all()), "discount {} where is_first; expected 1", discount)
        ends = discount == 0
        self.expect(bool((ends | (discount == 1)).all()), "discount {}; expected 0 or 1", discount)
        self.expect(bool((np.asarray(step.acts) <= 2).all()), "acts {}; expected 0, 1 or 2", step.acts)
        self._episodes(step, ends.reshape(self.num_envs, -1).all(axis=1))
        if self._choices is not None:
            shut = ~allowed_choices(np.asarray(step.observation[MASK_KEY]), self._choices).all(axis=1) & ~self.ended
            self.expect(not shut.any(), "the action mask of slots {} allows nothing", np.flatnonzero(shut))

    def _episodes(self, step: EnvStep | GameStep, terminated: np.ndarray) -> None:
        over, told = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for episode in step.episodes:
            slot = episode.slot
            self.expect(0 <= slot < self.num_envs, "episode of slot {}; expected 0 to {}", slot, self.num_envs - 1)
            self.expect(not over[slot], "slot {} reported two episodes in one step", slot)
            over[slot], told[slot] = True, episode.terminated
        if self._whole:
            fits = bool((terminated == told).all())
            self.expect(fits, "discount {}, but {} ended", step.discount, step.episodes)
        self.ended = over | terminated

    def _arrays(self, step: EnvStep | GameStep) -> None:
        """Check names, shapes and dtypes of all arrays, and that floats are finite."""
        found: dict[str, Array] = dict(_observed(step.observation, step.state))
        for name in ("is_first", "acts", "reward", "discount"):
            found[name] = getattr(step, name)
        self.expect(
            found.keys() == self._declared.keys(), "it returned {}; expected {}", list(found), list(self._declared)
        )
        for name, (shape, dtype) in self._declared.items():
            array = found[name]
            if getattr(array, "dtype", None) != dtype or array.shape != shape:
                arrays = isinstance(array, np.ndarray)
                shown = f"{array.dtype} {list(array.shape)}" if arrays else describe(array)
                self.expect(False, "{} is {}; expected {} {}", name, shown, dtype, list(shape))
            if dtype.kind == "f" and not np.isfinite(array).all():
                slot, index, value = first_non_finite(np.asarray(array)) or (0, (), 0.0)
                place = list(index) if index else ""
                self.expect(False, "slot {} returned {} in {}{}; expected finite numbers", slot, value, name, place)

    def expect(self, holds: bool, what: str, *values: Any) -> None:
        """Raise unless it holds; only then the message is formatted: printing arrays takes longer than checking them."""
        if not holds:
            table = "jsrl.envs.games.rows" if isinstance(self.spec, GameSpec) else "jsrl.types"
            raise EnvironmentFault(
                f"environment {self.spec.name!r}, step {self.steps}: {what.format(*values)}. See the row table in {table} "
                "and the protocol in jsrl.envs.base"
            )


def _observed(observation: Tree, state: Tree) -> Iterator[tuple[str, Any]]:
    yield from named_leaves(observation, "observation")
    yield from named_leaves(state, "state")


class CheckedVector:
    """A user's own vector, whose steps are checked."""

    def __init__(self, env: Any, config: EnvConfig):
        if not isinstance(env.spec, EnvSpec | GameSpec):
            raise ConfigError(
                f"environment {config.id!r} has the spec {describe(env.spec)}; expected an EnvSpec or GameSpec of jsrl.types"
            )
        observed = (
            [seat.observation for seat in env.spec.seats] if isinstance(env.spec, GameSpec) else [env.spec.observation]
        )
        for observation in observed:
            check_paths([path for path, _ in named_leaves(observation)], env.spec.name)
        self._env, self._contract = env, Contract(env, env.num_envs)
        self.spec, self.num_envs = env.spec, env.num_envs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> Any:
        opened = self._env.reset()
        self._contract.check(opened, opens=True)
        return opened

    def step(self, action: Any) -> Any:
        stepped = self._env.step(action)
        self._contract.check(stepped)
        return stepped

    def close(self) -> None:
        self._env.close()


class WatchedBox:
    """A vector whose first steps are compared with the bounds of its Boxes; `note` is called for the first value outside."""

    def __init__(self, env: Any, note: Callable[[str], None], steps: int = 1000):
        self._env, self._note, self._left = env, note, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        stepped = self._env.step(action)
        if self._left:
            self._left -= 1
            for name, leaf in named_leaves(stepped.observation):
                self._compare(name, leaf)
        return stepped

    def _compare(self, name: str, leaf: np.ndarray) -> None:
        if name not in self._env.box_bounds:
            return
        low, high = self._env.box_bounds[name]
        with np.errstate(over="ignore"):  # the largest float as a bound
            outside = (leaf < low - SLACK * np.abs(low)) | (leaf > high + SLACK * np.abs(high))
        if outside.any():
            self._left = 0
            slot, *index = (int(i) for i in np.argwhere(outside)[0])
            at = tuple(index)
            self._note(
                f"environment {self.spec.name!r} (slot {slot}) returned {leaf[slot][at]:g} in {name or 'observation'}"
                f"{index or ''}, outside its Box ({low[at]:g} to {high[at]:g}): correct the space, or what it returns. "
                "Further values are not compared"
            )
