"""A link: the ZeroMQ sockets at the two ends of a stream, with keys, limits of messages, and the end of a connection.

A binding link has many senders, each with a route; a connecting link has one peer, and connects again by itself.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from jsrl.transport.base import remaining
from jsrl.transport.door.hello import Check, Hello, Refused, hello_frames, raise_refusal
from jsrl.transport.door.keys import ClientKeys, KeyPath
from jsrl.transport.network.curve import Listener, connect, incoming, keys_to_bind, keys_to_connect, outgoing
from jsrl.transport.network.sockets import MAX_WAITING, SILENCE_MS, configure
from jsrl.transport.wire.message import SMALL_BYTES, Message, pack, unpack

_ANSWER_BYTES = 1 << 20  # of a header to a connecting end: the schema of params may be long
_SLICE_S = 0.1  # between checks of a connection that is being made
_RECONNECT_MS = 20


class Received(NamedTuple):
    """A message at a binding link, not decoded yet."""

    route: bytes  # of its sender
    frames: list[zmq.Frame]


class BindingLink:
    """The end that others connect to.

    Args:
      decoder: msgspec decoder of the messages that may come. header_bytes, body_bytes: their limits.
      buffer_bytes: of the kernel for each connection, each way; 0: the kernel's default.

    Attributes:
      socket: for pollers. keys: None on an unencrypted link.
    """

    def __init__(
        self,
        endpoint: str,
        keys: KeyPath,
        decoder: Any,
        *,
        header_bytes: int,
        body_bytes: int = 0,
        buffer_bytes: int = 0,
    ) -> None:
        self.keys = keys_to_bind(endpoint, keys)
        self._decoder, self._header_bytes, self._max_bytes = decoder, header_bytes, header_bytes + body_bytes
        self.socket = zmq.Context().socket(zmq.ROUTER)
        configure(self.socket, self._max_bytes, buffer_bytes=buffer_bytes)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._listener = Listener(self.socket, endpoint, self.keys)
        self.address = self._listener.address

    @property
    def refused(self) -> int:
        """Return how many connections were refused for their keys."""
        return self._listener.refused

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message; return whether there is one."""
        return bool(self.socket.poll(math.ceil(1000 * timeout_s)))

    def receive(self) -> Received | None:
        """Return the next message that has arrived; None: there is none."""
        try:
            return Received(*self._listener.receive(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def read(self, received: Received) -> tuple[Any, memoryview]:
        """Return (message, body).

        Raises:
          CodecError: it is none of the stream's messages.
        """
        frames = incoming([frame.buffer for frame in received.frames], self.keys, self._max_bytes)
        return unpack(frames, self._decoder, self._header_bytes)

    def speaks_for(self, received: Received, worker: str) -> bool:
        """Return whether the key of a message's sender may use the name of a worker."""
        return self._listener.speaks_for(received.frames[-1], worker)

    def send(self, route: bytes, message: Message, body: Any = b"", *, may_drop: bool = False) -> bool:
        """Send a message without waiting; return False if its receiver is gone, or reads too slowly.

        Args:
          may_drop: drop the message if its receiver reads too slowly, and return True.
        """
        try:
            self.socket.send(route, zmq.NOBLOCK | zmq.SNDMORE)
            return _send(self.socket, outgoing(pack(message, body), self.keys))
        except zmq.Again:
            return may_drop
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    def close(self, linger_ms: int) -> None:
        """Close; messages are sent for at most `linger_ms`."""
        if not self.socket.closed:
            self._listener.close(linger_ms)


class ConnectingLink:
    """The end that connects, and connects again when its connection is lost; messages may be lost with it.

    Args:
      decoder, body_bytes: as in BindingLink. max_waiting: messages that may wait each way; 0: no limit. immediate: send only
        while there is a connection. reconnect_ms: longest time between attempts to connect; 0: always a short one.
      silence_ms: silence of the other end after which the connection counts as lost.

    Attributes:
      socket: for pollers. watch: of its connection.
    """

    def __init__(
        self,
        endpoint: str,
        keys: KeyPath | ClientKeys,
        decoder: Any,
        *,
        body_bytes: int = 0,
        buffer_bytes: int = 0,
        max_waiting: int = MAX_WAITING,
        immediate: bool = False,
        reconnect_ms: int = 0,
        silence_ms: int = SILENCE_MS,
    ) -> None:
        self.keys = keys_to_connect(keys)
        self.address = endpoint
        self._decoder, self._max_bytes = decoder, _ANSWER_BYTES + body_bytes
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        limits = {"max_waiting": max_waiting, "buffer_bytes": buffer_bytes, "silence_ms": silence_ms}
        configure(self.socket, self._max_bytes, **limits)
        self.socket.setsockopt(zmq.ROUTING_ID, b"j" + uuid.uuid4().bytes)  # the route of later connections too
        self.socket.setsockopt(zmq.IMMEDIATE, immediate)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, reconnect_ms)
        self.watch = connect(self.socket, endpoint, self.keys)

    def meet(self, hello: Hello, timeout_s: float, check: Check, again_s: float = math.inf) -> Any:
        """Send a hello, and return the welcome. Without one the link is closed.

        Args:
          again_s: interval for repeating the hello, if it or its answer may be lost. check: called periodically meanwhile.

        Raises:
          StreamTimeout: no answer in time. AccessDenied: the keys are missing, or another run's. Others: why it was refused,
            and what `check` raises.
        """
        try:
            return self._meet(hello, timeout_s, check, again_s)
        except BaseException:
            self.close()
            raise

    def _meet(self, hello: Hello, timeout_s: float, check: Check, again_s: float) -> Any:
        frames = outgoing(hello_frames(hello), self.keys)
        deadline, due_s = time.monotonic() + timeout_s, 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= due_s:
                _send(self.socket, frames)  # else the connection was refused, and `poll` raises the reason
                due_s = now_s + again_s
            found = self.receive(min(remaining(deadline), _SLICE_S))
            if found is not None:
                if isinstance(found[0], Refused):
                    raise_refusal(found[0])
                return found[0]
            self.watch.poll()
            if self.watch.broken:  # with the hello, or its answer
                self.watch.broken, due_s = False, 0.0
            check()
            if remaining(deadline) <= 0:
                raise self.watch.no_answer(timeout_s)

    def send(self, message: Message, body: Any = b"", trackers: list[Any] | None = None) -> bool:
        """Send a message without waiting; return False if that is not possible: ZeroMQ has given up the connection.

        Args:
          trackers: gets a tracker of each part of the body that ZeroMQ has not copied, and reads later.
        """
        return _send(self.socket, outgoing(pack(message, body), self.keys), trackers)

    def receive(self, timeout_s: float) -> tuple[Any, memoryview] | None:
        """Return the next message and its body; None: none came in time.

        Raises:
          CodecError: it is none of the stream's messages.
        """
        if not self.socket.poll(math.ceil(1000 * timeout_s)):
            return None
        frames = [self.socket.recv(copy=False)]
        while frames[-1].more:
            frames.append(self.socket.recv(copy=False))
        whole = incoming([frame.buffer for frame in frames], self.keys, self._max_bytes)
        return unpack(whole, self._decoder, _ANSWER_BYTES)

    def close(self, linger_ms: int = 0) -> None:
        """Close; messages are sent for at most `linger_ms`."""
        if not self.socket.closed:
            self.watch.close()
            self._context.destroy(linger=linger_ms)


def _send(socket: zmq.Socket, frames: Sequence[Any], trackers: list[Any] | None = None) -> bool:
    """Send the frames of a message without waiting; return whether that was possible."""
    try:
        for number, frame in enumerate(frames, 1):
            flags = zmq.NOBLOCK | (zmq.SNDMORE if number < len(frames) else 0)
            if len(frame) <= SMALL_BYTES:
                socket.send(frame, flags)
            elif trackers is None:
                socket.send(frame, flags, copy=False)
            elif (tracker := socket.send(frame, flags, copy=False, track=True)) is not None:
                trackers.append(tracker)
    except zmq.Again:
        return False
    return True
