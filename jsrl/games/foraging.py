"""Level-based foraging in NumPy, all games at once; ids `foraging:8x8-2p-2f-coop`.

Agents on a grid lift food together: those that lift the same food in one step need its level as the sum of theirs.

Source: lbforaging 2.0.0, whose names are the same with `Foraging-` before and `-v3` after; dynamics, observations and rewards
are equal. Differs: initial states are drawn by another generator from the same distribution, the limit of 50 steps is
a truncation as long as food is left, and there are no grid observations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from jsrl.envs.base import GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import VectorisedGame
from jsrl.errors import ConfigError
from jsrl.games.probes import hashed
from jsrl.types import Array, ArraySpec, Discrete, GameSpec, Seat

WAYS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # north, south, west, east
MOVES = np.array([(0, 0), *WAYS, (0, 0)])  # of the actions
LOAD = 5
MOST_LEVEL = 2  # of an agent
NAME = re.compile(r"(?:(\d+)s-)?(\d+)x(\d+)-(\d+)p-(\d+)f(-coop)?")


class ForagingGame(VectorisedGame):
    """B games of foraging with P agents and at most F foods on a grid of S x S.

    Args:
      size, agents, foods: S, P, F. coop: every food needs all agents, or the three of the lowest levels.
      sight: how far an agent sees; None: the whole grid. penalty: for agents that lift in vain.
      max_cycles: steps of an episode.

    Attributes:
      position: of agents, [B, P, 2]. level: of agents, [B, P].
      food: positions, [B, F, 2], in the order of rows and columns. worth: levels of foods, [B, F], 0 once lifted.
      total: sum of the foods' levels at the start, [B].
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
        *,
        size: int,
        agents: int,
        foods: int,
        coop: bool = False,
        sight: int | None = None,
        penalty: float = 0.0,
        max_cycles: int = 50,
    ):
        if max_cycles < 1 or (sight is not None and sight < 0):
            raise ConfigError(f"max_cycles is {max_cycles} and sight {sight}; give at least 1, and 0 or more")
        if agents + foods > size * size:
            raise ConfigError(
                f"{agents} agents and {foods} foods do not fit into {size} x {size} cells; use a larger grid"
            )
        self._size, self._coop, self._penalty, self._limit = size, coop, penalty, max_cycles
        self._sight = size if sight is None else sight
        seen = ArraySpec((3 * (foods + agents),), "float32")
        seats = tuple(Seat(f"agent_{i}", seen, Discrete(LOAD + 1), "team") for i in range(agents))
        super().__init__(GameSpec(seats, config.id, symmetric=True), config, num_envs, seed, group, groups)
        self._dropped, self._clock = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.position, self.level = np.zeros((num_envs, agents, 2), np.int64), np.ones((num_envs, agents), np.int64)
        self.food, self.worth = np.zeros((num_envs, foods, 2), np.int64), np.zeros((num_envs, foods), np.int64)
        self.total = np.ones(num_envs, np.int64)
        self._others = np.array([[i, *(j for j in range(agents) if j != i)] for i in range(agents)])
        self._free, self._apart = _places(size)

    def reset(self) -> GameStep:
        self._dropped[self._clock > 0] += 1
        self._begin(np.arange(self.num_envs))
        return self._rows.opened(self._groups.divided(self.observe()))

    def step(self, action: Mapping[str, Array]) -> GameStep:
        first = self._rows.first
        chosen = np.where(first[:, None], 0, np.stack(self._groups.actions(action), axis=1))
        self._check_actions(chosen, np.full(chosen.shape[1], LOAD + 1))
        lifting = (chosen == LOAD) & self._beside(self.position).any(axis=(2, 3))
        self._move(chosen)
        reward = self._lift(lifting)
        self._clock += 1
        empty, late = self.worth.sum(axis=1) == 0, self._clock >= self._limit
        if self._rows.any_first:
            self._begin(np.flatnonzero(first))
        ends = [np.broadcast_to(over[:, None], reward.shape) for over in (empty, late & ~empty)]
        return self._rows.step(self._groups.divided(self.observe()), reward, *ends)

    def observe(self) -> np.ndarray:
        """Return what agents see, [B, P, 3 (F + P)]: row, column and level of foods, of itself, of the others.

        Places are relative to the first row and column in sight; -1, -1, 0 fill up for what is not seen.
        """
        corner = np.maximum(self.position - self._sight, 0)[:, :, None]  # [B, P, 1, 2]
        ends = np.minimum(self.position + self._sight, self._size - 1)[:, :, None]
        foods = self.food[:, None]
        food_seen = np.logical_and(
            (self.worth > 0)[:, None], np.logical_and(foods >= corner, foods <= ends).all(axis=3)
        )
        agents = self.position[:, self._others] - corner
        agent_seen = np.logical_or(agents < 0, agents > 2 * self._sight).sum(axis=3) == 0
        parts = [
            _listed(foods - corner, np.broadcast_to(self.worth[:, None], food_seen.shape), food_seen),
            _listed(agents, self.level[:, self._others], agent_seen),
        ]
        return np.concatenate(parts, axis=2)

    def _at_food(self, places: np.ndarray) -> np.ndarray:
        """Return for places [B, P, K, 2] which food is there, bool [B, P, K, F]."""
        same = (places[:, :, :, None] == self.food[:, None, None]).all(axis=4)
        return np.logical_and(same, (self.worth > 0)[:, None, None])

    def _beside(self, position: np.ndarray) -> np.ndarray:
        """Return for positions [B, P, 2] which food is north, south, west and east of them, bool [B, P, 4, F]."""
        return self._at_food(position[:, :, None] + WAYS)

    def _move(self, chosen: np.ndarray) -> None:
        """Move agents to free cells on the grid; if several want the same place, none of them moves."""
        wanted = self.position + MOVES[chosen]
        inside = np.logical_and(wanted >= 0, wanted < self._size).all(axis=2)
        barred = ~inside | self._at_food(wanted[:, :, None]).any(axis=(2, 3))
        wanted = np.where(barred[:, :, None], self.position, wanted)
        cell = wanted[..., 0] * self._size + wanted[..., 1]
        alone = (cell[:, :, None] == cell[:, None]).sum(axis=2) == 1
        self.position = np.where(alone[:, :, None], wanted, self.position)

    def _lift(self, lifting: np.ndarray) -> np.ndarray:
        """Lift food, for the agents `lifting` (bool [B, P]) in their order; return rewards [B, P].

        An agent chooses the first food north, south, west or east of it; all that are beside it and not served yet help.
        """
        reward = np.zeros(lifting.shape)
        if not lifting.any():
            return reward
        beside = self._beside(self.position)  # [B, P, 4, F]
        slots, lifting = np.arange(self.num_envs), lifting.copy()
        for i in range(lifting.shape[1]):
            way = beside[:, i].any(axis=2).argmax(axis=1)
            which = beside[slots, i, way].argmax(axis=1)
            helps = lifting & lifting[:, i : i + 1] & beside[slots, :, :, which].any(axis=2)
            strength, worth = (self.level * helps).sum(axis=1), self.worth[slots, which]
            lifted = (strength >= worth) & (strength > 0)
            share = self.level * worth[:, None] / np.maximum(strength * self.total, 1)[:, None]
            reward = np.where(helps, np.where(lifted[:, None], share, -self._penalty), reward)
            lifting &= ~helps
            self.worth[slots[lifted], which[lifted]] = 0
        return reward

    def _begin(self, slots: np.ndarray) -> None:
        """Start episodes in some slots, int [b]; random numbers are a hash of the slot's seed and episode."""
        agents, foods = self.level.shape[1], self.worth.shape[1]
        draws = 2 * (agents + foods)
        number = (self._rows.episode + self._dropped)[slots, None] * draws + np.arange(draws)
        uniform = hashed(np.broadcast_to(self._seeds[slots, None], number.shape), number)
        free = np.ones((len(slots), self._size**2), bool)
        cells = np.zeros((len(slots), agents), np.int64)
        for i in range(agents):
            cells[:, i], _ = _drawn(free, uniform[:, i])
            free[np.arange(len(slots)), cells[:, i]] = False
        level = 1 + (uniform[:, agents : 2 * agents] * MOST_LEVEL).astype(np.int64)
        most = np.sort(level, axis=1)[:, :3].sum(axis=1, keepdims=True)
        worth = 1 + (uniform[:, -foods:] * most).astype(np.int64)
        worth = np.broadcast_to(most, worth.shape).copy() if self._coop else worth
        free &= self._free
        places = np.zeros((len(slots), foods), np.int64)
        for i in range(foods):
            places[:, i], there = _drawn(free, uniform[:, 2 * agents + i])
            worth[:, i] *= there
            free &= self._apart[places[:, i]] | ~there[:, None]
        order = places.argsort(axis=1, kind="stable")
        places, worth = np.take_along_axis(places, order, 1), np.take_along_axis(worth, order, 1)
        self.position[slots] = np.stack(np.divmod(cells, self._size), axis=2)
        self.food[slots] = np.stack(np.divmod(places, self._size), axis=2)
        self.level[slots], self.worth[slots], self.total[slots] = level, worth, worth.sum(axis=1)
        self._clock[slots] = 0


def _places(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cells where food may lie, bool [S * S], and for each such cell those where more may, [S * S, S * S]."""
    row, column = np.divmod(np.arange(size * size), size)
    inside = (np.minimum(row, column) > 0) & (np.maximum(row, column) < size - 1)
    down, across = np.abs(row[:, None] - row), np.abs(column[:, None] - column)
    near = (np.maximum(down, across) <= 1) | ((np.minimum(down, across) == 0) & (np.maximum(down, across) <= 2))
    return inside, ~near


def _drawn(free: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a cell among the free ones of each row, drawn by a uniform number, and whether there is one."""
    counts = free.cumsum(axis=1)
    wanted = (uniform * counts[:, -1]).astype(np.int64) + 1
    return (counts >= wanted[:, None]).argmax(axis=1), counts[:, -1] > 0


def _listed(places: np.ndarray, levels: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return float32 [B, P, 3 K]: places [B, P, K, 2] and levels [B, P, K] of what is seen, in order, then -1, -1, 0."""
    whole = np.concatenate([places, levels[..., None]], axis=3).astype(np.float32)
    whole = np.where(seen[..., None], whole, np.array([-1, -1, 0], np.float32))
    if not seen.all():
        order = (~seen).argsort(axis=2, kind="stable")
        whole = np.take_along_axis(whole, order[..., None], axis=2)
    return whole.reshape(*whole.shape[:2], -1)


def foraging(config: EnvConfig) -> Callable[..., ForagingGame]:
    """Return the maker of the game `foraging:SxS-Pp-Ff`; `2s-` before it limits the sight, `-coop` after it adds coop."""
    name = config.id.partition(":")[2]
    found = NAME.fullmatch(name)
    if found is None or found[2] != found[3] or int(found[2]) < 3 or not (int(found[4]) and int(found[5])):
        raise ConfigError(
            f"there is no foraging game {name!r}; names are like 8x8-2p-2f-coop or 2s-8x8-2p-2f: how far agents see, a "
            "square of at least 3x3, players, foods, and -coop if all must lift together"
        )
    sight, size, _, agents, foods, coop = found.groups()
    own: dict[str, Any] = {"size": int(size), "agents": int(agents), "foods": int(foods), "coop": bool(coop)}
    if sight:
        own["sight"] = int(sight)
    return partial(ForagingGame, config, **own, **config.kwargs)
