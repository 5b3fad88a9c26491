"""A synthetic stream of trajectories whose every row encodes its environment and time: the reference for replay."""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.types import Trajectory

FRAMES = 4


class World:
    """N endless environments: `trajectory()` gives the next T rows and the bootstrap row.

    Observations are float32 [2]: (row since the beginning, environment), or stacks of random frames uint8 [3, 3, 4],
    black before a game starts; every second end of an episode is a lost life, where the stack continues.
    """

    def __init__(self, num_envs: int, num_rows: int, *, seed: int = 0, frames: bool = False, core: bool = False):
        self.num_envs, self.num_rows, self.frames, self.core = num_envs, num_rows, frames, core
        self.rng = np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []
        self.stack = np.zeros((num_envs, 3, 3, FRAMES), np.uint8)
        self.ended = np.ones(num_envs, bool)
        self.next = self._observe()

    def _observe(self) -> dict[str, Any]:
        at, n = len(self.rows), self.num_envs
        is_first = self.ended.copy()
        observation = np.stack([np.full(n, at), np.arange(n)], axis=1).astype(np.float32)
        if self.frames:
            new_game = is_first & (self.rng.random(n) < 0.5 if at else True)
            self.stack[new_game] = 0
            newest = self.rng.integers(1, 255, (n, 3, 3, 1), np.uint8)
            self.stack = np.concatenate([self.stack[..., 1:], newest], axis=-1)
            observation = self.stack.copy()
        return {"observation": observation, "is_first": is_first}

    def step(self) -> None:
        n, at = self.num_envs, len(self.rows)
        ends = ~self.next["is_first"] & (self.rng.random(n) < 0.2)
        row = {
            **self.next,
            "action": self.rng.integers(0, 9, n).astype(np.int32),
            "reward": (at + np.arange(n) / 100).astype(np.float32),
            "discount": self.rng.integers(0, 2, n).astype(np.float32),
            "acts": (self.rng.random(n) < 0.9).astype(np.uint8),
            "log_prob": -np.full(n, at + 1, np.float32),
            "extras": {"value": np.full((n, 2), at, np.float32)},
            "version": np.full(n, 5, np.int64),
        }
        self.rows.append(row)
        self.ended = ends
        self.next = self._observe()

    def core_at(self, at: int) -> np.ndarray:
        return np.stack([np.full(self.num_envs, 1000 + at), np.arange(self.num_envs)], axis=1).astype(np.float32)

    def trajectory(self) -> Trajectory:
        begin = len(self.rows)
        for _ in range(self.num_rows):
            self.step()
        rows = self.rows[begin:]

        def column(name: str) -> Any:
            values = [row[name] for row in rows]
            if name in ("observation", "is_first"):
                return np.stack([*values, self.next[name]])
            if name == "extras":
                values = [value["value"] for value in values]
                return {"value": np.stack([*values, np.zeros_like(values[0])])}
            return np.stack([*values, np.zeros_like(values[0])])

        names = [name for name in Trajectory._fields if name not in ("core", "sampling", "state", "game")]
        return Trajectory(*(column(name) for name in names), core=self.core_at(begin) if self.core else ())

    def observation(self, at: int, env: int) -> np.ndarray:
        return (self.rows[at] if at < len(self.rows) else self.next)["observation"][env]

    def is_first(self, at: int, env: int) -> bool:
        return bool((self.rows[at] if at < len(self.rows) else self.next)["is_first"][env])

    def mask(self, at: int, env: int) -> bool:
        return bool(self.rows[at]["acts"][env]) and not self.is_first(at + 1, env)

    def check_window(self, windows: Trajectory, column: int, at: int, env: int) -> None:
        """Compare a column of windows [W+1, M] with the rows at, at+1, ... of an environment."""
        last = windows.is_first.shape[0] - 1
        for row in range(last + 1):
            assert (windows.observation[row, column] == self.observation(at + row, env)).all()
            assert bool(windows.is_first[row, column]) == self.is_first(at + row, env)
        for row in range(last):
            truth = self.rows[at + row]
            for name in ("action", "reward", "discount", "acts", "log_prob"):
                assert getattr(windows, name)[row, column] == truth[name][env], name
            assert (windows.extras["value"][row, column] == truth["extras"]["value"][env]).all()
        if self.core:
            assert (windows.core[column] == self.core_at(at)[env]).all()
