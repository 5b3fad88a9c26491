"""ale-py's vector of games as a native environment of PufferLib."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pufferlib


class Games(pufferlib.PufferEnv):
    """All games in one C++ vector, written into the trainer's buffers."""

    def __init__(self, vector: Any) -> None:
        self._vector = vector
        shape = vector.single_observation_space.shape
        self.single_observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(int(vector.single_action_space.n))
        self.num_agents = vector.num_envs
        super().__init__()

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Reset every game."""
        self.observations[:] = self._vector.reset(seed=seed)[0]
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        """Step every game; ended ones restart."""
        observation, reward, terminated, truncated, _ = self._vector.step(np.asarray(actions, np.int64))
        self.observations[:], self.rewards[:] = observation, reward
        self.terminals[:], self.truncations[:] = terminated, truncated
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        """Close the games."""
        self._vector.close()


def games(vector: Any) -> Games:
    """Return a native environment around a vector."""
    return Games(vector)
