"""The client end of the inference stream over ZeroMQ (server and messages: see jsrl.transport.inference.zmq)."""

from __future__ import annotations

import math
import time
import uuid

import numpy as np
import zmq

from jsrl.errors import AccessDenied, CodecError
from jsrl.transport.base import InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.inference.area import AreaLayout, ClientArea
from jsrl.transport.inference.ends import (
    UNSERVED,
    ClientEnd,
    PolicyNotServed,
    read_fields,
    unknown_policy,
)
from jsrl.transport.inference.packing import RequestPacker
from jsrl.transport.inference.zmq import (
    LINGER_MS,
    MAX_MESSAGE_BYTES,
    ClientBuffer,
    ReplyFields,
    array_of,
)
from jsrl.transport.meeting.admission import Check, Hello
from jsrl.transport.meeting.curve import connect, incoming, keys_to_connect, outgoing
from jsrl.transport.meeting.handshake import HELLO_LIMITS, PING, REFUSED, meet, raise_refusal
from jsrl.transport.meeting.keys import ClientKeys, KeyPath
from jsrl.transport.meeting.sockets import configure, send_if_possible
from jsrl.transport.wire.codec import Limits, decode, encode
from jsrl.transport.wire.packing import read_packing
from jsrl.transport.wire.schema import flatten_schema

_SLICE_S = 0.1


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
        self._keys = own_keys = keys_to_connect(keys)
        self.address = endpoint
        self._layout = AreaLayout(spec, group_sizes)
        self._buffer = ClientBuffer(self._layout)
        self._areas = {group: ClientArea(self._layout, group, self._buffer.memory) for group in group_sizes}
        self._limits = Limits(HELLO_LIMITS.header_bytes, frames=2, message_bytes=MAX_MESSAGE_BYTES)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        try:
            configure(self._socket, MAX_MESSAGE_BYTES)
            self._socket.setsockopt(zmq.ROUTING_ID, b"c" + uuid.uuid4().bytes)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
            self._connection = connect(self._socket, endpoint, own_keys)
            hello = Hello(client, group_sizes, flatten_schema(spec))
            welcome = meet(self._socket, hello, self._connection, timeout_s, check=check)
            packing = read_packing(welcome.fields.get("packing"))
            self._packers = {group: RequestPacker(spec, rows, packing) for group, rows in group_sizes.items()}
        except BaseException:
            self._shut()
            raise

    def send(self, group: int, request: Request) -> None:
        area = self._write(group, request)
        fields = {
            "incarnation": self.identity.incarnation,
            "group": group,
            "min_updates": int(request.min_updates),
            "step": int(request.step),
            "wants_core": bool(request.wants_core),
        }
        packed, question = self._packers[group].pack(self._buffer.questions[group], request.step)
        frames = encode("request", fields | packed, (question,))
        try:
            self._socket.send_multipart(outgoing(frames, self._keys), zmq.NOBLOCK, copy=False)
        except zmq.Again:  # requests are too few to fill the queue: a server there refused to connect again
            self._close("the connection to the server broke, and it was not accepted again")
            self._check_open()
        area.in_flight = True

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if self._socket.poll(max(0, math.ceil(min(left_s, _SLICE_S) * 1000))):
                found = self._read_one()
                if found is not None:
                    return found
            elif self._is_broken():
                self._close("the connection to the server broke")
                self._check_open()
            elif left_s <= 0:
                raise self._nothing_came(timeout_s)

    def _is_broken(self) -> bool:
        try:
            self._connection.look()
        except AccessDenied:
            return True  # another server is there now
        return self._connection.broken

    def _read_one(self) -> tuple[int, Reply] | None:
        frames = [frame.buffer for frame in self._socket.recv_multipart(copy=False)]
        message = decode(incoming(frames, self._keys, self._limits.message_bytes), self._limits)
        if message.kind == PING:
            return None
        if message.kind == REFUSED:
            self._close(str(message.fields.get("text")))
            raise_refusal(message)
        answered: ReplyFields | PolicyNotServed = read_fields(
            message, PolicyNotServed if message.kind == UNSERVED else ReplyFields
        )
        area = self._areas.get(answered.group)
        if message.kind not in ("reply", UNSERVED) or area is None or not area.in_flight:
            raise CodecError(
                f"{self.address} sent {message.kind[:40]!r} for group {answered.group}, which has sent no request."
            )
        if isinstance(answered, PolicyNotServed):
            area.in_flight = False
            raise unknown_policy(self.address, answered)
        target, answer = self._buffer.answers[answered.group, answered.has_core], array_of(message)
        if answer.shape != target.shape or answer.dtype != np.uint8:
            raise CodecError(f"a reply of {answer.nbytes} bytes, expected {target.nbytes}.")
        target[...] = answer
        area.in_flight = False
        return answered.group, area.read(answered.has_core)

    def _close(self, reason: str) -> None:
        if self._closed_because is None:
            self._closed_because = reason
            self._shut()

    def _shut(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=LINGER_MS if self._closed_because is not None else 0)

    def close(self) -> None:
        if self._closed_because is None:
            send_if_possible(self._socket, encode("bye", {"incarnation": self.identity.incarnation}))
            self._close("this client closed it")
