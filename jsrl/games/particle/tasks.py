"""Tasks in a particle world: its agents, their observations, actions and rewards.

Source: mpe2 1.1.1 (simple_spread_v3, simple_speaker_listener_v4, simple_reference_v3, simple_tag_v3): observations,
rewards and dynamics are equal; the initial states are drawn by another generator from the same distribution.
Differs: the options `curriculum`, `terminate_on_success` and `num_*_neighbors` of mpe2 do not exist here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsrl.errors import ConfigError
from jsrl.games.particle.world import Bodies, World

MOVES = np.array([(0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0)])  # of the discrete actions


@dataclass(frozen=True)
class Role:
    """What an agent can do.

    Attributes:
      name: of its seat. side: as in jsrl.types.Seat. strength: force of a move; 0: it cannot move.
      symbols: number of messages it can send; 0: it is silent. observes: entries of its observation.
    """

    name: str
    side: str
    observes: int
    strength: float = 5.0
    symbols: int = 0


class Task:
    """The common part of tasks: positions drawn in a square, goals drawn among the landmarks.

    Attributes:
      roles: of the N agents. bodies: of agents and landmarks. goals: number of landmarks drawn per episode, G.
      landmark_range: landmarks are drawn from [-landmark_range, landmark_range]. symmetric: agents may be exchanged.
    """

    roles: tuple[Role, ...]
    bodies: Bodies
    goals = 0
    landmark_range = 1.0
    symmetric = False

    @property
    def draws(self) -> int:
        return 2 * (len(self.bodies.agent_size) + len(self.bodies.landmark_size)) + self.goals

    def begin(self, world: World, goal: np.ndarray, slots: np.ndarray, uniform: np.ndarray) -> None:
        """Start episodes in some slots (int [b]) from uniform numbers [b, draws]; writes their rows of goal [B, G]."""
        agents, landmarks = len(self.bodies.agent_size), len(self.bodies.landmark_size)
        square = 2.0 * uniform[:, : 2 * (agents + landmarks)].reshape(len(slots), -1, 2) - 1.0
        world.place(slots, square[:, :agents], self.landmark_range * square[:, agents:])
        goal[slots] = (uniform[:, 2 * (agents + landmarks) :] * landmarks).astype(np.int64)

    def observe(self, world: World, goal: np.ndarray, message: np.ndarray, out: list[np.ndarray]) -> None:
        """Write each agent's observation to out: N arrays [B, observes]. message: the last messages, [B, N, symbols]."""
        raise NotImplementedError

    def reward(self, world: World, goal: np.ndarray) -> np.ndarray:
        """Return the rewards [B, N] of a finished step."""
        raise NotImplementedError


class Spread(Task):
    """N agents must cover N landmarks without touching each other.

    Args:
      N: agents, and landmarks. local_ratio: share of an agent's own collisions in its reward; the rest is the team's.
    """

    symmetric = True

    def __init__(self, N: int = 3, local_ratio: float = 0.5):
        _check_ratio(local_ratio)
        _check_counts(N=N)
        self._ratio = local_ratio
        self.roles = tuple(Role(f"agent_{i}", "team", observes=4 + 6 * N - 4) for i in range(N))
        self.bodies = Bodies((0.15,) * N, (0.05,) * N, collide=True)
        self._others = np.array([[j for j in range(N) if j != i] for i in range(N)], np.int64)

    def observe(self, world: World, goal: np.ndarray, message: np.ndarray, out: list[np.ndarray]) -> None:
        """Write own velocity and position, relative positions of landmarks and others, and zeros for the others' messages."""
        _see_world(world, self._others, out)

    def reward(self, world: World, goal: np.ndarray) -> np.ndarray:
        """Return minus the distances of the landmarks from their nearest agents, and minus the collisions."""
        x, y = world.to_landmark[..., 0], world.to_landmark[..., 1]
        nearest = np.sqrt((x * x + y * y).min(axis=1)).sum(axis=1)
        collisions = world.touching @ np.abs(world.incidence).T
        return -(1.0 - self._ratio) * nearest[:, None] - self._ratio * collisions


class SpeakerListener(Task):
    """A speaker that cannot move sees the listener's goal, one of three landmarks, and sends one of three symbols."""

    goals = 1
    colors = np.array([(0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65)])

    def __init__(self) -> None:
        speaker = Role("speaker_0", "team", observes=3, strength=0.0, symbols=3)
        self.roles = (speaker, Role("listener_0", "team", observes=11))
        self.bodies = Bodies((0.075,) * 2, (0.04,) * 3)

    def observe(self, world: World, goal: np.ndarray, message: np.ndarray, out: list[np.ndarray]) -> None:
        """Write the goal's colour for the speaker; velocity, landmarks and the message for the listener."""
        out[0][...] = self.colors[goal[:, 0]]
        out[1][:, :2] = world.velocity[:, 1]
        out[1][:, 2:8] = world.to_landmark[:, 1].reshape(-1, 6)
        out[1][:, 8:] = message[:, 0]

    def reward(self, world: World, goal: np.ndarray) -> np.ndarray:
        """Return minus the squared distance of listener and goal, for both."""
        away = world.to_landmark[np.arange(len(goal)), 1, goal[:, 0]]
        return np.repeat(-(away * away).sum(axis=1, keepdims=True), 2, axis=1)


class Reference(Task):
    """Two agents, each of which knows the other's goal among three landmarks, move and send one of ten symbols at once.

    Args:
      local_ratio: share of the own distance in the reward; the rest is the mean of both.
    """

    goals = 2
    symmetric = True
    colors = np.array([(0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75)])

    def __init__(self, local_ratio: float = 0.5):
        _check_ratio(local_ratio)
        self._ratio = local_ratio
        self.roles = tuple(Role(f"agent_{i}", "team", observes=21, symbols=10) for i in range(2))
        self.bodies = Bodies((0.05,) * 2, (0.05,) * 3)

    def observe(self, world: World, goal: np.ndarray, message: np.ndarray, out: list[np.ndarray]) -> None:
        """Write own velocity, landmarks, the colour of the other's goal, and the other's message."""
        for i, seen in enumerate(out):
            seen[:, :2] = world.velocity[:, i]
            seen[:, 2:8] = world.to_landmark[:, i].reshape(-1, 6)
            seen[:, 8:11] = self.colors[goal[:, i]]
            seen[:, 11:] = message[:, 1 - i]

    def reward(self, world: World, goal: np.ndarray) -> np.ndarray:
        """Return minus the distances; agent i is rewarded for the other agent's distance to the goal that i knows."""
        slots = np.arange(len(goal))
        away = np.stack([world.to_landmark[slots, 1 - i, goal[:, i]] for i in range(2)], axis=1)
        own = -np.sqrt((away * away).sum(axis=2))
        return self._ratio * own + (1.0 - self._ratio) * own.mean(axis=1, keepdims=True)


class Tag(Task):
    """Adversaries hunt faster prey between obstacles.

    Args:
      num_good, num_adversaries, num_obstacles: how many.
    """

    landmark_range = 0.9

    def __init__(self, num_good: int = 1, num_adversaries: int = 3, num_obstacles: int = 2):
        _check_counts(num_good=num_good, num_adversaries=num_adversaries)
        _check_counts(0, num_obstacles=num_obstacles)
        hunters, prey, total = num_adversaries, num_good, num_adversaries + num_good
        base = 4 + 2 * num_obstacles + 2 * (total - 1)
        self.roles = (
            *(Role(f"adversary_{i}", "adversaries", base + 2 * prey, strength=3.0) for i in range(hunters)),
            *(Role(f"agent_{i}", "prey", base + 2 * (prey - 1), strength=4.0) for i in range(prey)),
        )
        self.bodies = Bodies(
            (0.075,) * hunters + (0.05,) * prey,
            (0.2,) * num_obstacles,
            collide=True,
            landmarks_collide=num_obstacles > 0,
            max_speed=(1.0,) * hunters + (1.3,) * prey,
        )
        self._hunters = hunters
        self._others = np.array([[j for j in range(total) if j != i] for i in range(total)], np.int64)
        self._prey_seen = [[j for j in range(hunters, total) if j != i] for i in range(total)]

    def observe(self, world: World, goal: np.ndarray, message: np.ndarray, out: list[np.ndarray]) -> None:
        """Write own velocity and position, relative positions of obstacles and others, and the velocities of (other) prey."""
        _see_world(world, self._others, out)
        for seen, prey in zip(out, self._prey_seen, strict=True):
            if prey:
                seen[:, -2 * len(prey) :] = world.velocity[:, prey].reshape(len(seen), -1)

    def reward(self, world: World, goal: np.ndarray) -> np.ndarray:
        """Return 10 for each pair of hunter and prey in contact, for every hunter; -10 for that prey, which must stay near."""
        hunter = world.pairs[0] < self._hunters
        caught = world.touching[:, hunter & (world.pairs[1] >= self._hunters)]
        caught = caught.reshape(len(goal), self._hunters, -1).sum(axis=1)
        reward = np.empty(world.position.shape[:2])
        reward[:, : self._hunters] = 10.0 * caught.sum(axis=1, keepdims=True)
        x = np.abs(world.position[:, self._hunters :])
        outside = np.where(x < 1.0, (x - 0.9) * 10.0, np.exp(np.minimum(2.0 * x - 2.0, 3.0)).clip(max=10.0))
        reward[:, self._hunters :] = -10.0 * caught - np.where(x < 0.9, 0.0, outside).sum(axis=2)
        return reward


def _see_world(world: World, others: np.ndarray, out: list[np.ndarray]) -> None:
    """Write velocity, position, landmarks and other agents, as seen from each agent, to the first entries."""
    num_envs, agents = world.position.shape[:2]
    landmarks = world.to_landmark.reshape(num_envs, agents, -1)
    relative = (world.position[:, others] - world.position[:, :, None]).reshape(num_envs, agents, -1)
    own = np.concatenate([world.velocity, world.position, landmarks, relative], axis=2)
    for i, seen in enumerate(out):
        seen[:, : own.shape[2]] = own[:, i]


def _check_ratio(local_ratio: float) -> None:
    if not 0.0 <= local_ratio <= 1.0:
        raise ConfigError(f"local_ratio is {local_ratio}; give a share, from 0 to 1")


def _check_counts(least: int = 1, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise ConfigError(f"{name} is {count}; give at least {least}")


TASKS: dict[str, type[Task]] = {
    "simple_spread_v3": Spread,
    "simple_speaker_listener_v4": SpeakerListener,
    "simple_reference_v3": Reference,
    "simple_tag_v3": Tag,
}
