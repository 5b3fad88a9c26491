"""Tasks for one agent: construction from a blueprint, a shelter around a cylinder, object counting, locking boxes.

Source: Baker et al. 2020 (1909.07528), section 6.2, tests of what agents have learned in hide-and-seek.
"""

from __future__ import annotations

import numpy as np

from jsrl.games.hide_and_seek.hands import Hands
from jsrl.games.hide_and_seek.settings import NEUTRAL, Settings
from jsrl.games.hide_and_seek.worlds import JOINTS, Worlds


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


DISTANCE_REWARD, BUILT_REWARD = -0.05, 3.0  # for each metre, and each site when all are built
SHARPNESS = -1.5  # of the smooth minimum; minus infinity: the minimum
NEAR = 0.1  # metres from a box to its site, and from the agent to its start
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


LOCK_REWARD, PROGRESS_REWARD, DONE_REWARD = 5.0, 0.5, 1.0  # for each lock, metre towards the target, and step when done
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
