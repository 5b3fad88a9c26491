"""EnvPool's environments (ids `envpool:NAME`).

EnvPool auto-resets at the next step, as in the row table, takes one seed per slot, and runs on one thread unless
kwargs set `num_threads`. Its channels-first pictures become channels-last.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from jsrl.envs.config import EnvConfig
from jsrl.envs.rows import slot_seeds
from jsrl.envs.vector import GymVectorEnv
from jsrl.errors import ConfigError, MissingExtra
from jsrl.extras import import_extra
from jsrl.references.importing import nearest

MAX_CHANNELS = 16


def make_pool(config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0) -> GymVectorEnv:
    name = config.id.removeprefix("envpool:")
    envpool = import_extra("envpool", "envpool", f"environment {config.id!r}")
    known = envpool.list_all_envs()
    if name not in known:
        raise ConfigError(f"EnvPool has no environment {name!r}{nearest(name, known)}")
    kwargs: dict[str, Any] = {"num_threads": 1, **config.kwargs}
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    seeds = slot_seeds(seed, group, num_envs)
    with warnings.catch_warnings():
        # its float64 bounds become float32 Boxes, about which Gymnasium warns
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        try:
            pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seeds, **kwargs)
            _refuse_players(pool, config)
            adapted = (_Football if name.startswith("gfootball/") else _Pool)(pool, num_envs)
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:  # some lack files of data
            raise ConfigError(f"EnvPool could not make {name!r} with {kwargs}: {error}. Check env.kwargs") from error
        except ImportError as error:  # Procgen's need Qt 5 from the system
            raise MissingExtra(f"environment {config.id!r} needs a library of the system: {error}") from error
    return GymVectorEnv(adapted, config, seed, group, seeds)


def _refuse_players(pool: Any, config: EnvConfig) -> None:
    if (players := pool.config["max_num_players"]) > 1:
        pool.close()
        raise ConfigError(
            f"environment {config.id!r} has {players} players, and jsrl plays only EnvPool's environments for one. Many of "
            "these games are in OpenSpiel (openspiel:connect_four) and PettingZoo (pettingzoo:MODULE)"
        )


class _Pool(gymnasium.vector.VectorEnv):
    """EnvPool's object as a Gymnasium vector environment (its own spaces are those of one environment)."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, pool: Any, num_envs: int):
        self._pool: Any = pool
        self.num_envs = num_envs
        space, self.single_action_space = pool.observation_space, pool.action_space
        self._is_picture = (
            isinstance(space, gymnasium.spaces.Box)
            and space.dtype == np.uint8
            and len(space.shape) == 3
            and space.shape[0] <= MAX_CHANNELS < space.shape[2]
        )
        if self._is_picture:
            channels, height, width = space.shape
            space = gymnasium.spaces.Box(0, 255, (height, width, channels), np.uint8)
            self._picture = np.zeros((num_envs, height, width, channels), np.uint8)
        self.single_observation_space = space

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self._pool.reset()
        return self._seen(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._pool.step(actions)
        return self._seen(observation), reward, terminated, truncated, info

    def _seen(self, observation: Any) -> Any:
        if not self._is_picture:
            return observation
        self._picture[...] = observation.transpose(0, 2, 3, 1)
        return self._picture

    def render(self) -> Any:
        """Return the pictures of all slots, uint8 [num_envs, height, width, 3]."""
        return self._pool.render(range(self.num_envs))

    def close(self, **_: Any) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()


class _Football(_Pool):
    """Google football, which EnvPool does not draw: its picture shows the observation, planes of the pitch [72, 96, 4]."""

    # of the planes: left side, right side, ball, active player
    COLOURS = ((240, 220, 60), (70, 110, 240), (255, 255, 255), (230, 60, 60))
    SCALE = 4

    def _seen(self, observation: Any) -> Any:
        self._planes = observation
        return observation

    def render(self) -> Any:
        """Return the pictures of all slots, uint8 [num_envs, 288, 384, 3]."""
        pictures = np.full((*self._planes.shape[:3], 3), (40, 130, 50), np.uint8)
        for plane in (0, 1, 3, 2):  # the ball last, above the players
            pictures[self._planes[..., plane] > 0] = self.COLOURS[plane]
        return pictures.repeat(self.SCALE, axis=1).repeat(self.SCALE, axis=2)
