"""Environments whose rows are all known, and environments that break the contract; given by reference."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observation (t, draw of the episode); reward t + 1; episodes of `length` steps, terminated or truncated."""

    def __init__(self, length: int = 3, truncates: bool = False, start: int = 0):
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = spaces.Discrete(2, start=start)
        self.length, self.truncates = length, truncates
        self.actions: list[int] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.draw = 0, self.np_random.integers(1000)
        return self._observe(), {"level": 0.0}

    def step(self, action):
        assert self.action_space.contains(action), f"got {action!r}"
        self.actions.append(action)
        self.time += 1
        over = self.time == self.length
        told = {"level": float(self.time)}
        return self._observe(), float(self.time), over and not self.truncates, over and self.truncates, told

    def _observe(self):
        return np.array([self.time, self.draw], np.float64)


def counting_vector(num_envs: int, mode: str, **kwargs) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: Counting(**kwargs)] * num_envs, autoreset_mode=mode)


def limited_vector(num_envs: int, max_episode_steps: int) -> gymnasium.vector.VectorEnv:
    return counting_vector(num_envs, "NextStep", length=max_episode_steps)


class DoubledReward(gymnasium.Wrapper):
    """Doubles the reward."""

    def step(self, action):
        observation, reward, terminated, truncated, told = self.env.step(action)
        return observation, 2 * reward, terminated, truncated, told


class Rich(gymnasium.Env):
    """Nested dict observation of every supported kind, a shifted multi-discrete action, and a mask in `info`."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
                "inner": spaces.Dict({"count": spaces.Box(-9, 9, (2,), np.int64), "bits": spaces.MultiBinary(3)}),
                "pair": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3]))),
            }
        )
        self.action_space = spaces.MultiDiscrete([2, 3], start=np.array([10, 20]))

    def _told(self):
        return {"action_mask": (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))}

    def _observe(self):
        return {
            "image": np.full((4, 5, 3), 7, np.uint8),
            "inner": {"count": np.array([1, -2]), "bits": np.array([0, 1, 1], np.int8)},
            "pair": (6, np.array([1, 2])),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), self._told()

    def step(self, action):
        assert self.action_space.contains(action) and action[0] == 10 and action[1] in (21, 22)
        return self._observe(), 1.0, False, False, self._told()


class ForgetfulMask(Counting):
    """Brings a mask in `info`, but none in step `without` of an episode of 3 steps, or (`shut`) one of zeros."""

    def __init__(self, without: int, shut: bool = False):
        super().__init__()
        self.without, self.shut = without, shut

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action):
        *rest, _ = super().step(action)
        if self.time == self.without and not self.shut:
            return *rest, {}
        return *rest, {"action_mask": np.array([int(self.time != self.without), 0], np.int8)}


def forgetful_vector(num_envs: int, mode: str, without: int, shut: bool = False) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: ForgetfulMask(without, shut)] * num_envs, autoreset_mode=mode)


class Bounded(gymnasium.Env):
    """Returns its action as its observation."""

    def __init__(self, high: float = 2.0, shape: tuple[int, ...] = (2, 1)):
        self.action_space = spaces.Box(-1.0, high, tuple(shape), np.float64)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action.dtype == np.float64 and action.shape == self.action_space.shape
        return action.ravel().astype(np.float32), 0.0, False, False, {}


class Strict(Bounded):
    """Refuses actions outside of its space, whose bounds float32 does not have."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-0.1, 0.7, (2, 1), np.float64)

    def step(self, action):
        assert self.action_space.contains(action), f"got {action!r}"
        return super().step(action)


class Foreign:
    """An array of another library than NumPy."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class ForeignArrays(Counting):
    """Observes arrays of another library."""

    def _observe(self):
        return Foreign(super()._observe())


class ForeignVector(gymnasium.vector.VectorWrapper):
    """Returns arrays of another library."""

    def reset(self, **kwargs):
        observation, told = self.env.reset(**kwargs)
        return Foreign(observation), told

    def step(self, actions):
        *arrays, told = self.env.step(actions)
        return *map(Foreign, arrays), told


def foreign_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return ForeignVector(counting_vector(num_envs, "NextStep"))


class Unclosable(Counting):
    """Raises whenever it is closed."""

    closed: ClassVar[list[int]] = []

    def close(self):
        self.closed.append(id(self))
        raise RuntimeError("the window is gone")


class Faulty(gymnasium.Env):
    """Well-behaved until step `at` of its second episode, then fails in the way of `what`."""

    def __init__(self, what: str, at: int = 2):
        self.observation_space = spaces.Box(0, 255, (3,), np.uint8 if what == "dtype" else np.float32)
        self.action_space = spaces.Discrete(2)
        self.what, self.at, self.episode = what, at, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        if self.what == "raise in reset" and self.episode == 1:
            raise RuntimeError("no more levels")
        return np.zeros(3, self.observation_space.dtype), {}

    def step(self, action):
        self.time += 1
        observation, reward = np.zeros(3, self.observation_space.dtype), 0.0
        if self.episode == 1 and self.time == self.at:
            if self.what == "raise in step":
                raise ZeroDivisionError("the wheel came off")
            if self.what == "hang":
                time.sleep(3600)
            if self.what == "none":
                return None
            if self.what == "four values":
                return observation, reward, False, {}
            observation = {
                "nan": np.array([0, np.nan, 0], np.float32),
                "shape": np.zeros((1,), np.float32),
                "dtype": np.full(3, 0.5),
            }.get(self.what, observation)
            reward = {"reward nan": float("inf"), "reward shape": np.zeros(2)}.get(self.what, reward)
        return observation, reward, self.time >= 3, False, {}


class Unseeded(Counting):
    """Ignores its seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=time.time_ns() & 0x7FFFFFFF)


class EqualSlots(Counting):
    """Gives every slot the same episodes."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=1)


class OutsideSpace(Counting):
    """Observes `value` of a discrete space after the first step of an episode."""

    def __init__(self, value: Any):
        super().__init__()
        parts = [3, 4] if isinstance(value, list) else 3
        self.observation_space = spaces.MultiDiscrete(parts) if isinstance(parts, list) else spaces.Discrete(3, start=1)
        self.value = np.array(value) if isinstance(value, list) else value

    def _observe(self):
        return self.value if self.time else np.ones_like(self.value)


class NoSpaces(gymnasium.Env):
    """Forgot its spaces."""


class OldReset(Counting):
    """Returns from reset what gym did before gymnasium: the observation alone."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class SeedlessReset(Counting):
    """Resets as in gym before gymnasium: without a seed."""

    def reset(self):
        return super().reset()[0]


class TextObservation(Counting):
    """Has an unsupported observation space."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Text(5)


class EmptyObservation(Counting):
    """Observes nothing of one kind."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"time": self.observation_space, "enemies": spaces.Box(0, 1, (0, 4))})


class DictAction(Counting):
    """Has an unsupported action space."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Dict({"a": spaces.Discrete(2)})
