"""Whole episodes in the slots of an environment: each plays its share, so that short ones count no more than long ones."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jsrl.envs.base import Episode
from jsrl.envs.faults import LONG_STEPS


class Episodes:
    """Plays a number of episodes, in bounded steps. A subclass chooses the actions and counts the episodes.

    Args:
      env: vector environment. episodes: in all slots. max_steps: of an episode; a longer one seems to have no end.
      watch: entered around each call of the environment. enter: called with the activity that begins.
      camera: sees every result of the environment.
      rests: do not step slots that have played their share, if the environment can. The episodes after the next reset are
        then others.

    Attributes:
      latest: the environment's last result. left: int [slots], episodes that each slot is still to play.
      env_steps: played so far.
    """

    def __init__(
        self,
        env: Any,
        episodes: int,
        *,
        watch: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        enter: Callable[[str], Any] = lambda activity: None,
        camera: Callable[[Any], None] = lambda latest: None,
        max_steps: int = LONG_STEPS,
        rests: bool = False,
    ) -> None:
        slots = env.num_envs
        self._env, self._watch, self._enter, self._camera, self._max_steps = env, watch, enter, camera, max_steps
        self._rest = getattr(env, "rest", None) if rests else None
        self.left = np.array([episodes // slots + (slot < episodes % slots) for slot in range(slots)])
        self._lengths = np.zeros(slots, np.int64)  # of the open episodes
        self.latest: Any = None
        self.env_steps = 0

    def act(self, latest: Any) -> Any:
        """Return the actions of the next step."""
        raise NotImplementedError

    def count(self, episode: Episode) -> None:
        """Count an episode that belongs to its slot's share."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Return whether every slot played its episodes."""
        return not self.left.any()

    @property
    def endless(self) -> bool:
        """Return whether the episode of a slot that has not played its share seems to have no end."""
        return bool((self._lengths[self.left > 0] >= self._max_steps).any())

    def advance(self, budget_s: float = math.inf) -> bool:
        """Play until all episodes are over (True), one seems to have no end, or the time budget is used (False)."""
        until = time.perf_counter() + budget_s
        if self.latest is None:
            self._enter("env")
            with self._watch():
                self.latest = self._env.reset()
            self._camera(self.latest)
        while not (self.complete or self.endless):
            self._enter("act")
            action = self.act(self.latest)
            self._enter("env")
            with self._watch():
                self.latest = self._env.step(action)
            self._camera(self.latest)
            self._enter("other")
            self.env_steps += self._env.num_envs
            self._lengths += 1
            for episode in self.latest.episodes:
                self._lengths[episode.slot] = 0
                if self.left[episode.slot]:
                    self.count(episode)
                    self.left[episode.slot] -= 1
                    if self._rest is not None and not self.left[episode.slot]:
                        self._rest([episode.slot])
            if time.perf_counter() >= until:
                break
        return self.complete
