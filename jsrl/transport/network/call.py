"""Call: requests and replies over ZeroMQ, of inference and of the ranks of a learner.

    client                                             server
    hello(name, incarnation, groups, schema)    ->     welcome, or refused(error, text)
    request(group, step, ...)                   ->
                                                <-     answer(group, ...), or unserved(group, ...)
                                                <-     ping, periodically: finds broken connections
    bye                                         ->
                                                <-     refused: closed or fenced

The body of a request or answer has the bytes of the group's area, with the layout that both ends derive from the schema.
Between hosts requests may be smaller, see jsrl.transport.ends.packing. A client whose connection breaks is closed: the
worker that connected first connects again and asks again.
"""

from __future__ import annotations

import functools
import time
from typing import Annotated, Any

import msgspec
import numpy as np

from jsrl.errors import AccessDenied, CodecError, JsrlError, SpecMismatch, StreamClosed, StreamTimeout
from jsrl.transport import base
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply
from jsrl.transport.door.hello import (
    Check,
    Hello,
    HelloMessage,
    JoinRules,
    Refused,
    raise_refusal,
    refusal,
)
from jsrl.transport.door.keys import ClientKeys, KeyPath
from jsrl.transport.ends.area import AreaLayout, ClientArea
from jsrl.transport.ends.inference import ClientEnd, ConnectedClient, PolicyNotServed, ServerEnd
from jsrl.transport.ends.packing import PLAIN, Packed, Packing, RequestPacker
from jsrl.transport.network.link import BindingLink, ConnectingLink, Received
from jsrl.transport.wire.message import Count, Message
from jsrl.transport.wire.schema import flatten_schema

MAX_BODY_BYTES = 1 << 28
_PING_S, _PINGED = 0.5, 100  # between pings; with more clients than that they are rarer
_LINGER_MS = 500
_MAX_AT_ONCE = 4096  # messages, before requests are handed out
_SLICE_S = 0.1  # between checks of the connection
_RANK_BYTES = 1 << 12


class Welcome(Message, tag="welcome"):
    """The answer to a hello; packing: of the requests."""

    packing: Packing


class Request(Message, tag="request"):
    """A group's request; see base.Request and Packed."""

    group: Count
    min_updates: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
    step: Count
    wants_core: bool
    thin: bool
    compressed: bool


class Answer(Message, tag="answer"):
    """A group's reply; has_core: the body has the core as well."""

    group: Count
    has_core: bool


class Ping(Message, tag="ping"):
    """Says nothing: the server learns whether the connection exists."""


class Bye(Message, tag="bye"):
    """The client leaves."""


class RankMessage(Message, tag="rank"):
    """The body is a message between ranks."""


_TO_SERVER = msgspec.msgpack.Decoder(HelloMessage | Request | Bye)
_TO_CLIENT = msgspec.msgpack.Decoder(Welcome | Answer | PolicyNotServed | Ping | Refused)
_BETWEEN_RANKS = msgspec.msgpack.Decoder(RankMessage)


class _Buffer:
    """A client's areas in private memory, and the bytes of each request and answer in it."""

    def __init__(self, layout: AreaLayout):
        self.memory = np.zeros(layout.size_bytes, np.uint8)
        self.questions = {group: self.memory[layout.question(group)] for group in layout.group_sizes}
        self.answers = {
            (group, has_core): self.memory[layout.answer(group, has_core)]
            for group in layout.group_sizes
            for has_core in (False, True)
        }


class _Client(ConnectedClient):
    """A connected client, as the server knows it."""

    def __init__(self, hello: Hello, route: bytes, layout: AreaLayout, packing: Packing, link: BindingLink):
        self._buffer = _Buffer(layout)
        super().__init__(hello.sender, layout, self._buffer.memory)
        self.route, self._link = route, link
        self.heard_s = time.monotonic()
        self._packers = {g: RequestPacker(layout.spec, rows, packing) for g, rows in layout.group_sizes.items()}

    def take(self, request: Request, body: memoryview) -> ClientRequest:
        """Write a request into its group's area, and return it."""
        self.heard_s = time.monotonic()
        area = self.areas.get(request.group)
        if area is None or area.open:
            raise CodecError(
                f"a request of {self.client.name} for group {request.group} is invalid: expected one of {sorted(self.areas)}, "
                "one in flight each."
            )
        packed = Packed(np.frombuffer(body, np.uint8), request.thin, request.compressed)
        self._packers[request.group].unpack(packed, request.step, self._buffer.questions[request.group])
        return area.read(request.min_updates, request.step, request.wants_core)

    def _send_answer(self, group: int, has_core: bool) -> bool:
        return self._link.send(self.route, Answer(group, has_core), self._buffer.answers[group, has_core])

    def _send(self, message: Message) -> bool:
        return self._link.send(self.route, message)

    def ping(self) -> bool:
        """Return whether the connection may still exist; pings may be lost."""
        return self._link.send(self.route, Ping(), may_drop=True)


class ZmqInferenceServer(ServerEnd):
    """The server end of `tcp://HOST:PORT` and `ipc://PATH`."""

    def __init__(
        self, endpoint: str, spec: InferenceSpec, *, keys: KeyPath, join_rules: JoinRules, packing: Packing = PLAIN
    ):
        super().__init__(spec, join_rules, MAX_BODY_BYTES)
        self._clients: dict[bytes, _Client] = {}
        self._pinged_s = time.monotonic()
        request_bytes = min(MAX_BODY_BYTES, AreaLayout(spec, {0: join_rules.rows}).question_bytes(0))
        header_bytes = self.door.header_bytes
        self._link = BindingLink(endpoint, keys, _TO_SERVER, header_bytes=header_bytes, body_bytes=request_bytes)
        self._packing = PLAIN if self._link.keys is None else packing  # messages within this host are not packed
        self.waitable, self.address = self._link.socket, self._link.address

    def _gather(self, max_wait_s: float) -> None:
        if max_wait_s == 0 or self._link.wait(min(max_wait_s, _PING_S)):
            for _ in range(_MAX_AT_ONCE):
                if (received := self._link.receive()) is None:
                    break
                self._handle(received)
        self._find_broken()

    def _find_broken(self) -> None:
        now_s, pause_s = time.monotonic(), _PING_S * max(1.0, len(self._clients) / _PINGED)
        if now_s - self._pinged_s < pause_s:
            return
        self._pinged_s = now_s
        for peer in list(self._clients.values()):
            if now_s - peer.heard_s >= pause_s and not peer.ping():
                self._drop(peer, "its connection broke")

    def _handle(self, received: Received) -> None:
        peer = self._clients.get(received.route)
        try:
            message, body = self._link.read(received)
            if isinstance(message, HelloMessage):
                speaks_for = functools.partial(self._link.speaks_for, received)
                self._welcome(received.route, self.door.read(message, speaks_for))
            elif peer is None:
                raise StreamClosed(f"{self.address} does not know this client: connect again.")
            elif isinstance(message, Request):
                self._ready.append(peer.take(message, body))
            else:
                self._drop(peer, "it left")
        except JsrlError as error:
            if isinstance(error, SpecMismatch):
                self._complaints.append(error)
            self._link.send(received.route, refusal(error))
            if peer is not None:
                self._drop(peer, str(error))

    def _welcome(self, route: bytes, hello: Hello) -> None:
        client = hello.sender
        present: Any = self._peers.get(client.name)
        if present is not None and not present.ping():
            self._drop(present, "its connection broke")
        layout = self._layout_of(hello)
        peer = _Client(hello, route, layout, self._packing, self._link)
        if self._link.send(route, Welcome(self._packing)):
            self._admit(peer)
            self._clients[route] = peer

    def _disconnect(self, peer: Any, reason: str) -> None:
        self._clients.pop(peer.route, None)
        self._link.send(peer.route, refusal(StreamClosed(f"{reason}.")))

    def _shut(self) -> None:
        self._clients.clear()
        self._link.close(_LINGER_MS)


class ZmqInferenceClient(ClientEnd):
    """The client end of `tcp://HOST:PORT` and `ipc://PATH`."""

    def __init__(
        self,
        endpoint: str,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        *,
        keys: KeyPath | ClientKeys = None,
        check: Check = lambda: None,
    ):
        super().__init__(client)
        self.address = endpoint
        layout = AreaLayout(spec, group_sizes)
        self._buffer = _Buffer(layout)
        self._areas = {group: ClientArea(layout, group, self._buffer.memory) for group in group_sizes}
        self._link = ConnectingLink(endpoint, keys, _TO_CLIENT, body_bytes=MAX_BODY_BYTES)
        welcome: Welcome = self._link.meet(Hello(client, group_sizes, flatten_schema(spec)), timeout_s, check)
        self._packers = {group: RequestPacker(spec, rows, welcome.packing) for group, rows in group_sizes.items()}

    def send(self, group: int, request: base.Request) -> None:
        area, step = self._write(group, request), int(request.step)
        data, *packed = self._packers[group].pack(self._buffer.questions[group], step)
        message = Request(group, int(request.min_updates), step, bool(request.wants_core), *packed)
        if not self._link.send(message, data):  # requests are too few to fill the queue
            self._close("the connection to the server broke, and it was not accepted again")
            self._check_open()
        area.in_flight = True

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            found = self._link.receive(max(0.0, min(left_s, _SLICE_S)))
            if found is not None:
                if (reply := self._read(*found)) is not None:
                    return reply
            elif self._is_broken():
                self._close("the connection to the server broke")
                self._check_open()
            elif left_s <= 0:
                raise self._nothing_came(timeout_s)

    def _is_broken(self) -> bool:
        try:
            self._link.watch.poll()
        except AccessDenied:
            return True  # another server is there now
        return self._link.watch.broken

    def _read(self, message: Any, body: memoryview) -> tuple[int, Reply] | None:
        """Return the group and reply of a message; None: it is not a reply."""
        if isinstance(message, Refused):
            self._close(message.text)
            raise_refusal(message)
        if isinstance(message, Ping | Welcome):
            return None
        if isinstance(message, PolicyNotServed):
            raise self._unserved(message)
        area = self._answered(message.group)
        target = self._buffer.answers[message.group, message.has_core]
        if len(body) != target.nbytes:
            raise CodecError(f"a reply of {len(body)} bytes, expected {target.nbytes}.")
        target[...] = body
        return message.group, area.read(message.has_core)

    def _close(self, reason: str) -> None:
        if self._closed_because is None:
            self._closed_because = reason
            self._link.close(_LINGER_MS)

    def close(self) -> None:
        if self._closed_because is None:
            self._link.send(Bye())
            self._close("this client closed it")


class ZmqFirstRank:
    """The binding end of a stream of type `ranks`; see FirstRank."""

    def __init__(self, endpoint: str, keys: KeyPath) -> None:
        self._link = BindingLink(endpoint, keys, _BETWEEN_RANKS, header_bytes=64, body_bytes=_RANK_BYTES)
        self._newest: dict[bytes, Received] = {}  # by sender
        self.address = self._link.address

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        found = list[tuple[bytes, bytes]]()
        self._link.wait(timeout_s)
        while (received := self._link.receive()) is not None:
            try:
                _, body = self._link.read(received)
            except CodecError:
                continue  # only holders of the run's keys get this far
            self._newest[received.route] = received
            found.append((received.route, bytes(body)))
        return found

    def speaks_for(self, sender: bytes, worker: str) -> bool:
        return self._link.speaks_for(self._newest[sender], worker)

    def send(self, receiver: bytes, message: bytes) -> None:
        self._link.send(receiver, RankMessage(), message)

    def close(self) -> None:
        self._link.close(100)


class ZmqOtherRank:
    """A connecting end; see OtherRank."""

    def __init__(self, endpoint: str, keys: KeyPath | ClientKeys) -> None:
        self._link = ConnectingLink(endpoint, keys, _BETWEEN_RANKS, body_bytes=_RANK_BYTES)

    def send(self, message: bytes) -> None:
        self._link.send(RankMessage(), message)

    def receive(self, timeout_s: float) -> bytes | None:
        found = self._link.receive(timeout_s)
        return None if found is None else bytes(found[1])

    def poll(self) -> None:
        self._link.watch.poll()

    def no_answer(self, timeout_s: float) -> StreamTimeout:
        return self._link.watch.no_answer(timeout_s)

    def close(self) -> None:
        self._link.close(100)
