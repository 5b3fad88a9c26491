"""The inference stream inside one process: serial mode, notebooks, tests. Usable from one thread or from several."""

from __future__ import annotations

import queue
import threading
import time
from typing import NamedTuple, TypeAlias

from jsrl.errors import ConfigError, SpecMismatch, StreamClosed, StreamTimeout
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.door.hello import ANYBODY, Check, Hello, HelloChecker, JoinRules
from jsrl.transport.ends.area import AreaLayout, ClientArea, ServerArea
from jsrl.transport.ends.inference import ClientEnd, PolicyNotServed, ServerEnd, unknown_policy
from jsrl.transport.wire.schema import flatten_schema

_servers: dict[str, LocalInferenceServer] = {}
_servers_lock = threading.Lock()


class _Reply(NamedTuple):
    group: int
    has_core: bool


class _LocalClient:
    def __init__(self, client: LocalInferenceClient, areas: dict[int, ServerArea]):
        self.client = client.identity
        self.areas = areas
        self._end = client

    def answer(self, request: ClientRequest, reply: Reply) -> bool:
        wants_core = request.request.wants_core
        self.areas[request.group].write(reply, wants_core)
        self._end.inbox.put(_Reply(request.group, wants_core))
        return True

    def refuse(self, request: ClientRequest, unserved: PolicyNotServed) -> bool:
        self.areas[request.group].refuse()
        self._end.inbox.put(unserved)
        return True

    def disconnect(self, reason: str) -> None:
        self._end.inbox.put(reason)


_Event: TypeAlias = (
    tuple[_LocalClient, int, Request] | _LocalClient | SpecMismatch
)  # request, departure, rejected client


class LocalInferenceServer(ServerEnd):
    """The server end of `local:NAME`."""

    def __init__(self, name: str, spec: InferenceSpec, join_rules: JoinRules = ANYBODY):
        self.hello_checker = HelloChecker("the inference server", flatten_schema(spec), join_rules)
        super().__init__(self.hello_checker.admission)
        self.spec = spec
        self.name = name
        self.address = f"local:{self.name}"
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        with _servers_lock:
            if self.name in _servers:
                raise ConfigError(f"{self.address} is bound already in this process; close it or choose another name.")
            _servers[self.name] = self

    def admit(self, client: LocalInferenceClient, areas: dict[int, ServerArea]) -> _LocalClient:
        peer = _LocalClient(client, areas)
        with self._lock:
            if self._closed:
                raise StreamClosed(f"the inference server {self.address} is closed.")
            self._admission.check_incarnation(client.identity)
            self._admit(peer)
        return peer

    def announce(self, peer: _LocalClient, group: int, request: Request) -> None:
        """Queue a request whose arrays are in the group's area."""
        if self._closed:
            raise StreamClosed(f"the inference server {self.address} is closed.")
        self._events.put((peer, group, request))

    def complain(self, mismatch: SpecMismatch) -> None:
        """Note that a client with another schema was rejected."""
        self._events.put(mismatch)

    def leave(self, peer: _LocalClient) -> None:
        self._events.put(peer)

    def _gather(self, max_wait_s: float) -> None:
        try:
            event = self._events.get(timeout=max_wait_s) if max_wait_s > 0 else self._events.get_nowait()
            while True:
                self._handle(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _handle(self, event: _Event) -> None:
        with self._lock:
            if isinstance(event, _LocalClient):
                self._drop(event, "it left")
                return
            if isinstance(event, SpecMismatch):
                self._complaints.append(event)
                return
            peer, group, asked = event
            if self._peers.get(peer.client.name) is peer:
                area = peer.areas[group]
                self._ready.append(area.read(asked.min_updates, asked.step, asked.wants_core))

    def _shut(self) -> None:
        with _servers_lock:
            if _servers.get(self.name) is self:
                del _servers[self.name]


class LocalInferenceClient(ClientEnd):
    """The client end of `local:NAME`."""

    def __init__(
        self, server: LocalInferenceServer, spec: InferenceSpec, client: ProducerId, group_sizes: dict[int, int]
    ):
        try:
            server.hello_checker.check(Hello(client, group_sizes, flatten_schema(spec)))
        except SpecMismatch as error:
            server.complain(error)
            raise
        super().__init__(client)
        self.address = server.address
        self.inbox: queue.SimpleQueue[_Reply | PolicyNotServed | str] = queue.SimpleQueue()
        layout = AreaLayout(spec, group_sizes)
        buffer = bytearray(layout.size_bytes)
        self._areas = {group: ClientArea(layout, group, buffer) for group in layout.group_sizes}
        self._server = server
        answering = {group: ServerArea(layout, client, group, buffer) for group in layout.group_sizes}
        self._peer = server.admit(self, answering)

    def send(self, group: int, request: Request) -> None:
        area = self._write(group, request)
        self._server.announce(self._peer, group, request)
        area.in_flight = True

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        self._check_open()
        try:
            arrived = self.inbox.get(timeout=timeout_s) if timeout_s > 0 else self.inbox.get_nowait()
        except queue.Empty:
            raise self._nothing_came(timeout_s) from None
        if isinstance(arrived, str):
            self._closed_because = arrived
            raise self._closed()
        area = self._areas[arrived.group]
        area.in_flight = False
        if isinstance(arrived, PolicyNotServed):
            raise unknown_policy(self._server.address, arrived)
        return arrived.group, area.read(arrived.has_core)

    def close(self) -> None:
        if self._closed_because is None:
            self._server.leave(self._peer)
        self._closed_because = "this client closed it"


def connect_local(
    name: str,
    spec: InferenceSpec,
    client: ProducerId,
    group_sizes: dict[int, int],
    timeout_s: float,
    check: Check = lambda: None,
) -> LocalInferenceClient:
    """Connect to `local:NAME`, waiting for another thread to bind it. No process is replaced here: `check` is not called."""
    deadline = time.monotonic() + timeout_s
    while True:
        with _servers_lock:
            server = _servers.get(name)
        if server is not None:
            return LocalInferenceClient(server, spec, client, group_sizes)
        if time.monotonic() >= deadline:
            raise StreamTimeout(f"local:{name} was not bound in this process within {timeout_s} s.")
        time.sleep(0.005)
