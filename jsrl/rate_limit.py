"""Limits on how often an event may happen within a window of time, and on how often it is reported."""

from __future__ import annotations

from collections import deque


class RateLimit:
    """At most `limit` events per window of `window_s` seconds. Times are of one steady clock.

    Args:
      limit: events per window. window_s: its length.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit, self.window_s = limit, window_s
        self._spent_s: deque[float] = deque()

    def used(self, now_s: float) -> int:
        """Return the number of events within the window that ends now."""
        while self._spent_s and now_s - self._spent_s[0] > self.window_s:
            self._spent_s.popleft()
        return len(self._spent_s)

    def spend(self, now_s: float) -> bool:
        """Count one event; return whether it was still allowed."""
        allowed = self.used(now_s) < self.limit
        if allowed:
            self._spent_s.append(now_s)
        return allowed


def is_reported(count: int) -> bool:
    """Return whether the `count`-th event of its sort (from 1) is reported: the first, then ever fewer (2, 4, 8, ...)."""
    return count & (count - 1) == 0
