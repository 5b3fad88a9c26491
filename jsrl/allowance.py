"""An allowance: what may happen so many times within a window of time, because more often means that it does not help."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Allowance:
    """So many times within a window of time; what lies further back is forgiven.

    Args:
      limit: times within `window_s`. clock: returns seconds.
    """

    def __init__(self, limit: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.window_s, self._clock = limit, window_s, clock
        self._spent_s: deque[float] = deque()

    @property
    def used(self) -> int:
        """Return how much of it was used within the window that ends now."""
        while self._spent_s and self._clock() - self._spent_s[0] > self.window_s:
            self._spent_s.popleft()
        return len(self._spent_s)

    def spend(self) -> bool:
        """Use it once; return whether that was still allowed."""
        allowed = self.used < self.limit
        if allowed:
            self._spent_s.append(self._clock())
        return allowed
