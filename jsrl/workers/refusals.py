"""Whoever knocks at a worker's streams and is turned away is counted and told of once; the run goes on without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from jsrl.errors import SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.workers.base import Reporter

T = TypeVar("T")


class Refusals:
    """What a worker's streams turned away: hellos with another schema, and peers that did not keep to the protocol.

    A stream tells its owner of these once each. They are no reason to end a worker: a stranger could end a run by them, and a
    worker of the run's own that is refused knows why, and ends with that reason itself.

    Args:
      worker: whose streams. reporter: what the first one is told to; None: nobody.

    Attributes:
      count: so far.
    """

    def __init__(self, worker: str, reporter: Reporter | None = None) -> None:
        self._worker, self._reporter = worker, reporter
        self.count = 0

    def note(self, error: Exception) -> None:
        """Count one; tell of the first."""
        self.count += 1
        if self.count == 1 and self._reporter is not None:
            self._reporter.event(
                "warning", f"{self._worker} turned somebody away, and goes on: {error} (more of them are only counted)"
            )

    def take(self, take: Callable[[float], T], timeout_s: float) -> T:
        """Return what `take(timeout_s)` returns, called again within the time where it tells of somebody turned away.

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
