"""Tasks of locking boxes: lock and return, and sequential lock."""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.hands import Hands
from jsrl.envs.hide_and_seek.settings import Settings
from jsrl.envs.hide_and_seek.task import Task
from jsrl.envs.hide_and_seek.worlds import Worlds

LOCK_REWARD, PROGRESS_REWARD, DONE_REWARD = 5.0, 0.5, 1.0  # for each lock, metre towards the target, and step when done
NEAR = 0.1  # metres from the start
LAST = 1e9  # after each rank and distance of a box


class Locking(Task):
    """Rewards of B slots: a lock earns 5, an unlock -5, each metre towards the target 0.5, each step in which it is done 1.

    `lock_and_return`: the target is the nearest box that is not locked; if all are locked, the start. Done: all boxes are
    locked, and the agent is within 0.1 m of the start. `sequential_lock`: only the next box of a hidden, random order can be
    locked, and is the target. Done: all boxes are locked.

    Attributes:
      score: [B], after the last step: 1 if lock and return is done, else 0; in sequential lock the share of locked boxes.
    """

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        super().__init__(settings, worlds, hands)
        self._in_order = settings.scenario == "sequential_lock"
        slots, boxes = len(worlds.present), settings.max_boxes
        self._locked, self._apart = np.zeros((slots, boxes), bool), np.zeros((slots, boxes + 1))
        self._rank = np.zeros((slots, boxes))

    def place(self, slot: int) -> None:
        super().place(slot)
        self._locked[slot], self._apart[slot] = False, self._distances()[slot]
        if self._in_order:
            self._rank[slot] = self._worlds.rng(slot).permutation(self._rank.shape[1])
            self._allow_next()

    def rewards(self) -> np.ndarray:
        locked, apart = self._hands.locked[:, self._ramps :].copy(), self._distances()
        closer = np.take_along_axis(self._apart - apart, self._target()[:, None], axis=1)[:, 0]
        locks = locked.sum(axis=1) - self._locked.sum(axis=1)
        there = self._there()
        done = (locked | ~there).all(axis=1) & (apart[:, -1] <= NEAR)
        self._locked, self._apart = locked, apart
        if self._in_order:
            self._allow_next()
        self.score = locked.sum(axis=1) / np.maximum(there.sum(axis=1), 1) if self._in_order else done.astype(float)
        return np.asarray(LOCK_REWARD * locks + PROGRESS_REWARD * closer + DONE_REWARD * done)

    def _there(self) -> np.ndarray:
        return self._worlds.present[:, self._boxes]

    def _target(self) -> np.ndarray:
        """Return int [B]: the box to lock next; the number of boxes if all are locked."""
        after = self._rank if self._in_order else self._apart[:, :-1]
        order = np.where(self._there() & ~self._locked, after, np.inf)
        return np.concatenate([order, np.full((len(order), 1), LAST)], axis=1).argmin(axis=1)

    def _allow_next(self) -> None:
        """Let only the next box be locked."""
        self._hands.lockable[:, self._ramps :] = self._target()[:, None] == np.arange(self._rank.shape[1])

    def _distances(self) -> np.ndarray:
        """Return the distances in the plane from the agent's centre to the boxes' and to its start, [B, boxes + 1].

        The last one is 0 if the agent need not return.
        """
        centres = self._worlds.centres()[..., :2]
        start = self._worlds.start[:, :1, :2] + self._worlds.half[:, :1, :2]
        goals = np.concatenate([centres[:, self._boxes], start], axis=1)
        apart = np.asarray(np.linalg.norm(goals - centres[:, :1], axis=-1))
        if self._in_order:
            apart[:, -1] = 0.0
        return apart
