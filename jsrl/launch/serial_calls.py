"""A second thread that shows long updates of serial runs, whose only other thread is inside them."""

from __future__ import annotations

import threading
import time
from typing import Self

from jsrl.launch.session import Session

PERIOD_S = 1.0  # between looks


class UpdateDisplay:
    """Shows for how long an update has been running. Its thread uses the session only during updates, under a lock.

    Updates are compiled: no breakpoint of the user's, and nothing else that uses the terminal, is inside them.

    Args:
      session: of the run. period_s: between looks.
    """

    def __init__(self, session: Session, period_s: float = PERIOD_S) -> None:
        self._session, self._period_s = session, period_s
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._call: tuple[str, str, float] | None = None  # worker, name, and since when
        self._thread = threading.Thread(target=self._run, name="update-display", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._thread.join()

    def begin(self, worker: str, name: str) -> None:
        with self._lock:
            self._call = worker, name, time.monotonic()

    def end(self, worker: str) -> None:
        """Record its end, and wait until the thread has left the session."""
        with self._lock:
            self._call = None
        self._session.call(worker, "", 0.0)

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            with self._lock:
                if self._call is not None:
                    worker, name, since_s = self._call
                    self._session.call(worker, name, time.monotonic() - since_s)
                    self._session.show()
