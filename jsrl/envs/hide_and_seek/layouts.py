"""Draws an episode's layout: walls, and the start positions of agents, ramps and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jsrl.envs.hide_and_seek.settings import Settings, span
from jsrl.envs.hide_and_seek.walls import Segment, quadrant_size, walls_of
from jsrl.errors import EnvironmentFault

AGENT, CUBE, RAMP = (0.3, 0.3, 0.3), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
LONG_X, LONG_Y = (1.65, 0.15, 0.5), (0.15, 1.65, 0.5)
DRAWS, ATTEMPTS = 10, 1000

Cell = tuple[int, int]
Rule = Callable[[int, int], Cell]  # an object's width and depth in cells -> its first cell


@dataclass(frozen=True)
class Layout:
    """Positions at the start of an episode.

    Attributes:
      walls: segments on the grid. sizes: full sizes of agents (hiders first), ramps and boxes, in this order, [M, 3].
      corners: their lower left corners, [M, 2]. cells: their first cells, int [M, 2].
      boxes: number of boxes. attempts: layouts that were drawn until all objects had a place.
    """

    walls: tuple[Segment, ...]
    sizes: np.ndarray
    corners: np.ndarray
    cells: np.ndarray
    boxes: int
    attempts: int


def draw_layout(settings: Settings, rng: np.random.Generator) -> Layout:
    """Draw a layout; if an object finds no place, everything is drawn again.

    Raises:
      EnvironmentFault: the objects had no place in a thousand layouts in a row.
    """
    for attempt in range(1, ATTEMPTS + 1):
        walls = walls_of(settings, rng)
        placed = None if walls is None else _Placement(settings, walls, rng).place_all()
        if walls is not None and placed is not None:
            sizes, corners, cells, boxes = placed
            return Layout(tuple(walls), np.array(sizes), np.array(corners), np.array(cells), boxes, attempt)
    raise EnvironmentFault(
        f"hide_and_seek: {ATTEMPTS} worlds in a row had no place for all objects on a floor of {settings.floor_size} m. "
        "Give fewer boxes, ramps or rooms, or a larger floor"
    )


class _Placement:
    """One attempt to place all objects on a grid whose wall cells are occupied."""

    def __init__(self, settings: Settings, walls: list[Segment], rng: np.random.Generator):
        self._settings, self._rng, self._grid = settings, rng, settings.grid_size
        self._taken = np.zeros((self._grid, self._grid), bool)
        for wall in walls:
            along = slice(wall.start, wall.end + 1)
            self._taken[(along, wall.at) if wall.axis == 0 else (wall.at, along)] = True
        self._quadrant = quadrant_size(settings)

    def place_all(self) -> tuple[list, list, list, int] | None:
        """Return sizes, corners and cells of agents, ramps and boxes, and the number of boxes; None: no place was found."""
        settings, rng = self._settings, self._rng
        agents = self._agents()
        if agents is None:
            return None
        sizes = _box_sizes(settings, rng)
        in_room = settings.scenario == "quadrant"
        boxes = [self._put(size, self._in_quadrant if in_room else self._uniform) for size in sizes]
        ramps = [self._put(RAMP, self._uniform) for _ in range(settings.n_ramps)]
        placed = [*agents, *ramps, *boxes]
        if any(one is None for one in placed):
            return None
        kinds = [AGENT] * len(agents) + [RAMP] * len(ramps) + sizes
        return kinds, [one[0] for one in placed if one], [one[1] for one in placed if one], len(boxes)

    def _agents(self) -> list[tuple[tuple[float, float], Cell]] | None:
        settings, quadrant = self._settings, self._settings.scenario == "quadrant"
        placed = []
        teams = (
            (settings.n_hiders, settings.hiders_together_radius, quadrant and not settings.hider_uniform_placement),
            (settings.n_seekers, settings.seekers_together_radius, False),
        )
        for team, (number, radius, in_room) in enumerate(teams):
            first: Cell | None = None
            for _ in range(number):
                rule: Rule = self._in_quadrant if in_room else self._uniform
                if team == 1 and quadrant:
                    rule = self._outside_quadrant
                if first is not None and radius is not None:
                    rule = self._near(first, _cells(radius, settings.cell))
                found = self._put(AGENT, rule)
                if found is None:
                    return None
                first = first or found[1]
                placed.append(found)
        return placed

    def _put(self, size: tuple[float, float, float], rule: Rule) -> tuple[tuple[float, float], Cell] | None:
        """Find free cells for an object; return its corner and first cell; None: ten draws failed."""
        cell, grid = self._settings.cell, self._grid
        wide, deep = _cells(size[0], cell), _cells(size[1], cell)
        for _ in range(DRAWS):
            x, y = rule(wide, deep)
            if x + wide > grid or y + deep > grid or self._taken[x : x + wide, y : y + deep].any():
                continue
            self._taken[x : x + wide, y : y + deep] = True
            shift = self._rng.random(2) * (wide * cell - size[0], deep * cell - size[1])
            return (x * cell + float(shift[0]), y * cell + float(shift[1])), (x, y)
        return None

    def _draw(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, max(low + 1, high)))

    def _uniform(self, wide: int, deep: int) -> Cell:
        return self._draw(1, self._grid - wide - 1), self._draw(1, self._grid - deep - 1)

    def _in_quadrant(self, wide: int, deep: int) -> Cell:
        size = self._quadrant
        return self._draw(self._grid - size, self._grid - wide - 1), self._draw(1, size - deep - 1)

    def _outside_quadrant(self, wide: int, deep: int) -> Cell:
        grid, size, part = self._grid, self._quadrant, self._draw(0, 3)
        x = self._draw(1, grid - size - wide - 1) if part < 2 else self._draw(grid - size, grid - wide - 1)
        y = self._draw(1, size - deep - 1) if part == 0 else self._draw(size, grid - deep - 1)
        return x, y

    def _near(self, first: Cell, radius: int) -> Rule:
        def near(wide: int, deep: int) -> Cell:
            x, y = (self._draw(max(1, at - radius), min(self._grid - 1, at + radius)) for at in first)
            return x, y

        return near


def _box_sizes(settings: Settings, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Draw the boxes of an episode: elongated along x first, then along y, then cubes."""
    least, most = span(settings.n_boxes)
    boxes = int(rng.integers(least, most + 1))
    fewest, longest = span(settings.n_elongated_boxes)
    longest = min(longest, boxes)
    elongated = int(rng.integers(min(fewest, longest), longest + 1))
    along_x = int(rng.integers(elongated + 1))
    return [LONG_X] * along_x + [LONG_Y] * (elongated - along_x) + [CUBE] * (boxes - elongated)


def _cells(length: float, cell: float) -> int:
    return math.ceil(length / cell - 1e-9)
