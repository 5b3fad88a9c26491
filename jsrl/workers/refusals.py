"""Counts rejected connections and messages, and reports the first; the run continues."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from jsrl.errors import SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.workers.base import Reporter

T = TypeVar("T")


class Refusals:
    """The connections that a worker's streams rejected: another schema, or a violation of the protocol.

    They never end the worker, else any outsider could end a run. A rejected worker of this run gets the reason in its
    reply and ends.

    Args:
      worker: the worker's name. reporter: receives a warning about the first rejection; None: no warning.

    Attributes:
      count: rejections so far.
    """

    def __init__(self, worker: str, reporter: Reporter | None = None) -> None:
        self._worker, self._reporter = worker, reporter
        self.count = 0

    def note(self, error: Exception) -> None:
        self.count += 1
        if self.count == 1 and self._reporter is not None:
            self._reporter.event(
                "warning",
                f"{self._worker} rejected a connection and continues: {error} (further ones are only counted)",
            )

    def take(self, take: Callable[[float], T], timeout_s: float) -> T:
        """Return what `take(timeout_s)` returns; a rejection it raises is counted, and it is called again until the timeout.

        Raises:
          StreamTimeout: nothing came in time. StreamClosed: this end is closed.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return take(max(0.0, deadline_s - time.monotonic()))
            except (StreamTimeout, StreamClosed):
                raise
            except (SpecMismatch, StreamError) as error:
                self.note(error)
                if time.monotonic() >= deadline_s:
                    raise StreamTimeout(f"nothing but {error}") from error
