"""Virtual time: one heap of events and one seeded generator; hosts with clocks of their own, and processes on them.

Nothing here waits. A process that is stopped (SIGSTOP) gets its events, in order, once it continues; a dead one gets none.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_EVENTS = 1_000_000  # of a history; most have some thousands
JITTER = 0.2  # share by which the time between two turns of a process varies


class Violation(Exception):
    """An invariant does not hold."""


class Fault(NamedTuple):
    """What happens at `at_s`: to a host, or a worker, of these numbers, for `for_s`."""

    at_s: float
    name: str
    host: int
    worker: int
    for_s: float


@dataclass(frozen=True)
class Result:
    """How a history went: `why` it failed (empty: it did not), how its run ended, and its events."""

    seed: int
    faults: tuple[Fault, ...]
    why: str
    end: str
    history: list[tuple[float, str, tuple[Any, ...]]]


def judged(history: Callable[[], None]) -> str:
    """Run a history; return why it failed."""
    try:
        history()
    except Violation as violation:
        return str(violation)
    except Exception:
        return f"a machine raised an error: {traceback.format_exc()}"
    return ""


class World:
    """The events to come, and those that were.

    Attributes:
      now: virtual seconds. history: (time, who, what) of what happened, with the values that `what` is about.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.history: list[tuple[float, str, tuple[Any, ...]]] = []
        self._events: list[tuple[float, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._ids = itertools.count(1)

    def note(self, who: str, *what: Any) -> None:
        """Record what happened; texts are made only when a history is shown."""
        self.history.append((self.now, who, what))

    def after(self, delay_s: float, process: Process | None, action: Callable[..., None], *args: Any) -> None:
        """Call `action` later, inside a process (None: of nobody)."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), process, action, args))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now, number, process, action, args = heapq.heappop(self._events)
            if number > MAX_EVENTS:
                raise Violation(f"more than {MAX_EVENTS:,} events: messages call forth messages without end")
            if process is None:
                action(*args)
            elif process.alive and process.frozen:
                process.deferred.append((action, args))
            elif process.alive:
                action(*args)
        self.now = until_s

    def new_id(self) -> int:
        return next(self._ids)

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability


class Host:
    """A machine: a name, a boot, a clock that counts from another origin than those of the others, and processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.boot = f"boot-{world.new_id()}"
        self.origin_s = world.between(1_000.0, 100_000.0)
        self.processes: list[Process] = []

    @property
    def now(self) -> float:
        return self.origin_s + self.world.now

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def lose(self) -> None:
        """Cut the power: all processes end at once."""
        for process in self.living:
            process.die(-9)
        self.boot = f"boot-{self.world.new_id()}"


class Process:
    """A process of a host.

    Attributes:
      pid: unique over all hosts. parent: with which it ends, at once (the kernel sees to it). status: of its end.
    """

    def __init__(self, host: Host, name: str, parent: Process | None = None) -> None:
        self.host, self.name, self.world = host, name, host.world
        self.pid, self.parent = host.world.new_id(), parent
        self.alive, self.frozen = True, False
        self.status: int | None = None
        self.frozen_s = self.thawed_s = 0.0  # when it was stopped, and continued
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.children: list[Process] = []
        host.processes.append(self)
        if parent is not None:
            parent.children.append(self)

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        self.world.after(delay_s, self, action, *args)

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Call `action` again and again, as a loop with a pause does: a stopped process makes up for nothing."""

        def turn() -> None:
            action()
            self.after(period_s * self.world.between(1.0 - JITTER, 1.0 + JITTER), turn)

        self.after(period_s * self.world.random.random(), turn)

    def run(self, turns: Iterator[float]) -> None:
        """Run a loop that yields the seconds for which it waits or is busy."""

        def turn() -> None:
            if (wait_s := next(turns, None)) is not None:
                self.after(wait_s, turn)

        self.after(0.0, turn)

    def die(self, status: int) -> None:
        if not self.alive:
            return
        self.world.note(self.name, "ends with status", status)
        self.alive, self.frozen, self.status = False, False, status
        self.deferred.clear()
        self.host.processes.remove(self)
        for child in [child for child in self.children if child.alive]:
            child.die(-9)
        self.ended()

    def ended(self) -> None:
        """Do what the kernel does at the end of the process: it closes connections."""

    def freeze(self) -> None:
        if self.acts:
            self.world.note(self.name, "is stopped")
            self.frozen, self.frozen_s = True, self.world.now

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.world.note(self.name, "continues")
            self.frozen, self.thawed_s = False, self.world.now
            deferred, self.deferred = self.deferred, []
            for action, args in deferred:
                self.world.after(0.0, self, action, *args)
            self.thawed()

    def thawed(self) -> None:
        """Do what others have noticed during the pause."""
