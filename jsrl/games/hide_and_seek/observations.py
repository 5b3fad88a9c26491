"""Observations of agents: features of themselves, each other agent, box and ramp; lidar; masks.

| key | shape of one agent | |
|---|---|---|
| observation_self | (10,) | x, y, z, angle, their velocities, 1 for hiders, elapsed share of the preparation phase |
| agent_qpos_qvel | (others, 10) | the same of the other agents: those before it in seat order, backwards, cyclic |
| box_obs | (boxes, 12 or 15) | x, y, z, cosine, sine of angle, 4 velocities, [full size], locked by me, by my team, locked |
| ramp_obs | (ramps, 9, 12 or 15) | the same, with zeros for the size; the last three only if ramps can be locked |
| site_obs | (sites, 3) | of a task: x, y of the centre, size |
| lidar | (rays,) | distances |
| mask_aa_obs, mask_ab_obs, mask_ar_obs | (others,), (boxes,), (ramps,) | 1: the agent sees it |
| mask_aa_obs_spoof, ... | the same | 1: it exists |
| mask_as_obs | (sites,) | 1: the site exists; sites are known wherever the agent is |

A key of zero entities is left out: no stream carries an empty array. Positions are those of lower left corners, as in the
original. Masks are bool, which no agent normalises; everything else is float32.
"""

from __future__ import annotations

import numpy as np

from jsrl.games.hide_and_seek.hands import Hands
from jsrl.games.hide_and_seek.settings import Settings
from jsrl.games.hide_and_seek.sight import Sight
from jsrl.games.hide_and_seek.worlds import Worlds
from jsrl.types import ArraySpec

SELF, MOTION, LOCKS, SIZE, SITE = 10, 9, 3, 3, 3


def observation_spec(settings: Settings) -> dict[str, ArraySpec]:
    """Return the spec of one seat's observation."""
    (boxes, ramps, sites), others = settings.shown_rows, settings.others
    ramp_locks = LOCKS if settings.lock_ramp or settings.rows is not None else 0
    size = SIZE if settings.sized else 0
    shapes: dict[str, tuple[int, ...]] = {
        "observation_self": (SELF,),
        "agent_qpos_qvel": (others, SELF),
        "box_obs": (boxes, MOTION + size + LOCKS),
        "ramp_obs": (ramps, MOTION + size + ramp_locks),
        "site_obs": (sites, SITE),
        "mask_as_obs": (sites,),
        "lidar": (settings.n_lidar,),
    }
    for letter, number in (("a", others), ("b", boxes), ("r", ramps)):
        shapes[f"mask_a{letter}_obs"] = shapes[f"mask_a{letter}_obs_spoof"] = (number,)
    kinds = {name: "bool" if name.startswith("mask") else "float32" for name in shapes}
    return {name: ArraySpec(shape, kinds[name]) for name, shape in shapes.items() if shape[0]}


class Observations:
    """Builds the observations of all agents, name -> [B, n, ...], in arrays that it reuses, and the global state.

    Attributes:
      seen: the observations. state: [B, S]: true state of agents, ramps and boxes, with locks by hiders and by seekers.
    """

    def __init__(self, settings: Settings, worlds: Worlds, sight: Sight, hands: Hands):
        self._settings, self._worlds, self._sight, self._hands = settings, worlds, sight, hands
        slots, agents = len(worlds.present), settings.n_agents
        self.seen = {name: spec.batched(slots, agents).zeros() for name, spec in observation_spec(settings).items()}
        observers, back = np.arange(agents)[:, None], np.arange(1, agents)
        self._observers, self._others = observers, (observers - back) % agents
        self._agents = np.zeros((slots, agents, SELF), np.float32)
        self._agents[:, : settings.n_hiders, 8] = 1.0
        self._parts = {  # key -> letter of its masks, bodies
            "ramp_obs": ("r", slice(agents, agents + settings.n_ramps)),
            "box_obs": ("b", slice(agents + settings.n_ramps, None)),
        }
        self._parts = {key: part for key, part in self._parts.items() if key in self.seen}
        self.state = np.zeros((slots, state_size(settings)), np.float32)

    def build(self, prepared: np.ndarray) -> None:
        """Build the observations of all slots. `prepared`: [B], 0 to 1, the elapsed share of the preparation phase."""
        worlds, agents = self._worlds, self._settings.n_agents
        own = self._agents
        own[:, :, :4], own[:, :, 4:8] = worlds.position[:, :agents], worlds.velocity[:, :agents]
        own[:, :, 9] = prepared[:, None]
        self.seen["observation_self"][:] = own
        if self._settings.relative:
            self.seen["observation_self"][..., 3] = _within_a_turn(own[..., 3])
        if "lidar" in self.seen:
            self.seen["lidar"][:] = self._sight.lidar
        self._build_others(own)
        self._build_sites()
        state = [own.reshape(len(own), -1)]
        for key, (letter, bodies) in self._parts.items():
            rows = self._rows(key, bodies)
            self._show(key, letter, rows, bodies)
            state.append(self._for_state(rows, bodies).reshape(len(own), -1))
        np.concatenate(state, axis=1, out=self.state)

    def _build_others(self, own: np.ndarray) -> None:
        if "agent_qpos_qvel" not in self.seen:
            return
        rows = self._settings.n_agents - 1
        visible = self._sight.seen[:, self._observers, self._others]
        shown = own[:, self._others]
        if self._settings.relative:
            shown[..., :3] -= own[:, :, None, :3]
            bearing = np.arctan2(shown[..., 1], shown[..., 0]) - (own[:, :, None, 3] - np.pi / 2)
            shown[..., 3] = _within_a_turn(bearing)
        if self._settings.hide_unseen:
            shown = shown * visible[..., None]
        self.seen["agent_qpos_qvel"][:, :, :rows] = shown
        self.seen["mask_aa_obs"][:, :, :rows] = visible
        self.seen["mask_aa_obs_spoof"][:, :, :rows] = 1

    def _build_sites(self) -> None:
        if "site_obs" not in self.seen:
            return
        sites, there = self._worlds.sites[:, None], self._worlds.sites[:, None, :, 2] > 0
        count, shown = sites.shape[2], self.seen["site_obs"]
        shown[:, :, :count] = sites
        if self._settings.relative:
            centres = self._worlds.centres()[:, : self._settings.n_agents, None, :2]
            shown[:, :, :count, :2] -= centres * there[..., None]
        self.seen["mask_as_obs"][:, :, :count] = there

    def _rows(self, key: str, bodies: slice) -> np.ndarray:
        """Return the features of some objects that are the same for all agents, without locks, [B, k, F]."""
        worlds = self._worlds
        position, present = worlds.position[:, bodies], worlds.present[:, bodies, None]
        angle = position[..., 3:]
        parts = [position[..., :3], np.cos(angle), np.sin(angle), worlds.velocity[:, bodies]]
        if self._settings.sized:
            full = 2 * worlds.half[:, bodies]
            parts.append(full if key == "box_obs" else np.zeros_like(full))
        return np.concatenate(parts, axis=-1) * present

    def _show(self, key: str, letter: str, rows: np.ndarray, bodies: slice) -> None:
        """Write the features of some objects, with their locks and masks."""
        settings, count, width = self._settings, rows.shape[1], rows.shape[-1]
        seen = self.seen[key][:, :, :count]
        seen[..., :width] = rows[:, None]
        if settings.relative:
            own = self._agents[:, :, None, :3]
            seen[..., :3] -= own * self._worlds.present[:, None, bodies, None]
        if seen.shape[-1] > width:
            locked, owner = (array[:, None, self._objects(bodies)] for array in (self._hands.locked, self._hands.owner))
            team = self._hands.team
            seen[..., width] = locked & (owner == self._observers)
            seen[..., width + 1] = locked & (team[owner] == team[self._observers])
            seen[..., width + 2] = locked
        visible = self._sight.seen[:, :, bodies]
        if settings.hide_unseen:
            seen *= visible[..., None]
        self.seen[f"mask_a{letter}_obs"][:, :, :count] = visible
        self.seen[f"mask_a{letter}_obs_spoof"][:, :, :count] = self._worlds.present[:, None, bodies]

    def _for_state(self, rows: np.ndarray, bodies: slice) -> np.ndarray:
        """Return features with two locks: by hiders, by seekers."""
        objects = self._objects(bodies)
        locked, team = self._hands.locked[:, objects], self._hands.team[self._hands.owner[:, objects]]
        return np.concatenate([rows, (locked & (team == 0))[..., None], (locked & (team == 1))[..., None]], axis=-1)

    def _objects(self, bodies: slice) -> slice:
        agents = self._settings.n_agents
        return slice(bodies.start - agents, None if bodies.stop is None else bodies.stop - agents)


def _within_a_turn(angle: np.ndarray) -> np.ndarray:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def state_size(settings: Settings) -> int:
    size = SIZE if settings.sized else 0
    return settings.n_agents * SELF + (settings.n_ramps + settings.max_boxes) * (MOTION + size + 2)
