"""Environments whose episodes get tasks drawn by weight (`env.tasks`), without a director."""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.envs.base import Episode
from jsrl.envs.config import EnvConfig
from jsrl.envs.rows import slot_seeds
from jsrl.errors import ConfigError

STREAM = 1  # of a slot's seed: tasks are drawn independently of everything else


class DrawnTasks:
    """A vector of environments that gives each episode a task.

    Args:
      env: the vector. config: with `tasks` and `task_weights`. seed, group: see jsrl.envs.make.make.

    Raises:
      ConfigError: the vector accepts no tasks.
    """

    def __init__(self, env: Any, config: EnvConfig, seed: int | tuple[int, ...], group: int) -> None:
        if not hasattr(env, "set_tasks"):
            raise ConfigError(
                f"environment {config.id!r} takes no tasks; env.tasks is for those whose reset has options."
            )
        self._env, self._tasks, self._over = env, config.tasks, list[Episode]()
        weights = np.array(config.task_weights or [1.0] * len(config.tasks))
        self._shares = weights / weights.sum()
        self._random = [np.random.default_rng((own, STREAM)) for own in slot_seeds(seed, group, env.num_envs)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> Any:
        self._draw(range(self._env.num_envs))
        return self._env.reset()

    def step(self, action: Any) -> Any:
        """Step every slot; slots whose episode ended begin another one with a new task."""
        self._draw(episode.slot for episode in self._over)
        latest = self._env.step(action)
        self._over = latest.episodes
        return latest

    def _draw(self, slots: Any) -> None:
        drawn = {slot: self._random[slot].choice(len(self._tasks), p=self._shares) for slot in slots}
        self._env.set_tasks({slot: self._tasks[number] for slot, number in drawn.items()})
