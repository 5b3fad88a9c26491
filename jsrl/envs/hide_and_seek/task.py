"""What a task for one agent has to supply; each task is a subclass.

Source: Baker et al. 2020 (1909.07528), section 6.2, tests of what agents have learned in hide-and-seek.
"""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.hands import Hands
from jsrl.envs.hide_and_seek.settings import Settings
from jsrl.envs.hide_and_seek.worlds import Worlds


class Task:
    """A task in B slots, without rewards.

    Attributes:
      over: bool [B]: the last step completed the task, so the episode terminates.
      score: [B], after the last step; its meaning is the task's.
    """

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        self._settings, self._worlds, self._hands = settings, worlds, hands
        self._ramps = settings.n_ramps
        self._boxes = slice(settings.n_agents + settings.n_ramps, None)  # among bodies
        self.over, self.score = np.zeros(len(worlds.present), bool), np.zeros(len(worlds.present))

    def place(self, slot: int) -> None:
        self.over[slot], self.score[slot] = False, 0.0

    def move(self, chosen: np.ndarray, slots: list[int]) -> None:
        """Change the actions [B, 1, 5] and the bodies of some slots before they are stepped."""

    def rewards(self) -> np.ndarray:
        """Return the rewards [B] of the last step."""
        return np.zeros(len(self.score))
