"""A two-player turn game with known values: tokens race to the end of a line, and each seat waits while the other moves.

Position p = 0, 1, 2. The seat to move plays 0 or 1, which wins a step forward with probability FORWARD[action]. The first
seat at 3 wins: +1 on its own row, -1 for the other, which waits there. Either seat may start.

A seat observes p on its turn and WAITING + p while it waits: a critic never learns the latter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GAMMA, FORWARD, WAITING = 0.9, (0.3, 0.7), 3
NEVER_LEARNT = 5.0  # value of the observations while waiting


class Played(NamedTuple):
    """Rows [rows, B] of games played by random moves (seen, action, reward, discount and acts: [rows, B, 2])."""

    seen: np.ndarray
    is_first: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    acts: np.ndarray


def play(rows: int, num_envs: int, seed: int) -> Played:
    """Play uniformly random moves in `num_envs` games at once, with next-step auto-reset."""
    rng = np.random.default_rng(seed)
    shape = (rows, num_envs, 2)
    seen, action = np.zeros(shape, np.int32), rng.integers(2, size=shape).astype(np.int32)
    reward, discount = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    acts, is_first = np.zeros(shape, np.uint8), np.zeros((rows, num_envs), bool)
    place = np.zeros(num_envs, int)
    mover, over, first = rng.integers(2, size=num_envs), np.zeros(num_envs, bool), np.ones(num_envs, bool)
    every = np.arange(num_envs)
    for t in range(rows):
        turn = np.arange(2) == mover[:, None]
        seen[t], acts[t], is_first[t] = place[:, None] % 3 + WAITING * ~turn, turn, first
        forward = rng.random(num_envs) < np.asarray(FORWARD)[action[t, every, mover]]
        place = np.where(over, place, place + forward)
        won = ~over & (place == 3)
        reward[t] = np.where(won[:, None], np.where(turn, 1.0, -1.0), 0.0)
        discount[t] = np.where(won[:, None], 0.0, 1.0)
        first = over  # the row just played was a last observation: a new game
        place = np.where(first, 0, place)
        mover = np.where(first, rng.integers(2, size=num_envs), 1 - mover)
        over = won
    return Played(seen, is_first, action, reward, discount, acts)


def solve(own: np.ndarray, other: float) -> np.ndarray:
    """Return v(p) of the seat to move, which advances with probability own[p]; the other seat advances with `other`."""
    system, goal = np.eye(3), np.zeros(3)
    for p in range(3):
        for after, chance in ((p, 1 - own[p]), (p + 1, own[p])):
            if after == 3:
                goal[p] += chance
                continue
            for again, reply in ((after, 1 - other), (after + 1, other)):
                if again == 3:
                    goal[p] -= chance * reply
                else:
                    system[p, again] -= GAMMA * chance * reply
    return np.linalg.solve(system, goal)


def random_values() -> np.ndarray:
    """Return the exact v(p) of random play."""
    return solve(np.full(3, 0.5), 0.5)


def best_play() -> np.ndarray:
    """Return the exact v(p) of the best play against random moves."""
    return max((solve(np.asarray(FORWARD)[list(choice)], 0.5) for choice in np.ndindex(2, 2, 2)), key=np.sum)


def action_values(value: np.ndarray) -> np.ndarray:
    """Return Q(p, action) against random moves, of a seat that continues with v(p) = `value`."""
    q = np.zeros((3, 2))
    for p, action in np.ndindex(3, 2):
        for after, chance in ((p, 1 - FORWARD[action]), (p + 1, FORWARD[action])):
            if after == 3:
                q[p, action] += chance
                continue
            for again, reply in ((after, 0.5), (after + 1, 0.5)):
                q[p, action] += chance * reply * (-1.0 if again == 3 else GAMMA * value[again])
    return q
