"""Rows on the host: one allocation per leaf from the schema, a ring for each group of environments, written once.

A lane holds the rows of one group of environments: [C, B_g], of which the newest is a bootstrap row. Row t of a lane (counted
from the first ever) is at place t mod C, so place and lap (t div C) identify a row, and show whether it is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jsrl.experiment.settings import ReplayConfig
from jsrl.types import Array, ArraySpec, Trajectory, leaves, map_trajectory, map_tree

PLACE_BITS, LAP_BITS = 36, 20  # an id: replay, lap, place; 2^36 rows, 2^20 laps before an old id could look new


@dataclass(frozen=True)
class RowsShape:
    """The constants of a store of rows.

    Attributes:
      lanes: groups of environments. capacity: rows C of a lane. group_size: B_g. num_rows: T of inserted trajectories.
      window: rows of a window. frames: frames per observation (None: stored unchanged). with_core: windows start at row 0
        of a trajectory, where the core is known.
    """

    lanes: int
    capacity: int
    group_size: int
    num_rows: int
    window: int
    frames: int | None = None
    with_core: bool = False

    @property
    def history(self) -> int:
        """Return how many rows before a window its oldest stack needs."""
        return (self.frames or 1) - 1

    @property
    def size(self) -> int:
        """Return the rows of all lanes and environments."""
        return self.lanes * self.capacity * self.group_size


@dataclass
class Lane:
    """State of a lane: `written` rows before the bootstrap row, `oldest` the first complete one.

    `last` is (incarnation, sequence) of its last trajectory. Windows may start at rows from `head` to before `opened`;
    `starts_left` and `starts_joined` count removals from and additions to the list of starts.
    """

    written: int = 0
    oldest: int = 0
    last: tuple[int, int] | None = None
    head: int = 0
    opened: int = 0
    starts_left: int = 0
    starts_joined: int = 0


class HostRows:
    """The arrays: leaves [rows, ...] (row-major over lane, time, environment), with writes and reads."""

    def __init__(self, shape: RowsShape, spec: Trajectory) -> None:
        """Allocate for trajectories of one group (schema [T+1, B_g, ...])."""
        self.shape = shape
        kept = spec._replace(sampling=())
        stored = map_trajectory(
            lambda leaf: ArraySpec((shape.size, *leaf.shape[2:]), leaf.dtype),
            lambda leaf: ArraySpec((shape.size, *leaf.shape[1:]), leaf.dtype),
            kept,
        )
        if shape.frames is not None:
            observation = stored.observation
            stored = stored._replace(observation=ArraySpec(observation.shape[:-1], observation.dtype))
        self.rows: Trajectory = map_tree(lambda leaf: leaf.zeros(), stored)
        self.fresh = np.zeros(shape.size if shape.frames is not None else 0, bool)
        self.after_gap = np.zeros(shape.size, bool)  # this row does not follow the one before

    def begin(self, lane: int, time: int | np.ndarray) -> Any:
        """Return the place of environment 0 at a row of a lane."""
        return (lane * self.shape.capacity + time % self.shape.capacity) * self.shape.group_size

    def write(self, lane: int, at: int, trajectory: Trajectory, *, after_gap: bool) -> None:
        """Write the T rows of a trajectory [T+1, B_g, ...] at row `at` of a lane, and its bootstrap row after them."""
        shape = self.shape
        given = trajectory._replace(sampling=())
        if shape.frames is not None:
            older = given.observation[..., :-1]
            fresh = given.is_first & ~older.any(axis=tuple(range(2, older.ndim)))
            self._put(self.fresh, fresh, lane, at)
            given = given._replace(observation=given.observation[..., -1])
        place = self.begin(lane, at)

        def columns(stored: Array, new: Array) -> None:
            stored[place : place + shape.group_size] = new

        map_trajectory(lambda stored, new: self._put(stored, new, lane, at), columns, self.rows, given)
        marks = np.zeros((shape.num_rows + 1, shape.group_size), bool)
        marks[0] = after_gap
        self._put(self.after_gap, marks, lane, at)

    def _put(self, stored: Array, new: Array, lane: int, at: int) -> None:
        capacity, envs = self.shape.capacity, self.shape.group_size
        mine = stored[lane * capacity * envs : (lane + 1) * capacity * envs].reshape(capacity, envs, *stored.shape[1:])
        start = at % capacity
        fits = min(len(new), capacity - start)
        mine[start : start + fits] = new[:fits]
        if fits < len(new):
            mine[: len(new) - fits] = new[fits:]

    def masks(self, lane: int, times: np.ndarray) -> np.ndarray:
        """Return bool [len(times), B_g]: whether windows may start at these rows (their next rows are there)."""
        here = self.begin(lane, times)[:, None] + np.arange(self.shape.group_size)
        following = self.begin(lane, times + 1)[:, None] + np.arange(self.shape.group_size)
        acts = self.rows.acts[here]
        acts = acts.reshape(*here.shape, -1).any(axis=-1)
        return acts & ~self.rows.is_first[following] & ~self.after_gap[following]

    def read(self, places: np.ndarray, into: Trajectory) -> None:
        """Write the windows that start at `places` [M] into a trajectory [W+1, M, ...] (all of it but `sampling`).

        Rows after a gap have acts 0, and the first of them is_first: a window ends at a gap and bootstraps there.
        """
        shape, number = self.shape, len(places)
        here = self.steps(places, 0, shape.window + 1)
        flat = here.reshape(-1)

        def rows(stored: Array, out: Array) -> None:
            np.take(stored, flat, axis=0, out=out.reshape(-1, *out.shape[2:]), mode="clip")

        def columns(stored: Array, out: Array) -> None:
            np.take(stored, places, axis=0, out=out, mode="clip")

        target = into._replace(sampling=())
        if shape.frames is None:
            map_trajectory(rows, columns, self.rows, target)
        else:
            map_trajectory(rows, columns, self.rows._replace(observation=()), target._replace(observation=()))
            self._stack(places, into.observation)
        gaps = self.after_gap[here]
        gaps[0] = False
        if gaps.any():
            into.is_first[...] |= gaps
            behind = np.logical_or.accumulate(gaps, axis=0)
            into.acts[behind] = 0
        assert number == into.is_first.shape[1]

    def steps(self, places: np.ndarray, first: int, count: int) -> np.ndarray:
        """Return the places [count, M] of the rows first, first + 1, ... after (before, if negative) `places`."""
        envs, capacity = self.shape.group_size, self.shape.capacity
        lane, within = np.divmod(places, capacity * envs)
        moved = within + np.arange(first, first + count)[:, None] * envs
        return lane * (capacity * envs) + moved % (capacity * envs)

    def _stack(self, places: np.ndarray, out: Array) -> None:
        """Stack frames into `out` [W+1, M, ..., frames]; black before an episode's start."""
        shape, count = self.shape, self.shape.window + 1
        assert shape.frames is not None
        around = self.steps(places, -shape.history, count + shape.history)
        frames, fresh = self.rows.observation[around], self.fresh[around]
        goes_on = np.ones((count, len(places)), bool)
        for back in range(shape.frames):
            begin = shape.history - back
            newest_last = out[..., shape.frames - 1 - back]
            newest_last[...] = frames[begin : begin + count]
            if not goes_on.all():
                newest_last[~goes_on] = 0
            goes_on = goes_on & ~fresh[begin : begin + count]


def make_ids(places: np.ndarray, laps: np.ndarray, replay: int) -> np.ndarray:
    """Return ids int64 [M] that contain replay worker, lap and place."""
    lap = laps & ((1 << LAP_BITS) - 1)
    return places | lap << PLACE_BITS | np.int64(replay) << (PLACE_BITS + LAP_BITS)


def read_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (replay, lap, place) of ids."""
    place = ids & ((1 << PLACE_BITS) - 1)
    return ids >> (PLACE_BITS + LAP_BITS), ids >> PLACE_BITS & ((1 << LAP_BITS) - 1), place


def rows_shape(config: ReplayConfig, spec: Trajectory, *, lanes: int, capacity: int, frames: int | None) -> RowsShape:
    """Return the shape of a store for `lanes` groups; `capacity` is env steps over all of them."""
    window = config.window
    num_rows, group_size = spec.is_first.shape[0] - 1, spec.is_first.shape[1]
    with_core = bool(leaves(spec.core))
    least = 2 * num_rows + window + (frames or 1) + 1
    rows = max(least, -(-capacity // (lanes * group_size)) + 1)
    if with_core:  # trajectories begin at the same places in each lap, so that memory for other cores is never touched
        rows = -(-rows // num_rows) * num_rows
    return RowsShape(lanes, rows, group_size, num_rows, window, frames, with_core)
