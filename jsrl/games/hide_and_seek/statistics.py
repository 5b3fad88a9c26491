"""Statistics of an episode: how far boxes and ramps moved, what was locked, how often hiders were seen."""

from __future__ import annotations

import numpy as np

from jsrl.games.hide_and_seek.hands import Hands
from jsrl.games.hide_and_seek.settings import Settings
from jsrl.games.hide_and_seek.worlds import Worlds


class Statistics:
    """Sums of the open episodes of B slots."""

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        self._settings, self._worlds, self._hands = settings, worlds, hands
        slots, agents = len(worlds.present), settings.n_agents
        self._returns = np.zeros((slots, agents))
        self._caught, self._out, self._grabs = np.zeros(slots), np.zeros(slots), np.zeros(slots)
        self._apart, self._rewarded, self._steps = np.zeros(slots), np.zeros(slots), np.zeros(slots)
        self._sums = (self._returns, self._caught, self._out, self._grabs, self._apart, self._rewarded, self._steps)
        ramps = settings.n_ramps
        self._kinds = {"ramp": slice(0, ramps), "box": slice(ramps, None)}
        self._prepared: list[dict[str, float]] = [{} for _ in range(slots)]
        for slot in range(slots):
            self.place(slot)

    def place(self, slot: int) -> None:
        for array in self._sums:
            array[slot] = 0.0
        self._prepared[slot] = {f"{name}_prep": 0.0 for name in self._moved(slot)}

    def add(
        self, reward: np.ndarray, caught: np.ndarray, apart: np.ndarray, out: np.ndarray, clock: np.ndarray
    ) -> None:
        """Add a step of all slots; a slot whose episode starts with it (clock 0) is ignored.

        Args:
          reward: [B, n]. caught: bool [B]: a hider is seen. apart: [B]: metres between the two nearest opponents.
            out: bool [B, n]: agents outside the rectangle.
          clock: int [B]: steps of the episode, including this one.
        """
        prepared = self._settings.prep_steps
        rewarded = clock > prepared
        self._returns += reward
        self._caught += caught & rewarded
        self._apart += apart * rewarded
        self._rewarded += rewarded
        going = clock > 0
        self._out += out.mean(axis=1) * going
        self._grabs += (self._hands.held >= 0).mean(axis=1) * going
        self._steps += going
        for slot in np.flatnonzero(clock == prepared + 1).tolist():
            self._prepared[slot] = {f"{name}_prep": value for name, value in self._moved(slot).items()}

    def of(self, slot: int, *, discarded: bool) -> dict[str, float]:
        """Return the statistics of a slot's finished episode. `discarded`: its physics became invalid."""
        steps, rewarded = max(self._steps[slot], 1.0), max(self._rewarded[slot], 1.0)
        return {
            **self._prepared[slot],
            **self._moved(slot),
            "hider_return": float(self._returns[slot, 0]),
            "seeker_return": float(self._returns[slot, -1]),
            "seen_share": float(self._caught[slot] / rewarded),
            "nearest_distance": float(self._apart[slot] / rewarded),
            "out_of_bounds_share": float(self._out[slot] / steps),
            "grab_share": float(self._grabs[slot] / steps),
            "discard_episode": float(discarded),
        }

    def _moved(self, slot: int) -> dict[str, float]:
        """Return the largest distance of a box and of a ramp from its start, and how many are locked."""
        worlds, agents = self._worlds, self._settings.n_agents
        there = worlds.present[slot, agents:]
        apart = worlds.position[slot, agents:, :3] - worlds.start[slot, agents:]
        moved = np.sqrt((apart**2).sum(axis=-1)) * there
        values = {}
        for kind, part in self._kinds.items():
            values[f"max_{kind}_move"] = float(moved[part].max(initial=0.0))
            values[f"num_{kind}_lock"] = float(self._hands.locked[slot, part].sum())
        return values
