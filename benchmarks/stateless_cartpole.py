"""CartPole without velocities: a policy needs memory. Use it with `--env.id benchmarks.stateless_cartpole:StatelessCartPole`.

The task of RLlib's example of R2D2 (rllib/tuned_examples/r2d2/stateless-cartpole-r2d2.yaml), which aims at a return of 150.
"""

from __future__ import annotations

import gymnasium
import numpy as np


class StatelessCartPole(gymnasium.ObservationWrapper):
    """Observations are the cart's position and the pole's angle, float32 [2]; `max_episode_steps`: of an episode."""

    def __init__(self, max_episode_steps: int = 500) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=max_episode_steps))
        space = self.env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return what is left of an observation."""
        return observation[[0, 2]]
