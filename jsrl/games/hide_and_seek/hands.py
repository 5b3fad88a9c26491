"""Actions of agents on ramps and boxes: hold them while pulling, and lock them in place."""

from __future__ import annotations

import numpy as np

from jsrl.games.hide_and_seek.settings import Settings
from jsrl.games.hide_and_seek.worlds import Worlds

REACH = 0.25  # metres from an agent's centre to the nearest point of an object


class Hands:
    """Which agent holds what, and what is locked, in B slots. Objects are the O = M - n ramps and boxes.

    Attributes:
      held: int [B, n]: the body that an agent holds; -1: none.
      locked: bool [B, O]. owner: int [B, O]: the agent that locked it last; initially agent 0, a hider.
      lockable: bool [B, O]: what can be locked; a task may change it.
    """

    def __init__(self, settings: Settings, worlds: Worlds):
        slots, bodies = worlds.present.shape
        self._worlds, self._agents = worlds, settings.n_agents
        objects = bodies - settings.n_agents
        self.held = np.full((slots, settings.n_agents), -1)
        self.locked, self.owner = np.zeros((slots, objects), bool), np.zeros((slots, objects), int)
        self.lockable = np.zeros((slots, objects), bool)
        self.lockable[:, 0 if settings.lock_ramp else settings.n_ramps :] = True
        self.team = (np.arange(settings.n_agents) >= settings.n_hiders).astype(int)

    def place(self, slot: int) -> None:
        self.held[slot], self.locked[slot], self.owner[slot] = -1, False, 0

    def use(self, pull: np.ndarray, lock: np.ndarray, seen: np.ndarray) -> None:
        """Apply the actions pull and lock, bool [B, n] each. `seen`: bool [B, n, M], as in the agents' latest observation."""
        if not self.locked.shape[1]:
            return
        reached = seen[:, :, self._agents :] & self._worlds.present[:, None, self._agents :]
        distance = self.distance()
        reached &= distance <= REACH
        self._pull(pull, reached, distance)
        self._lock(lock, reached)

    def distance(self) -> np.ndarray:
        """Return the distances [B, n, O] from agents' centres to the nearest points of objects' cuboids."""
        worlds, agents = self._worlds, self._agents
        centres = worlds.centres()
        apart = centres[:, :agents, None] - centres[:, None, agents:]
        angle = worlds.position[:, None, agents:, 3]
        cosine, sine = np.cos(angle), np.sin(angle)
        x, y = apart[..., 0], apart[..., 1]
        half = worlds.half[:, None, agents:]
        total = np.maximum(np.abs(cosine * x + sine * y) - half[..., 0], 0.0) ** 2
        total += np.maximum(np.abs(cosine * y - sine * x) - half[..., 1], 0.0) ** 2
        total += np.maximum(np.abs(apart[..., 2]) - half[..., 2], 0.0) ** 2
        return np.sqrt(total)

    def _pull(self, pull: np.ndarray, reached: np.ndarray, distance: np.ndarray) -> None:
        """Make each agent that pulls hold the nearest object within reach."""
        candidates = reached & pull[:, :, None]
        nearest = np.where(candidates, distance, np.inf).argmin(axis=2) + self._agents
        held = np.where(candidates.any(axis=2), nearest, -1)
        for slot, agent in np.argwhere(held != self.held).tolist():
            self._worlds.hold(slot, agent, int(held[slot, agent]))
        self.held = held

    def _lock(self, lock: np.ndarray, reached: np.ndarray) -> None:
        """Lock and unlock objects by the rule of teams.

        An object is unlocked when a member of the team that locked it last is near and does not lock. Otherwise any agent that
        is near and locks, locks it.
        """
        wanted = reached & lock[:, :, None] & self.lockable[:, None]
        unwanted = reached & ~lock[:, :, None]
        owned = self.team[self.owner][:, None] == self.team[:, None]
        freed = (unwanted & owned).any(axis=1)
        taken = wanted.any(axis=1) & ~freed
        locked = (self.locked & ~freed) | taken
        for slot, thing in np.argwhere(locked != self.locked).tolist():
            self._worlds.freeze(slot, self._agents + thing, bool(locked[slot, thing]))
            if locked[slot, thing]:
                near = np.flatnonzero(wanted[slot, :, thing])
                self.owner[slot, thing] = near[0] if len(near) == 1 else self._worlds.rng(slot).choice(near)
        self.locked = locked
