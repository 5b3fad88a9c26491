"""ViZDoom's environments (ids `VizdoomHealthGathering-v1`): a wrapper that shows small grey screens."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

TICS_PER_S = 35.0  # Doom's clock
VARIABLES = "gamevariables"


class GreyScreens(gymnasium.Wrapper):
    """Show `screen`, the last screens in grey, the newest last, and the game's `variables`, such as health, if it has some.

    An episode that reaches its time limit is truncated, not terminated. ViZDoom shows zeros after an episode's last step; here
    the last observation stays. The engine's settings file goes to a temporary folder, as each engine writes one.

    Args:
      env: an environment of ViZDoom; its observation has a `screen`, uint8 [height, width, 1 or 3].
      shrink: side of the squares of pixels that are averaged to one. frames: how many screens are stacked.
    """

    def __init__(self, env: gymnasium.Env, shrink: int = 2, frames: int = 4) -> None:
        super().__init__(env)
        seen: Any = env.observation_space
        height, width, _ = seen["screen"].shape
        self._shrink = shrink
        self._stack = np.zeros((height // shrink, width // shrink, frames), np.uint8)
        shown: dict[str, gymnasium.Space] = {"screen": gymnasium.spaces.Box(0, 255, self._stack.shape, np.uint8)}
        if VARIABLES in seen.spaces:
            shown["variables"] = seen[VARIABLES]
        self.observation_space = gymnasium.spaces.Dict(shown)
        doom: Any = env.unwrapped
        self.metadata = {**env.metadata, "render_fps": TICS_PER_S / doom.frame_skip}
        self._folder: str | None = tempfile.mkdtemp(prefix="vizdoom-")
        doom.game.set_doom_config_path(str(Path(self._folder, "engine.ini")))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; its first screen fills the stack."""
        seen, info = self.env.reset(seed=seed, options=options)
        self._stack[:] = self._small(seen["screen"])[:, :, None]
        return self._shown(seen), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and append the new screen."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            return self._last, reward, terminated and not truncated, truncated, info
        self._stack[:, :, :-1] = self._stack[:, :, 1:]
        self._stack[:, :, -1] = self._small(seen["screen"])
        return self._shown(seen), reward, False, False, info

    def _shown(self, seen: Any) -> dict[str, np.ndarray]:
        self._last = {"screen": self._stack.copy()}
        if VARIABLES in seen:
            self._last["variables"] = seen[VARIABLES]
        return self._last

    def _small(self, screen: np.ndarray) -> np.ndarray:
        """Return the mean over squares of pixels and colours, uint8 [height / shrink, width / shrink]."""
        k, (height, width) = self._shrink, self._stack.shape[:2]
        light = np.zeros(screen.shape[:2], np.uint32)
        for colour in range(screen.shape[2]):
            light += screen[:, :, colour]
        total = sum(light[i : height * k : k, j : width * k : k] for i in range(k) for j in range(k))
        return (total // (k * k * screen.shape[2])).astype(np.uint8)

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
