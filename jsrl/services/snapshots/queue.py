"""The thread that writes snapshots in the background: waiting, superseded and failed jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_PENDING = 4


@dataclass
class Job:
    """One snapshot to write; `finished` is set once it is written, superseded or failed (`error` says why)."""

    version: int
    arrays: dict[tuple[str, ...], np.ndarray]
    meta: dict[str, Any]
    tags: tuple[str, ...]
    finished: threading.Event = field(default_factory=threading.Event)
    error: str | None = None


class WriteQueue:
    """A queue of jobs with a thread that exists only while there is work; bounded memory.

    Attributes:
      written, failed, superseded: counts. last_write_s: duration of the last write.
    """

    def __init__(
        self,
        write: Callable[[Job], None],
        on_warning: Callable[[str], None],
        place: str,
        on_written: Callable[[Job], None],
    ):
        """Call `write` for each job, then `on_written`; report failures to `on_warning` with `place` (in the thread)."""
        self.written = self.failed = self.superseded = 0
        self.last_write_s = 0.0
        self._write = write
        self._on_warning, self._on_written = on_warning, on_written
        self._place = place
        self._pending: list[Job] = []
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Queue a job; waiting jobs whose tags all move to it are superseded; if there are too many, the oldest is dropped."""
        dropped = None
        with self._changed:
            for waiting in [w for w in self._pending if w.tags and set(w.tags) <= set(job.tags)]:
                self._pending.remove(waiting)
                self.superseded += 1
                waiting.finished.set()
            if len(self._pending) >= MAX_PENDING:
                dropped = self._pending.pop(0)
            self._pending.append(job)
            if self._writer is None:
                self._writer = threading.Thread(target=self._run, name="jsrl-snapshots")
                self._writer.start()
        if dropped is not None:
            self._fail(dropped, f"the disk is too slow, {MAX_PENDING} newer ones wait")

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything is written; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._writer is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._writer = None
                    self._changed.notify_all()
                    return
                job = self._pending.pop(0)
            started_s = time.monotonic()
            try:
                self._write(job)
                self._on_written(job)
            except Exception as error:  # no error may end a training run: it is reported and counted
                if not threading.main_thread().is_alive():
                    return  # the process ends, and jax's threads have ended
                self._fail(job, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            else:
                self.written += 1
            self.last_write_s = time.monotonic() - started_s
            job.finished.set()

    def _fail(self, job: Job, reason: str) -> None:
        self.failed += 1
        job.error = (
            f"snapshot {job.version} was not written to {self._place} ({reason}). "
            "Earlier snapshots stay (snapshots/failed counts the failures); "
            "free space or check the folder's permissions."
        )
        job.finished.set()
        self._on_warning(job.error)
