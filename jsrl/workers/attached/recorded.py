"""A recording read as a sample stream: windows of recorded rows in a new order each epoch, reproducible after a resume.

Windows [W+1, M, ...] are drawn without replacement: an epoch gives every window once. As many files as fit into `pool_bytes`
are in memory at a time, and their windows are shuffled together.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import RecordingError, SpecMismatch
from jsrl.services.recordings.recordings import Chunk, Recording, open_recording, read_chunk
from jsrl.transport.base import Entry, Lease, Ledger, ProducerId
from jsrl.transport.ledger.leg_page import LOCAL, LegPage, new_session
from jsrl.transport.ledger.legs import leg_folder
from jsrl.types import Trajectory, named_leaves, with_columns, zeros
from jsrl.workers.jobs import Job
from jsrl.workers.learner.batching import Batcher, BatchPlan, of_another_policy
from jsrl.workers.learner.build import LearnerStart
from jsrl.workers.learner.seams import Source

POOL_BYTES = 256 * 2**20
PRODUCER = ProducerId("recording", 0)


class RecordedConsumer:
    """A SampleConsumer whose trajectories come from a recording, endlessly.

    Args:
      recording: to read. spec: schema [W+1, M, ...] of the leases. seed: of the order.
      start: number of leases consumed by earlier incarnations. ledger: to count in.
      leg: folder for the page that counts what is read; None: count in memory only.

    Raises:
      SpecMismatch: the recording's leaves are not those of `spec`. RecordingError: it holds no window, or a file is broken.
    """

    address = "recording"

    def __init__(
        self,
        recording: Recording,
        spec: Trajectory,
        *,
        seed: int,
        start: int = 0,
        ledger: Ledger | None = None,
        leg: Path | None = None,
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        self._recording, self._spec, self._seed, self._pool_bytes = recording, spec, seed, pool_bytes
        self._rows, self._columns = spec.is_first.shape[0] - 1, spec.is_first.shape[1]
        self._names = wanted_leaves(recording, spec)
        length = recording.manifest.rows
        self._starts = np.unique(np.append(np.arange(0, length - self._rows + 1, self._rows), length - self._rows))
        self.windows = sum(chunk.count for chunk in recording.chunks) * self._windows_each
        self._ledger, self._number, self._start = ledger or Ledger(), start, start
        self._lent: set[Entry] = set()
        self._page = LegPage.create(leg, PRODUCER, new_session(), blocks=1, transport=LOCAL)
        self._page.mark_attached()
        self._ledger.join()
        self._loaded: tuple[Chunk, ...] = ()
        self._pool: list[np.ndarray] = []
        self._order = np.zeros(0, np.int64)
        self._at = 0
        self._pools: list[tuple[Chunk, ...]] = []
        self._skip(start * self._columns)

    @property
    def _windows_each(self) -> int:
        return self._recording.manifest.envs * len(self._starts)

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def get(self, timeout_s: float) -> Lease:
        """Return the next M windows; their arrays are not shared."""
        del timeout_s  # reading from disk does not block
        trajectory = zeros(self._spec)
        self._page.begin(self._number - self._start + 1)
        targets = dict(named_leaves(trajectory))
        filled = 0
        while filled < self._columns:
            if self._at == len(self._order):
                self._next_pool()
            ids = self._order[self._at : self._at + self._columns - filled]
            self._gather(ids, [targets[name] for name in self._names], filled)
            self._at, filled = self._at + len(ids), filled + len(ids)
        self._number += 1
        self._page.commit()
        entry = Entry(PRODUCER, 0, self._number - 1)
        self._lent.add(entry)
        self._ledger.mark(True)
        self._page.receive()
        self._ledger.arrive()
        self._ledger.hold(len(self._lent))
        self._ledger.mark(False)
        return Lease(trajectory, entry)

    def _gather(self, ids: np.ndarray, targets: list[np.ndarray], at: int) -> None:
        """Copy windows to columns `at`.. of the targets: a window is (trajectory, environment, start) as one number."""
        one, start = np.divmod(ids, len(self._starts))
        one, column = np.divmod(one, self._recording.manifest.envs)
        rows = self._starts[start] + np.arange(self._rows + 1)[:, None]
        part = slice(at, at + len(ids))
        for source, target in zip(self._pool, targets, strict=True):
            target[:, part] = source[one, rows, column]

    # -- the order ----------------------------------------------------------------------------------------------------

    def _skip(self, windows: int) -> None:
        """Skip `windows` windows, without reading them."""
        self._epoch, left = divmod(windows, self.windows)
        self._pools, self._pool_number = self._pools_of(self._epoch), 0
        while True:
            size = self._size(self._pools[self._pool_number])
            if left < size:
                break
            left, self._pool_number = left - size, self._pool_number + 1
        self._enter(left)

    def _next_pool(self) -> None:
        self._pool_number += 1
        if self._pool_number == len(self._pools):
            self._epoch, self._pool_number = self._epoch + 1, 0
            self._pools = self._pools_of(self._epoch)
        self._enter(0)

    def _enter(self, at: int) -> None:
        chunks = self._pools[self._pool_number]
        if chunks != self._loaded:
            self._pool, self._loaded = [], ()  # free memory before loading the next ones
            parts = [read_chunk(self._recording, chunk, self._names) for chunk in chunks]
            self._pool = [np.concatenate(leaf) if len(leaf) > 1 else leaf[0] for leaf in zip(*parts, strict=True)]
            self._loaded = chunks
        rng = np.random.default_rng((self._seed, self._epoch, self._pool_number))
        self._order, self._at = rng.permutation(self._size(chunks)), at

    def _size(self, chunks: tuple[Chunk, ...]) -> int:
        return sum(chunk.count for chunk in chunks) * self._windows_each

    def _pools_of(self, epoch: int) -> list[tuple[Chunk, ...]]:
        """Return the files of an epoch in reading order, grouped into pools that fit into memory."""
        chunks, each_bytes = self._recording.chunks, self._recording.trajectory_bytes
        if sum(chunk.count for chunk in chunks) * each_bytes <= self._pool_bytes:
            return [tuple(chunk for chunk in chunks if chunk.count)]
        pools: list[list[Chunk]] = [[]]
        room = float(self._pool_bytes)
        for number in np.random.default_rng((self._seed, epoch)).permutation(len(chunks)):
            needed = chunks[number].count * each_bytes
            if pools[-1] and needed > room:
                pools.append([])
                room = float(self._pool_bytes)
            pools[-1].append(chunks[number])
            room -= needed
        return [tuple(pool) for pool in pools]

    # -- the rest of a consumer ---------------------------------------------------------------------------------------

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        self._lent.remove(lease.entry)
        self._ledger.mark(True)
        self._ledger.finish(outcome)
        self._ledger.hold(len(self._lent))
        self._ledger.mark(False)

    def pending(self) -> int:
        """Return 1: there is always another lease."""
        return 1

    def fence(self, producer: ProducerId) -> None:
        """Do nothing: this stream has no writer."""

    def close(self) -> None:
        """Drop the rows."""
        if self._lent:
            self._ledger.finish("closed", len(self._lent))
        self._lent.clear()
        self._ledger.hold(0)
        self._page.stop_reading()
        self._pool, self._loaded = [], ()


def wanted_leaves(recording: Recording, spec: Trajectory) -> list[str]:
    """Return which leaves to read for trajectories like `spec`: all but the core, which belongs to the recorded policy."""
    recorded = {leaf.name: leaf for leaf in recording.manifest.leaves}
    wanted, rows = spec.is_first.shape[0] - 1, recording.manifest.rows
    if rows < wanted:
        raise RecordingError(
            f"{recording.folder} has trajectories of {rows} rows, but rollout_length is {wanted}; use at most {rows}."
        )
    names = []
    for name, leaf in named_leaves(spec._replace(core=(), sampling=())):
        there, shape = recorded.get(name), leaf.shape[2:]
        text = "no such leaf" if there is None else f"{there.dtype}{list(there.shape[2:])}"
        if there is None or (there.shape[2:], there.dtype) != (shape, leaf.dtype):
            raise SpecMismatch(
                f"leaf {name}: the experiment needs {leaf.dtype}{list(shape)} per row, the recording {recording.folder} has "
                f"{text}. Give the environment (--env.*) that was recorded; extras need the agent that was recorded."
            )
        names.append(name)
    return names


def from_recording(job: Job, plan: BatchPlan, start: LearnerStart, options: dict[str, Any]) -> Source:
    e = job.experiment
    spec = with_columns(job.schemas.trajectory, plan.columns)
    plan = dataclasses.replace(plan, judge=of_another_policy, order="fifo", groups=(0,), group_size=plan.columns)
    leg = leg_folder(Path(job.folder), job.input_leg)
    consumer = RecordedConsumer(
        open_recording(Path(str(e.recording))), spec, seed=e.seed, start=start.trained, ledger=start.ledger, leg=leg
    )
    return Batcher(consumer, spec, plan, **options)
