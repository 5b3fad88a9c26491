"""Prioritised level replay on mazes: PPO repeats the levels with the largest value errors"""

import gymnasium
import numpy as np
from gymnasium import spaces

from jsrl import PLR, EnvConfig, EvaluatorConfig, Experiment, NetworkConfig, PolicyConfig, PPOConfig

SIZE, VIEW, LIMIT = 13, 2, 80
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])


class Maze(gymnasium.Env):
    """A square maze with one way between any two places; the number of the level determines walls, start and goal.

    The agent sees the walls up to two cells away, where the goal lies, and where it came from.
    """

    observation_space = spaces.Box(-1.0, 1.0, ((2 * VIEW + 1) ** 2 + 2 + len(MOVES),), np.float32)
    action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed=None, options=None):
        """Build the level `task` of the options, or any level."""
        super().reset(seed=seed)
        level = (options or {}).get("task", int(self.np_random.integers(1 << 31)))
        rng = np.random.default_rng(level)
        self.walls = self._carved(rng)
        free = np.argwhere(~self.walls)
        self.place, self.goal = free[rng.choice(len(free), 2, replace=False)]
        self.steps, self.came = 0, np.zeros(len(MOVES), np.float32)
        return self._see(), {}

    def step(self, action):
        """Move a cell, unless there is a wall; the goal pays 1, less the share of the time that it took."""
        target = self.place + MOVES[action]
        if not self.walls[tuple(target)]:
            self.place, self.came = target, np.eye(len(MOVES), dtype=np.float32)[action]
        self.steps += 1
        arrived = bool((self.place == self.goal).all())
        return self._see(), (1.0 - 0.9 * self.steps / LIMIT) * arrived, arrived, self.steps == LIMIT, {}

    def _see(self):
        row, column = self.place + VIEW  # in a world with more walls around
        padded = np.pad(self.walls, VIEW, constant_values=True)
        near = padded[row - VIEW : row + VIEW + 1, column - VIEW : column + VIEW + 1]
        return np.concatenate([near.ravel(), (self.goal - self.place) / SIZE, self.came]).astype(np.float32)

    def _carved(self, rng):
        """Return the walls, carved by a random walk that goes back where it is stuck."""
        walls, path = np.ones((SIZE, SIZE), bool), [(1, 1)]
        walls[1, 1] = False
        while path:
            here = np.array(path[-1])
            ahead = [tuple(here + 2 * move) for move in MOVES]
            ways = [cell for cell in ahead if all(0 < place < SIZE for place in cell) and walls[cell]]
            if not ways:
                path.pop()
                continue
            path.append(ways[rng.integers(len(ways))])
            walls[path[-1]] = walls[tuple((here + path[-1]) // 2)] = False
        return walls


def config() -> Experiment:
    """Return the experiment; evaluations play levels that were never trained on."""
    agent = PPOConfig(
        learning_rate=1e-3,
        gamma=0.98,
        entropy_coef=0.02,
        num_epochs=4,
        num_minibatches=4,
        network=NetworkConfig(core="gru", core_size=64, hidden=(64,)),
    )
    return Experiment(
        name="plr_maze",
        env=EnvConfig(Maze),
        policies={"main": PolicyConfig(agent)},
        director=PLR(num_levels=200, replay_share=0.8, min_fill=0.5),
        num_envs=32,
        rollout_length=80,
        total_env_steps=500_000,
        evaluator=EvaluatorConfig(episodes=200, num_envs=50, period_env_steps=50_000, final_episodes=500),
    )
