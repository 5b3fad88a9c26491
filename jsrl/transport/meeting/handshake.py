"""Meeting over ZeroMQ: a producer says who it is and what its arrays look like, the consumer welcomes or refuses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq

from jsrl.errors import CodecError, ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import ProducerId
from jsrl.transport.meeting.answering import Answering
from jsrl.transport.meeting.sockets import bind, configure
from jsrl.transport.samples.ends import Admissions
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.schema import Leaf, schema_from_fields, schema_to_fields

HELLO, WELCOME, REFUSED = "hello", "welcome", "refused"
HELLO_LIMITS = Limits(header_bytes=1 << 20, frames=1, message_bytes=1 << 20)  # of what the end that connects is told
_HELLO_BYTES = 1 << 15  # for a schema that is not ours, which is told by its first difference
_GROUP_BYTES = 16
_ERRORS: dict[str, type[JsrlError]] = {
    kind.__name__: kind for kind in (SpecMismatch, StreamClosed, ConfigError, CodecError, StreamError)
}


def hello_frames(producer: ProducerId, leaves: tuple[Leaf, ...], num_groups: int) -> list[Any]:
    """Return the first message of a producer."""
    fields = {
        "name": producer.name,
        "incarnation": producer.incarnation,
        "num_groups": num_groups,
        "schema": schema_to_fields(leaves),
    }
    return encode(HELLO, fields)


def hello_limits(leaves: tuple[Leaf, ...], num_groups: int = 0) -> Limits:
    """Return how large a hello may be at an end with this schema, where it names up to `num_groups` groups."""
    (own,) = hello_frames(ProducerId("x" * 64, 0), leaves, 0)
    size_bytes = max(_HELLO_BYTES, 2 * len(own)) + _GROUP_BYTES * num_groups
    return Limits(header_bytes=size_bytes, frames=1, message_bytes=size_bytes)


def read_hello(message: Message, admissions: Admissions) -> tuple[ProducerId, tuple[Leaf, ...], int]:
    """Return who speaks, its schema and its number of groups, once it is seen that these may join.

    Raises:
      CodecError: it is not a hello. ConfigError, StreamClosed: who speaks may not join this stream.
    """
    fields = message.fields
    name, incarnation, num_groups = fields.get("name"), fields.get("incarnation"), fields.get("num_groups")
    if message.kind != HELLO or not isinstance(name, str) or not isinstance(incarnation, int):
        raise CodecError(f"expected a hello, found {message.kind[:40]!r} with {sorted(fields)[:8]}.")
    if not isinstance(num_groups, int):
        raise CodecError(f"the hello of {name[:80]!r} gives no number of groups.")
    producer = ProducerId(name, incarnation)
    admissions.check(producer, num_groups)
    return producer, schema_from_fields(fields.get("schema")), num_groups


def refusal_frames(error: JsrlError) -> list[Any]:
    """Return the message that has the other side raise `error`."""
    kind = type(error).__name__
    return encode(REFUSED, {"error": kind if kind in _ERRORS else "StreamError", "text": str(error)[:4000]})


def raise_refusal(message: Message) -> None:
    """Raise what a refusal carries.

    Raises:
      SpecMismatch, StreamClosed, ConfigError, StreamError: as the other side said.
    """
    kind = _ERRORS.get(str(message.fields.get("error")), StreamError)
    raise kind(str(message.fields.get("text", "refused without a reason")))


def check_welcome(message: Message) -> Message:
    """Return a welcome as it is.

    Raises:
      JsrlError: it is a refusal, or neither.
    """
    if message.kind == REFUSED:
        raise_refusal(message)
    if message.kind != WELCOME:
        raise CodecError(f"expected a welcome, found {message.kind[:40]!r}.")
    return message


def say_hello(endpoint: str, frames: list[Any], timeout_s: float) -> Message:
    """Send a hello over a connection of its own and return the welcome.

    Raises:
      StreamTimeout: no answer in time. Other errors: the reason why the consumer refused.
    """
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        configure(socket, HELLO_LIMITS.message_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.connect(endpoint)
        socket.send_multipart(frames)
        if not socket.poll(max(0, int(timeout_s * 1000))):
            raise no_answer(endpoint, timeout_s)
        return check_welcome(decode(socket.recv_multipart(), HELLO_LIMITS))
    finally:
        context.destroy(linger=0)


def no_answer(endpoint: str, timeout_s: float) -> StreamTimeout:
    """Return the error for an unanswered hello."""
    return StreamTimeout(
        f"nobody answered at {endpoint} within {timeout_s:g} s: is the consumer running, is the address right?"
    )


class HelloResponder:
    """A thread that answers hellos at an endpoint, so that producers can join while the consumer is busy."""

    def __init__(self, endpoint: str, answer: Callable[[Message], list[Any]], limits: Limits = HELLO_LIMITS):
        self._answer, self._limits = answer, limits
        self._context = zmq.Context()
        socket = self._context.socket(zmq.ROUTER)
        configure(socket, limits.message_bytes)
        socket.setsockopt(zmq.LINGER, 200)
        bind(socket, endpoint)
        self._answering = Answering(socket, self._answer_hello, "sample-greeter")

    def _answer_hello(self, frames: list[bytes]) -> list[Any]:
        sender, *hello = frames
        try:
            answer = self._answer(decode(hello, self._limits))
        except JsrlError as error:
            answer = refusal_frames(error)
        except OSError as error:  # no descriptor, no memory: the next one may find some
            answer = refusal_frames(StreamError(f"the consumer cannot take another producer now: {error}"))
        return [sender, *answer]

    def close(self) -> None:
        """Stop answering."""
        self._answering.close()
        self._context.destroy(linger=200)


def remaining(deadline: float) -> float:
    """Return the seconds left until a `time.monotonic()` deadline, not below 0."""
    return max(0.0, deadline - time.monotonic())
