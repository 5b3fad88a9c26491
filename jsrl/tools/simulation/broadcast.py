"""The broadcast of params in the model: to each reader, or down a tree of hosts, where the latest version wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jsrl.tools.simulation.events import Clock, Mailbox, Process
from jsrl.tools.simulation.resources import Resources
from jsrl.tools.simulation.stations import NEWS, Actor, Server, wake
from jsrl.tools.simulation.system import System
from jsrl.tools.simulation.times import ServiceTimes


class Broadcast:
    """Sends each version of the params to the workers that act.

    Args:
      clock, resources: of the model. system: the run. times: costs of its parts. readers: that act with params.
    """

    def __init__(
        self,
        clock: Clock,
        resources: Resources,
        system: System,
        times: ServiceTimes,
        readers: Sequence[Actor | Server],
    ) -> None:
        self._clock, self._resources, self._system, self._times = clock, resources, system, times
        self._readers = readers
        self._hosts = sorted({reader.host for reader in readers} - {system.learner})
        self._sending: dict[int, int] = {}  # reader or host, while a version is being sent -> the newest

    def publish(self, version: int) -> None:
        s = self._system
        if not s.far_params:
            for reader in self._readers:
                self._clock.after(self._times.hop_s, partial(self._take, reader), version)
        elif s.fan_out:
            self._hand_down(-1, version)
        else:
            for index, reader in enumerate(self._readers):
                self._hand_over(index, version, s.learner, reader.host, partial(self._take, reader))

    def reading(self, reader: Actor | Server) -> float:
        """Return the CPU seconds that a reader needs before it acts, to read new params from shared memory."""
        if reader.version == reader.read or (self._system.far_params and not self._system.fan_out):
            return 0.0
        reader.read = reader.version
        return self._times.params.near

    def _hand_over(self, key: int, version: int, source: int, sink: int, deliver: Callable[[int], None]) -> None:
        """Send a version to a reader, or queue it until the previous one has arrived: the latest wins."""
        on_its_way = key in self._sending
        self._sending[key] = version
        if not on_its_way:
            self._clock.start(self._carry(key, source, sink, deliver))

    def _carry(self, key: int, source: int, sink: int, deliver: Callable[[int], None]) -> Process:
        while True:
            version = self._sending[key]
            yield self._resources.cores[source].use(self._times.learner.relay.call_s)
            arrived = Mailbox()
            self._resources.send(source, sink, self._system.bytes.params, True, arrived.put, version)
            version = yield arrived
            yield self._resources.cores[sink].use(self._times.params.far)
            deliver(version)
            if self._sending[key] == version:
                del self._sending[key]
                return

    def _hand_down(self, node: int, version: int) -> None:
        """Send a version to the hosts below one in the tree; -1: the learner's host, which is its root."""
        s = self._system
        if node < 0:
            self._take_at(s.learner, version)
        source = s.learner if node < 0 else self._hosts[node]
        first = (node + 1) * s.fan_out
        for below in range(first, min(first + s.fan_out, len(self._hosts))):
            self._hand_over(below, version, source, self._hosts[below], partial(self._arrive, below))

    def _arrive(self, node: int, version: int) -> None:
        self._take_at(self._hosts[node], version)
        self._hand_down(node, version)

    def _take_at(self, host: int, version: int) -> None:
        for reader in self._readers:
            if reader.host == host:
                self._take(reader, version)

    def _take(self, reader: Actor | Server, version: int) -> None:
        reader.version = max(reader.version, version)
        if isinstance(reader, Server):
            reader.inbox.put(NEWS)
        elif self._system.wait_lag is not None:
            reader.inbox.put(wake)
