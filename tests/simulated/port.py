"""The controller's port for agents: executes what Members decides, as jsrl.cluster.port does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jsrl.cluster.members import (
    JOIN,
    Action,
    Admit,
    Closed,
    Expel,
    KeepPart,
    Lost,
    Members,
    Message,
    Notify,
    Received,
    Relay,
    ReplaceJoinKey,
    Revoke,
    RunEnded,
    Send,
)
from jsrl.cluster.messages import Stored
from jsrl.cluster.port import LOOK_S
from jsrl.cluster.this_host import code_digest, versions
from jsrl.services.runs.control_bodies import AnyMessage
from tests.simulated.network import Connection
from tests.simulated.world import Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks


class Port:
    """The port, which a thread of the controller's process serves.

    Args:
      relay: gets the messages of workers on other hosts.

    Attributes:
      join_key: with which hosts join. revoked: names of hosts.
    """

    def __init__(self, process: Process, checks: Checks, relay: Callable[[AnyMessage], None]) -> None:
        self.process, self._checks, self._relay = process, checks, relay
        self.members = Members("here", versions(), code_digest())
        self.join_key = checks.new_key()
        self.revoked: set[str] = set()
        self._admitted: set[str] = set()
        self._connections: dict[bytes, Connection] = {}
        self.process.every(LOOK_S, self._look)

    @property
    def now(self) -> float:
        return self.process.host.now

    def tell(self, message: Message) -> None:
        with self._checks.taking(self.members, message):
            actions = self.members.handle(message, self.now)
        self._do_all(actions, is_told=True)

    def _look(self) -> None:
        self._do_all(self.members.tick(self.now), is_told=False)
        self.tell(Revoke(self.revoked))
        self._checks.named(self.members.names())

    def close(self) -> None:
        self.tell(RunEnded("the run has ended"))
        self.join_key = ""

    # -- connections

    def admits(self, key: str) -> str:
        return JOIN if key == self.join_key else key if key in self._admitted else ""

    def opened(self, connection: Connection) -> None:
        self._connections[connection.identity] = connection

    def closed(self, connection: Connection) -> None:
        self.tell(Closed(connection.identity))

    def receive(self, connection: Connection, message: Any) -> None:
        self.tell(Received(connection.name, connection.identity, message))

    # -- actions

    def _do_all(self, actions: list[Action], *, is_told: bool) -> None:
        for action in actions:
            if isinstance(action, Lost):
                self._checks.lost(action.host, is_told=is_told)
            else:
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Send(identity, message):
                self._checks.sent(message)
                if (connection := self._connections.get(identity)) is not None:
                    connection.send_down(message)
            case Relay(messages):
                for message in messages:
                    self._checks.accepted(message)
                    self._relay(message)
            case Notify(line):
                self.process.world.note(self.process.name, "says:", line)
            case Admit(key):
                self._admitted.add(key)
            case Expel(key):
                self._admitted.discard(key)
            case ReplaceJoinKey():
                self.join_key = self._checks.new_key()
            case KeepPart(host, part):
                self._checks.kept(host, part)
                if (connection := self._connections.get(host.identity)) is not None:
                    connection.send_down(Stored(host.membership, part.name, len(part.content), part.digest))
