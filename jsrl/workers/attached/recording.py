"""Recording: a thread writes a copy of each committed trajectory to disk, in bounded memory.

The copies use a fixed number of buffers. If the disk is too slow and all buffers are full, a trajectory is not recorded; this
is counted and logged, and neither actor nor learner waits (`wait`: it waits, for tools that record and do not train).
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from jsrl.errors import counted
from jsrl.services.metrics.metrics import Meter
from jsrl.services.recordings.recordings import write_chunk
from jsrl.transport.base import Entry
from jsrl.types import Trajectory, leaves, named_leaves, zeros
from jsrl.workers.actor.lineup import Tap
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job

CHUNK_BYTES, CHUNK_S = 16 * 2**20, 60.0
MIN_BUFFERS, MAX_BUFFERS = 4, 4096


class RecordingWriter(Tap):
    """Writes trajectories to files of a folder, one file at a time.

    Args:
      folder: of the recording and its manifest. name: of the worker. spec: schema of a trajectory.
      meter: counts `recorded` and `recording_dropped`. warn: called once per reason for dropping.
      limit_bytes: most bytes to write. wait: wait for a buffer instead of dropping. note: takes the summary at the end.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        spec: Trajectory,
        *,
        meter: Meter,
        warn: Callable[[str], None],
        limit_bytes: int,
        wait: bool = False,
        note: Callable[[str], None] = lambda summary: None,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_s: float = CHUNK_S,
    ) -> None:
        self._folder, self._stem = folder, f"{name}-{secrets.token_hex(4)}"
        self._names = [name for name, _ in named_leaves(spec)]
        self._meter, self._warn, self._wait, self._note = meter, warn, wait, note
        self._limit_bytes, self._chunk_s = limit_bytes, chunk_s
        trajectory_bytes = max(1, sum(leaf.size_bytes for leaf in leaves(spec)))
        self.chunk_length = min(max(1, chunk_bytes // trajectory_bytes), MAX_BUFFERS // 2)
        self._spec, self._made = spec, 0
        self._buffers = max(MIN_BUFFERS, 2 * self.chunk_length)
        self._free: queue.SimpleQueue[Trajectory] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[tuple[int, int, Trajectory] | None] = queue.SimpleQueue()
        self._copied: Trajectory | None = None  # of the trajectory that is being committed
        self._stopped, self._reported = "", set[str]()
        self._written_bytes = self._written_files = 0
        self._lost = self._lost_counted = 0  # copies that the disk refused; only the thread writes the first
        self.recorded = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def before_commit(self, trajectory: Trajectory) -> None:
        """Copy a trajectory into one of the buffers, if there is one."""
        buffer = None if self._stopped else self._copied or self._take()
        self._count_dropped(self._lost - self._lost_counted)
        self._copied = buffer
        if buffer is None:
            self._count_dropped(1)
            self._report(
                self._stopped or "the disk does not keep up with the actors: some trajectories are not recorded"
            )
            return
        for target, source in zip(leaves(buffer), leaves(trajectory), strict=True):
            np.copyto(target, source)

    def after_commit(self, entry: Entry) -> None:
        copied, self._copied = self._copied, None
        if copied is not None:
            self.recorded += 1
            self._meter.count("recorded")
            self._filled.put((entry.group, entry.origin.sequence, copied))

    def _count_dropped(self, number: int) -> None:
        if number:
            self._lost_counted = self._lost
            self.dropped += number
            self._meter.count("recording_dropped", number)

    def _take(self) -> Trajectory | None:
        if self._made < self._buffers and self._free.empty():
            self._made += 1
            return zeros(self._spec)
        while True:
            try:
                return self._free.get(timeout=0.1) if self._wait else self._free.get_nowait()
            except queue.Empty:
                if not self._wait or self._stopped:
                    return None

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._warn(f"recording to {self._folder}: {text} (actor/recording_dropped counts them)")

    def _run(self) -> None:
        pending: list[tuple[int, int, Trajectory]] = []
        due_s = 0.0
        going_on = True
        while going_on:
            try:
                taken = self._filled.get(timeout=max(0.01, due_s - time.monotonic()) if pending else None)
            except queue.Empty:
                taken = None
                self._write(pending)
                continue
            going_on = taken is not None
            if taken is not None:
                due_s = due_s if pending else time.monotonic() + self._chunk_s
                pending.append(taken)
            if len(pending) >= self.chunk_length or not going_on:
                self._write(pending)

    def _write(self, pending: list[tuple[int, int, Trajectory]]) -> None:
        if pending and not self._stopped:
            path = self._folder / f"{self._stem}-{self._written_files:06d}.npz"
            try:
                self._written_bytes += write_chunk(path, self._names, pending)
                self._written_files += 1
            except OSError as error:
                self._stopped = f"stopped, {path.name} could not be written: {error}"
                self._lost += len(pending)
            if self._written_bytes >= self._limit_bytes:
                limit = f"{self._limit_bytes / 2**20:,.0f} MiB"
                self._stopped = f"stopped at this worker's share of record_limit_mb, {limit}"
        elif pending:
            self._lost += len(pending)
        for _, _, buffer in pending:
            self._free.put(buffer)
        pending.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        self._filled.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._report(f"the last trajectories were not written within {timeout_s:g} s")
        self._count_dropped(self._lost - self._lost_counted)
        self._note(self.summary)

    @property
    def summary(self) -> str:
        kept = self.recorded - self._lost
        return (
            f"recorded {counted(kept, 'trajectory')} to {self._folder}: {counted(self._written_files, 'file')}, "
            f"{self._written_bytes / 2**20:.1f} MiB; {self.dropped} not recorded"
        )


def recording_writer(job: Job, meter: Meter, reporter: Reporter) -> RecordingWriter:
    """Return the writer of an actor's recording; only serial runs wait for it."""
    e = job.experiment
    assert e.record is not None
    return RecordingWriter(
        Path(e.record),
        job.name,
        job.schemas.trajectory,
        meter=meter,
        warn=partial(reporter.event, "warning"),
        limit_bytes=e.record_limit_mb * 2**20 // e.actors,
        wait=job.in_process,
        note=partial(reporter.event, "note"),
    )
