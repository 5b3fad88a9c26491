"""A source that prepares its batches in a thread: batch N+1 is joined while update N runs."""

from __future__ import annotations

import queue
import threading

from jsrl.services.metrics.phases import Phases
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.seams import Source


class Prefetched:
    """A Source around another one; `phases`: of the thread."""

    def __init__(self, source: Source, phases: Phases) -> None:
        self._source, self._phases = source, phases
        self.example, self.used, self.env_steps = source.example, source.used, source.env_steps
        self.pending, self.stand_in = source.pending, source.stand_in
        self.counts, self.ledger = source.counts, source.ledger
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._phases.begin()
            while not self._stop.is_set():
                batch = self._source.next(0.1)
                self._phases.enter("wait_learner")
                while batch is not None and not self._stop.is_set():
                    try:
                        self._ready.put(batch, timeout=0.1)
                        batch = None
                    except queue.Full:
                        continue
        except BaseException as error:
            self._error = error

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None; an error of the thread is raised here."""
        if self._error is not None:
            raise self._error
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._source.close()
