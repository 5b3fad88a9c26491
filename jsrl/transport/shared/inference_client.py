"""The client end of the inference stream in shared memory (server and messages: see jsrl.transport.shared.inference)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from jsrl.errors import CodecError, ConfigError, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.door.hello import Check, Hello, Refused, hello_frames, raise_refusal
from jsrl.transport.door.unix_socket import connect_socket
from jsrl.transport.ends.area import AreaLayout, ClientArea
from jsrl.transport.ends.inference import ClientEnd, PolicyNotServed, unknown_policy
from jsrl.transport.shared.inference import ATTACHED, MAX_CONTROL_BYTES, REPLY, REQUEST, Welcome
from jsrl.transport.shared.segment import Segment
from jsrl.transport.wire.message import unpack
from jsrl.transport.wire.schema import flatten_schema

_ANSWERS = msgspec.msgpack.Decoder(Welcome | Refused)
_REFUSALS = msgspec.msgpack.Decoder(PolicyNotServed | Refused)


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
        if len(message) > MAX_CONTROL_BYTES:
            raise ConfigError(f"the hello of {self.identity.name} has {len(message)} bytes, over {MAX_CONTROL_BYTES}.")
        try:
            self._connection.send(message)
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            answer = self._connection.recv(MAX_CONTROL_BYTES)
        except TimeoutError:
            raise StreamTimeout(
                f"{self.address} accepted the connection but did not answer the hello within {timeout_s} s; "
                "the server is busy (compiling) or hangs: allow more time or look at its log."
            ) from None
        except OSError as error:
            raise StreamClosed(f"{self.address} left during the hello: {error.strerror}.") from None
        if not answer:
            raise StreamClosed(f"{self.address} left during the hello.")
        welcome, _ = unpack([answer], _ANSWERS, MAX_CONTROL_BYTES)
        if isinstance(welcome, Refused):
            raise_refusal(welcome)
        segment = Segment.attach(path.with_name(os.path.basename(welcome.segment)))
        self._connection.send(ATTACHED)
        return segment

    def send(self, group: int, request: Request) -> None:
        area = self._write(group, request)
        header = REQUEST.pack(group, request.min_updates, request.step, request.wants_core)
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
            message = self._connection.recv(MAX_CONTROL_BYTES)
        except (TimeoutError, BlockingIOError):
            raise self._nothing_came(timeout_s) from None
        except OSError as error:
            raise self._lost(f"the server is gone ({error.strerror or error})") from None
        if len(message) != REPLY.size:
            raise self._other(message)
        group, has_core = REPLY.unpack(message)
        area = self._areas[group]
        area.in_flight = False
        return group, area.read(has_core)

    def _other(self, message: bytes) -> StreamError:
        if not message:
            return self._lost("the server is gone (its process ended)")
        try:
            answer, _ = unpack([message], _REFUSALS, MAX_CONTROL_BYTES)
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
