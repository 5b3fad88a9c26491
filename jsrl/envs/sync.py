"""A vector of gymnasium.Env, stepped in a loop that writes into preallocated arrays."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from jsrl.envs.base import EnvStep, VectorEnv, options_of_task
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import ADVICE_SPACE, advice_raised, describe, is_number
from jsrl.envs.repair import RebuiltVector, Repairs, SingleEnvs
from jsrl.envs.rows import Rows
from jsrl.envs.spaces import MASK_KEY, BadValue, ObservationLayout, action_layout, environment_notes, flat_mask
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.references.importing import shown_target
from jsrl.types import Array, EnvSpec

WRONG_CALL = re.compile(r"to unpack|cannot unpack|unexpected keyword argument")  # in Python's messages


def raised_by_caller(error: BaseException) -> bool:
    """Return whether the caller's own line raised an error, here or in a wrapper of Gymnasium, and not the environment."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return len(frames) == 1 or (
        frames[-1].startswith(("gymnasium.wrappers.", "gymnasium.core")) and bool(WRONG_CALL.search(str(error)))
    )


class Resting:
    """An environment that is not stepped any more: each step returns its last opening."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **given: Any) -> Any:
        self._opening = self.env.reset(**given)
        return self._opening

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the last opening, without a reward."""
        observation, info = self._opening
        return observation, 0.0, False, False, info


class SyncVectorEnv(SingleEnvs):
    """B single environments behind the vector protocol; each has its own seed.

    Args:
      factory: makes one environment. num_envs: B. seed, group: see jsrl.envs.make.make.
    """

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        config: EnvConfig,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
    ):
        super().__init__(factory, num_envs, seed, group)
        self._rows = Rows(config, num_envs, self._seeds)
        self._opening: tuple[Any, dict[str, Any]] | None = None  # slot 0's first reset, made early
        try:
            self._read_spaces(config)
        except BaseException:
            self.close()
            raise
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)

    def _read_spaces(self, config: EnvConfig) -> None:
        env = self._envs[0]
        for name in ("observation_space", "action_space"):
            if getattr(env, name, None) is None:
                raise ConfigError(f"environment {config.id!r} has no {name}; set one of gymnasium.spaces in __init__")
        actions = action_layout(env.action_space, config.id, config.action_transform)
        self._actions = actions
        space = env.observation_space
        in_observation = isinstance(space, gymnasium.spaces.Dict) and MASK_KEY in space.spaces
        mask_size = None
        if actions.num_choices is not None and not in_observation:
            # only a reset shows whether `info` has masks; slot 0's first one is made now and kept
            self._opening = self._reset(0)
            info = self._opening[1]
            mask_size = flat_mask(info[MASK_KEY]).size if MASK_KEY in info else None
        self._layout = ObservationLayout(space, config.id, mask_size, actions.num_choices)
        self._tree, self._arrays = self._layout.buffers(self.num_envs)
        self.box_bounds = self._layout.bounds
        self._plain = self._layout.plain
        self._wants_info = self._layout.mask_in_info or bool(config.episode_metrics)
        notes = environment_notes(env, actions, self._layout)
        self.spec = EnvSpec(self._layout.spec, actions.spec, config.id, notes=notes)
        self._rows.watch_masks(self.spec)

    def reset(self) -> EnvStep:
        self._envs = [env.env if isinstance(env, Resting) else env for env in self._envs]
        step = self._visited(self._open_slots, lambda: self._rows.opened(self._tree))
        self._started = True
        return step

    def step(self, action: Array) -> EnvStep:
        actions = self._actions.convert(np.asarray(action))
        first = self._rows.first.tolist() if self._rows.any_first else None
        return self._visited(partial(self._step_slots, actions, first), self._stepped)

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        self._tasks |= {slot: options_of_task(task) for slot, task in tasks.items() if task is not None}

    def rest(self, slots: Iterable[int]) -> None:
        """Step slots whose episodes have just ended no more, until the next `reset`; others play as if they did."""
        for slot in slots:
            self._envs[slot] = Resting(self._envs[slot])

    def _stepped(self) -> EnvStep:
        return self._rows.step(self._tree, self._reward, self._terminated, self._truncated)

    def _step_slots(self, actions: Any, first: list[bool] | None, begin: int) -> None:
        """Step the slots from `begin` on; slots that are `first` start an episode instead."""
        plain, reward, terminated, truncated = self._plain, self._reward, self._terminated, self._truncated
        slot, paid, over, cut = begin, 0.0, False, False
        try:
            for slot, env in enumerate(self._envs[begin:] if begin else self._envs, begin):
                self._at = slot
                if first is not None and first[slot]:
                    reward[slot], terminated[slot], truncated[slot] = 0.0, False, False
                    self._open(slot)
                    continue
                observation, paid, over, cut, info = env.step(actions[slot])
                reward[slot], terminated[slot], truncated[slot] = paid, over, cut
                if plain is not None and getattr(observation, "shape", None) == plain.shape:
                    if observation.dtype is not plain.dtype:
                        plain.check(observation)
                    self._tree[slot] = observation
                else:
                    self._layout.write(self._arrays, slot, observation)
                if self._wants_info:
                    self._take(slot, info)
        except EnvironmentFault:
            raise
        except BadValue as error:
            raise self._rows.fault(slot, str(error), ADVICE_SPACE) from None
        except (Exception, SystemExit) as error:
            raise self._raised(slot, "step", error, {"reward": paid, "terminated": over, "truncated": cut}) from error

    def _open(self, slot: int, seed: int | None = None) -> None:
        """Reset one environment (a replaced one with its new seed) and write its first observation."""
        self._at = slot
        observation, info = self._reset(slot, seed)
        try:
            self._layout.write(self._arrays, slot, observation)
            if self._layout.mask_in_info:
                self._layout.write_mask(self._arrays, slot, info.get(MASK_KEY))
        except BadValue as error:
            raise self._rows.fault(slot, f"(in reset) {error}", ADVICE_SPACE) from None

    def _reset(self, slot: int, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the result of the environment's reset (slot 0's first one may have been made before)."""
        if slot == 0 and self._opening is not None:
            opening, self._opening = self._opening, None
            if slot not in self._tasks:
                return opening
        options = self._options(slot, replaced=seed is not None)
        given: dict[str, Any] = {} if options is None else {"options": options}
        if (seed := self._seed_of(slot, seed)) is not None:
            given["seed"] = seed
        try:
            opening = self._envs[slot].reset(**given)
        except (Exception, SystemExit) as error:
            raise self._raised(slot, "reset", error) from error
        if isinstance(opening, tuple) and len(opening) == 2 and isinstance(opening[1], Mapping):
            return opening
        problem = f"returned what reset must not: {describe(opening)}"
        raise self._rows.fault(slot, problem, "Expected the two values (observation, info), with a dict as info")

    def _take(self, slot: int, info: dict[str, Any]) -> None:
        if self._layout.mask_in_info:
            over = self._terminated[slot] or self._truncated[slot]
            if over and MASK_KEY not in info:  # there is nothing to choose
                self._arrays[-1][slot] = 1
            else:
                self._layout.write_mask(self._arrays, slot, info.get(MASK_KEY))
        if self._rows.metrics.entries:
            self._rows.metrics.add(slot, info)

    def _raised(
        self, slot: int, where: str, error: BaseException, outcome: Mapping[str, Any] | None = None
    ) -> EnvironmentFault:
        own_line = raised_by_caller(error)
        if where == "reset" and isinstance(error, TypeError) and own_line:
            expected = (
                "Expected reset(self, *, seed=None, options=None) that returns (observation, info), as in Gymnasium"
            )
            return self._rows.fault(slot, f"cannot be reset: {error}", expected)
        if isinstance(error, ValueError | TypeError) and own_line:
            # raised by our own line: it did not return five values, or not numbers
            wrong = [f"{describe(value)} as {name}" for name, value in (outcome or {}).items() if not is_number(value)]
            return self._rows.fault(
                slot,
                f"returned what {where} must not: {wrong[0] if wrong else error}",
                "Expected (observation, reward, terminated, truncated, info) with a number as reward and bools",
            )
        return self._rows.fault(slot, f"raised {type(error).__name__} in {where}: {error}", advice_raised(error))

    @property
    def metadata(self) -> dict[str, Any]:
        return self._envs[0].metadata or {}

    def render(self, slot: int = 0) -> Any:
        return self._envs[slot].render()

    def __repr__(self) -> str:
        return f"SyncVectorEnv({describe(self._rows.name)}, num_envs={self.num_envs})"


def repaired(
    build: Callable[[Any], VectorEnv],
    config: EnvConfig,
    seed: int | tuple[int, ...],
    warn: Callable[[str], None] | None,
) -> VectorEnv:
    """Return a vector whose faulty slots are rebuilt, or else the whole vector; `build`: seed -> a vector."""
    repairs = Repairs(config, warn)

    def build_repaired(fresh: Any) -> VectorEnv:
        env = build(fresh)
        if isinstance(env, SingleEnvs):
            env.repairs = repairs
        return env

    env = build_repaired(seed)
    if isinstance(env, SyncVectorEnv):
        return env
    return RebuiltVector(env, build_repaired, seed, repairs, shown_target(config.id))
