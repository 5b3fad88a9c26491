"""The task object counting: remember how many boxes went to each side."""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.hands import Hands
from jsrl.envs.hide_and_seek.settings import NEUTRAL, Settings
from jsrl.envs.hide_and_seek.task import Task
from jsrl.envs.hide_and_seek.worlds import JOINTS, Worlds

FIRST_STEP, STEPS_BETWEEN = 4, 8  # when the nearest box starts to slide, and the next ones
SPEED, DISTANCE = 2.0, 2.3  # metres per second, and metres from the middle of the floor to where a box stops


class Counting(Task):
    """Boxes slide behind a wall one after the other, each to a random side; the agent only watches.

    Its actions have no effect, and nothing is rewarded: a classifier is to predict the score from the policy's memory. The
    boxes stand in a column behind an opening of the wall; the nearest one leaves first.

    Attributes:
      score: [B]: how many boxes go to the side of larger x.
    """

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        super().__init__(settings, worlds, hands)
        slots, boxes = len(self.score), settings.max_boxes
        self._sides, self._steps = np.zeros((slots, boxes)), np.zeros(slots, int)
        self._starts = FIRST_STEP + STEPS_BETWEEN * np.arange(boxes)[::-1]

    def place(self, slot: int) -> None:
        super().place(slot)
        self._sides[slot] = self._worlds.rng(slot).choice((-1.0, 1.0), self._sides.shape[1])
        self._steps[slot], self.score[slot] = 0, (self._sides[slot] > 0).sum()

    def move(self, chosen: np.ndarray, slots: list[int]) -> None:
        """Make all actions neutral, and push the boxes that slide."""
        chosen[:] = NEUTRAL
        self._steps += 1
        gone = (self._worlds.centres()[:, self._boxes, 0] - self._settings.floor_size / 2) * self._sides
        sliding = (self._steps[:, None] >= self._starts) & (gone < DISTANCE)
        for slot in slots:
            speed = self._worlds.simulation(slot).qvel.reshape(-1, JOINTS)[self._boxes, 0]
            speed[sliding[slot]] = SPEED * self._sides[slot, sliding[slot]]
