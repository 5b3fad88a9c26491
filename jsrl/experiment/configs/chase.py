"""A runner flees from a chaser on a ring: two policies with opposite rewards, each trained by PPO"""

import dataclasses

import numpy as np
from gymnasium import spaces

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PolicyConfig, PPOConfig

PLACES, LIMIT = 11, 30


class Chase:
    """A parallel environment as PettingZoo defines it; the package itself is not needed."""

    possible_agents = ("chaser", "runner")

    def observation_space(self, agent):
        """Return what an agent sees: where the other is on the ring, and the time."""
        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def action_space(self, agent):
        """Return what an agent does: one place back, none, or one place forward."""
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        """Put both on the ring."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.distance = int(self.rng.integers(2, PLACES - 1))  # places from the chaser forward to the runner
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        """Move both; the episode terminates when the runner is caught, and is truncated when the time is up."""
        slips = self.rng.random() < 0.3  # the runner is slower
        self.distance += (0 if slips else actions["runner"] - 1) - (actions["chaser"] - 1)
        self.distance %= PLACES
        self.steps += 1
        caught, late = self.distance == 0, self.steps == LIMIT
        rewards = {"chaser": 10.0 if caught else -0.1, "runner": -10.0 if caught else 0.1}
        seen, everyone = self._see(), self.agents
        self.agents = [] if caught or late else everyone
        return seen, rewards, dict.fromkeys(everyone, caught), dict.fromkeys(everyone, late), {a: {} for a in everyone}

    def _see(self):
        angle = 2 * np.pi * self.distance / PLACES
        shown = np.array([np.sin(angle), np.cos(angle), self.steps / LIMIT], np.float32)
        return dict.fromkeys(self.possible_agents, shown)

    def close(self):
        """Free nothing."""


def config() -> Experiment:
    """Return the experiment: each seat has a policy of its own."""
    fast = PPOConfig(learning_rate=1e-3, entropy_coef=0.01)
    return Experiment(
        name="chase",
        env=EnvConfig(Chase),
        policies={
            "chaser": PolicyConfig(fast, seats="chaser"),
            "runner": PolicyConfig(dataclasses.replace(fast, learning_rate=3e-4), seats="runner"),
        },
        num_envs=16,
        rollout_length=64,
        total_env_steps=100_000,
        evaluator=EvaluatorConfig(episodes=50, num_envs=50),
    )
