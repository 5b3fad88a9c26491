"""The row table, in one place: every adapter passes its raw rewards and ends of episodes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.config import EnvConfig, split_metric
from jsrl.envs.faults import describe, fault, first_non_finite, float_leaves, place
from jsrl.envs.spaces import MASK_KEY, allowed_choices, mask_starts
from jsrl.errors import EnvironmentFault
from jsrl.types import EnvSpec, Tree

MOST_SHOWN = 80  # letters of a mask in a message


def slot_seeds(seed: int | tuple[int, ...], group: int, num_envs: int) -> list[int]:
    """Return one seed per slot (31 bits), distinct, the same for the same (seed, group, slot)."""
    entropy = seed if isinstance(seed, int) else list(seed)
    drawn: list[int] = []
    for slot in range(num_envs):
        for attempt in range(100):
            key = (group, slot) if attempt == 0 else (group, slot, attempt)
            value = int(np.random.SeedSequence(entropy, spawn_key=key).generate_state(1)[0]) & 0x7FFF_FFFF
            if value not in drawn:
                break
        drawn.append(value)
    return drawn


def vector_seed(seed: int | tuple[int, ...], group: int) -> int:
    """Return the seed (31 bits) of a vector environment that seeds its slots itself."""
    entropy = seed if isinstance(seed, int) else list(seed)
    return int(np.random.SeedSequence(entropy, spawn_key=(group,)).generate_state(1)[0]) & 0x7FFF_FFFF


class Metrics:
    """Aggregates the keys of `info` in `episode_metrics`, per slot and episode."""

    def __init__(self, names: tuple[str, ...], num_envs: int):
        self.entries = [(name, *split_metric(name)) for name in names]
        self.keys = {key for _, key, _ in self.entries}
        self._values: list[dict[str, list[float]]] = [{} for _ in range(num_envs)]  # name -> [aggregate, count]
        self._all = np.ones(num_envs, bool)

    def add(self, slot: int, info: Mapping[str, Any]) -> None:
        kept = self._values[slot]
        for name, key, kind in self.entries:
            if key not in info:
                continue
            value = metric_value(key, info[key])
            if name not in kept:
                kept[name] = [value, 1.0]
                continue
            old, count = kept[name]
            if kind in ("sum", "mean"):
                value = old + value
            elif kind == "min":
                value = min(old, value)
            elif kind == "max":
                value = max(old, value)
            kept[name] = [value, count + 1.0]

    def add_all(self, info: Mapping[str, Any], skip: np.ndarray) -> None:
        """Add a vector environment's `info`: arrays [B], with `_key` for the slots that have a value."""
        for slot in np.flatnonzero(~skip).tolist():
            present = (key for key in self.keys if key in info and info.get(f"_{key}", self._all)[slot])
            self.add(slot, {key: info[key][slot] for key in present})

    def close(self, slot: int) -> dict[str, float]:
        """Return the aggregates of the slot's episode and begin another."""
        if not self.entries:
            return {}
        kept, self._values[slot] = self._values[slot], {}
        means = {name for name, _, kind in self.entries if kind == "mean"}
        return {name: value / count if name in means else value for name, (value, count) in kept.items()}


def metric_value(key: str, value: Any) -> float:
    """Return the number that `info` has under a key of `episode_metrics`."""
    try:
        return float(value)
    except (TypeError, ValueError):
        error = EnvironmentFault(
            f"info[{key!r}] is {describe(value)}, and env.episode_metrics needs a number there; leave {key!r} out of "
            "env.episode_metrics, or report a number"
        )
        error.repairable = False
        raise error from None


class Rows:
    """Turns rewards and ends of episodes into EnvStep, under next-step auto-reset; sums returns and lengths.

    Attributes:
      first: bool [B]: slots whose next step starts an episode (their action is ignored).
      any_first: whether there is such a slot.
      episode: int64 [B]: finished episodes per slot.
    """

    def __init__(self, config: EnvConfig, num_envs: int, seeds: list[int] | None = None):
        self.name = config.id
        self.metrics = Metrics(config.episode_metrics, num_envs)
        self.num_envs = num_envs
        self._seeds = seeds
        self._none = np.zeros(num_envs, bool)
        self._ones, self._acts = np.ones(num_envs, np.float32), np.ones(num_envs, np.uint8)
        self._return = np.zeros(num_envs, np.float64)
        self._opened_at = np.zeros(num_envs, np.int64)
        self._time = 0
        self.episode = np.zeros(num_envs, np.int64)
        self.first, self.any_first = self._none, False
        self._choices: np.ndarray | None = None

    def watch_masks(self, spec: EnvSpec) -> None:
        """Refuse action masks that allow nothing before the end of an episode, if observations of this spec have masks."""
        self._choices = mask_starts(spec)

    def opened(self, observation: Tree) -> EnvStep:
        """Return the result of `reset`; unfinished episodes are dropped."""
        self.check_finite(observation)
        self._check_masks(observation, self._none)
        self._return[:] = 0.0
        self._opened_at[:] = self._time
        self.first, self.any_first = self._none, False
        for slot in range(self.num_envs):
            self.metrics.close(slot)
        zeros = np.zeros(self.num_envs, np.float32)
        return EnvStep(observation, np.ones(self.num_envs, bool), zeros, self._ones, self._acts, [])

    def step(self, observation: Tree, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> EnvStep:
        """Return one step's EnvStep.

        Args:
          observation: tree of [B, ...], passed on unchanged. reward: [B]. terminated, truncated: bool [B]. All three
            are ignored in slots that start an episode in this step.
        """
        reward = reward.astype(np.float32)  # always our own copy: the environment may keep its array
        first = self.first
        if self.any_first:
            reward[first] = 0.0
        self.check_finite(observation, reward)  # before anything is counted: a repaired step is counted once
        ended = terminated | truncated
        if self.any_first:
            ended &= ~first
        self._check_masks(observation, ended)
        self._time += 1
        if self.any_first:
            self._return[first] = 0.0
            self._opened_at[first] = self._time
        self._return += reward
        discount, episodes = self._ones, []
        self.any_first = bool(ended.any())
        if self.any_first:
            episodes = self._close(ended, terminated)
            discount = np.where(ended & terminated, np.float32(0.0), np.float32(1.0))
        self.first = ended
        return EnvStep(observation, first, reward, discount, self._acts, episodes)

    def cut(self, slot: int) -> None:
        """Let the current step start an episode in a slot, and drop the open one.

        The current row becomes a last observation like any other, and the row before it a truncation.
        """
        self.first, self.any_first = self.first.copy(), True
        self.first[slot] = True
        self.episode[slot] += 1
        self.metrics.close(slot)

    def lengths(self) -> np.ndarray:
        """Return the env steps of each slot's open episode: int64 [B]."""
        return self._time - self._opened_at

    def fault(self, slot: int, what: str, advice: str) -> EnvironmentFault:
        seed, episode, step = self._life(slot)
        return fault(self.name, what, advice, slot=slot, seed=seed, episode=episode, step=step)

    def where(self, slot: int) -> str:
        return place(slot, *self._life(slot))

    def _life(self, slot: int) -> tuple[int | None, int, int]:
        seed = self._seeds[slot] if self._seeds else None
        step = 0 if self.first[slot] else int(self._time - self._opened_at[slot])
        return seed, int(self.episode[slot]), step

    def check_finite(self, observation: Tree, reward: np.ndarray | None = None) -> None:
        """Raise EnvironmentFault if a float of the observation or the reward is NaN or infinite."""
        # one array, the usual case, needs no walk over the tree
        leaves = [("observation", observation)] if isinstance(observation, np.ndarray) else float_leaves(observation)
        for name, leaf in leaves:
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                self._raise_non_finite(name, leaf)
        if reward is not None and not np.isfinite(reward).all():
            self._raise_non_finite("reward", reward)

    def _check_masks(self, observation: Tree, ended: np.ndarray) -> None:
        """Raise EnvironmentFault if a mask allows no action; slots that `ended` have nothing to choose."""
        if self._choices is None or (allowed := allowed_choices(observation[MASK_KEY], self._choices)).all():
            return
        for slot in np.flatnonzero(~allowed.all(axis=1) & ~ended).tolist():
            mask = str(observation[MASK_KEY][slot].tolist())
            what = f"allows no action: its mask is {mask if len(mask) < MOST_SHOWN else f'{mask[:MOST_SHOWN]}...'}"
            raise self.fault(slot, what, "Expected a 1 for each choice until the episode ends: allow one, or end it")

    def _raise_non_finite(self, name: str, leaf: np.ndarray) -> None:
        found = first_non_finite(leaf)
        assert found is not None
        slot, index, value = found
        where = f"{name!r}{list(index) if index else ''}"
        raise self.fault(
            slot,
            f"returned {value} in {where}; expected finite numbers",
            "Look at what its step computes there (a division by zero, a square root, a diverged simulation, None), or end "
            "the episode before it happens",
        )

    def _close(self, ended: np.ndarray, terminated: np.ndarray) -> list[Episode]:
        slots = np.flatnonzero(ended)
        totals, lengths = self._return[slots].tolist(), (self._time - self._opened_at[slots]).tolist()
        final = terminated[slots].tolist()
        episodes = [
            Episode(slot, total, length, over, self.metrics.close(slot))
            for slot, total, length, over in zip(slots.tolist(), totals, lengths, final, strict=True)
        ]
        self.episode[ended] += 1
        return episodes

    def save(self) -> dict[str, np.ndarray]:
        return {
            "first": self.first.copy(),
            "return": self._return.copy(),
            "length": self.lengths(),
            "episode": self.episode.copy(),
        }

    def load(self, saved: Mapping[str, np.ndarray]) -> None:
        self.first = np.array(saved["first"], bool)
        self.any_first = bool(self.first.any())
        self._return[:] = saved["return"]
        self._opened_at[:] = self._time - np.asarray(saved["length"])
        self.episode[:] = saved["episode"]
