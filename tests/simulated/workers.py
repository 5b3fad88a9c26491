"""Stand-ins for workers: they start, become ready, send heartbeats, act, obey commands, and end.

What a worker does is recorded by `Checks`: at most one incarnation of it may act at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from jsrl.runs.control import LEASE_GRACE_S, encoded
from jsrl.runs.control_bodies import Bye, Command, Crash, Heartbeat, Stage
from tests.simulated.world import Host, Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks

HEARTBEAT_S, ACT_S, LEAVE_S = 0.8, 0.7, 0.4


class Worker(Process):
    """A worker's process.

    Args:
      send: passes an encoded message to whoever started it. lease_until: end of the lease of its host, by the host's clock
        (infinite on the controller's host).
    """

    def __init__(
        self,
        host: Host,
        name: str,
        incarnation: int,
        parent: Process,
        send: Callable[[bytes], None],
        checks: Checks,
        lease_until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(host, f"{name}.{incarnation}", parent)
        self.worker, self.incarnation, self.ready, self.leaves = name, incarnation, False, False
        self._send, self._checks, self._lease_until = send, checks, lease_until
        checks.started(self)
        self.after(self.world.between(0.05, 0.3), self._build)

    def say(self, message: Stage | Heartbeat | Bye | Crash) -> None:
        self._send(encoded(message))

    def _build(self) -> None:
        self.say(Stage(self.worker, self.incarnation, "building", self.pid))
        self.every(HEARTBEAT_S, self._beat)
        self.after(self.world.between(0.2, 2.0), self._begin)

    def _begin(self) -> None:
        self.ready = True
        self.say(Stage(self.worker, self.incarnation, "ready", self.pid))
        self.every(ACT_S, self._act)

    def _beat(self) -> None:
        if self._has_lease():
            self.say(Heartbeat(self.worker, self.incarnation, self.pid))

    def _has_lease(self) -> bool:
        """End this process after its lease: its agent is stopped, else it had ended it."""
        if self.host.now > self._lease_until() + LEASE_GRACE_S:
            self.die(73)
        return self.alive

    def _act(self) -> None:
        if self._has_lease() and not self.leaves:
            self._checks.acted(self)

    def obey(self, frame: bytes) -> None:
        """Execute a command of the controller, which counts on that being done once."""
        command = msgspec.msgpack.decode(frame, type=Command)
        self._checks.obeyed(self, command)
        if command.name == "stop":
            self.leave()

    def leave(self) -> None:
        """End in order, as after a SIGTERM."""
        if not self.leaves:
            self.leaves = True
            self.after(self.world.between(0.05, LEAVE_S), self._close)

    def _close(self) -> None:
        self.say(Bye(self.worker, self.incarnation))
        self.die(0)

    def crash(self, error: str) -> None:
        self.say(Crash(self.worker, self.incarnation, error, "it failed", ""))
        self.die(1)
