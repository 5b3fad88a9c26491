"""Latest: params over ZeroMQ. A reader asks for a version newer than its own, with one request open for each policy.

    subscriber                                   publisher
    want(policy, have)      ->                   kept until there is a version other than `have`
                            <-                   params(policy, version, schema), with the bytes of the leaves

A thread of the reader keeps the requests open, so new params arrive at once and never queue up, and a slow reader skips
versions. A thread of the publisher answers; `publish` only stores the params and wakes it. A reader is not welcomed: the
publisher may start later, end, and restart.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from jsrl.errors import CodecError, StreamClosed, StreamError
from jsrl.transport.door.hello import Refused, raise_refusal, refusal
from jsrl.transport.door.keys import ClientKeys, KeyPath
from jsrl.transport.ends.params import LatestStore, StoreReader
from jsrl.transport.network.link import BindingLink, ConnectingLink
from jsrl.transport.network.sockets import SILENCE_MS
from jsrl.transport.network.thread import SocketThread
from jsrl.transport.wire.message import Message
from jsrl.transport.wire.schema import Leaf, compare_schemas, decode_schema, encode_schema, flatten_schema, make_layout

_MAX_BYTES = 1 << 33
_WANT_BYTES = 4096
_RETRY_MS = 20
_RECONNECT_MS = 1000

_Policy = Annotated[int, msgspec.Meta(ge=0, lt=1024)]


class Want(Message, tag="want"):
    """A request for params; `have`: the version that the reader has, -1: none."""

    policy: _Policy
    have: int


class Params(Message, tag="params"):
    """The newest params; schema: see encode_schema."""

    policy: _Policy
    version: int
    schema: msgspec.Raw


_WANTS = msgspec.msgpack.Decoder(Want)
_ANSWERS = msgspec.msgpack.Decoder(Params | Refused)


class _Published(NamedTuple):
    """Params of a policy, and the bytes of their leaves."""

    params: Params
    body: np.ndarray


class ZmqParamsPublisher:
    """The writing end of `tcp://HOST:PORT` and `ipc://PATH`: serves the latest params of each policy.

    The params are in this process: they stay readable until it closes this end.
    """

    def __init__(self, endpoint: str, *, keys: KeyPath = None):
        self._latest: dict[int, _Published] = {}
        self._schemas: dict[int, tuple[Leaf, ...]] = {}
        self._wanted: dict[tuple[bytes, int], int] = {}  # (route, policy) -> version that the reader has
        self._closed = False
        self._link = BindingLink(endpoint, keys, _WANTS, header_bytes=_WANT_BYTES)
        self.address = self._link.address
        self._thread = SocketThread("params-publisher", [self._link.socket], self._serve)

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        if self._closed:
            raise StreamClosed(f"the params publisher {self.address} is closed.")
        leaves = flatten_schema(list(values))
        compare_schemas(self._schemas.setdefault(policy, leaves), leaves, f"policy {policy}", "the new params")
        layout = make_layout(leaves)
        body = np.zeros(layout.size_bytes, np.uint8)
        for target, value in zip(layout.views(body), values, strict=True):
            target[...] = value
        params = Params(policy, version, msgspec.Raw(encode_schema(leaves)))
        self._latest[policy] = _Published(params, body)
        self._thread.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.stop()
            self._link.close(0)

    def _serve(self, ready: dict[Any, int]) -> None:
        while (received := self._link.receive()) is not None:
            try:
                want, _ = self._link.read(received)
                self._wanted[received.route, want.policy] = want.have
            except CodecError as error:
                self._link.send(received.route, refusal(error))
        for (route, policy), have in list(self._wanted.items()):
            found = self._latest.get(policy)
            if found is None or found.params.version == have:
                continue
            self._wanted.pop((route, policy), None)  # gone already: the reader was, at an answer before
            if not self._link.send(route, found.params, found.body):
                self._wanted = {key: have for key, have in self._wanted.items() if key[0] != route}


class ZmqParamsSubscriber(StoreReader):
    """The reading end of `tcp://HOST:PORT` and `ipc://PATH`; a policy is fetched from its first poll or wait on.

    `silence_ms`: silence of the publisher after which the connection counts as lost and is made again.
    """

    def __init__(self, endpoint: str, *, keys: KeyPath | ClientKeys = None, silence_ms: int = SILENCE_MS):
        super().__init__(endpoint, LatestStore())
        self._wanted: set[int] = set()
        self._asked: set[int] = set()  # of `_wanted`: with an open request
        self._failure: StreamError | None = None
        self._link = ConnectingLink(
            endpoint,
            keys,
            _ANSWERS,
            body_bytes=_MAX_BYTES,
            immediate=True,
            reconnect_ms=_RECONNECT_MS,
            silence_ms=silence_ms,
        )
        sockets = [self._link.socket, self._link.watch.monitor]
        self._thread = SocketThread("params-subscriber", sockets, self._serve, self._wait_ms)

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        self._want(policy)
        return super().poll(policy)

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        self._want(policy)
        super().wait(policy, min_updates, timeout_s)

    @property
    def there(self) -> bool:
        """Return whether there is a connection to the publisher."""
        return self._link.watch.there

    def rest(self, timeout_s: float) -> None:
        """Wait until something new has arrived, for at most `timeout_s`."""
        with self._store.changed:
            self._store.changed.wait(timeout_s)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.stop()
            self._link.close()

    def _want(self, policy: int) -> None:
        if policy not in self._wanted:
            self._wanted.add(policy)
            self._thread.wake()

    def _check(self) -> None:
        super()._check()
        if self._failure is not None:
            raise self._failure

    # -- the thread

    def _wait_ms(self) -> int | None:
        return _RETRY_MS if self._wanted - self._asked else None

    def _serve(self, ready: dict[Any, int]) -> None:
        watch = self._link.watch
        try:
            watch.poll()
            while (found := self._link.receive(0.0)) is not None:
                self._take(*found)
        except StreamError as error:
            self._failure = error
        if watch.changed:
            watch.changed = False
            self._asked.clear()  # a request may have been lost with the connection: send it again
        for policy in self._wanted - self._asked:
            latest = self._store.latest.get(policy)
            if self._link.send(Want(policy, -1 if latest is None else latest.version)):
                self._asked.add(policy)  # else there is no connection: requested again once there is one

    def _take(self, params: Params | Refused, body: memoryview) -> None:
        if isinstance(params, Refused):
            raise_refusal(params)
        layout = make_layout(decode_schema(params.schema))
        if len(body) != layout.size_bytes:
            raise CodecError(f"params of {len(body)} bytes, expected {layout.size_bytes}.")
        self._asked.discard(params.policy)
        self._store.put(params.policy, params.version, layout.views(body, writeable=False))
