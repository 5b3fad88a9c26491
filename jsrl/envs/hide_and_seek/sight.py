"""Vision of agents: a view cone, and rays that end at the first geom that they hit. Lidar rays are cast with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jsrl.envs.hide_and_seek.models import FIRST_BODY, FIRST_GEOM, GEOMS_PER_AGENT, RAMP_CENTROID
from jsrl.envs.hide_and_seek.settings import VIEW_HALF_ANGLE, Settings
from jsrl.envs.hide_and_seek.worlds import Worlds

UP = (0.0, 0.0, 1.0)  # direction of rays without a target: they hit nothing


class Sight:
    """Vision masks and lidar of B slots.

    One call to MuJoCo casts all rays of an agent: lidar first, then one to each body.

    Attributes:
      seen: bool [B, n, M]: agent i sees body j; an agent sees itself. line: the same without the view cone.
      aims: [B, M, 3]: the points that rays to bodies aim at: centres, and centroids of ramps.
      lidar: [B, n, L]: distances; `lidar_range` if a ray hits nothing.
    """

    def __init__(self, settings: Settings, worlds: Worlds):
        import mujoco

        self._cast, self._settings, self._worlds = mujoco.mj_multiRay, settings, worlds
        slots, bodies = worlds.present.shape
        agents, rays = settings.n_agents, settings.n_lidar
        self.seen, self.line = np.zeros((slots, agents, bodies), bool), np.zeros((slots, agents, bodies), bool)
        self.lidar = np.full((slots, agents, rays), settings.lidar_range)
        self._vectors = np.zeros((slots, agents, rays + bodies, 3))
        angles = 2 * np.pi * np.arange(rays) / max(rays, 1)
        self._vectors[:, :, :rays] = np.stack([np.cos(angles), np.sin(angles), np.zeros(rays)], axis=1)
        self._from = np.zeros((slots, agents, 3))
        self._geom = np.full((slots, agents, rays + bodies), -1, np.int32)
        self._distance = np.full((slots, agents, rays + bodies), -1.0)
        self._calls: list[list[tuple[Any, ...]]] = [[] for _ in range(slots)]
        self._body_of = np.concatenate(
            [np.repeat(np.arange(agents), GEOMS_PER_AGENT), np.arange(agents, bodies)]
        )  # of geoms after the floor; with fewer boxes than the maximum, the last of these are walls
        self._own = np.eye(agents, bodies, dtype=bool)
        self._cosine = math.cos(VIEW_HALF_ANGLE)

    def place(self, slot: int) -> None:
        """Start an episode in a slot: prepare the calls that cast its rays."""
        world = self._worlds.worlds[slot]
        assert world is not None
        rays = self._settings.n_lidar + len(world.layout.sizes)
        self._geom[slot], self._distance[slot] = -1, -1.0
        self._calls[slot] = [
            (
                world.model,
                world.simulation,
                self._from[slot, agent],
                self._vectors[slot, agent, :rays].reshape(-1),
                None,
                True,
                FIRST_BODY + agent,
                self._geom[slot, agent, :rays],
                self._distance[slot, agent, :rays],
                None,
                rays,
                np.inf,
            )
            for agent in range(self._settings.n_agents)
        ]

    def close(self) -> None:
        """Drop the references to the worlds; may be called twice."""
        self._calls = [[] for _ in self._calls]

    def look(self) -> None:
        """Compute vision from the current positions; slots whose state is invalid keep their last values."""
        self._aim()
        cast, broken = self._cast, self._worlds.broken.tolist()
        for slot, calls in enumerate(self._calls):
            if not broken[slot]:
                for call in calls:
                    cast(*call)
        rays = self._settings.n_lidar
        geom = self._geom[:, :, rays:] - FIRST_GEOM
        known = (geom >= 0) & (geom < len(self._body_of))
        hit = np.where(known, self._body_of[np.where(known, geom, 0)], -1)
        self.line = (hit == np.arange(hit.shape[2])) & self._worlds.present[:, None]
        self.seen = (self.line & self._cone()) | self._own
        distance = self._distance[:, :, :rays]
        self.lidar = np.where(distance < 0, self._settings.lidar_range, distance)

    def _aim(self) -> None:
        """Aim the rays from agents' centres at the centres of all bodies."""
        worlds, settings, rays = self._worlds, self._settings, self._settings.n_lidar
        aims, agents = worlds.centres(), settings.n_agents
        self.aims = aims
        self._from[:] = aims[:, :agents]
        ramps = slice(agents, agents + settings.n_ramps)
        angle = worlds.position[:, ramps, 3]
        aims[:, ramps, 0] -= np.sin(angle) * RAMP_CENTROID[1]
        aims[:, ramps, 1] += np.cos(angle) * RAMP_CENTROID[1]
        aims[:, ramps, 2] += RAMP_CENTROID[2]
        vectors = self._vectors[:, :, rays:]
        np.subtract(aims[:, None], self._from[:, :, None], out=vectors)
        own = np.arange(agents)
        vectors[:, own, own] = UP

    def _cone(self) -> np.ndarray:
        """Return bool [B, n, M]: body j is within agent i's field of view."""
        worlds, agents = self._worlds, self._settings.n_agents
        points = (worlds.position if self._settings.corner_bias else worlds.centres())[..., :2]
        apart = points[:, None] - points[:, :agents, None]
        angle = worlds.position[:, :agents, 3, None]
        ahead = np.sin(angle) * apart[..., 0] - np.cos(angle) * apart[..., 1]  # agents look along -y at angle 0
        return ahead >= self._cosine * np.sqrt((apart * apart).sum(axis=-1))
