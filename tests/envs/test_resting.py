"""Slots of an evaluation that have played their share are not stepped any more; the scores stay the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from jsrl.envs.base import Episode
from jsrl.envs.config import EnvConfig
from jsrl.envs.episodes import Episodes
from jsrl.envs.make import make


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


class Still(Episodes):
    """Episodes in which nothing is done."""

    def __init__(self, env: Any, episodes: int, **options: Any) -> None:
        super().__init__(env, episodes, **options)
        self.returns: list[float] = []

    def act(self, latest: Any) -> Any:
        return np.zeros(len(self.left), np.int32)

    def count(self, episode: Episode) -> None:
        self.returns.append(episode.return_)


def play(rests: bool, number: int = 1) -> tuple[list[float], int]:
    """Return the returns of the last of some evaluations in one environment, and the steps of that one."""
    env = make(EnvConfig("tests.envs.test_resting:Uneven"), 4, 5)
    for _ in range(number):
        Uneven.steps[0], played = 0, Still(env, 10, rests=rests)
        assert played.advance() and played.env_steps >= 10
    env.close()
    return played.returns, int(Uneven.steps[0])


def test_resting_slots_save_steps_and_change_no_score() -> None:
    (rested, fewer), (stepped, all_steps) = play(rests=True), play(rests=False)
    assert rested == stepped and len(rested) == 10
    assert fewer < all_steps


def test_a_reset_wakes_resting_slots() -> None:
    returns, steps = play(rests=True, number=2)
    assert len(returns) == 10 and steps >= 10 and len(set(returns)) == 10


def test_environments_that_cannot_rest_are_stepped_on() -> None:
    env = make(EnvConfig("tests.envs.test_resting:Uneven"), 4, 5)
    plain = SimpleNamespace(num_envs=4, reset=env.reset, step=env.step)
    played = Still(plain, 10, rests=True)
    assert played.advance() and len(played.returns) == 10
    env.close()
