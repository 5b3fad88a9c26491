"""Vision of agents: a view cone, and rays that end at the first geom that they hit. Lidar rays are cast with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jsrl.games.hide_and_seek.models import FIRST_BODY, FIRST_GEOM, GEOMS_PER_AGENT, RAMP_CENTROID
from jsrl.games.hide_and_seek.settings import VIEW_HALF_ANGLE, Settings
from jsrl.games.hide_and_seek.worlds import Worlds


class Sight:
    """Vision masks and lidar of B slots.

    One call to MuJoCo casts all rays of an agent: lidar first, then one to each body within its view cone.

    Attributes:
      seen: bool [B, n, M]: agent i sees body j; an agent sees itself.
      aims: [B, M, 3]: the points that rays to bodies aim at: centres, and centroids of ramps.
      lidar: [B, n, L]: distances; `lidar_range` if a ray hits nothing.
      cosine: of half the angle of the view cone; below -1 agents see all around.
    """

    def __init__(self, settings: Settings, worlds: Worlds):
        import mujoco

        self._cast, self._settings, self._worlds = mujoco.mj_multiRay, settings, worlds
        slots, bodies = worlds.present.shape
        agents, rays = settings.n_agents, settings.n_lidar
        self.seen = np.zeros((slots, agents, bodies), bool)
        self.lidar = np.full((slots, agents, rays), settings.lidar_range)
        self.cosine = math.cos(VIEW_HALF_ANGLE)
        self._vectors = np.zeros((slots, agents, rays + bodies, 3))
        angles = 2 * np.pi * np.arange(rays) / max(rays, 1)
        self._vectors[:, :, :rays] = np.stack([np.cos(angles), np.sin(angles), np.zeros(rays)], axis=1)
        self._from = np.zeros((slots, agents, 3))
        self._geom = np.full((slots, agents, rays + bodies), -1, np.int32)
        self._distance = np.full((slots, agents, rays + bodies), -1.0)
        self._calls = [[self._calls_of(slot, agent) for agent in range(agents)] for slot in range(slots)]
        self._body_of = np.concatenate(
            [np.repeat(np.arange(agents), GEOMS_PER_AGENT), np.arange(agents, bodies)]
        )  # of geoms after the floor; with fewer boxes than the maximum, the last of these are walls
        self._own = np.eye(agents, bodies, dtype=bool)

    def _calls_of(self, slot: int, agent: int) -> list[tuple[Any, ...]]:
        """Return the arguments, after the model and its data, that cast the lidar of an agent and k rays more, by k."""
        lidar, most = self._settings.n_lidar, self._geom.shape[2]
        return [
            (
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
            for rays in range(lidar, most + 1)
        ]

    def place(self, slot: int) -> None:
        self._geom[slot], self._distance[slot] = -1, -1.0

    def close(self) -> None:
        self._calls = [[] for _ in self._calls]

    def look(self) -> None:
        """Compute vision from the current positions; slots whose state is invalid keep their last values."""
        self._aim()
        wanted = self._cone() & self._worlds.present[:, None] & ~self._own
        counts, (slot, agent, body) = wanted.sum(axis=2), np.nonzero(wanted)
        first = (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)  # of the rays of each agent, among all
        ray = self._settings.n_lidar + np.arange(len(slot)) - first[slot, agent]
        self._vectors[slot, agent, ray] = self.aims[slot, body] - self._from[slot, agent]
        self._cast_all(counts.tolist())
        geom = self._geom[slot, agent, ray] - FIRST_GEOM
        known = (geom >= 0) & (geom < len(self._body_of))
        seen = np.broadcast_to(self._own, wanted.shape).copy()
        seen[slot, agent, body] = known & (self._body_of[np.where(known, geom, 0)] == body)
        self.seen = seen
        distance = self._distance[:, :, : self._settings.n_lidar]
        self.lidar = np.where(distance < 0, self._settings.lidar_range, distance)

    def _cast_all(self, counts: list[list[int]]) -> None:
        """Cast the rays of all slots: the lidar, and `counts` [B][n] rays to bodies."""
        cast, broken = self._cast, self._worlds.broken.tolist()
        for slot, world in enumerate(self._worlds.worlds):
            if world is None or broken[slot]:
                continue
            model, simulation = world.model, world.simulation
            for calls, count in zip(self._calls[slot], counts[slot], strict=True):
                cast(model, simulation, *calls[count])

    def _aim(self) -> None:
        """Compute where rays begin, agents' centres, and what they may aim at."""
        worlds, settings = self._worlds, self._settings
        aims, agents = worlds.centres(), settings.n_agents
        self.aims = aims
        self._from[:] = aims[:, :agents]
        ramps = slice(agents, agents + settings.n_ramps)
        angle = worlds.position[:, ramps, 3]
        aims[:, ramps, 0] -= np.sin(angle) * RAMP_CENTROID[1]
        aims[:, ramps, 1] += np.cos(angle) * RAMP_CENTROID[1]
        aims[:, ramps, 2] += RAMP_CENTROID[2]

    def _cone(self) -> np.ndarray:
        """Return bool [B, n, M]: body j is within agent i's field of view."""
        worlds, agents = self._worlds, self._settings.n_agents
        points = (worlds.position if self._settings.corner_bias else worlds.centres())[..., :2]
        apart = points[:, None] - points[:, :agents, None]
        angle = worlds.position[:, :agents, 3, None]
        ahead = np.sin(angle) * apart[..., 0] - np.cos(angle) * apart[..., 1]  # agents look along -y at angle 0
        return ahead >= self.cosine * np.sqrt((apart * apart).sum(axis=-1))
