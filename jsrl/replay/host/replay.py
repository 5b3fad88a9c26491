"""Replay on the host: which windows may be drawn, their priorities, and counts; the rows themselves are in HostRows.

One thread inserts; any number of threads draw. A drawing thread reads without the lock: rows are evicted before they
are overwritten, so a check afterwards shows which windows were lost meanwhile, and those are drawn again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from jsrl.errors import ConfigError
from jsrl.experiment.settings import ReplayConfig
from jsrl.replay.host.rows import HostRows, Lane, make_ids, read_ids, rows_shape
from jsrl.replay.host.tree import HostTree
from jsrl.replay.shared import PRIORITIES, weights_of, windows_spec
from jsrl.types import Trajectory, map_trajectory, zeros

LAPS_APART = 1 << 10  # between the ids of two incarnations: priorities of the last one reach no window of this one
LEAST = 1e-12  # smallest weight of a window, so that it can be drawn


class HostReplay:
    """Windows of rows, drawn uniformly or by priority.

    Args:
      config: as of a run. spec: schema of one group's trajectory. lanes: groups. capacity: env steps over all of them;
        None: that of the config. frames: see EnvSpec. seed: of the draws. replay, incarnation: of this replay worker, part of
        its ids.

    Attributes:
      inserted, drawn, evicted, ignored: env steps inserted, windows drawn, env steps overwritten, priorities that came too
        late for their window.
      num_starts: windows that can be drawn.
    """

    def __init__(
        self,
        config: ReplayConfig,
        spec: Trajectory,
        *,
        lanes: int = 1,
        capacity: int | None = None,
        frames: int | None = None,
        seed: int = 0,
        replay: int = 0,
        incarnation: int = 0,
    ) -> None:
        shape = rows_shape(config, spec, lanes=lanes, capacity=capacity or config.capacity, frames=frames)
        self.config, self.shape, self._spec, self._replay = config, shape, spec, replay
        self._first_lap = incarnation * LAPS_APART
        self.rows = HostRows(shape, spec)
        self.lock = threading.RLock()
        self.lanes = [Lane() for _ in range(shape.lanes)]
        self._starts_at = np.zeros((shape.lanes, shape.capacity), np.int32)
        self.num_starts = 0
        self._pending: list[list[int]] = [[] for _ in range(shape.lanes)]
        room = shape.capacity * shape.group_size
        self._tree = HostTree(shape.size) if config.prioritised else None
        self._order = np.zeros((0 if config.prioritised else shape.lanes, room), np.int64)
        self._highest = 1.0
        self._rng = np.random.default_rng(seed)
        self.inserted = self.drawn = self.evicted = self.ignored = 0

    @property
    def size(self) -> int:
        """Return the env steps that are held."""
        return sum(lane.written - lane.oldest for lane in self.lanes) * self.shape.group_size

    # -- inserting (one thread) ---------------------------------------------------------------------------------------

    def insert(self, lane_number: int, origin: tuple[int, int], trajectory: Trajectory) -> None:
        """Insert a trajectory [T+1, B_g, ...].

        Args:
          lane_number: of the group. origin: (incarnation, sequence); a trajectory that does not follow the last one leaves
            a gap, at which the last bootstrap row is kept.
        """
        shape, lane = self.shape, self.lanes[lane_number]
        joined = lane.last is not None and origin == (lane.last[0], lane.last[1] + 1)
        gap = lane.last is not None and not joined
        at = lane.written + gap
        end = at + shape.num_rows
        with self.lock:
            self._evict(lane_number, end - shape.capacity + 1)
        if gap:
            place = self.rows.begin(lane_number, lane.written)
            self.rows.rows.discount[place : place + shape.group_size] = 1.0
        self.rows.write(lane_number, at, trajectory, after_gap=gap)
        with self.lock:
            if shape.with_core:
                self._pending[lane_number].append(at)
            lane.written, lane.last = end, origin
            self._open(lane_number)
            self.inserted += shape.num_rows * shape.group_size

    def _evict(self, number: int, lost: int) -> None:
        """Evict the rows before row `lost` of a lane, and the starts whose stacks need them."""
        lane, shape = self.lanes[number], self.shape
        if lost <= 0:
            return
        first = min(lost + shape.history, lane.opened)
        gone = np.arange(lane.head, max(first, lane.head))
        self.evicted += max(0, lost - lane.oldest) * shape.group_size
        lane.oldest = max(lost, lane.oldest)
        if not len(gone):
            return
        lane.head = int(gone[-1]) + 1
        spots = gone % shape.capacity
        left = int(self._starts_at[number, spots].sum())
        self.num_starts -= left
        if self._tree is None:
            lane.starts_left += left
        else:
            self._tree.set(self._places(number, gone).reshape(-1), 0.0)
        self._starts_at[number, spots] = 0

    def _open(self, number: int) -> None:
        """Allow draws of windows that are complete now."""
        lane, shape = self.lanes[number], self.shape
        until = lane.written - shape.window + 1
        times = np.arange(max(lane.opened, lane.head), max(until, lane.opened, lane.head))
        lane.opened = max(until, lane.opened)
        if shape.with_core:
            waiting = self._pending[number]
            times = np.array([t for t in waiting if t < until and t >= lane.head], np.int64)
            self._pending[number] = [t for t in waiting if t >= until]
        if not len(times):
            return
        open_ = np.ones((len(times), shape.group_size), bool) if shape.with_core else self.rows.masks(number, times)
        open_ &= self._whole_stacks(number, times)
        places = self._places(number, times)[open_]
        self._starts_at[number, times % shape.capacity] = open_.sum(axis=1)
        self.num_starts += len(places)
        if self._tree is not None:
            self._tree.set(places, self._highest)
        else:
            order = self._order[number]
            order[(lane.starts_joined + np.arange(len(places))) % len(order)] = places
            lane.starts_joined += len(places)

    def _whole_stacks(self, number: int, times: np.ndarray) -> np.ndarray:
        """Return bool [len(times), B_g]: whether the stacks of these rows cross no gap, nor the first row of the lane."""
        whole = np.ones((len(times), self.shape.group_size), bool)
        goes_on = whole.copy()  # the stack has frames of earlier rows
        for back in range(self.shape.history):
            rows = np.maximum(times - back, 0)
            places = self._places(number, rows)
            goes_on &= ~self.rows.fresh[places]
            whole &= ~(goes_on & (self.rows.after_gap[places] | (rows == 0)[:, None]))
        return whole

    def _places(self, number: int, times: np.ndarray) -> np.ndarray:
        return self.rows.begin(number, times)[:, None] + np.arange(self.shape.group_size)

    # -- drawing (any thread) -----------------------------------------------------------------------------------------

    def draw(self, into: Trajectory, beta: float = 1.0) -> np.ndarray:
        """Draw as many windows as `into` [W+1, M, ...] has columns; return their ids int64 [M].

        With priorities, `into.sampling` gets the importance weights (chance / the smallest of the batch)^-beta.
        """
        number = into.is_first.shape[1]
        with self.lock:
            places, times, chances = self._choose(number)
            self.drawn += number
        self.rows.read(places, into)
        with self.lock:
            lost = self._lost(places, times)
            if lost.any():
                places[lost], times[lost], chances[lost] = self._choose(int(lost.sum()))
                self._read_again(places, np.flatnonzero(lost), into)
        if self._tree is not None:
            into.sampling[...] = (chances / chances.min()) ** -beta
        return self._ids(places, times)

    def _choose(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (places, rows since the first ever, chances up to a factor) of windows."""
        if not self.num_starts:
            raise ConfigError("replay has no window to draw yet; insert at least one whole window first.")
        if self._tree is not None:
            points = (np.arange(number) + self._rng.random(number)) / number
            points = self._rng.permutation(points)  # a part of the batch, too, has windows from all of the replay
            places = self._tree.find(points)
            chances = self._tree.weights[places]
        else:
            counts = np.array([lane.starts_joined - lane.starts_left for lane in self.lanes])
            upto = counts.cumsum()
            chosen = self._rng.integers(0, upto[-1], number)
            lane = np.searchsorted(upto, chosen, side="right")
            begin = np.array([lane.starts_left for lane in self.lanes])
            places = self._order[lane, (begin[lane] + chosen - (upto - counts)[lane]) % self._order.shape[1]]
            chances = np.ones(number)
        return places, self._times(places), chances

    def _ids(self, places: np.ndarray, times: np.ndarray) -> np.ndarray:
        return make_ids(places, self._first_lap + times // self.shape.capacity, self._replay)

    def _times(self, places: np.ndarray) -> np.ndarray:
        """Return which row (counted from the first ever) of its lane each place holds now."""
        lane, within = np.divmod(places, self.shape.capacity * self.shape.group_size)
        written = np.array([lane.written for lane in self.lanes])[lane]
        return written - (written - within // self.shape.group_size) % self.shape.capacity

    def _lost(self, places: np.ndarray, times: np.ndarray) -> np.ndarray:
        head = np.array([max(lane.head, lane.oldest) for lane in self.lanes])
        return times < head[places // (self.shape.capacity * self.shape.group_size)]

    def _read_again(self, places: np.ndarray, columns: np.ndarray, into: Trajectory) -> None:
        again = zeros(windows_spec(self.config, self._spec, len(columns))._replace(sampling=()))
        self.rows.read(places[columns], again)

        def rows(out: Any, new: Any) -> None:
            out[:, columns] = new

        def per_column(out: Any, new: Any) -> None:
            out[columns] = new

        map_trajectory(rows, per_column, into._replace(sampling=()), again)

    def feedback(self, ids: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Take what an update found for windows: new priorities, 0 or more.

        Overwritten windows, and ids below 0, are ignored.
        """
        if self._tree is None or not len(ids):
            return
        sent = np.asarray(ids) >= 0
        ids, priorities = np.asarray(ids)[sent], np.asarray(arrays[PRIORITIES], np.float64)[sent]
        places = read_ids(ids)[2]
        weights = np.maximum(weights_of(self.config, priorities), LEAST)
        with self.lock:
            times = self._times(places)
            valid = (
                (self._ids(places, times) == ids)
                & ~self._lost(places, times)
                & (self._tree.weights[places] > 0)
                & np.isfinite(weights)
            )
            self.ignored += int(len(ids) - valid.sum())
            if valid.any():
                self._tree.set(places[valid], weights[valid])
                self._highest = max(self._highest, float(weights[valid].max()))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    @property
    def index_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that define what can be drawn, besides those of the rows."""
        found: dict[str, np.ndarray] = {"starts_at": self._starts_at, "order": self._order}
        return found if self._tree is None else found | {"weights": self._tree.weights}

    @property
    def counters(self) -> dict[str, float]:
        names = ("inserted", "drawn", "evicted", "ignored")
        return {name: getattr(self, name) for name in names} | {"highest": self._highest}

    def take_up(self, lanes: list[dict[str, int]], counters: dict[str, float]) -> None:
        """Continue from a snapshot whose arrays have been loaded into this replay: the next trajectories leave a gap."""
        for number, stored in enumerate(lanes):
            self.lanes[number] = Lane(**(stored | {"last": (-1, -1)}))  # type: ignore[arg-type]
        for name in ("inserted", "drawn", "evicted", "ignored"):
            setattr(self, name, int(counters[name]))
        self._highest = float(counters["highest"])
        self.num_starts = int(self._starts_at.sum())
        if self._tree is not None:
            self._tree.set(np.arange(self.shape.size), self._tree.weights.copy())
