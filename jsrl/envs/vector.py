"""Gymnasium vector environments behind the vector protocol, for every declared auto-reset mode.

NEXT_STEP is already the row table. Under SAME_STEP and DISABLED every slot must be stepped at every call. So in the
call whose action is ignored the slot is stepped too, and its result is discarded. Then
`reset(options={"reset_mask": ...})` starts the episode that the agent sees.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from jsrl.envs.base import EnvStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import ADVICE_SPACE, advice_raised, close_quietly, describe
from jsrl.envs.rows import Rows, vector_seed
from jsrl.envs.spaces import MASK_KEY, BadValue, ObservationLayout, action_layout, environment_notes, flat_mask
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.types import Array, EnvSpec, Tree


class GymVectorEnv:
    """A gymnasium.vector.VectorEnv behind the vector protocol; seeded as a whole, by (seed, group).

    Args:
      slot_seeds: of an environment that seeds its slots itself, for messages; None: the seed of the whole.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        config: EnvConfig,
        seed: int | tuple[int, ...],
        group: int = 0,
        slot_seeds: list[int] | None = None,
    ):
        self._env: Any = env
        self.num_envs = env.num_envs
        self._seed: int | None = vector_seed(seed, group)
        self._opening: tuple[Any, dict[str, Any]] | None = None  # the first reset, if it was made early
        self._rows = Rows(config, self.num_envs, slot_seeds or [vector_seed(seed, group)] * self.num_envs)
        try:
            self._mode = _autoreset_mode(env, config.id)
            self._read_spaces(config)
        except BaseException:
            self.close()
            raise

    def _read_spaces(self, config: EnvConfig) -> None:
        actions = action_layout(self._env.single_action_space, config.id, config.action_transform)
        space = self._env.single_observation_space
        in_observation = isinstance(space, gymnasium.spaces.Dict) and MASK_KEY in space.spaces
        mask_size = None
        if actions.num_choices is not None and not in_observation:
            # only a reset shows whether `info` has masks; the first one is made now and kept
            self._opening = self._reset()
            info = self._opening[1]
            mask_size = flat_mask(info[MASK_KEY][0]).size if MASK_KEY in info else None
        self._actions = actions
        self._layout = ObservationLayout(space, config.id, mask_size, actions.num_choices)
        self._tree, self._arrays = self._layout.buffers(self.num_envs)
        self.box_bounds = self._layout.bounds
        notes = environment_notes(self._env, actions, self._layout)
        self.spec = EnvSpec(self._layout.spec, actions.spec, config.id, notes=notes)
        self._rows.watch_masks(self.spec)

    def reset(self) -> EnvStep:
        opening, self._opening = self._opening, None
        observation, info = self._reset() if opening is None else opening
        return self._rows.opened(self._take(observation, info))

    def _reset(self) -> tuple[Any, dict[str, Any]]:
        seed, self._seed = self._seed, None
        try:
            return self._env.reset(seed=seed)
        except Exception as error:
            raise self._raised("reset", error) from error

    def step(self, action: Array) -> EnvStep:
        rows = self._rows
        try:
            if self._mode is AutoresetMode.DISABLED and rows.any_first:
                self._env.reset(options={"reset_mask": rows.first.copy()})  # it may refuse to step an ended slot
            observation, *outcome, info = self._env.step(self._actions.convert(np.asarray(action)))
            reward, terminated, truncated = self._outcome(*outcome)
            tree = self._take(observation, info)
            if self._layout.mask_in_info:
                self._without_mask(info, terminated | truncated)
            if self._mode is not AutoresetMode.NEXT_STEP:
                if self._mode is AutoresetMode.SAME_STEP:
                    self._restore_last(tree, terminated | truncated, info)
                if rows.any_first:
                    self._start(tree, rows.first, (terminated | truncated) & ~rows.first)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._raised("step", error) from error
        if rows.metrics.entries:
            skip = rows.first
            if self._mode is AutoresetMode.SAME_STEP:  # for ended slots, `info` is that of the next episode's reset
                ended = (terminated | truncated) & ~rows.first
                rows.metrics.add_all(info.get("final_info", {}), skip=~ended)
                skip = skip | ended
            rows.metrics.add_all(info, skip=skip)
        return rows.step(tree, reward, terminated, truncated)

    def _outcome(self, *outcome: Any) -> list[np.ndarray]:
        """Return reward, terminated and truncated as arrays [B]; one of another shape could be filled by broadcasting."""
        arrays = [np.asarray(each) for each in outcome]
        for name, kinds, array in zip(("reward", "terminated", "truncated"), ("fiu", "b", "b"), arrays, strict=True):
            if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
                wanted = f"{'bools' if kinds == 'b' else 'numbers'} of shape {[self.num_envs]}"
                raise self._rows.fault(0, f"returned {describe(array)} as {name}", f"Expected {wanted}")
        return arrays

    def _take(self, observation: Any, info: dict[str, Any]) -> Tree:
        """Return our tree of the environment's observation; without a copy if it needs none."""
        plain = self._layout.plain
        if plain is not None and isinstance(observation, np.ndarray):
            expected = (self.num_envs, *plain.shape)
            # under next-step auto-reset we never write to it, so the environment's own array is used
            fits = observation.shape == expected and observation.dtype == plain.spec.dtype
            if fits and self._mode is AutoresetMode.NEXT_STEP:
                return observation
        try:
            self._layout.write_all(self._arrays, observation)
            if self._layout.mask_in_info:
                present = info.get(f"_{MASK_KEY}", np.ones(self.num_envs, bool))
                for slot in np.flatnonzero(present) if MASK_KEY in info else ():
                    self._layout.write_mask(self._arrays, int(slot), info[MASK_KEY][slot])
        except BadValue as error:
            raise self._rows.fault(0, str(error), ADVICE_SPACE) from None
        return self._tree

    def _without_mask(self, info: dict[str, Any], ended: np.ndarray) -> None:
        """Allow all actions to slots that ended without a mask, where there is nothing to choose; others must have one."""
        there = info.get(f"_{MASK_KEY}", np.full(self.num_envs, MASK_KEY in info))
        self._arrays[-1][ended & ~there] = 1
        for slot in np.flatnonzero(~ended & ~there).tolist():
            try:
                self._layout.write_mask(self._arrays, slot, None)
            except BadValue as error:
                raise self._rows.fault(slot, str(error), ADVICE_SPACE) from None

    def _restore_last(self, tree: Tree, ended: np.ndarray, info: dict[str, Any]) -> None:
        """Replace the first observations of the next episodes by the last ones of the ended episodes (SAME_STEP)."""
        ended = ended & ~self._rows.first
        if not ended.any():
            return
        if "final_obs" not in info:
            raise self._rows.fault(
                int(np.flatnonzero(ended)[0]),
                f"ended an episode without info['final_obs'] (it has {sorted(info)})",
                "It declares AutoresetMode.SAME_STEP: put the last observations there, as Gymnasium's do",
            )
        final = info["final_obs"]
        for slot in np.flatnonzero(ended).tolist():
            try:
                self._layout.write(
                    self._arrays, slot, final[slot] if not isinstance(final, dict) else _row(final, slot)
                )
                if self._layout.mask_in_info:
                    self._restore_mask(slot, info.get("final_info", {}))
            except BadValue as error:
                raise self._rows.fault(slot, f"(in final_obs) {error}", ADVICE_SPACE) from None

    def _restore_mask(self, slot: int, last: dict[str, Any]) -> None:
        """Replace the mask of a slot's next episode by that of its last step; allow all actions if that brought none."""
        if MASK_KEY in last and last.get(f"_{MASK_KEY}", [True] * self.num_envs)[slot]:
            self._layout.write_mask(self._arrays, slot, last[MASK_KEY][slot])
        else:
            self._arrays[-1][slot] = 1

    def _start(self, tree: Tree, first: np.ndarray, ended: np.ndarray) -> None:
        """Reset the slots `first` and write their first observations; the others must not change."""
        kept = [leaf.copy() for leaf in self._arrays]
        observation, info = self._env.reset(options={"reset_mask": first.copy()})
        self._take(observation, info)
        running = ~first & ~ended  # an episode that ended in this step has its last observation only here
        for leaf, old in zip(self._arrays, kept, strict=True):
            if not np.array_equal(leaf[running], old[running]):
                raise self._rows.fault(
                    int(np.flatnonzero(first)[0]),
                    f"its vector declares {self._mode}, but reset(options={{'reset_mask': ...}}) of {int(first.sum())} "
                    "slots changed the others' observations",
                    "Honour `reset_mask` as Gymnasium's vector environments do, or declare NEXT_STEP",
                )
            leaf[~first] = old[~first]

    def _raised(self, where: str, error: Exception) -> Exception:
        what = f"raised {type(error).__name__} in {where} of the vector: {error}"
        return self._rows.fault(0, what, f"It may be another slot's. {advice_raised(error)}")

    @property
    def metadata(self) -> dict[str, Any]:
        return self._env.metadata or {}

    def render(self, slot: int = 0) -> Any:
        pictures = self._env.render()
        return pictures[slot] if pictures is not None else None

    def close(self) -> None:
        if self._env is not None:
            env, self._env = self._env, None
            close_quietly(env)


def _row(tree: Any, slot: int) -> Any:
    return {key: _row(value, slot) for key, value in tree.items()} if isinstance(tree, dict) else tree[slot]


def _autoreset_mode(env: gymnasium.vector.VectorEnv, name: str) -> AutoresetMode:
    declared = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        raise ConfigError(
            f"environment {name!r}: the vector environment declares metadata['autoreset_mode'] = {declared!r}; expected "
            "a gymnasium.vector.AutoresetMode. Set it, so that last observations are not mistaken for first ones"
        ) from None
