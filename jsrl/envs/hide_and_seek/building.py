"""Tasks of building with boxes: construction from a blueprint, and a shelter around a cylinder."""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.hands import Hands
from jsrl.envs.hide_and_seek.settings import Settings
from jsrl.envs.hide_and_seek.task import Task
from jsrl.envs.hide_and_seek.worlds import Worlds

DISTANCE_REWARD, BUILT_REWARD = -0.05, 3.0  # for each metre, and each site when all are built
SHARPNESS = -1.5  # of the smooth minimum; minus infinity: the minimum
NEAR = 0.1  # metres from a box to its site
ABSENT = 1e3  # metres to a box that does not exist
RAY_REWARD, RAYS_PER_SIDE = -0.001, 25
SIDES = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])


class Construction(Task):
    """Rewards of B slots: the agent must place boxes exactly on 1 to 4 square sites.

    Each step costs 0.05 for each metre between the corners of sites and boxes: for each corner of a site the smooth minimum
    over all corners of boxes, sum(d exp(-1.5 d)) / sum(exp(-1.5 d)), then the mean over the corners of the sites. When each
    site has a box within 0.1 m, and each of its corners the corner of a box, the agent earns 3 for each site, and the episode
    ends. Distances are between centres, or corners, in the plane.

    Attributes:
      over: bool [B]: all sites are built. score: [B]: the share of sites that are built.
    """

    def rewards(self) -> np.ndarray:
        worlds, sites = self._worlds, self._worlds.sites
        there, wanted = worlds.present[:, None, self._boxes], sites[..., 2] > 0
        centres = worlds.centres()[:, None, self._boxes, :2]
        to_centre = np.linalg.norm(sites[:, :, None, :2] - centres, axis=-1)  # [B, S, K]
        corners = sites[:, :, None, :2] + SIDES * sites[:, :, None, 2:] / 2
        apart = np.linalg.norm(corners[:, :, :, None] - self._corners()[:, None, None], axis=-1)  # [B, S, 4, 4 K]
        to_centre = np.where(there, to_centre, ABSENT)
        apart = np.where(np.repeat(there, 4, axis=-1)[:, :, None], apart, ABSENT)
        built = (to_centre.min(axis=2) <= NEAR) & (apart.min(axis=3) <= NEAR).all(axis=2) & wanted
        weight = np.exp(SHARPNESS * apart)
        smooth = ((apart * weight).sum(axis=3) / weight.sum(axis=3)).mean(axis=2)
        number = np.maximum(wanted.sum(axis=1), 1)
        self.score = built.sum(axis=1) / number
        self.over = self.score == 1.0
        return np.asarray(DISTANCE_REWARD * (smooth * wanted).sum(axis=1) / number + BUILT_REWARD * number * self.over)

    def _corners(self) -> np.ndarray:
        """Return the corners of all boxes, [B, 4 K, 2]."""
        half, angle = self._worlds.half[:, self._boxes, None, :2], self._worlds.position[:, self._boxes, None, 3]
        x, y = np.moveaxis(SIDES * half, -1, 0)
        turned = np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y], axis=-1)
        corners = self._worlds.centres()[:, self._boxes, None, :2] + turned
        return corners.reshape(len(corners), -1, 2)


class Shelter(Task):
    """Rewards of B slots: the agent must shield a cylinder with boxes.

    From each side of the room 25 rays run along the floor straight to the opposite side. Each one that reaches the cylinder
    before a box costs 0.001 in each step.

    Attributes:
      score: [B]: the share of the rays aimed at the cylinder that boxes stop.
    """

    def __init__(self, settings: Settings, worlds: Worlds, hands: Hands):
        super().__init__(settings, worlds, hands)
        self._from, self._along = rays_of(settings)

    def rewards(self) -> np.ndarray:
        far = self._to_cylinder()
        hits = far < self._to_boxes()
        aimed = np.isfinite(far).sum(axis=1)
        self.score = 1.0 - hits.sum(axis=1) / np.maximum(aimed, 1)
        return np.asarray(RAY_REWARD * hits.sum(axis=1))

    def _to_cylinder(self) -> np.ndarray:
        """Return how far each ray runs to the cylinder, [B, R]; infinity: it passes."""
        apart, radius = self._worlds.sites[:, :1, :2] - self._from, self._worlds.sites[:, :1, 2] / 2
        along = (apart * self._along).sum(axis=-1)
        aside = apart[..., 0] * self._along[:, 1] - apart[..., 1] * self._along[:, 0]
        inside = radius**2 - aside**2
        return np.where(inside >= 0, along - np.sqrt(np.maximum(inside, 0.0)), np.inf)

    def _to_boxes(self) -> np.ndarray:
        """Return how far each ray runs to the nearest box that stands on the floor, [B, R]; infinity: to none."""
        worlds, boxes = self._worlds, self._boxes
        angle, half = worlds.position[:, None, boxes, 3], worlds.half[:, None, boxes, :2]
        stands = worlds.present[:, None, boxes] & (worlds.position[:, None, boxes, 2] < NEAR)
        apart = self._from[:, None] - worlds.centres()[:, None, boxes, :2]
        cosine, sine = np.cos(angle), np.sin(angle)

        def turned(vector: np.ndarray) -> np.ndarray:  # into the frame of the box
            x, y = vector[..., 0], vector[..., 1]
            return np.stack([cosine * x + sine * y, cosine * y - sine * x], axis=-1)

        begin, speed = turned(apart), turned(self._along[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            one, other = (-half - begin) / speed, (half - begin) / speed
        enter, leave = np.minimum(one, other).max(axis=-1), np.maximum(one, other).min(axis=-1)
        return np.where(stands & (enter <= leave) & (leave >= 0), enter, np.inf).min(axis=2, initial=np.inf)


def rays_of(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return where the rays of a shelter begin, and their directions, [100, 2] each."""
    border, size = 0.75 * settings.cell, settings.floor_size  # the inner faces of the outer walls
    places = border + (np.arange(RAYS_PER_SIDE) + 0.5) / RAYS_PER_SIDE * (size - 2 * border)
    low, high = np.full(RAYS_PER_SIDE, border), np.full(RAYS_PER_SIDE, size - border)
    begin = [np.stack(pair, axis=1) for pair in ((low, places), (high, places), (places, low), (places, high))]
    along = np.repeat([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)], RAYS_PER_SIDE, axis=0)
    return np.concatenate(begin), along
