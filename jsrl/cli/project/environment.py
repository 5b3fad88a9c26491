"""An environment of your own: any gymnasium.Env. This one is a corridor; walk right to its end."""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """A corridor of `size` cells; -0.1 for each step, 1 at the end."""

    def __init__(self, size: int = 8):
        self.size = size
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)  # left, right

    def reset(self, *, seed=None, options=None):
        """Begin an episode somewhere in the first half."""
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(self.size // 2))
        return self._observe(), {}

    def step(self, action):
        """Walk a cell to the left (0) or right (1)."""
        self.position = max(0, self.position + (1 if action == 1 else -1))
        arrived = self.position >= self.size
        return self._observe(), 1.0 if arrived else -0.1, arrived, False, {}

    def _observe(self):
        return np.array([self.position / self.size], np.float32)
