"""Simulated time, processes as generators, and their waits: pauses, mailboxes, and shared resources.

A process is a generator that yields a wait, and is resumed with the wait's result.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

Process = Generator["Wait", Any, None]
_LEFT = 1e-12  # remaining units of a job that count as rounding


class Wait(Protocol):
    """A wait that a process yields."""

    def begin(self, clock: Clock, resume: Callable[[Any], None]) -> None:
        """Call `resume` once it is over."""
        ...


class Clock:
    """Simulated time in seconds, and the queue of events.

    Attributes:
      now: the time in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def after(self, seconds: float, call: Callable[[Any], None], value: Any = None) -> None:
        """Call `call(value)` after some seconds."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call, value))

    def start(self, process: Process) -> None:
        def resume(value: Any) -> None:
            try:
                process.send(value).begin(self, resume)
            except StopIteration:
                return

        self.after(0.0, resume)

    def run(self, until_s: float) -> None:
        """Process all events up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, call, value = heapq.heappop(self._events)
            call(value)
        self.now = until_s


class Pause:
    """Waits for some seconds without using a resource."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self, clock: Clock, resume: Callable[[Any], None]) -> None:
        clock.after(self._seconds, resume)


class Mailbox:
    """Messages for one process, first in first out; yielding it waits for the next."""

    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self._waiting: Callable[[Any], None] | None = None

    def put(self, message: Any) -> None:
        if self._waiting is None:
            self.messages.append(message)
        else:
            resume, self._waiting = self._waiting, None
            resume(message)

    def begin(self, clock: Clock, resume: Callable[[Any], None]) -> None:
        assert self._waiting is None, "a mailbox has one reader"
        if self.messages:
            clock.after(0.0, resume, self.messages.popleft())
        else:
            self._waiting = resume


class Lane:
    """Jobs that are served at the same rate for each unit of their width.

    Attributes:
      width: of all jobs.
    """

    def __init__(self) -> None:
        self.width = 0.0
        self._attained = 0.0  # units served to a job of width 1 since the start
        self._jobs: list[tuple[float, int, float, Callable[[Any], None]]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, amount: float, width: float, resume: Callable[[Any], None]) -> None:
        heapq.heappush(self._jobs, (self._attained + amount / width, next(self._order), width, resume))
        self.width += width

    def serve(self, amount: float) -> None:
        """Serve a job of width 1 an amount, and all others accordingly."""
        self._attained += amount

    @property
    def left(self) -> float:
        """Return what a job of width 1 is served until the next one is over; infinite without jobs."""
        return max(0.0, self._jobs[0][0] - self._attained) if self._jobs else math.inf

    def reach(self) -> None:
        """Serve the next job to its end, whatever rounding left of it."""
        self._attained = max(self._attained, self._jobs[0][0])

    def over(self, rounding: float) -> list[Callable[[Any], None]]:
        """Remove the jobs that are over, and return their calls. rounding: what may be left of a job of width 1."""
        over = []
        while self._jobs and self._jobs[0][0] <= self._attained + rounding:
            _, _, width, resume = heapq.heappop(self._jobs)
            self.width -= width
            over.append(resume)
        if not self._jobs:
            self.width = 0.0
        return over


class Shared:
    """A resource that its users share evenly: the bytes per second of a link, or an accelerator.

    Args:
      capacity: units per second.

    Attributes:
      used: units that were served so far, up to the last change.
    """

    def __init__(self, clock: Clock, capacity: float) -> None:
        self._clock, self._capacity = clock, capacity
        self._lane = Lane()
        self._since = 0.0
        self._plan = 0  # number of the newest plan for the next end
        self.used = 0.0

    def use(self, amount: float) -> Use:
        return Use(self, amount, 1.0)

    def used_at(self, now: float) -> float:
        return self.used + (now - self._since) * self._rate * self._lane.width

    @property
    def _rate(self) -> float:
        return self._capacity / self._lane.width if self._lane.width else 0.0

    def _advance(self) -> None:
        passed, rate = self._clock.now - self._since, self._rate
        self._lane.serve(passed * rate)
        self.used += passed * rate * self._lane.width
        self._since = self._clock.now

    def add(self, amount: float, width: float, resume: Callable[[Any], None]) -> None:
        self._advance()
        self._lane.add(amount, width, resume)
        self._plan_end()

    def _plan_end(self) -> None:
        self._plan += 1
        if self._lane:
            self._clock.after(self._lane.left / self._rate, self._end, self._plan)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        self._lane.reach()
        over = self._lane.over(_LEFT)
        self._plan_end()
        for resume in over:
            resume(None)


class Resource(Protocol):
    """A resource that serves amounts."""

    def add(self, amount: float, width: float, resume: Callable[[Any], None], /) -> None:
        """Serve an amount, of which `width` are served in parallel, and call `resume` at its end."""
        ...


class Use:
    """Waits until a resource has served an amount."""

    __slots__ = ("_amount", "_resource", "_width")

    def __init__(self, resource: Resource, amount: float, width: float) -> None:
        self._resource, self._amount, self._width = resource, amount, width

    def begin(self, clock: Clock, resume: Callable[[Any], None]) -> None:
        if self._amount <= 0:
            clock.after(0.0, resume)
        else:
            self._resource.add(self._amount, self._width, resume)
