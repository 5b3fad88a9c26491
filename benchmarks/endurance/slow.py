"""CartPole with slow steps: each one costs a given CPU time, like that of a simulator."""

from __future__ import annotations

import time
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class Slow(CartPoleEnv):
    """step_ms: CPU milliseconds of a step."""

    def __init__(self, step_ms: float = 1.0) -> None:
        super().__init__()
        self._step_s = step_ms / 1e3

    def step(self, action: Any) -> Any:
        """Take a step after using CPU time."""
        until_s = time.thread_time() + self._step_s
        result = super().step(action)
        while time.thread_time() < until_s:
            pass
        return result
