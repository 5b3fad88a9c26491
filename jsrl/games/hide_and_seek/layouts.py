"""Draws an episode's layout: walls, and the start positions of agents, ramps and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jsrl.errors import EnvironmentFault
from jsrl.games.hide_and_seek.settings import Settings, span
from jsrl.games.hide_and_seek.walls import Segment, quadrant_size, walls_of

AGENT, CUBE, RAMP = (0.3, 0.3, 0.3), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
LONG_X, LONG_Y = (1.65, 0.15, 0.5), (0.15, 1.65, 0.5)
DRAWS, ATTEMPTS = 10, 1000
CYLINDER = (1.5, 2.0)  # least and greatest diameter
MIDDLE = {"construction": 0.85, "shelter": 0.7}  # share of the floor's side on which sites are placed
WATCHER, FIRST_LANE, LANE, SHIFT = (2.85, 5.45), 0.25, 0.55, 0.1  # corner of the agent and y of the boxes in counting

Cell = tuple[int, int]
Rule = Callable[[int, int], Cell]  # an object's width and depth in cells -> its first cell


@dataclass(frozen=True)
class Layout:
    """Positions at the start of an episode.

    Attributes:
      walls: segments on the grid. sizes: full sizes of agents (hiders first), ramps and boxes, in this order, [M, 3].
      corners: their lower left corners, [M, 2]. cells: their first cells, int [M, 2].
      boxes: number of boxes. attempts: layouts that were drawn until all objects had a place.
      sites: of a task: centre x, y, and size, [S, 3].
    """

    walls: tuple[Segment, ...]
    sizes: np.ndarray
    corners: np.ndarray
    cells: np.ndarray
    boxes: int
    attempts: int
    sites: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))


def draw_layout(settings: Settings, rng: np.random.Generator) -> Layout:
    """Draw a layout; if an object finds no place, everything is drawn again."""
    for attempt in range(1, ATTEMPTS + 1):
        walls = walls_of(settings, rng)
        if walls is None:
            continue
        if settings.scenario == "counting":
            return _column(settings, walls, rng)
        placement = _Placement(settings, walls, rng)
        placed = placement.place_all()
        if placed is not None:
            sizes, corners, cells, boxes = placed
            arrays = np.array(sizes), np.array(corners), np.array(cells)
            return Layout(tuple(walls), *arrays, boxes, attempt, placement.sites)
    raise EnvironmentFault(
        f"hide_and_seek: {ATTEMPTS} worlds in a row had no place for all objects on a floor of {settings.floor_size} m. "
        "Give fewer objects (n_boxes, n_ramps, n_hiders, n_seekers) or rooms (n_rooms), or a larger floor (floor_size)"
    )


def _column(settings: Settings, walls: list[Segment], rng: np.random.Generator) -> Layout:
    """Return the layout of counting: an agent before an opening, and boxes in a column behind it, not quite in line."""
    boxes = settings.max_boxes
    corners = np.array([WATCHER] + [(WATCHER[0] - 0.1, FIRST_LANE + LANE * i) for i in range(boxes)])
    corners[1:, 0] += rng.uniform(-SHIFT, SHIFT, boxes)
    cells = np.floor(corners / settings.cell).astype(int)
    return Layout(tuple(walls), np.array([AGENT] + [CUBE] * boxes), corners, cells, boxes, 1)


class _Placement:
    """One attempt to place all objects on a grid whose wall cells are occupied."""

    def __init__(self, settings: Settings, walls: list[Segment], rng: np.random.Generator):
        self._settings, self._rng, self._grid = settings, rng, settings.grid_size
        self._taken = np.zeros((self._grid, self._grid), bool)
        for wall in walls:
            along = slice(wall.start, wall.end + 1)
            self._taken[(along, wall.at) if wall.axis == 0 else (wall.at, along)] = True
        self._quadrant = quadrant_size(settings)
        self._rooms = rooms_of(self._taken) if settings.scenario == "sequential_lock" else []
        self.sites = np.zeros((0, 3))

    def place_all(self) -> tuple[list, list, list, int] | None:
        """Return sizes, corners and cells of agents, ramps and boxes, and the number of boxes; None: no place was found."""
        settings, rng = self._settings, self._rng
        agents = self._agents() if self._place_sites() else None
        if agents is None:
            return None
        sizes = _box_sizes(settings, rng)
        in_room = settings.scenario == "quadrant"
        boxes = [self._put(size, self._in_quadrant if in_room else self._uniform) for size in sizes]
        rules = [self._in_room(room) for room in self._rooms] or [self._uniform]
        ramps = [self._put(RAMP, rules[i % len(rules)]) for i in range(settings.n_ramps)]
        placed = [*agents, *ramps, *boxes]
        if any(one is None for one in placed):
            return None
        kinds = [AGENT] * len(agents) + [RAMP] * len(ramps) + sizes
        return kinds, [one[0] for one in placed if one], [one[1] for one in placed if one], len(boxes)

    def _place_sites(self) -> bool:
        """Draw the sites; return whether all found a place."""
        settings, rng = self._settings, self._rng
        least, most = span(settings.n_sites)
        if not most:
            return True
        found = []
        for _ in range(int(rng.integers(least, most + 1))):
            size = float(rng.uniform(*CYLINDER)) if settings.scenario == "shelter" else CUBE[0]
            placed = self._put((size, size, size), self._in_middle(MIDDLE[settings.scenario]))
            if placed is None:
                return False
            (x, y), _ = placed
            found.append((x + size / 2, y + size / 2, size))
        self.sites = np.array(found)
        return True

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

    def _in_middle(self, share: float) -> Rule:
        edge = (1 - share) / 2 * self._grid
        low, high = math.ceil(edge - 1e-9), math.floor(self._grid - edge + 1e-9)
        return lambda wide, deep: (self._draw(low, high - wide + 1), self._draw(low, high - deep + 1))

    def _in_room(self, cells: np.ndarray) -> Rule:
        def in_room(wide: int, deep: int) -> Cell:
            x, y = cells[self._draw(0, len(cells))].tolist()
            return x, y

        return in_room

    def _near(self, first: Cell, radius: int) -> Rule:
        def near(wide: int, deep: int) -> Cell:
            x, y = (self._draw(max(1, at - radius), min(self._grid - 1, at + radius)) for at in first)
            return x, y

        return near


def rooms_of(walls: np.ndarray) -> list[np.ndarray]:
    """Return the cells [k, 2] of each connected region without walls, bool [grid, grid]."""
    free, rooms = ~walls, list[np.ndarray]()
    while free.any():
        room = np.zeros_like(free)
        room.flat[int(free.argmax())] = True
        grown = room
        while grown.any():
            around = np.zeros_like(room)
            around[1:] |= grown[:-1]
            around[:-1] |= grown[1:]
            around[:, 1:] |= grown[:, :-1]
            around[:, :-1] |= grown[:, 1:]
            grown = around & free & ~room
            room = room | grown
        rooms.append(np.argwhere(room))
        free &= ~room
    return rooms


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
