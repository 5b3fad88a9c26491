"""The resources of the model: cores of machines, links and accelerators of hosts, and messages through the links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from jsrl.simulation.cores import Cores
from jsrl.simulation.events import Clock, Process, Shared
from jsrl.simulation.system import System
from jsrl.simulation.times import ServiceTimes

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
