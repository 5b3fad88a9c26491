"""The inference stream between processes of one host: arrays in shared memory, small fixed headers over a Unix socket.

The server listens at a socket in the run folder. The connection shows whether a client is alive: the kernel closes it when
either side dies, so both notice at once, without timeouts. At hello the server makes one segment for this
incarnation, with an area per group; the client writes a request's arrays there in place and announces them in one
datagram, which also wakes the server and orders the memory. The segment's file is removed as soon as both have mapped it, so
nothing is left behind.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any

import msgspec

from jsrl.errors import CodecError, ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.door.hello import (
    ANYBODY,
    Check,
    Hello,
    HelloChecker,
    HelloMessage,
    JoinRules,
    Refused,
    hello_frames,
    raise_refusal,
    refusal,
)
from jsrl.transport.door.unix_socket import connect_socket, listen_socket
from jsrl.transport.ends.area import AreaLayout, ClientArea, ServerArea
from jsrl.transport.ends.inference import ClientEnd, PolicyNotServed, ServerEnd, unknown_policy
from jsrl.transport.shared.locks import make_folder
from jsrl.transport.shared.segment import Segment
from jsrl.transport.wire.message import Message, pack, unpack
from jsrl.transport.wire.schema import flatten_schema

_REQUEST = struct.Struct("<iqq?")  # group, min_updates, step, wants_core
_REPLY = struct.Struct("<i?")  # group, has_core
_MAX_CONTROL_BYTES = 1 << 16
_MAX_SEGMENT_BYTES = 1 << 30  # largest segment that a hello may request
_logger = logging.getLogger("jsrl.transport")
_HELLO_DEADLINE_S = 10.0
_MAX_UNIDENTIFIED = 64  # connections that have sent nothing yet
_ATTACHED = b"attached"


class Welcome(Message, tag="welcome"):
    """The answer to a hello: the name of the client's segment."""

    segment: str


_HELLOS = msgspec.msgpack.Decoder(HelloMessage)
_ANSWERS = msgspec.msgpack.Decoder(Welcome | Refused)
_REFUSALS = msgspec.msgpack.Decoder(PolicyNotServed | Refused)


class _SharedClient:
    """A connected client."""

    def __init__(self, client: ProducerId, connection: socket.socket, segment: Segment, layout: AreaLayout):
        self.client = client
        self.connection = connection
        self.segment = segment
        self.areas = {g: ServerArea(layout, client, g, segment.buffer) for g in layout.group_sizes}

    def answer(self, request: ClientRequest, reply: Reply) -> bool:
        wants_core = request.request.wants_core
        self.areas[request.group].write(reply, wants_core)
        return self._send(_REPLY.pack(request.group, wants_core))

    def refuse(self, request: ClientRequest, unserved: PolicyNotServed) -> bool:
        self.areas[request.group].refuse()
        return self._send(pack(unserved)[0])  # longer than a reply: so the client recognises it

    def _send(self, message: bytes) -> bool:
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def disconnect(self, reason: str) -> None:
        try:
            self.connection.send(pack(refusal(StreamClosed(f"{reason}.")))[0])
        except OSError:
            pass  # the client is gone
        self.connection.close()
        self.areas.clear()
        self.segment.unlink()
        self.segment.close()


class SharedInferenceServer(ServerEnd):
    """The server end of `shm:FOLDER/NAME`."""

    def __init__(self, path: str | Path, spec: InferenceSpec, join_rules: JoinRules = ANYBODY):
        self._hello_checker = HelloChecker("the inference server", flatten_schema(spec), join_rules)
        super().__init__(self._hello_checker.admission)
        self.spec = spec
        self._path = Path(path)
        self.address = f"shm:{self._path}"
        make_folder(self._path.parent)
        self._listener = listen_socket(self._path)
        self.waitable = self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._unidentified: dict[int, tuple[socket.socket, float]] = {}
        self._connected: dict[int, _SharedClient] = {}

    def _gather(self, max_wait_s: float) -> None:
        events = self._epoll.poll(max_wait_s, 4096)
        connected = self._connected
        for fd, _ in events:
            peer = connected.get(fd)
            if peer is not None:
                self._read(fd, peer)
        if len(connected) < len(events) or any(fd not in connected for fd, _ in events):
            self._serve_connections([fd for fd, _ in events if fd not in connected])

    def _read(self, fd: int, peer: _SharedClient) -> None:
        """Process a client's messages except its end, so that the end is handled before the client's next hello."""
        receive, areas = peer.connection.recv, peer.areas
        try:
            for _ in range(len(areas) + 1):
                message = receive(64)
                if len(message) == _REQUEST.size:
                    group, min_updates, step, wants_core = _REQUEST.unpack(message)
                    self._ready.append(areas[group].read(min_updates, step, wants_core))
                    if len(areas) == 1:
                        return  # one in flight: there is no other; level-triggered polling would show it
                elif message == _ATTACHED:
                    peer.segment.unlink()
                else:
                    self._part(fd, peer, "it left" if not message else "it sent something that is not a request")
                    return
        except BlockingIOError:
            return
        except (OSError, KeyError):
            self._part(fd, peer, "its connection broke")

    def _part(self, fd: int, peer: _SharedClient, reason: str) -> None:
        self._connected.pop(fd, None)
        self._drop(peer, reason)

    def _drop(self, peer: Any, reason: str) -> None:
        fd = peer.connection.fileno()
        self._connected.pop(fd, None)
        if fd >= 0:
            self._epoll.unregister(fd)
        super()._drop(peer, reason)

    def _serve_connections(self, fds: list[int]) -> None:
        for fd in fds:
            if fd in self._unidentified:
                self._identify(fd)
        if self._listener.fileno() in fds:  # last: a new connection may get the number of one that just ended
            self._accept()
        for fd, (_, since_s) in list(self._unidentified.items()):
            if time.monotonic() - since_s > _HELLO_DEADLINE_S:
                self._reject(fd)

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._unidentified[connection.fileno()] = (connection, time.monotonic())
                self._epoll.register(connection, select.EPOLLIN)
                if len(self._unidentified) > _MAX_UNIDENTIFIED:
                    self._identify(next(iter(self._unidentified)))
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is free: close connections that sent no hello
            if not self._unidentified:
                raise
            _logger.warning("%s: closed a connection that sent no hello (%s)", self.address, error)
            self._reject(next(iter(self._unidentified)))

    def _identify(self, fd: int) -> None:
        """Answer a connection's hello; close the connection if there is none."""
        connection, _ = self._unidentified.pop(fd)
        self._epoll.unregister(fd)
        self._greet(connection)

    def _reject(self, fd: int) -> None:
        """Close a connection whose peer has sent no hello."""
        connection, _ = self._unidentified.pop(fd)
        self._epoll.unregister(fd)
        connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Answer a hello: admit the client, or send the reason for the refusal."""
        try:
            message = connection.recv(_MAX_CONTROL_BYTES)
            if not message:
                connection.close()
                return
            hello, _ = unpack([message], _HELLOS, self._hello_checker.header_bytes)
            self._admit_hello(self._hello_checker.read(hello), connection)
        except JsrlError as error:
            if isinstance(error, SpecMismatch):
                self._complaints.append(error)
            try:
                connection.send(pack(refusal(error))[0])
            except OSError:
                pass  # the client is gone
            connection.close()
        except OSError:
            connection.close()

    def _admit_hello(self, hello: Hello, connection: socket.socket) -> None:
        client = hello.sender
        self._admission.check_incarnation(client)
        layout = AreaLayout(self.spec, hello.groups)
        if layout.size_bytes > _MAX_SEGMENT_BYTES:
            raise ConfigError(
                f"the groups of {client.name} take {layout.size_bytes} bytes, at most {_MAX_SEGMENT_BYTES} are available; use "
                "smaller groups."
            )
        segment_path = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        segment = Segment.create(segment_path, layout.size_bytes)
        try:
            connection.send(pack(Welcome(segment_path.name))[0])
        except OSError:
            segment.unlink()
            segment.close()
            raise
        peer = _SharedClient(client, connection, segment, layout)
        self._admit(peer)
        self._connected[connection.fileno()] = peer
        self._epoll.register(connection, select.EPOLLIN)

    def _shut(self) -> None:
        self._connected.clear()
        for connection, _ in self._unidentified.values():
            connection.close()
        self._unidentified.clear()
        self._listener.close()
        self._epoll.close()
        self._path.unlink(missing_ok=True)


class SharedInferenceClient(ClientEnd):
    """The client end of `shm:FOLDER/NAME`."""

    def __init__(
        self,
        path: str | Path,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        check: Check = lambda: None,
    ):
        super().__init__(client)
        self.address = f"shm:{path}"
        self._layout = AreaLayout(spec, group_sizes)
        deadline = time.monotonic() + timeout_s
        self._connection = connect_socket(path, timeout_s, check)
        try:
            self._segment = self._greet(Path(path), spec, deadline, timeout_s)
        except BaseException:
            self._connection.close()
            raise
        buffer = self._segment.buffer
        self._areas = {group: ClientArea(self._layout, group, buffer) for group in self._layout.group_sizes}
        self._timeout_s: float | None = None

    def _greet(self, path: Path, spec: InferenceSpec, deadline: float, timeout_s: float) -> Segment:
        (message,) = hello_frames(Hello(self.identity, self._layout.group_sizes, flatten_schema(spec)))
        if len(message) > _MAX_CONTROL_BYTES:
            raise ConfigError(f"the hello of {self.identity.name} has {len(message)} bytes, over {_MAX_CONTROL_BYTES}.")
        try:
            self._connection.send(message)
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            answer = self._connection.recv(_MAX_CONTROL_BYTES)
        except TimeoutError:
            raise StreamTimeout(
                f"{self.address} accepted the connection but did not answer the hello within {timeout_s} s; "
                "the server is busy (compiling) or hangs: allow more time or look at its log."
            ) from None
        except OSError as error:
            raise StreamClosed(f"{self.address} left during the hello: {error.strerror}.") from None
        if not answer:
            raise StreamClosed(f"{self.address} left during the hello.")
        welcome, _ = unpack([answer], _ANSWERS, _MAX_CONTROL_BYTES)
        if isinstance(welcome, Refused):
            raise_refusal(welcome)
        segment = Segment.attach(path.with_name(os.path.basename(welcome.segment)))
        self._connection.send(_ATTACHED)
        return segment

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
            message = self._connection.recv(_MAX_CONTROL_BYTES)
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
        try:
            answer, _ = unpack([message], _REFUSALS, _MAX_CONTROL_BYTES)
        except CodecError as error:
            self._lost("the server sent something that is not a reply")
            return CodecError(f"{self.address} sent {len(message)} bytes that are not a reply: {error}")
        if isinstance(answer, Refused):
            return self._lost(answer.text.rstrip("."))
        area = self._areas.get(answer.group)
        if area is None or not area.in_flight:
            self._lost("the server sent something that is not a reply")
            return CodecError(f"{self.address} refused a request of group {answer.group}, which has sent none.")
        area.in_flight = False
        return unknown_policy(self.address, answer)

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
