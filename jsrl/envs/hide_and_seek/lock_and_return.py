"""The task lock and return, for one agent: lock all boxes, then go back to where the episode began.

Source: Baker et al. 2020 (1909.07528), section 6.2, a test of what agents have learned in hide-and-seek.
"""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.hands import Hands
from jsrl.envs.hide_and_seek.settings import Settings
from jsrl.envs.hide_and_seek.worlds import Worlds

LOCK_REWARD, PROGRESS_REWARD, RETURN_REWARD = 5.0, 0.5, 1.0  # for each lock, metre, and step at the start
NEAR = 0.1  # metres from the start


class LockAndReturn:
    """Rewards of B slots.

    A lock earns 5, an unlock -5, and each metre towards the target 0.5. The target is the nearest box that is not locked; if
    all are locked, the start. Each step within 0.1 m of the start then earns 1.
    """

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        self._worlds, self._hands, self._ramps = worlds, hands, settings.n_ramps
        slots, boxes = len(worlds.present), settings.max_boxes
        self._locked, self._apart = np.zeros((slots, boxes), bool), np.zeros((slots, boxes + 1))

    def place(self, slot: int) -> None:
        """Start an episode in a slot."""
        self._locked[slot], self._apart[slot] = False, self._distances()[slot]

    def rewards(self, nothing: np.ndarray) -> np.ndarray:
        """Return the rewards [B, 1] of the last step; 0 where `nothing`, bool [B]."""
        locked, apart = self._hands.locked[:, self._ramps :].copy(), self._distances()
        open_before = self._worlds.present[:, 1 + self._ramps :] & ~self._locked
        targets = np.concatenate([open_before, ~open_before.any(axis=1, keepdims=True)], axis=1)
        target = np.where(targets, self._apart, np.inf).argmin(axis=1)[:, None]
        closer = np.take_along_axis(self._apart - apart, target, axis=1)[:, 0]
        locks = locked.sum(axis=1) - self._locked.sum(axis=1)
        done = (locked | ~self._worlds.present[:, 1 + self._ramps :]).all(axis=1)
        reward = LOCK_REWARD * locks + PROGRESS_REWARD * closer + RETURN_REWARD * (done & (apart[:, -1] <= NEAR))
        self._locked, self._apart = locked, apart
        return np.where(nothing, 0.0, reward)[:, None]

    def _distances(self) -> np.ndarray:
        """Return the distances in the plane from the agent's centre to the boxes' and to its start, [B, boxes + 1]."""
        centres = self._worlds.centres()[..., :2]
        start = self._worlds.start[:, :1, :2] + self._worlds.half[:, :1, :2]
        goals = np.concatenate([centres[:, 1 + self._ramps :], start], axis=1)
        return np.asarray(np.linalg.norm(goals - centres[:, :1], axis=-1))
