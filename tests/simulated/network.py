"""Connections between agents and the controller as ZeroMQ makes them over TCP, and what may happen to them.

A connection delivers messages in order. If it breaks, a part of those on their way is lost, and the rest arrives late: after
the first ones of the next connection, which the agent's end makes by itself. Messages may be duplicated. A blocked direction
delivers nothing; after HEARTBEAT_S of that, both ends close the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.simulated.world import Process, World

HEARTBEAT_S = 10.0  # jsrl.cluster.port.CONNECTION_MS
MAX_WAITING = 1_000  # messages of a socket
SLOWEST_S = 2.0  # between two attempts to connect


class Server(Protocol):
    process: Process

    def admits(self, key: str) -> str: ...

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def receive(self, connection: Connection, message: Any) -> None: ...


class Link:
    """The network between a host and the controller's host.

    Attributes:
      up, down: whether messages pass, to the controller and from it. slow_s: most delay of a message. twice: probability that
        a message arrives twice.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = self.down = True
        self.slow_s, self.twice = 0.02, 0.0
        self.connections: list[Connection] = []

    def set(self, *, up: bool, down: bool) -> None:
        self.up, self.down = up, down
        for connection in list(self.connections):
            connection.changed()

    def break_all(self) -> None:
        for connection in list(self.connections):
            connection.shut()


class Connection:
    """An agent's socket, with the connections that it makes one after another.

    Args:
      client: the agent's process. deliver: called there with a message. changes: called there when a connection opened, closed
        or was denied (True, False, None). key: that the agent shows.
    """

    def __init__(
        self,
        link: Link,
        server: Server,
        client: Process,
        deliver: Callable[[Any], None],
        changes: Callable[[bool | None], None],
        key: str,
        identity: bytes,
    ) -> None:
        self.world, self.link, self.server, self.client = link.world, link, server, client
        self.deliver, self.changes, self.key, self.identity = deliver, changes, key, identity
        self.name = ""  # of its key, as the server has admitted it
        self.is_open, self.is_ended = False, False
        self.blocked_s: float | None = None
        self._life: list[Any] = [True]  # of the present connection; replaced with it
        self._waiting: list[Any] = []  # of the agent, without a connection
        self._stalled: dict[bool, list[Any]] = {True: [], False: []}  # up or not -> messages in a blocked direction
        self._due: dict[bool, float] = {True: 0.0, False: 0.0}
        link.connections.append(self)
        self._try()

    # -- sending

    def send_up(self, message: Any) -> None:
        """Send a message of the agent; it waits for a connection."""
        if self.is_open:
            self._carry(True, message)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(message)

    def send_down(self, message: Any) -> None:
        """Send a message of the controller; without a connection it is lost."""
        if self.is_open:
            self._carry(False, message)

    def _carry(self, up: bool, message: Any) -> None:
        if not (self.link.up if up else self.link.down):
            self._stalled[up].append(message)
            return
        for _ in range(2 if self.link.twice and self.world.happens(self.link.twice) else 1):
            delay_s = self.world.between(0.0002, self.link.slow_s)
            due_s = self._due[up] = max(self._due[up], self.world.now + delay_s)
            self.world.after(due_s - self.world.now, None, self._arrive, up, message, self._life)

    def _arrive(self, up: bool, message: Any, life: list[Any]) -> None:
        if not life[0]:
            return
        if not (self.link.up if up else self.link.down):
            self._stalled[up].append(message)
            return
        receiver = self.server.process if up else self.client
        self.world.after(0.0, receiver, self._hand_over, up, message, life)

    def _hand_over(self, up: bool, message: Any, life: list[Any]) -> None:
        if not life[0] or self.is_ended:
            return
        if up:
            self.server.receive(self, message)
        else:
            self.deliver(message)

    # -- connecting

    def _try(self) -> None:
        if self.is_open or self.is_ended or not self.client.alive:
            return
        if self.client.frozen or not (self.link.up and self.link.down and self.server.process.acts):
            self.world.after(self.world.between(0.05, SLOWEST_S), None, self._try)
            return
        self.name = self.server.admits(self.key)
        if not self.name:
            self.client.after(0.0, self.changes, None)
            return
        self.is_open, self._life = True, [True]
        self.server.opened(self)
        self.client.after(0.0, self._made)

    def _made(self) -> None:
        if self.is_ended:
            return
        self.changes(True)
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.send_up(message)

    def shut(self, told_s: float = 0.3) -> None:
        """Break the present connection; both ends notice it within `told_s`."""
        if not self.is_open:
            return
        self.is_open = False
        life = self._life
        if self.world.happens(0.5):
            life[0] = False  # all on its way is lost
        else:
            self.world.after(self.world.random.choice((0.1, 3.0, 12.0)), None, life.__setitem__, 0, False)
        for stalled in self._stalled.values():
            stalled.clear()
        self._due = {True: 0.0, False: 0.0}
        self.blocked_s = None
        self.world.after(self.world.between(0.0, told_s), self.server.process, self.server.closed, self)
        if self.client.alive:
            self.client.after(self.world.between(0.0, told_s), self._note_closed)
            self.world.after(self.world.between(told_s, SLOWEST_S), None, self._try)

    def _note_closed(self) -> None:
        if not self.is_ended:
            self.changes(False)

    def changed(self) -> None:
        """Begin to count the time of a blocked connection, or deliver what has waited."""
        if self.link.up and self.link.down:
            self.blocked_s = None
        elif self.blocked_s is None:
            self.blocked_s = self.world.now
            self.world.after(HEARTBEAT_S, None, self._lacks_heartbeats, self.blocked_s)
        for up in (True, False):
            if self.link.up if up else self.link.down:
                stalled, self._stalled[up] = self._stalled[up], []
                for message in stalled:
                    self._carry(up, message)

    def _lacks_heartbeats(self, since_s: float) -> None:
        if self.blocked_s == since_s:
            self.shut()

    def end(self) -> None:
        """Close the agent's socket."""
        if not self.is_ended:
            self.is_ended = True
            self.link.connections.remove(self)
            if self.is_open:
                self.is_open = False
                told_s = self.world.between(0.0, 0.3)
                if self.link.up:
                    self.world.after(told_s, self.server.process, self.server.closed, self)
