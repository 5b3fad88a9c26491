"""Draws walls: rooms and doors on a grid of cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jsrl.games.hide_and_seek.settings import Settings

INNER_HEIGHT, OUTER_HEIGHT = 0.5, 4.0
MIN_ROOM = 6  # cells between two walls that start on the same side of a wall
TRIES = 10
HIDING_ROW, OPENING = 19, (13, 16)  # the wall of counting, and the first and last of its open cells


class Segment(NamedTuple):
    """A straight wall along an axis (0: x, 1: y), on line `at` of the other axis, from cell `start` to cell `end`."""

    axis: int
    at: int
    start: int
    end: int
    height: float = INNER_HEIGHT


@dataclass
class _Room:
    """A wall while rooms are being drawn; `below` and `above`: where other walls start on each side of it."""

    wall: Segment
    below: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.below += [self.wall.start, self.wall.end]
        self.above += [self.wall.start, self.wall.end]


def walls_of(settings: Settings, rng: np.random.Generator) -> list[Segment] | None:
    """Draw a scenario's walls; None: the rooms had no place."""
    outer = outer_walls(settings.grid_size)
    if settings.scenario in ("empty", "construction", "shelter"):
        return outer
    if settings.scenario == "counting":
        last = settings.grid_size - 1
        return [*outer, Segment(0, HIDING_ROW, 0, OPENING[0] - 1), Segment(0, HIDING_ROW, OPENING[1] + 1, last)]
    if settings.scenario == "quadrant":
        return outer + _quadrant(settings, rng)
    rooms = int(rng.integers(1, settings.n_rooms + 1)) if settings.random_room_number else settings.n_rooms
    inner = _rooms(rooms, outer, rng)
    if inner is None:
        return None
    pieces = [
        piece for made in inner for piece in _with_door(made.wall, made.below + made.above, settings.door_size, rng)
    ]
    return (outer if rng.random() < settings.prob_outside_walls else []) + pieces


def outer_walls(grid_size: int) -> list[Segment]:
    last = grid_size - 1
    return [Segment(axis, at, 0, last, OUTER_HEIGHT) for axis in (0, 1) for at in (0, last)]


def _quadrant(settings: Settings, rng: np.random.Generator) -> list[Segment]:
    """Return the two walls of the room at x >= half, y <= half."""
    grid, size = settings.grid_size, quadrant_size(settings)
    both = [Segment(1, grid - size, 0, size), Segment(0, size, grid - size, grid - 1)]
    closed = int(rng.integers(2)) if rng.random() < settings.p_door_dropout else None
    pieces: list[Segment] = []
    for i, wall in enumerate(both):
        pieces += [wall] if i == closed else _with_door(wall, (), settings.door_size, rng)
    return pieces


def quadrant_size(settings: Settings) -> int:
    return settings.grid_size // 2


def _rooms(rooms: int, outer: Sequence[Segment], rng: np.random.Generator) -> list[_Room] | None:
    """Return `rooms - 1` inner walls; None after ten failures."""
    for _ in range(TRIES):
        walls = [_Room(wall) for wall in outer]
        while len(walls) < rooms + len(outer) - 1:
            if not any(_divide(walls, rng) for _ in range(TRIES)):
                break
        else:
            return walls[len(outer) :]
    return None


def _divide(walls: list[_Room], rng: np.random.Generator) -> bool:
    """Add a wall between two parallel walls; return whether such a pair was found."""
    one = walls[int(rng.integers(len(walls)))]
    start, length = one.wall.start, one.wall.end - one.wall.start
    candidates = []
    for other in walls:
        if other is one or other.wall.axis != one.wall.axis or length < 2:
            continue
        place = start + int(rng.integers(1, length))
        near, far = sorted((one.wall.at, other.wall.at))
        new = Segment(1 - one.wall.axis, place, near, far)
        begun = one.above if other.wall.at > one.wall.at else one.below
        fits = near < far and other.wall.start <= place <= other.wall.end
        if fits and all(abs(place - junction) > MIN_ROOM for junction in begun):
            candidates.append((other, new))
    candidates = [(other, new) for other, new in candidates if not any(_cross(new, w.wall) for w in walls)]
    if not candidates:
        return False
    other, new = candidates[int(rng.integers(len(candidates)))]
    lower, upper = (one, other) if one.wall.at < other.wall.at else (other, one)
    lower.above.append(new.at)
    upper.below.append(new.at)
    walls.append(_Room(new))
    return True


def _cross(new: Segment, wall: Segment) -> bool:
    """Return whether two walls cross or lie on each other; touching is allowed."""
    if new.axis == wall.axis:
        return new.at == wall.at and new.start < wall.end and wall.start < new.end
    return wall.start < new.at < wall.end and new.start < wall.at < new.end


def _with_door(wall: Segment, junctions: Sequence[int], door_size: int, rng: np.random.Generator) -> list[Segment]:
    """Return the pieces of a wall with a door between two of its junctions; without a door if no gap is long enough."""
    edges = sorted({wall.start, wall.end, *junctions})
    gaps = [(a, b - a) for a, b in itertools.pairwise(edges) if b - a >= door_size + 1]
    if not gaps or door_size == 0:
        return [wall]
    begin, length = gaps[int(rng.integers(len(gaps)))]
    door = begin + int(rng.integers(1, length - door_size + 1))
    pieces = [wall._replace(end=door - 1), wall._replace(start=door + door_size)]
    return [piece for piece in pieces if piece.start < piece.end]


def box_of(wall: Segment, cell: float) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return centre and half extents of a wall: half a cell thick, and a quarter of a cell shorter at each end."""
    thick = cell / 2
    low, high = (wall.start + 0.5) * cell + thick / 2, (wall.end + 0.5) * cell - thick / 2
    along, across = ((low + high) / 2, (high - low) / 2), ((wall.at + 0.5) * cell, thick / 2)
    x, y = (along, across) if wall.axis == 0 else (across, along)
    return (x[0], y[0], wall.height / 2), (x[1], y[1], wall.height / 2)
