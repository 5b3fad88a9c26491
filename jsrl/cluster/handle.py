"""The handle of a worker on another host, through the host's agent."""

from __future__ import annotations

import time
from typing import Any

from jsrl.cluster.members import RemoteWorker, Tell
from jsrl.cluster.messages import Signal
from jsrl.cluster.port import HostPort
from jsrl.services.runs.values import Exit, ResourceUsage

GONE_S = 6.0  # time for an agent that is heard to end a worker and report it
ANSWER_S = 2.0


class HostHandle:
    """A worker under an agent; see jsrl.graph.launcher.Handle."""

    def __init__(self, port: HostPort, remote: RemoteWorker) -> None:
        self._port, self.remote = port, remote

    @property
    def where(self) -> str:
        pid = "not started yet" if self.remote.pid is None else f"pid {self.remote.pid}"
        return f"{pid} of host {self.host}"

    @property
    def host(self) -> str:
        return self.remote.host.name

    @property
    def log(self) -> str:
        if not self.alive and (fetched := self._port.fetched_log(self.remote)).exists():
            return str(fetched)
        return f"{self.remote.host.name}:{self.remote.host.folder}/logs/{self.remote.worker}.log"

    @property
    def alive(self) -> bool:
        return self.remote.exit is None

    @property
    def is_heard(self) -> bool:
        """Return whether messages of its host come; else its own silence means nothing."""
        return self.remote.host.is_heard(time.monotonic())

    @property
    def exit(self) -> Exit | None:
        return self.remote.exit

    def wait(self, timeout_s: float) -> bool:
        return self._port.wait(lambda: not self.alive, timeout_s)

    def kill(self) -> None:
        self._signal("kill")
        self._port.wait(lambda: not (self.alive and self.is_heard), GONE_S)

    def pause(self) -> None:
        self._signal("pause")

    def resume(self) -> None:
        self._signal("resume")

    def _signal(self, what: Any) -> None:
        if self.alive:
            host = self.remote.host
            signal = Signal(host.membership, self.remote.worker, self.remote.incarnation, what)
            self._port.tell(Tell(host.membership, signal))

    def tail(self, lines: int) -> str:
        if not self.alive:
            return "\n".join(self.remote.tail.splitlines()[-lines:])
        return self._ask("tail", lines, ANSWER_S)

    def usage(self) -> ResourceUsage | None:
        return self.remote.usage if self.alive else None

    def stacks(self, timeout_s: float) -> str:
        """Return the stacks of its threads; empty: neither it nor its agent answered in time."""
        return self._ask("stacks", timeout_s, timeout_s + ANSWER_S) if self.alive else ""

    def _ask(self, what: Any, amount: float, timeout_s: float) -> str:
        remote = self.remote
        return self._port.ask(remote.host, remote.worker, remote.incarnation, what, amount, timeout_s)
