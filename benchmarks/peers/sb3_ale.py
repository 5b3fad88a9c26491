"""ale-py's vector of games as a VecEnv of Stable-Baselines3, for SB3 and SBX."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv


class AleVecEnv(VecEnv):
    """All games in one C++ vector; observations [N, 4, 84, 84] uint8."""

    def __init__(self, games: Any) -> None:
        self._games = games
        image = spaces.Box(0, 255, games.single_observation_space.shape, np.uint8)
        super().__init__(games.num_envs, image, games.single_action_space)
        self.render_mode = None
        self._actions: np.ndarray | None = None

    def reset(self) -> np.ndarray:
        """Reset every game, from the seed that the model gave, the first time."""
        seed = self._seeds[0]
        self._reset_seeds()
        return self._games.reset(seed=seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions; all games step at once."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step; where a game ended, the observation is the next one's first and `terminal_observation` its last."""
        observation, reward, terminated, truncated, facts = self._games.step(self._actions)
        ended = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            last = facts.get("final_obs", observation)
            for slot in np.flatnonzero(ended):
                infos[slot] = {"terminal_observation": last[slot], "TimeLimit.truncated": bool(truncated[slot])}
        return observation, reward.astype(np.float32), ended, infos

    def close(self) -> None:
        """Close the games."""
        self._games.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the games, equal for all."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: the games are not Python objects."""
        raise NotImplementedError(f"the games of one C++ vector have no attribute {attr_name!r} to set")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Refuse: the games are not Python objects."""
        raise NotImplementedError(f"the games of one C++ vector have no method {method_name!r}")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return that no game is wrapped in Python."""
        return [False] * self.num_envs
