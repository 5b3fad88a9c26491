"""The inference stream over ZeroMQ: between hosts (tcp), or between processes that share no memory (ipc).

    client (DEALER)                                    server (ROUTER)
    hello(name, incarnation, groups, schema)    ->     welcome, or refused(error, text)
    request(incarnation, group, step, ...)      ->
                                                <-     reply(group, ...)
                                                <-     ping, periodically: finds broken connections
    bye(incarnation)                            ->
                                                <-     refused: closed or fenced

A request or reply is a header and one frame: the bytes of the group's area, with the layout that both ends derive from
the schema. Between hosts requests may be smaller, see jsrl.transport.inference.packing.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import zmq

from jsrl.errors import CodecError, ConfigError, JsrlError, SpecMismatch, StreamClosed
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply
from jsrl.transport.inference.area import AreaLayout, ServerArea
from jsrl.transport.inference.ends import UNSERVED, PolicyNotServed, ServerEnd, read_fields
from jsrl.transport.inference.packing import RequestPacker
from jsrl.transport.meeting.admission import HELLO, HelloChecker, JoinRules
from jsrl.transport.meeting.curve import Listener, incoming, keys_to_bind, outgoing
from jsrl.transport.meeting.handshake import PING, WELCOME, hello_limits, refusal_frames
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.meeting.sockets import configure
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.packing import PLAIN, Packing
from jsrl.transport.wire.schema import flatten_schema

MAX_MESSAGE_BYTES = 1 << 28
_PING_S, _PINGED = 0.5, 100  # between pings; with more clients than that they are rarer
LINGER_MS = 500
_DRAIN = 4096


class _QueuedRequest(msgspec.Struct, frozen=True):
    incarnation: int
    group: int
    min_updates: int
    step: int
    wants_core: bool


class ReplyFields(msgspec.Struct, frozen=True):
    """The fields of a reply."""

    group: int
    has_core: bool


class ClientBuffer:
    """A client's areas in private memory, and the bytes of each request and reply in it."""

    def __init__(self, layout: AreaLayout):
        self.memory = np.zeros(layout.size_bytes, np.uint8)
        self.questions = {group: self.memory[layout.question(group)] for group in layout.group_sizes}
        self.answers = {
            (group, has_core): self.memory[layout.answer(group, has_core)]
            for group in layout.group_sizes
            for has_core in (False, True)
        }


def array_of(message: Message) -> np.ndarray:
    arrays = message.arrays
    if not (isinstance(arrays, tuple) and len(arrays) == 1 and isinstance(arrays[0], np.ndarray)):
        raise CodecError(f"a {message.kind[:40]!r} message must have one array.")
    return arrays[0]


class _ZmqClient:
    """A connected client."""

    def __init__(
        self,
        client: ProducerId,
        route: bytes,
        layout: AreaLayout,
        packing: Packing,
        socket: zmq.Socket,
        keys: object | None,
    ):
        self.client = client
        self.route = route
        self.heard_s = time.monotonic()
        self.buffer = ClientBuffer(layout)
        self.areas = {g: ServerArea(layout, client, g, self.buffer.memory) for g in layout.group_sizes}
        self._layout, self._packing, self._packers = layout, packing, dict[int, RequestPacker]()
        self._socket, self._keys = socket, keys

    def take(self, message: Message, group: int, step: int) -> None:
        packer = self._packers.get(group)
        if packer is None:
            rows = self._layout.group_sizes[group]
            packer = self._packers[group] = RequestPacker(self._layout.spec, rows, self._packing)
        packer.unpack(message.fields, array_of(message), step, self.buffer.questions[group])

    def answer(self, request: ClientRequest, reply: Reply) -> bool:
        group, has_core = request.group, request.request.wants_core
        self.areas[group].write(reply, has_core)
        frames = encode("reply", {"group": group, "has_core": has_core}, (self.buffer.answers[group, has_core],))
        return self.send(outgoing(frames, self._keys))

    def refuse(self, request: ClientRequest, unserved: PolicyNotServed) -> bool:
        self.areas[request.group].refuse()
        return self.send(outgoing(encode(UNSERVED, msgspec.to_builtins(unserved)), self._keys))

    def send(self, frames: list[Any]) -> bool:
        """Send without waiting; return False if the connection is gone."""
        try:
            self._socket.send_multipart([self.route, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return frames[0] == _PING  # pings may be lost; a client that accepts no replies counts as gone
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def disconnect(self, reason: str) -> None:
        self.send(refusal_frames(StreamClosed(f"{reason}.")))


_PING = encode(PING)[0]


class ZmqInferenceServer(ServerEnd):
    """The server end of `tcp://HOST:PORT` and `ipc://PATH`."""

    def __init__(
        self, endpoint: str, spec: InferenceSpec, *, keys: KeyPath, join_rules: JoinRules, packing: Packing = PLAIN
    ):
        self._hello_checker = HelloChecker("the inference server", flatten_schema(spec), join_rules)
        super().__init__(self._hello_checker.admission)
        self._keys = own_keys = keys_to_bind(endpoint, keys)
        self.spec = spec
        self._packing = packing if own_keys is not None else PLAIN  # messages within this host are not packed
        header_bytes = hello_limits(self._hello_checker).header_bytes
        request_bytes = AreaLayout(spec, {0: join_rules.rows}).question_bytes(0)
        most_bytes = min(MAX_MESSAGE_BYTES, header_bytes + request_bytes)
        self._limits = Limits(header_bytes, frames=2, message_bytes=most_bytes)
        self._routes: dict[bytes, _ZmqClient] = {}
        self._pinged_s = time.monotonic()
        self.waitable = self._socket = zmq.Context().socket(zmq.ROUTER)
        configure(self._socket, most_bytes)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._listener = Listener(self._socket, endpoint, own_keys)
        self.address = self._listener.address

    def _gather(self, max_wait_s: float) -> None:
        if max_wait_s > 0 and not self._socket.poll(math.ceil(min(max_wait_s, _PING_S) * 1000)):
            self._find_broken()
            return
        for _ in range(_DRAIN):
            try:
                frames = self._listener.receive(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._handle(frames)
        self._find_broken()

    def _find_broken(self) -> None:
        now_s, pause_s = time.monotonic(), _PING_S * max(1.0, len(self._routes) / _PINGED)
        if now_s - self._pinged_s < pause_s:
            return
        self._pinged_s = now_s
        for peer in list(self._routes.values()):
            if now_s - peer.heard_s >= pause_s and not peer.send([_PING]):
                self._drop(peer, "its connection broke")

    def _handle(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        peer = self._routes.get(route)
        try:
            whole = incoming([frame.buffer for frame in frames[1:]], self._keys, self._limits.message_bytes)
            message = decode(whole, self._limits)
            if message.kind == HELLO:
                self._greet(route, message, functools.partial(self._listener.speaks_for, frames[-1]))
            elif peer is None:
                raise StreamClosed(f"{self.address} does not know this client: connect again.")
            elif message.kind == "request":
                self._take(peer, message)
            elif message.kind == "bye":
                self._drop(peer, "it left")
            else:
                raise CodecError(f"unknown message {message.kind[:40]!r}.")
        except JsrlError as error:
            if isinstance(error, SpecMismatch):
                self._complaints.append(error)
            try:
                self._socket.send_multipart([route, *refusal_frames(error)], zmq.NOBLOCK)
            except zmq.ZMQError as unreachable:
                if unreachable.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
            if peer is not None:
                self._drop(peer, str(error))

    def _take(self, peer: _ZmqClient, message: Message) -> None:
        asked: _QueuedRequest = read_fields(message, _QueuedRequest)
        area = peer.areas.get(asked.group)
        if asked.incarnation != peer.client.incarnation or area is None or area.open:
            raise CodecError(
                f"a request of {peer.client.name}, incarnation {asked.incarnation}, group {asked.group} is invalid: "
                f"expected incarnation {peer.client.incarnation}, groups {sorted(peer.areas)}, one in flight each."
            )
        peer.heard_s = time.monotonic()
        peer.take(message, asked.group, asked.step)
        self._ready.append(area.read(asked.min_updates, asked.step, asked.wants_core))

    def _greet(self, route: bytes, message: Message, speaks_for: Callable[[str], bool]) -> None:
        client, group_sizes, _ = self._hello_checker.read(message, speaks_for)
        present: Any = self._peers.get(client.name)
        if present is not None and not present.send([_PING]):
            self._drop(present, "its connection broke")
        self._admission.check_incarnation(client)
        layout = AreaLayout(self.spec, group_sizes)
        if layout.size_bytes > MAX_MESSAGE_BYTES:
            raise ConfigError(
                f"the groups of {client.name} take {layout.size_bytes} bytes, at most {MAX_MESSAGE_BYTES} can be sent; "
                "use smaller groups."
            )
        peer = _ZmqClient(client, route, layout, self._packing, self._socket, self._keys)
        packing = {"packing": self._packing.fields} if self._packing else {}
        if peer.send(encode(WELCOME, packing)):
            self._admit(peer)
            self._routes[route] = peer

    def _drop(self, peer: Any, reason: str) -> None:
        self._routes.pop(peer.route, None)
        super()._drop(peer, reason)

    def _shut(self) -> None:
        self._routes.clear()
        self._listener.close(LINGER_MS)
