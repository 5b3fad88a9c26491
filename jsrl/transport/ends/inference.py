"""The part of an inference stream's ends that all transports share: connected clients, waiting requests, departures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from jsrl.errors import (
    CodecError,
    ConfigError,
    JsrlError,
    SpecMismatch,
    StreamClosed,
    StreamError,
    StreamTimeout,
    UnknownPolicy,
)
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.door.hello import Door, Hello, JoinRules
from jsrl.transport.ends.area import AreaLayout, ClientArea, ServerArea
from jsrl.transport.wire.message import Count, Message
from jsrl.transport.wire.schema import flatten_schema
from jsrl.types import Array


class PolicyNotServed(Message, tag="unserved"):
    """The reply to a request that this server cannot serve.

    Attributes:
      policies: the requested ones that it does not serve. served: those it does, as text. problem: another reason for the
        refusal, else empty.
    """

    group: Count
    policies: list[int]
    served: list[str]
    problem: str = ""


class ConnectedClient:
    """A client connected to an inference server; a transport says how answers and refusals are sent.

    Args:
      memory: of its areas.
    """

    def __init__(self, client: ProducerId, layout: AreaLayout, memory: Any) -> None:
        self.client = client
        self.areas = {group: ServerArea(layout, client, group, memory) for group in layout.group_sizes}

    def _send_answer(self, group: int, has_core: bool) -> bool:
        raise NotImplementedError

    def _send(self, message: Message) -> bool:
        raise NotImplementedError

    def answer(self, request: ClientRequest, reply: Reply) -> bool:
        """Send a reply; return False if the client is gone."""
        group, wants_core = request.group, request.request.wants_core
        self.areas[group].write(reply, wants_core)
        return self._send_answer(group, wants_core)

    def refuse(self, request: ClientRequest, unserved: PolicyNotServed) -> bool:
        """Send a refusal instead of a reply; return False if the client is gone."""
        self.areas[request.group].refuse()
        return self._send(unserved)


class ServerEnd:
    """The part of an InferenceServer that all transports share: admission, fencing, queueing, departures.

    A transport implements `_gather` (process arrivals), `_disconnect` and `_shut`, and sets `address` and `waitable`.

    Args:
      max_bytes: limit of a client's areas.
    """

    address: str
    waitable: Any = None

    def __init__(self, spec: InferenceSpec, join_rules: JoinRules, max_bytes: int) -> None:
        self.spec, self._max_bytes = spec, max_bytes
        self.door = Door("the inference server", flatten_schema(spec), join_rules)
        self._ready: deque[ClientRequest] = deque()
        self._departed: list[ProducerId] = []
        self._peers: dict[str, ConnectedClient] = {}
        self._complaints: deque[SpecMismatch] = deque()
        self._closed = False

    def _layout_of(self, hello: Hello) -> AreaLayout:
        """Return the layout of a new client's areas, which may join."""
        self.door.check_incarnation(hello.sender)
        layout = AreaLayout(self.spec, hello.groups)
        if layout.size_bytes > self._max_bytes:
            raise ConfigError(
                f"the groups of {hello.sender.name} take {layout.size_bytes} bytes, at most {self._max_bytes} are possible; "
                "use smaller groups."
            )
        return layout

    def _gather(self, max_wait_s: float) -> None:
        """Process everything that has arrived; wait up to `max_wait_s` for the first event."""
        raise NotImplementedError

    def _disconnect(self, peer: Any, reason: str) -> None:
        """Tell a client that the connection ends, and free its memory."""
        raise NotImplementedError

    def _shut(self) -> None:
        """Free the transport's resources, after every client was disconnected."""
        raise NotImplementedError

    def collect(self, max_rows: int, max_wait_s: float) -> list[ClientRequest]:
        """Return requests as InferenceServer says; check `departed` before acting.

        Raises:
          SpecMismatch: a client with another schema tried to connect (it was rejected with the reason; the server stays
            usable).
        """
        if self._closed:
            raise StreamClosed(f"the inference server {self.address} is closed.")
        deadline = time.monotonic() + max_wait_s
        self._gather(0.0 if self._ready else max_wait_s)
        while not self._ready and not self._complaints and (left_s := deadline - time.monotonic()) > 0:
            self._gather(left_s)
        if self._complaints:
            raise self._complaints.popleft()
        taken: list[ClientRequest] = []
        rows, ready = 0, self._ready
        while ready:
            rows += len(ready[0].request.is_first)
            if taken and rows > max_rows:
                break
            taken.append(ready.popleft())
        return taken

    def reply(self, request: ClientRequest, reply: Reply) -> None:
        """Answer one request; an answer to a client that left is dropped."""
        peer = self._peer_of(request)
        if peer is not None and not peer.answer(request, reply):
            self._drop(peer, "its connection broke")

    def refuse(self, request: ClientRequest, served: Mapping[int, str], problem: str = "") -> None:
        peer = self._peer_of(request)
        refusal = unserved(request.group, request.request.policy, served, problem)
        if peer is not None and not peer.refuse(request, refusal):
            self._drop(peer, "its connection broke")

    def _peer_of(self, request: ClientRequest) -> ConnectedClient | None:
        """Return the client that waits for the answer; None: it has left, and may have come back with other requests."""
        if self._closed:
            raise StreamClosed(f"the inference server {self.address} is closed.")
        peer = self._peers.get(request.client.name)
        area = None if peer is None else peer.areas.get(request.group)
        return peer if area is not None and area.asked is request.request else None

    def departed(self, poll: bool = True) -> list[ProducerId]:
        if poll and not self._closed:
            self._gather(0.0)
        departed, self._departed = self._departed, []
        return departed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._peers.values()):
            self._disconnect(peer, "the server closed")
        self._peers.clear()
        self._ready.clear()
        self._shut()

    def _admit(self, peer: ConnectedClient) -> None:
        """Admit a client; an older incarnation of it is fenced."""
        older = self._peers.get(peer.client.name)
        if older is not None:
            self._drop(older, f"it was replaced by incarnation {peer.client.incarnation}")
        self._peers[peer.client.name] = peer
        self.door.admit(peer.client)

    def _drop(self, peer: ConnectedClient, reason: str) -> None:
        """Forget a client and its requests that were not collected yet."""
        if self._peers.get(peer.client.name) is not peer:
            return
        del self._peers[peer.client.name]
        self.door.leave(peer.client)
        self._departed.append(peer.client)
        self._ready = deque(request for request in self._ready if request.client != peer.client)
        self._disconnect(peer, reason)


class ClientEnd:
    """The part of an InferenceClient that all transports share: which groups may send, and the errors of waits.

    Attributes:
      identity: the client's name and incarnation.
    """

    address: str

    def __init__(self, client: ProducerId) -> None:
        self.identity = client
        self._areas: dict[int, ClientArea] = {}
        self._closed_because: str | None = None

    def _write(self, group: int, request: Request) -> ClientArea:
        """Write a request into its group's area; mark the area as in flight once the request is sent."""
        area = self._areas.get(group)
        if area is None or area.in_flight or self._closed_because is not None:
            raise self._cannot_send(group)
        check_request(request)
        area.write(request)
        return area

    def _cannot_send(self, group: int) -> JsrlError:
        self._check_open()
        name = self.identity.name
        if group not in self._areas:
            return ConfigError(f"group {group} was not declared by {name}; it declared {sorted(self._areas)}.")
        return StreamError(
            f"group {group} of {name} already waits for a reply; receive it before the next send (one in flight)."
        )

    def _answered(self, group: int) -> ClientArea:
        """Return the area of a group that was answered, or refused."""
        area = self._areas.get(group)
        if area is None or not area.in_flight:
            raise CodecError(f"{self.address} answered group {group}, which has sent no request.")
        area.in_flight = False
        return area

    def _unserved(self, answer: PolicyNotServed) -> UnknownPolicy:
        self._answered(answer.group)
        return unknown_policy(self.address, answer)

    def _check_open(self) -> None:
        if self._closed_because is not None:
            raise self._closed()

    def _closed(self) -> StreamClosed:
        return StreamClosed(f"the inference stream {self.address} is closed: {self._closed_because}.")

    def _nothing_came(self, timeout_s: float) -> StreamTimeout:
        waiting = [group for group, area in self._areas.items() if area.in_flight]
        return StreamTimeout(f"{self.address} answered nothing in {timeout_s} s (groups in flight: {waiting}).")


def unserved(group: int, policy: Array | int, served: Mapping[int, str], problem: str = "") -> PolicyNotServed:
    """Return the refusal of a group's request by a server of these policies (number -> name)."""
    asked = {int(number) for number in np.unique(policy)}
    names = [f"{number} ({name})" for number, name in sorted(served.items())]
    return PolicyNotServed(group, sorted(asked - served.keys()), names, problem[:1000])


def refused(
    server: str, group: int, policy: Array | int, served: Mapping[int, str], problem: str = ""
) -> UnknownPolicy:
    """Return the error of a group's request that cannot be served; see `unserved`."""
    return unknown_policy(server, unserved(group, policy, served, problem))


def unknown_policy(server: str, unserved: PolicyNotServed) -> UnknownPolicy:
    if unserved.problem:
        return UnknownPolicy(f"group {unserved.group} asked {server} for something it cannot serve: {unserved.problem}")
    asked = ", ".join(map(str, unserved.policies))
    return UnknownPolicy(
        f"group {unserved.group} asked {server} for policy {asked}; it serves {', '.join(unserved.served)}. Ask for "
        "one of these, or connect to a server that has that policy."
    )


def check_request(request: Request) -> None:
    policy = request.policy
    policy_travels = not isinstance(policy, int) or 0 <= policy < 2**31  # an array is checked by the stream's schema
    if not (-1 <= request.min_updates < 2**62 and 0 <= request.step < 2**62 and policy_travels):
        raise StreamError(
            f"a request with min_updates {request.min_updates}, step {request.step}, policy {request.policy}: "
            "expected min_updates >= -1, step >= 0 and policy >= 0."
        )
