"""The usual source of batches: joins the trajectories of a stream, one copy, from a block to a staging buffer in device form.

Staging buffers [D, T+1, B/D, ...] rotate; a buffer is written again only after the update that read it is ready, because JAX
on CPU aliases NumPy memory. Blocks are released as soon as they are copied.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jsrl.errors import StreamTimeout
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import Lease, Ledger, SampleConsumer
from jsrl.types import Array, ArraySpec, Trajectory, map_trajectory, spread, version_generation, version_updates
from jsrl.workers.base import Refusals

if TYPE_CHECKING:
    from jsrl.agents.base import UpdateOutput  # which loads jax


def versions_trained_on(trajectory: Trajectory) -> np.ndarray:
    """Return the versions [rows] that chose the actions of a trajectory's trained rows; of all rows if none is trained.

    A row is trained on if an agent acts on it, or it is value-only, and the next row starts no episode (see jsrl.types).
    Each seat has its own versions: those of frozen players, whose rows wait, do not concern the learning policy.
    """
    version, acts = trajectory.version[:-1], trajectory.acts[:-1] != 0
    going_on = ~trajectory.is_first[1:]
    trained = version[acts & spread(going_on, acts)]
    return trained if trained.size else version.reshape(-1)


def by_lag(plan: BatchPlan, version: np.ndarray, updates: int) -> tuple[str, int]:
    """Judge a trajectory by its oldest row: drop it if it is `stale` or `rolled_back`.

    Rows of the generation before this one count if the snapshot holds their updates. How far earlier ones were rolled back is
    not known any more: none of their rows count.
    """
    made, generations = version_updates(version), version_generation(version)
    undone = (generations < plan.generation) & (made > plan.start_updates)
    if undone.any() or int(generations.min()) < plan.generation - 1:
        return "rolled_back", 0
    lag = updates - int(made.min())
    return ("stale" if plan.max_lag is not None and lag + plan.reuse - 1 > plan.max_lag else ""), lag


def of_any_age(plan: BatchPlan, version: np.ndarray, updates: int) -> tuple[str, int]:
    """Keep every trajectory: replay workers drew these windows, which include old rows."""
    return "", updates - int(version_updates(version).min())


def of_another_policy(plan: BatchPlan, version: np.ndarray, updates: int) -> tuple[str, int]:
    """Keep every trajectory and report no lag: its versions are not those of this learner."""
    return "", 0


@dataclass(frozen=True)
class BatchPlan:
    """How batches are made.

    Attributes:
      order: by_group | fifo. groups: that the learner reads, in the order of their columns (by_group).
      group_size, columns: see Experiment. num_rows: T. devices: D. env_steps: that a batch counts for.
      max_lag: most updates by which a row may be old when its batch is first used, None for any. reuse: updates per batch.
      start_updates, generation: at the start of this process. judge: (plan, versions of the trained rows, updates made before
        the batch's first update) -> (reason to drop the trajectory, or empty; its lag).
    """

    order: str
    groups: tuple[int, ...]
    group_size: int
    columns: int
    num_rows: int
    devices: int = 1
    env_steps: int = 0
    max_lag: int | None = 0
    reuse: int = 1
    start_updates: int = 0
    generation: int = 0
    buffers: int = 3
    judge: Callable[[BatchPlan, np.ndarray, int], tuple[str, int]] = by_lag


@dataclass
class Batch:
    """A full staging buffer: trajectory in device form, the lag of each trajectory as its first update starts.

    ids: of each trajectory's windows, see Lease.
    """

    trajectory: Trajectory
    lags: list[int]
    number: int
    ids: list[Array] = field(default_factory=list)


@dataclass
class _Staging:
    """A staging buffer that is being filled, with views on each column of groups."""

    trajectory: Trajectory
    filled: set[int] = field(default_factory=set)
    lags: list[int] = field(default_factory=list)
    ids: list[Array] = field(default_factory=list)


class Batcher:
    """A Source that fills its batches from a consumer's leases."""

    def __init__(
        self,
        consumer: SampleConsumer,
        spec: Trajectory,
        plan: BatchPlan,
        phases: Phases | None = None,
        refusals: Refusals | None = None,
        ask: Callable[[int, Mapping[int, int]], None] = lambda batch, each: None,
    ) -> None:
        """Allocate the staging buffers.

        Args:
          consumer: of the sample stream. spec: schema of one group's trajectory. plan: how batches are made.
          phases: of the thread that fills batches. refusals: counts connections and messages that the stream rejected.
          ask: requests of groups (group -> number) so many trajectories for every batch from this one on.
        """
        self.consumer, self._spec, self.plan = consumer, spec, plan
        self._parts: dict[int, tuple[int, ...]] = {group: (part,) for part, group in enumerate(plan.groups)}
        self._absent: Collection[int] | None = None  # groups; None: those that are known already
        self._ask = ask
        self.phases = phases or Phases()
        self.refusals = refusals or Refusals("learner")
        self._free: queue.SimpleQueue[Trajectory] = queue.SimpleQueue()
        for _ in range(plan.buffers):
            self._free.put(self._allocate(spec))
        self._staging: _Staging | None = None
        self._waiting: deque[Lease] = deque()
        self._number = 0

    def _allocate(self, spec: Trajectory) -> Trajectory:
        plan = self.plan
        per_device = plan.columns // plan.devices

        def rows(leaf: ArraySpec) -> np.ndarray:
            return np.zeros((plan.devices, plan.num_rows + 1, per_device, *leaf.shape[2:]), leaf.dtype)

        def columns(leaf: ArraySpec) -> np.ndarray:
            return np.zeros((plan.devices, per_device, *leaf.shape[1:]), leaf.dtype)

        return map_trajectory(rows, columns, spec)

    def example(self) -> Trajectory:
        return self._allocate(self._spec)

    def begin(self) -> None:
        """Do nothing: batches are joined in `next`."""

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        self._free.put(batch.trajectory)
        return self.plan.env_steps

    def env_steps(self, updates: int) -> int:
        return updates // self.plan.reuse * self.plan.env_steps

    def pending(self) -> int:
        return self.consumer.pending()

    def counts(self) -> dict[str, int]:
        return {"refused": self.refusals.count}

    def ledger(self) -> Ledger:
        return self.consumer.ledger

    def stand_in(self, absent: Collection[int]) -> None:
        """Let other groups fill the columns of those that nobody steps now, from the batch that is being filled on.

        May be called from another thread than `next`.
        """
        if self.plan.order == "by_group":  # else batches wait for no group
            self._absent = absent

    def _divide(self, absent: Collection[int]) -> None:
        """Give the columns of absent groups to the others, evenly, and tell these how many trajectories a batch needs of each.

        Batches take a group's trajectories in the order in which it made them, so that it knows for which batch each is.
        A group always has its own columns: its last trajectories may come late, its next ones before it is known to be back.
        """
        before, groups = self._parts, self.plan.groups
        self._parts = {group: (part,) for part, group in enumerate(groups)}
        living = [group for group in groups if group not in absent]
        lost = [part for part, group in enumerate(groups) if group in absent] if living else []
        for number, part in enumerate(lost):
            self._parts[living[number * len(living) // len(lost)]] += (part,)
        each = {group: len(parts) for group, parts in self._parts.items() if len(parts) != len(before[group])}
        if each:
            self._ask(self.plan.start_updates // self.plan.reuse + self._number, each)

    def next(self, timeout_s: float) -> Batch | None:
        """Take trajectories from the stream; return a batch when one is full, None when nothing came within `timeout_s`."""
        self.phases.enter("wait_batch")
        batch = self._fill(timeout_s)
        self.phases.rest()
        return batch

    def _fill(self, timeout_s: float) -> Batch | None:
        if self._staging is None:
            try:
                self._staging = _Staging(self._free.get(timeout=timeout_s) if timeout_s else self._free.get_nowait())
            except queue.Empty:
                return None
        if self._absent is not None:
            absent, self._absent = self._absent, None
            self._divide(absent)
        if self._waiting and self._fill_waiting():
            return self._finish()
        if timeout_s == 0 and not self.consumer.pending():
            return None  # an exception per row, in serial mode, would cost more than this check
        try:
            lease = self.refusals.take(self.consumer.get, timeout_s)
        except StreamTimeout:
            return None
        self.phases.enter("transport")
        self._place(lease)
        return self._finish() if self._full() else None

    def _fill_waiting(self) -> bool:
        """Place trajectories that had to wait for free columns; return whether the batch is full."""
        for _ in range(len(self._waiting)):
            self._place(self._waiting.popleft())
        return self._full()

    def _full(self) -> bool:
        assert self._staging is not None
        return len(self._staging.lags) * self.plan.group_size == self.plan.columns

    def _place(self, lease: Lease) -> None:
        """Copy a trajectory into its columns and release it; drop it if it is too old, keep it if the columns are taken."""
        assert self._staging is not None
        plan, staging = self.plan, self._staging
        updates = plan.start_updates + self._number * plan.reuse
        reason, lag = plan.judge(plan, versions_trained_on(lease.trajectory), updates)
        if reason:
            self.consumer.release(lease, reason)
            return
        parts = self._parts[lease.entry.group] if plan.order == "by_group" else (len(staging.lags),)
        part = next((part for part in parts if part not in staging.filled), None)
        if part is None:
            self._waiting.append(lease)
            return
        self._copy(lease.trajectory, staging.trajectory, part * plan.group_size)
        self.consumer.release(lease)
        staging.filled.add(part)
        staging.lags.append(lag)
        staging.ids.append(lease.ids)

    def _copy(self, source: Trajectory, target: Trajectory, column: int) -> None:
        """Copy B_g columns to columns `column`.. of a [D, T+1, B/D, ...] buffer; groups may span devices."""
        per_device, size = self.plan.columns // self.plan.devices, self.plan.group_size
        start = 0
        while start < size:
            device, at = divmod(column + start, per_device)
            count = min(size - start, per_device - at)
            taken, put = slice(start, start + count), slice(at, at + count)
            map_trajectory(
                lambda to, value, d=device, p=put, t=taken: np.copyto(to[d][:, p], value[:, t]),
                lambda to, value, d=device, p=put, t=taken: np.copyto(to[d][p], value[t]),
                target,
                source,
            )
            start += count

    def _finish(self) -> Batch:
        assert self._staging is not None
        batch = Batch(self._staging.trajectory, self._staging.lags, self._number, self._staging.ids)
        self._staging, self._number = None, self._number + 1
        return batch

    def close(self) -> None:
        """Drop the trajectories that no batch took, and close the stream."""
        while self._waiting:
            self.consumer.release(self._waiting.popleft(), "closed")
        self.consumer.close()
