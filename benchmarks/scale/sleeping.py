"""An environment that sleeps in each step and returns observations of a given size, for reproducible layouts."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Sleeping(gymnasium.Env):
    """Args: step_s: sleep of each step. size: bytes of an observation. length: steps of an episode."""

    def __init__(self, step_s: float = 0.005, size: int = 64, length: int = 200) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (size,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._step_s, self._length, self._steps = step_s, length, 0
        self._observation = np.arange(size, dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observation, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Sleep."""
        self._steps += 1
        if self._step_s:
            time.sleep(self._step_s)
        return self._observation, 1.0, False, self._steps >= self._length, {}
