"""How the two ends of a stream connect, on every transport: one sends its identity and schema, the other answers.

    hello(name, incarnation, groups, schema)    ->
                                                <-    welcome(what else the transport needs), or refused(error, text)

A refusal names the error that the connecting end raises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from jsrl.errors import CodecError, ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import ProducerId, remaining
from jsrl.transport.meeting.admission import HELLO, Check, Hello, HelloChecker
from jsrl.transport.meeting.answering import AnswerThread
from jsrl.transport.meeting.curve import ConnectionWatch, connect, outgoing
from jsrl.transport.meeting.sockets import bind, configure, send_if_possible
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.schema import schema_to_fields

WELCOME, REFUSED, PING = "welcome", "refused", "ping"
HELLO_LIMITS = Limits(header_bytes=1 << 20, frames=1, message_bytes=1 << 20)  # for messages to the connecting end
_HELLO_BYTES = 1 << 15  # for a foreign schema, whose first difference is reported
_GROUP_BYTES = 16
_SLICE_S = 0.1  # between checks of the connection
_ERRORS: dict[str, type[JsrlError]] = {
    kind.__name__: kind for kind in (SpecMismatch, StreamClosed, ConfigError, CodecError, StreamError)
}


def hello_frames(hello: Hello) -> list[Any]:
    """Return the message with a hello."""
    sender, groups = hello.sender, [list(pair) for pair in hello.groups.items()]
    fields = {"name": sender.name, "incarnation": sender.incarnation, "groups": groups}
    return encode(HELLO, fields | {"schema": schema_to_fields(hello.schema)})


def hello_limits(checker: HelloChecker) -> Limits:
    """Return the limits of a hello to a binding end."""
    (own,) = hello_frames(Hello(ProducerId("x" * 64, 0), {}, checker.schema))
    size_bytes = max(_HELLO_BYTES, 2 * len(own)) + _GROUP_BYTES * checker.admission.rules.num_groups
    return Limits(header_bytes=size_bytes, frames=1, message_bytes=size_bytes)


def refusal_frames(error: JsrlError) -> list[Any]:
    """Return the message that makes the other side raise `error`."""
    kind = type(error).__name__
    return encode(REFUSED, {"error": kind if kind in _ERRORS else "StreamError", "text": str(error)[:4000]})


def raise_refusal(message: Message) -> None:
    """Raise the error in a refusal, of the class that the other side named."""
    kind = _ERRORS.get(str(message.fields.get("error")), StreamError)
    raise kind(str(message.fields.get("text", "refused without a reason")))


def read_answer(frames: Sequence[Any]) -> Message:
    """Return the welcome to a hello."""
    message = decode(frames, HELLO_LIMITS)
    if message.kind == REFUSED:
        raise_refusal(message)
    if message.kind != WELCOME:
        raise CodecError(f"expected a welcome, found {message.kind[:40]!r}.")
    return message


def meet(
    socket: zmq.Socket,
    hello: Hello,
    connection: ConnectionWatch,
    timeout_s: float,
    again_s: float = math.inf,
    check: Check = lambda: None,
) -> Message:
    """Send a hello over a connecting socket, and return the welcome.

    Args:
      connection: of the socket. again_s: interval for repeating the hello, if it or its answer may be lost.
      check: called periodically during the wait.

    Raises:
      StreamTimeout: no answer in time. AccessDenied: the keys are missing, or another run's. Others: why it was refused,
        and what `check` raises.
    """
    frames = outgoing(hello_frames(hello), connection.keys)
    deadline, due_s = time.monotonic() + timeout_s, 0.0
    while True:
        now_s = time.monotonic()
        if now_s >= due_s:
            send_if_possible(socket, frames)  # else the connection was refused, and `look` raises the reason
            due_s = now_s + again_s
        if socket.poll(math.ceil(1000 * min(remaining(deadline), _SLICE_S))):
            answer = socket.recv_multipart()
            if answer != _PING_FRAMES:
                return read_answer(answer)
            continue
        connection.look()
        if connection.broken:  # with the hello, or its answer
            connection.broken, due_s = False, 0.0
        check()
        if remaining(deadline) <= 0:
            raise connection.no_answer(timeout_s)


_PING_FRAMES = encode(PING)


def meet_at(endpoint: str, hello: Hello, timeout_s: float, check: Check = lambda: None) -> Message:
    """Send a hello over a separate connection, without keys, and return the welcome; see `meet`."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        configure(socket, HELLO_LIMITS.message_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        return meet(socket, hello, connect(socket, endpoint, None), timeout_s, check=check)
    finally:
        context.destroy(linger=0)


class HelloResponder:
    """A thread that answers hellos at an endpoint, so that producers can join while the consumer is busy."""

    def __init__(self, endpoint: str, answer: Callable[[Message], list[Any]], limits: Limits) -> None:
        self._answer, self._limits = answer, limits
        self._context = zmq.Context()
        socket = self._context.socket(zmq.ROUTER)
        configure(socket, limits.message_bytes)
        socket.setsockopt(zmq.LINGER, 200)
        bind(socket, endpoint)
        self._answering = AnswerThread(socket, self._answer_hello, "sample-hellos")

    def _answer_hello(self, frames: list[bytes]) -> list[Any]:
        sender, *hello = frames
        try:
            answer = self._answer(decode(hello, self._limits))
        except JsrlError as error:
            answer = refusal_frames(error)
        except OSError as error:  # no descriptor, no memory: the next one may get some
            answer = refusal_frames(StreamError(f"the consumer cannot admit another producer now: {error}"))
        return [sender, *answer]

    def close(self) -> None:
        self._answering.close()
        self._context.destroy(linger=200)
