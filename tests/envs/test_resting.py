"""Slots of an evaluation that have played their share are not stepped any more; the scores stay the same."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.workers.play import EpisodeCounts, ignore, rest_of


class Uneven(gymnasium.Env):
    """Episodes of 1 to 30 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps: ClassVar = [0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 31))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps[0] += 1
        self.left -= 1
        return np.zeros(1, np.float32), float(self.np_random.random()), self.left == 0, False, {}


def play(rests: bool, number: int = 1) -> tuple[list[float], int]:
    """Return the returns of the last of some evaluations in one environment, and the steps of that one."""
    env = make(EnvConfig("tests.envs.test_resting:Uneven"), 4, 5)
    for _ in range(number):
        Uneven.steps[0], counts = 0, EpisodeCounts(0, 10, 4, None)
        rest = rest_of(env) if rests else ignore
        env.reset()
        while not counts.complete:
            rest(counts.count(env.step(np.zeros(4, np.int32)).episodes))
    env.close()
    return counts.score.returns, int(Uneven.steps[0])


def test_resting_slots_save_steps_and_change_no_score() -> None:
    (rested, fewer), (stepped, all_steps) = play(rests=True), play(rests=False)
    assert rested == stepped and len(rested) == 10
    assert fewer < all_steps


def test_a_reset_wakes_resting_slots() -> None:
    returns, steps = play(rests=True, number=2)
    assert len(returns) == 10 and steps >= 10 and len(set(returns)) == 10


def test_environments_that_cannot_rest_are_stepped_on() -> None:
    assert rest_of(object()) is ignore
