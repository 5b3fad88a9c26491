"""Limits on how often an event may happen within a window of time, and on how often it is reported."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class RateLimit:
    """At most `limit` events per window of `window_s` seconds.

    Args:
      limit: events per window. window_s: its length. clock: returns seconds.
    """

    def __init__(self, limit: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.window_s, self._clock = limit, window_s, clock
        self._spent_s: deque[float] = deque()

    @property
    def used(self) -> int:
        """Return the number of events within the window that ends now."""
        while self._spent_s and self._clock() - self._spent_s[0] > self.window_s:
            self._spent_s.popleft()
        return len(self._spent_s)

    def spend(self) -> bool:
        """Count one event; return whether it was still allowed."""
        allowed = self.used < self.limit
        if allowed:
            self._spent_s.append(self._clock())
        return allowed


def is_reported(count: int) -> bool:
    """Return whether the `count`-th event of its sort (from 1) is reported: the first, then ever fewer (2, 4, 8, ...)."""
    return count & (count - 1) == 0
