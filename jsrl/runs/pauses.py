"""Pauses of a whole process: `scontrol suspend`, a paused container, SIGSTOP."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 3.0
MOST_BUSY = 0.1  # CPU time per second of a gap; above it the process ran, and only the thread that looks did not


class Pauses:
    """Finds pauses of its own process, so that no deadline counts them.

    A thread that never waits long calls `look` at each turn. Deadlines then begin at the end of the last pause, if that is
    later.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._seen_s, self._seen_cpu_s = clock(), cpu_clock()
        self._resumed_s = float("-inf")

    def look(self, wait_s: float = 0.0) -> None:
        """Record that the process runs. `wait_s`: how long the thread may have waited since the last call."""
        now_s, cpu_s = self._clock(), self._cpu_clock()
        gap_s = now_s - self._seen_s
        if gap_s > wait_s + PAUSE_S and cpu_s - self._seen_cpu_s < MOST_BUSY * gap_s:
            self._resumed_s = now_s
        self._seen_s, self._seen_cpu_s = now_s, cpu_s

    def since(self, began_s: float) -> float:
        """Return the seconds since `began_s`, or since the last pause ended."""
        return self._clock() - max(began_s, self._resumed_s)
