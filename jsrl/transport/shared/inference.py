"""The inference stream within a host: arrays in shared memory, small fixed headers over a Unix socket.

At hello the server makes the memory for this incarnation, with an area per group (see jsrl.transport.shared.connections); the
client writes a request's arrays there in place and announces them in one datagram, which also wakes the server and orders the
memory.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from jsrl.errors import SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.door.hello import ANYBODY, Check, Hello, JoinRules, Refused
from jsrl.transport.ends.area import AreaLayout, ClientArea
from jsrl.transport.ends.inference import ClientEnd, ConnectedClient, PolicyNotServed, ServerEnd
from jsrl.transport.shared.connections import (
    MAX_BYTES,
    Connection,
    Connections,
    address_of,
    is_path,
    meet,
    send,
    welcome,
)
from jsrl.transport.shared.segment import Segment
from jsrl.transport.stream import StreamType
from jsrl.transport.wire.message import Message, unpack
from jsrl.transport.wire.schema import flatten_schema

_REQUEST = struct.Struct("<iqq?")  # group, min_updates, step, wants_core
_REPLY = struct.Struct("<i?")  # group, has_core; a refusal is longer
_MAX_SEGMENT_BYTES = 1 << 30  # largest segment that a hello may request


class Welcome(Message, tag="welcome"):
    """The answer to a hello; the memory comes with it."""


_WELCOMES = msgspec.msgpack.Decoder(Welcome | Refused)
_REFUSALS = msgspec.msgpack.Decoder(PolicyNotServed | Refused)


class _SharedClient(ConnectedClient):
    """A connected client."""

    def __init__(self, client: ProducerId, connection: Connection, segment: Segment, layout: AreaLayout):
        super().__init__(client, layout, segment.buffer)
        self.connection, self.segment = connection, segment

    def _send_answer(self, group: int, has_core: bool) -> bool:
        try:
            self.connection.send(_REPLY.pack(group, has_core))
        except OSError:
            return False
        return True

    def _send(self, message: Message) -> bool:
        return send(self.connection, message)


class SharedInferenceServer(ServerEnd):
    """The server end of `shm:FOLDER/NAME` and `local:NAME`."""

    stream_type: StreamType = "inference"

    def __init__(self, place: str, spec: InferenceSpec, join_rules: JoinRules = ANYBODY):
        super().__init__(spec, join_rules, _MAX_SEGMENT_BYTES)
        self.address = address_of(place)
        self._connections = Connections(place, self)
        self.waitable = self._connections.poller if is_path(place) else None

    def _gather(self, max_wait_s: float) -> None:
        self._connections.serve(max_wait_s)

    def complain(self, error: SpecMismatch) -> None:
        self._complaints.append(error)

    def admit(self, hello: Hello, connection: Connection) -> _SharedClient:
        if self._closed:
            raise StreamClosed(f"the inference server {self.address} is closed.")
        layout = self._layout_of(hello)
        segment = self._connections.memory(layout.size_bytes)
        welcome(connection, Welcome(), segment)
        peer = _SharedClient(hello.sender, connection, segment, layout)
        self._admit(peer)
        return peer

    def read(self, peer: _SharedClient) -> None:
        receive, areas = peer.connection.recv, peer.areas
        try:
            while len(message := receive(64)) == _REQUEST.size:
                group, min_updates, step, wants_core = _REQUEST.unpack(message)
                self._ready.append(areas[group].read(min_updates, step, wants_core))
                if len(areas) == 1:
                    return  # one in flight: there is no other; level-triggered polling would show it
            self._drop(peer, "it left" if not message else "it sent something that is not a request")
        except BlockingIOError:
            return
        except (OSError, KeyError):
            self._drop(peer, "its connection broke")

    def _disconnect(self, peer: Any, reason: str) -> None:
        self._connections.disconnect(peer.connection, reason)
        peer.areas.clear()
        peer.segment.close()

    def _shut(self) -> None:
        self._connections.close()


class SharedInferenceClient(ClientEnd):
    """The client end of `shm:FOLDER/NAME` and `local:NAME`."""

    def __init__(
        self,
        place: str,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        check: Check = lambda: None,
    ):
        super().__init__(client)
        self.address = address_of(place)
        layout, hello = AreaLayout(spec, group_sizes), Hello(client, group_sizes, flatten_schema(spec))
        self._connection, _, self._segment, _ = meet("inference", place, hello, _WELCOMES, timeout_s, check)
        self._areas = {group: ClientArea(layout, group, self._segment.buffer) for group in layout.group_sizes}
        self._timeout_s: float | None = None

    def send(self, group: int, request: Request) -> None:
        area = self._write(group, request)
        header = _REQUEST.pack(group, request.min_updates, request.step, request.wants_core)
        try:
            self._connection.send(header)
        except OSError as error:
            raise self._lost(f"the server is gone ({error.strerror or error})") from None
        area.in_flight = True

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        self._check_open()
        if timeout_s != self._timeout_s:
            self._connection.settimeout(max(timeout_s, 0.0))
            self._timeout_s = timeout_s
        try:
            message = self._connection.recv(MAX_BYTES)
        except (TimeoutError, BlockingIOError):
            raise self._nothing_came(timeout_s) from None
        except OSError as error:
            raise self._lost(f"the server is gone ({error.strerror or error})") from None
        if len(message) != _REPLY.size:
            raise self._other(message)
        group, has_core = _REPLY.unpack(message)
        area = self._areas[group]
        area.in_flight = False
        return group, area.read(has_core)

    def _other(self, message: bytes) -> StreamError:
        if not message:
            return self._lost("the server is gone (its process ended)")
        answer, _ = unpack([message], _REFUSALS, MAX_BYTES)
        return self._lost(answer.text.rstrip(".")) if isinstance(answer, Refused) else self._unserved(answer)

    def _lost(self, reason: str) -> StreamClosed:
        self.close()
        self._closed_because = reason
        return self._closed()

    def close(self) -> None:
        if self._closed_because is None:
            self._closed_because = "this client closed it"
        self._connection.close()
        self._areas.clear()
        self._segment.close()
