"""The params stream to other hosts, over ZeroMQ: readers request versions newer than theirs, one request in flight each.

    subscriber (DEALER)                          publisher (ROUTER)
    want(policy, have)      ->                   kept until there is a version other than `have`
                            <-                   params(policy, version) and the leaves

A reader's thread keeps one request per policy open, so new params arrive at once and never queue up, and a slow reader
skips versions. The publisher's thread answers; `publish` only stores the params and wakes it.
"""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any

import msgspec
import numpy as np
import zmq

from jsrl.errors import AccessDenied, CodecError, StreamClosed, StreamError
from jsrl.transport.meeting.curve import (
    ConnectionWatch,
    Listener,
    connect,
    incoming,
    keys_to_bind,
    keys_to_connect,
    outgoing,
)
from jsrl.transport.meeting.keys import ClientKeys, KeyPath
from jsrl.transport.meeting.sockets import SILENCE_MS, configure
from jsrl.transport.params.local import LatestStore
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.schema import Leaf, compare_schemas, flatten_schema

_MAX_MESSAGE_BYTES = 1 << 33
_QUESTION_LIMITS = Limits(header_bytes=4096, frames=1, message_bytes=4096)
_PARAMS_LIMITS = Limits(message_bytes=_MAX_MESSAGE_BYTES)
_MAX_POLICIES = 1024
_RETRY_MS = 20


class _Want(msgspec.Struct, frozen=True):
    policy: int
    have: int  # version, -1 for none


class _Params(msgspec.Struct, frozen=True):
    policy: int
    version: int


class _Thread:
    """A thread that owns a socket; it can be woken and stopped."""

    def __init__(self, name: str, socket: zmq.Socket):
        self.socket = socket
        self.stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full: the thread will wake anyway

    def stop(self) -> None:
        self.stopping = True
        self.wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        for source in self.sources():
            poller.register(source, zmq.POLLIN)
        while not self.stopping:
            ready = dict(poller.poll(self.patience_ms()))
            if self._wake_read in ready:
                os.read(self._wake_read, 65536)
            self.serve(ready)

    def sources(self) -> list[zmq.Socket]:
        return [self.socket]

    def patience_ms(self) -> int | None:
        """Return the time after which `serve` runs without a message, None for never."""
        return None

    def serve(self, ready: dict[Any, int]) -> None:
        raise NotImplementedError


class _PublisherThread(_Thread):
    """Keeps the readers' requests and answers those that it can."""

    def __init__(self, socket: zmq.Socket, listener: Listener, store: LatestStore, keys: object | None):
        super().__init__("params-publisher", socket)
        self._listener, self._store, self._keys = listener, store, keys
        self._open: dict[tuple[bytes, int], int] = {}  # (route, policy) -> version that the reader has

    def serve(self, ready: dict[Any, int]) -> None:
        if self.socket in ready:
            self._take_questions()
        for (route, policy), have in list(self._open.items()):
            found = self._store.latest.get(policy)
            if found is None or found.version == have:
                continue
            if self._open.pop((route, policy), None) is not None:  # else the reader was gone at the answer before
                self._answer(route, encode("params", {"policy": policy, "version": found.version}, tuple(found.values)))

    def _take_questions(self) -> None:
        while True:
            try:
                route, *frames = [frame.bytes for frame in self._listener.receive(zmq.NOBLOCK)]
            except zmq.Again:
                return
            try:
                want = msgspec.convert(decode(frames, _QUESTION_LIMITS).fields, _Want)
            except (CodecError, msgspec.ValidationError):
                self._answer(route, encode("refused"))
                continue
            if 0 <= want.policy < _MAX_POLICIES:
                self._open[route, want.policy] = want.have

    def _answer(self, route: bytes, frames: list[Any]) -> None:
        try:
            self.socket.send_multipart([route, *outgoing(frames, self._keys)], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            for key in [key for key in self._open if key[0] == route]:
                del self._open[key]


class ZmqParamsPublisher:
    """The writing end of `tcp://HOST:PORT` and `ipc://PATH`: serves the latest params of each policy.

    The params are in this process: they stay readable until it closes this end.
    """

    def __init__(self, endpoint: str, *, keys: KeyPath = None):
        own_keys = keys_to_bind(endpoint, keys)
        self._store = LatestStore()
        self._schemas: dict[int, tuple[Leaf, ...]] = {}
        self._closed = False
        socket = zmq.Context().socket(zmq.ROUTER)
        configure(socket, 1 << 16)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._listener = Listener(socket, endpoint, own_keys)
        self.address = self._listener.address
        self._thread = _PublisherThread(socket, self._listener, self._store, own_keys)
        self._thread.start()

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        if self._closed:
            raise StreamClosed(f"the params publisher {self.address} is closed.")
        leaves = flatten_schema(list(values))
        compare_schemas(self._schemas.setdefault(policy, leaves), leaves, f"policy {policy}", "the new params")
        self._store.put(policy, version, [np.array(value) for value in values])
        self._thread.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.stop()
            self._listener.close(0)


class _SubscriberThread(_Thread):
    """Keeps one request open per policy that was polled, and stores the answers."""

    def __init__(self, socket: zmq.Socket, store: LatestStore, connection: ConnectionWatch, keys: object | None):
        super().__init__("params-subscriber", socket)
        self._store, self._connection, self._keys = store, connection, keys
        self.wanted: set[int] = set()
        self._asked: set[int] = set()
        self.failure: StreamError | None = None

    @property
    def there(self) -> bool:
        return self._connection.there

    def sources(self) -> list[zmq.Socket]:
        return [self.socket, self._connection.monitor]

    def patience_ms(self) -> int | None:
        return _RETRY_MS if self.wanted - self._asked else None

    def serve(self, ready: dict[Any, int]) -> None:
        if self._connection.monitor in ready:
            self._look()
        if self.socket in ready:
            frames = [frame.buffer for frame in self.socket.recv_multipart(copy=False)]
            try:
                self._take(decode(incoming(frames, self._keys, _MAX_MESSAGE_BYTES), _PARAMS_LIMITS))
            except CodecError as error:
                self.failure = error
        for policy in list(self.wanted - self._asked):
            found = self._store.latest.get(policy)
            self.ask(policy, -1 if found is None else found.version)

    def _look(self) -> None:
        try:
            self._connection.look()
        except AccessDenied as error:
            self.failure = error
        if self._connection.changed:
            self._connection.changed = False
            self._asked.clear()  # a request may have been lost with the connection: send it again

    def ask(self, policy: int, have: int) -> None:
        try:
            self.socket.send_multipart(encode("want", {"policy": policy, "have": have}), zmq.NOBLOCK)
        except zmq.Again:
            return  # not connected: requested again once it is
        self._asked.add(policy)

    def _take(self, message: Message) -> None:
        if message.kind != "params" or not isinstance(message.arrays, tuple):
            raise CodecError(
                f"expected params, found {message.kind[:40]!r}; do both ends run the same version of jsrl?"
            )
        try:
            params = msgspec.convert(message.fields, _Params)
        except msgspec.ValidationError as error:
            raise CodecError(f"params with wrong fields: {error}.") from error
        self._asked.discard(params.policy)
        self._store.put(params.policy, params.version, list(message.arrays))

    def stop(self) -> None:
        super().stop()
        self._connection.close()


class ZmqParamsSubscriber:
    """The reading end of `tcp://HOST:PORT` and `ipc://PATH`; a policy is fetched from its first poll or wait on.

    `silence_ms`: silence of the publisher after which the connection counts as lost and is made again.
    """

    def __init__(self, endpoint: str, *, keys: KeyPath | ClientKeys = None, silence_ms: int = SILENCE_MS):
        own_keys = keys_to_connect(keys)
        self.address = endpoint
        self._store = LatestStore()
        self._seen: dict[int, int] = {}
        self._closed = False
        self._context = zmq.Context()
        socket = self._context.socket(zmq.DEALER)
        configure(socket, _MAX_MESSAGE_BYTES, silence_ms=silence_ms)
        socket.setsockopt(zmq.ROUTING_ID, b"r" + uuid.uuid4().bytes)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._thread = _SubscriberThread(socket, self._store, connect(socket, endpoint, own_keys), own_keys)
        self._thread.start()

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        self._want(policy)
        return self._store.poll(policy, self._seen)

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        self._want(policy)
        self._store.wait(policy, min_updates, timeout_s, self.address, check=self._check)

    @property
    def there(self) -> bool:
        return self._thread.there

    def rest(self, timeout_s: float) -> None:
        """Wait until something new has arrived, for at most `timeout_s`."""
        with self._store.changed:
            self._store.changed.wait(timeout_s)

    def _want(self, policy: int) -> None:
        self._check()
        if policy not in self._thread.wanted:
            self._thread.wanted.add(policy)
            self._thread.wake()

    def _check(self) -> None:
        if self._closed:
            raise StreamClosed(f"the params subscriber {self.address} is closed.")
        if self._thread.failure is not None:
            raise self._thread.failure

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.stop()
            self._context.destroy(linger=0)
