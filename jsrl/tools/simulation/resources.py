"""The resources of the model: cores of machines, links and accelerators of hosts, and messages through the links."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from jsrl.tools.simulation.events import Clock, Lane, Process, Shared, Use
from jsrl.tools.simulation.system import System
from jsrl.tools.simulation.times import ServiceTimes

SLICE_S = 0.003  # of Linux's scheduler, for some cores
_LEFT_S = 1e-9  # remaining CPU seconds of a job that count as rounding
Resume = Callable[[Any], None]


class Cores:
    """The cores of a machine: short bursts of work run one after another, long ones share the cores evenly.

    A kernel lets a process that was woken run until it sleeps again, if that takes less than a time slice. So a process
    with a longer burst, such as an inference server, waits for its turn once, and is not slowed down by all that wait with
    it. Longer work, such as an update, is interrupted after each slice. Both kinds get shares by the number of their jobs.

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


_BITS = 1e6 / 8  # bytes of a Mbit


class Machine(NamedTuple):
    """The cores of hosts that share them.

    Attributes:
      name: of it. cores: shared by its workers. capacity: CPU seconds of the calibrated machine that they serve per second.
      reports: how many of these reports and heartbeats take. speed: of a core.
    """

    name: str
    cores: Cores
    capacity: float
    reports: float
    speed: float


class Resources:
    """What the workers of a run share.

    Args:
      clock: of the model. system: the run. times: costs of its parts.

    Attributes:
      cores: host -> those of its machine; they serve CPU seconds of the calibrated machine. machines: with their cores.
      links: (host, `out` or `in`) -> the link and its bytes per second. gpus: host -> its accelerators.
    """

    def __init__(self, clock: Clock, system: System, times: ServiceTimes) -> None:
        self._clock, self._system, self._times = clock, system, times
        self.cores: dict[int, Cores] = {}
        self.machines: list[Machine] = []
        self._make_cores()
        self.links: dict[tuple[int, str], tuple[Shared, float]] = {}
        for index, host in enumerate(system.hosts):
            for way, mbit in (("out", host.out_mbit), ("in", host.in_mbit)):
                if mbit:
                    rate = mbit * _BITS
                    self.links[index, way] = (Shared(clock, rate), rate)
        self.gpus = {i: [Shared(clock, 1.0) for _ in range(host.gpus)] for i, host in enumerate(system.hosts)}

    def _make_cores(self) -> None:
        s, clock = self._system, self._clock
        workers = Counter([part.host for part in s.actors] + list(s.servers) + [s.learner])
        machines: dict[str, list[int]] = {}
        for index, host in enumerate(s.hosts):
            machines.setdefault(f"machine {host.machine}" if host.machine else f"host {index}", []).append(index)
        for hosts in machines.values():
            speed = max(s.hosts[i].core_speed for i in hosts)
            capacity = speed * max(s.hosts[i].cores for i in hosts)
            busy = sum(self._times.host_cores for i in hosts if workers[i])
            busy += self._times.relay_cores if s.far_params and s.learner in hosts else 0.0
            busy = min(busy, 0.95 * capacity)
            others = max(s.hosts[i].busy_cores for i in hosts)
            cores = Cores(clock, capacity - busy, speed, others)
            self.cores |= dict.fromkeys(hosts, cores)
            name = s.hosts[hosts[0]].machine or s.hosts[hosts[0]].name
            self.machines.append(Machine(name, cores, capacity, busy, speed))

    def send(
        self, source: int, sink: int, size: float, far: bool, deliver: Callable[[Any], None], message: Any
    ) -> None:
        hop_s = self._times.far_hop_s if far else self._times.hop_s
        ways = [(source, "out"), (sink, "in")] if source != sink else []
        links = [self.links[way][0] for way in ways if way in self.links]
        if not links:
            self._clock.after(hop_s, deliver, message)
            return
        left = [len(links)]

        def carry(link: Shared) -> Process:
            yield link.use(size)
            left[0] -= 1
            if not left[0]:  # both links carry it at the same time; the slower one decides when it arrives
                self._clock.after(hop_s, deliver, message)

        for link in links:
            self._clock.start(carry(link))
