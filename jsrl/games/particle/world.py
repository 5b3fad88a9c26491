"""The physics: round bodies in the plane with forces, damping, and contacts that push them apart.

Source: the multi-agent particle environments of Lowe et al. 2017 (1706.02275), in the form of mpe2 1.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DT = 0.1  # seconds per step
DAMPING = 0.25  # share of the velocity lost in a step
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3  # softness of a contact, in units of length


@dataclass(frozen=True)
class Bodies:
    """The constants of a world.

    Attributes:
      agent_size: radius of each of the N agents. landmark_size: radius of each of the L landmarks.
      collide: whether agents push each other away. landmarks_collide: whether landmarks push agents away too.
      max_speed: of each agent; None: no limit.
    """

    agent_size: tuple[float, ...]
    landmark_size: tuple[float, ...]
    collide: bool = False
    landmarks_collide: bool = False
    max_speed: tuple[float, ...] | None = None


class World:
    """B worlds of N agents and L landmarks, in float64. Landmarks do not move; every mass is 1.

    Attributes:
      position, velocity: of the agents, [B, N, 2]. landmark: positions, [B, L, 2].
      to_landmark: vectors from agents to landmarks, [B, N, L, 2].
      pair_distance: distance of the pairs of agents, [B, P]; pairs in the order of `pairs`, int [2, P].
      touching: bool [B, P]: pairs that overlap. incidence: [N, P]: 1 and -1 for the first and second agent of each pair.
    """

    def __init__(self, num_envs: int, bodies: Bodies):
        self.bodies = bodies
        agents, landmarks = len(bodies.agent_size), len(bodies.landmark_size)
        self.position, self.velocity = np.zeros((num_envs, agents, 2)), np.zeros((num_envs, agents, 2))
        self.landmark = np.zeros((num_envs, landmarks, 2))
        self.pairs = np.array(np.triu_indices(agents, 1))
        size, landmark_size = np.array(bodies.agent_size), np.array(bodies.landmark_size)
        self._reach = size[self.pairs].sum(axis=0)
        self._landmark_reach = size[:, None] + landmark_size
        columns = np.arange(self.pairs.shape[1])
        self.incidence = np.zeros((agents, self.pairs.shape[1]))  # sign of a pair's force on each agent
        self.incidence[self.pairs[0], columns], self.incidence[self.pairs[1], columns] = 1.0, -1.0
        self._max_speed = None if bodies.max_speed is None else np.array(bodies.max_speed)
        self.measure()

    def place(self, slots: np.ndarray, position: np.ndarray, landmark: np.ndarray) -> None:
        """Place agents [b, N, 2] and landmarks [b, L, 2] of some slots, at rest. Call `measure` afterwards."""
        self.position[slots], self.velocity[slots], self.landmark[slots] = position, 0.0, landmark

    def measure(self) -> None:
        """Compute distances and contacts from the positions."""
        self.to_landmark = self.landmark[:, None] - self.position[:, :, None]
        if self.bodies.collide:
            self._apart = self.position[:, self.pairs[0]] - self.position[:, self.pairs[1]]
            self.pair_distance = length(self._apart)
            self.touching = self.pair_distance < self._reach

    def step(self, force: np.ndarray) -> None:
        """Move the agents by their own forces [B, N, 2] and by contacts."""
        if self.bodies.collide:
            force = force + self.incidence @ _contact(self._apart, self.pair_distance, self._reach)
        if self.bodies.landmarks_collide:
            away = -self.to_landmark
            force = force + _contact(away, length(away), self._landmark_reach).sum(axis=2)
        self.position += self.velocity * DT
        self.velocity *= 1.0 - DAMPING
        self.velocity += force * DT
        if self._max_speed is not None:
            speed = length(self.velocity)
            self.velocity *= np.where(speed > self._max_speed, self._max_speed / np.maximum(speed, 1e-300), 1.0)[
                ..., None
            ]
        self.measure()


def length(vectors: np.ndarray) -> np.ndarray:
    """Return the lengths [...] of vectors [..., 2]."""
    x, y = vectors[..., 0], vectors[..., 1]
    return np.sqrt(x * x + y * y)


def _contact(apart: np.ndarray, distance: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return the forces [..., 2] on the first bodies of pairs, `apart` [..., 2] from the second."""
    depth = np.logaddexp(0.0, (reach - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
    return apart * (CONTACT_FORCE * depth / distance)[..., None]
