"""The cores of a machine in the model: short bursts of work run one after another, long ones share the cores evenly.

A kernel lets a process that was woken run until it sleeps again, if that takes less than a time slice. So a process with a
longer burst, such as an inference server, waits for its turn once, and is not slowed down by all that wait with it.
Longer work, such as an update, is interrupted after each slice. Both kinds get shares by the number of their jobs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from jsrl.simulation.events import Clock, Lane, Use

SLICE_S = 0.003  # of Linux's scheduler, for some cores
_LEFT_S = 1e-9  # remaining CPU seconds of a job that count as rounding
Resume = Callable[[Any], None]


class Cores:
    """The cores of a machine.

    Args:
      capacity: CPU seconds per second of all cores. most: of one core. others: number of other programs' jobs, which never
        end and are not counted.

    Attributes:
      used, used_by_others: CPU seconds that were served so far, up to the last change.
    """

    def __init__(self, clock: Clock, capacity: float, most: float, others: float = 0.0) -> None:
        self._clock, self._capacity, self._most, self._others = clock, capacity, most, others
        self._seats = max(1, math.ceil(capacity / most - 1e-9))
        self._short, self._long = Lane(), Lane()
        self._queue: deque[tuple[float, float, Resume]] = deque()
        self._since = 0.0
        self._plan = 0  # number of the newest plan for the next end
        self.used = self.used_by_others = 0.0

    def use(self, seconds: float, width: float = 1.0) -> Use:
        return Use(self, seconds, width)

    def used_at(self, now: float) -> float:
        short, long = self._rates()
        return self.used + (now - self._since) * (short * self._short.width + long * self._long.width)

    def used_by_others_at(self, now: float) -> float:
        return self.used_by_others + (now - self._since) * self._fair() * self._others

    def add(self, seconds: float, width: float, resume: Resume) -> None:
        self._advance()
        if seconds / width > SLICE_S:
            self._long.add(seconds, width, resume)
        else:
            self._queue.append((seconds, width, resume))
            self._seat()
        self._plan_end()

    def _seat(self) -> None:
        while self._queue and len(self._short) < self._seats:
            self._short.add(*self._queue.popleft())

    def _fair(self) -> float:
        """Return the rate for each unit of width, if all jobs were served at the same time."""
        everybody = self._short.width + len(self._queue) + self._long.width + self._others
        return min(self._most, self._capacity / everybody) if everybody else 0.0

    def _rates(self) -> tuple[float, float]:
        """Return the rates for each unit of width of the short jobs that have a turn, and of the long ones."""
        fair, short, long = self._fair(), self._short.width, self._long.width
        of_short = fair * (short + len(self._queue))
        rate = min(self._most, of_short / short) if short else 0.0
        return rate, min(self._most, fair + (of_short - rate * short) / long) if long else 0.0

    def _advance(self) -> None:
        now, passed = self._clock.now, self._clock.now - self._since
        self.used, self.used_by_others = self.used_at(now), self.used_by_others_at(now)
        short, long = self._rates()
        self._short.serve(passed * short)
        self._long.serve(passed * long)
        self._since = now

    def _plan_end(self) -> None:
        """Plan when the next job is over, after a change in the jobs."""
        self._plan += 1
        rates = zip((self._short, self._long), self._rates(), strict=True)
        left_s = min((lane.left / rate for lane, rate in rates if rate), default=math.inf)
        if left_s < math.inf:
            self._clock.after(left_s, self._end, self._plan)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        over = self._short.over(_LEFT_S) + self._long.over(_LEFT_S)
        self._seat()
        self._plan_end()
        for resume in over:
            resume(None)
