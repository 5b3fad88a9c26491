"""Sample streams over ZeroMQ (tcp between hosts, ipc on one): a header and the raw bytes of a whole block, not copied.

    producer                         consumer
    hello(schema, groups)     ->     welcome(blocks, incarnation) or refused(error, text)
    sample(index, group, ...) ->
                              <-     credit(received, released, resend)     cumulative, so a lost one does no harm
    sync(sent)                ->     credit                                 when a producer has waited for a while
    bye(sent)                 ->     farewell once all of it has arrived
                              <-     refused                                closed or fenced

A producer writes at most `blocks` trajectories ahead of `released`, which limits the bytes in flight. It keeps a block
unchanged until ZeroMQ has sent its bytes and the consumer has received it, so that it can send it again after a broken
connection. The consumer accepts each producer's indices in order only: it ignores duplicates and requests missing ones again.
Any message may be lost, repeated, late or out of order: a hello is repeated until it is answered (always in the same way), and
a thread of the producer sends syncs while something has not been received, even while the producer is busy.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from jsrl.errors import CodecError, JsrlError, StreamClosed, StreamError
from jsrl.transport.base import Entry, Origin, ProducerId, remaining
from jsrl.transport.ledger.hop_page import HopPage, read_session
from jsrl.transport.meeting.admission import Check, hello_of_producer
from jsrl.transport.meeting.curve import connect, keys_to_connect, outgoing
from jsrl.transport.meeting.handshake import HELLO_LIMITS, REFUSED, meet
from jsrl.transport.meeting.keys import ClientKeys, KeyPath
from jsrl.transport.meeting.sockets import configure, send_if_possible
from jsrl.transport.samples.ends import OpenBlock, ProducerEnd
from jsrl.transport.samples.local import aligned_zeros
from jsrl.transport.samples.packing import Packer
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.packing import Packing, read_packing
from jsrl.transport.wire.schema import make_layout
from jsrl.types import Trajectory, Tree

_SYNC_S = 0.5
_SOON_S = 0.001  # until ZeroMQ gives back a block that has arrived, of which it sends no news
_COPY_BYTES = 65536  # below this a copy is cheaper than tracking who reads the bytes
BUFFER_BYTES = 1 << 20  # of the kernel, each way
_FAREWELL_S = 5.0
_CONTROL_LIMITS = Limits(header_bytes=1 << 16, frames=1, message_bytes=1 << 16)


@dataclass
class _ZmqBlock:
    """The memory of one block, and its state since it was sent."""

    raw: np.ndarray
    trajectory: Trajectory
    fields: dict[str, Any] = field(default_factory=dict)
    trackers: list[zmq.MessageTracker] = field(default_factory=list)

    def is_free(self) -> bool:
        return all(tracker.done for tracker in self.trackers)


class ZmqSampleProducer(ProducerEnd):
    """The writing end of `tcp://` and `ipc://` addresses."""

    def __init__(
        self,
        endpoint: str,
        schema: Tree,
        producer: ProducerId,
        num_groups: int,
        timeout_s: float,
        *,
        keys: KeyPath | ClientKeys = None,
        hop: Path | None = None,
        check: Check = lambda: None,
    ):
        super().__init__(schema, producer, num_groups)
        self._keys = keys_to_connect(keys)
        self.address = endpoint
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, HELLO_LIMITS.message_bytes, most_waiting=0, buffer_bytes=BUFFER_BYTES)
        self._socket.setsockopt(zmq.ROUTING_ID, b"p" + uuid.uuid4().bytes)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._closed = ""
        self._lock = threading.RLock()  # guards the socket and the counts of blocks in flight
        self._stop, self._awaits = threading.Event(), threading.Event()
        try:
            num_blocks, session, packing = self._join(num_groups, timeout_s, check)
            self._packer = Packer(schema, packing) if packing else None
            self._page = HopPage.attach(hop, producer, session)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        layout = make_layout(self.leaves)
        self._blocks = []
        for _ in range(num_blocks):
            raw = aligned_zeros(layout.size_bytes)
            self._blocks.append(_ZmqBlock(raw, layout.tree(schema, raw)))
        self._free = deque(range(num_blocks))
        self._on_the_way: deque[tuple[int, int]] = deque()  # (index, block number), oldest first
        self._open = self._sent = self._received = self._released = 0
        self._resent_s, self._heard_s = 0.0, time.monotonic()
        self._departed = self._lost = False
        self._thread = threading.Thread(target=self._run, name="sample-attendant", daemon=True)
        self._thread.start()

    def _join(self, num_groups: int, timeout_s: float, check: Check) -> tuple[int, int, Packing]:
        connection = connect(self._socket, self.address, self._keys)
        hello = hello_of_producer(self.producer, num_groups, self.leaves)
        welcome = meet(self._socket, hello, connection, timeout_s, _SYNC_S, check)
        connection.close()
        num_blocks = welcome.fields.get("blocks")
        if not isinstance(num_blocks, int) or not 1 <= num_blocks <= 1 << 20:
            raise StreamError(f"{self.address} welcomed {self.producer.name} with {num_blocks!r} blocks.")
        return num_blocks, read_session(welcome.fields.get("session")), read_packing(welcome.fields.get("packing"))

    def reserve(self, timeout_s: float) -> OpenBlock:
        with self._lock:
            return self._reserve(timeout_s)

    def _reserve(self, timeout_s: float) -> OpenBlock:
        deadline = time.monotonic() + timeout_s
        self._receive(0.0)
        while not self._has_room():
            self._check_open()
            self._ask_again()
            if remaining(deadline) <= 0:
                raise self._no_room(timeout_s, len(self._blocks))
            has_arrived = self._on_the_way and self._on_the_way[0][0] < self._received
            self._receive(min(remaining(deadline), _SOON_S if has_arrived else _SYNC_S))
        self._check_open()
        number = self._free.popleft()
        self._open += 1
        block = self._blocks[number]
        return OpenBlock(self, number, block.trajectory)

    def _ask_again(self) -> None:
        """Send a sync if nothing was heard for a while: the connection may have broken and lost a credit."""
        now_s = time.monotonic()
        if now_s - self._heard_s >= _SYNC_S:
            self._heard_s = now_s
            self._send_counts("sync")

    def _has_room(self) -> bool:
        while self._on_the_way:
            index, number = self._on_the_way[0]
            if index >= self._received or not self._blocks[number].is_free():
                break
            self._on_the_way.popleft()
            self._blocks[number].trackers.clear()
            self._free.append(number)
        return bool(self._free) and self._open + self._sent - self._released < len(self._blocks)

    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry:
        with self._lock:
            return self._commit(number, group, origin)

    def _commit(self, number: int, group: int, origin: Origin | None) -> Entry:
        self._check_group(group)
        self._receive(0.0)
        self._check_open()
        entry = self._next_entry(group, origin)
        self._page.begin()
        self._blocks[number].fields = {"index": self._sent, "group": group, "sequence": entry.sequence}
        if entry.made_as is not None:
            maker, made = entry.made_as
            self._blocks[number].fields["origin"] = [maker.name, maker.incarnation, made]
        self._on_the_way.append((self._sent, number))
        self._sent += 1
        self._open -= 1
        self._awaits.set()
        self._send_block(number)
        self._check_open()
        self._page.commit()
        return entry

    def abandon_block(self, number: int) -> None:
        with self._lock:
            self._open -= 1
            self._free.appendleft(number)

    def close(self) -> None:
        """Close; committed trajectories still arrive (waits up to 5 s for the consumer)."""
        if self._departed:
            return
        self._departed = True
        self._stop.set()
        self._awaits.set()
        self._thread.join()
        deadline = time.monotonic() + _FAREWELL_S
        with self._lock:
            while not self._closed and remaining(deadline) > 0:
                self._send_counts("bye")
                self._receive(_SYNC_S)
            self._closed = self._closed or "closed by this producer"
            if self._lost or self._page.has_left:  # the counts are final
                self._page.leave(self._sent)
            self._context.destroy(linger=0)

    def mark_lost(self, reason: str) -> None:
        with self._lock:
            self._closed, self._lost = self._closed or reason, True

    def _run(self) -> None:
        """Resend lost trajectories while no thread reserves or commits: the consumer may wait for exactly those.

        It sleeps while the consumer has received all: there may be thousands of idle producers.
        """
        while self._awaits.wait() and not self._stop.wait(_SYNC_S):
            if not self._lock.acquire(blocking=False):
                continue  # in use: the other thread receives
            try:
                heard = bool(self._closed) or self._receive(0.0)
                if self._closed or self._received >= self._sent:
                    self._awaits.clear()
                    if self._stop.is_set():  # `close` may have set it just before
                        self._awaits.set()
                elif not heard:
                    self._send_counts("sync")
            except JsrlError as error:  # raised in the next call
                self._closed = str(error)
            finally:
                self._lock.release()

    def _check_open(self) -> None:
        if self._closed or self._departed:
            raise StreamClosed(f"{self.producer.name} on {self.address}: {self._closed or 'closed by this producer'}")

    def _send_block(self, number: int) -> None:
        block = self._blocks[number]
        packed, raw = ({}, block.raw) if self._packer is None else self._packer.pack(block.raw)
        *pieces, last = outgoing(encode("sample", block.fields | packed, raw), self._keys)
        try:
            for piece in pieces:
                self._send_frame(piece, zmq.NOBLOCK | zmq.SNDMORE, block)
            self._send_frame(last, zmq.NOBLOCK, block)
        except zmq.Again:  # the queue has no limit: ZeroMQ has given up the connection
            self._closed = "the connection to the consumer broke, and it was not accepted again"

    def _send_frame(self, frame: Any, flags: int, block: _ZmqBlock) -> None:
        if len(frame) <= _COPY_BYTES:
            self._socket.send(frame, flags)
            return
        tracker = self._socket.send(frame, flags, copy=False, track=True)
        if tracker is not None:
            block.trackers.append(tracker)

    def _send_counts(self, kind: str) -> None:
        send_if_possible(self._socket, encode(kind, {"sent": self._sent}))

    def _receive(self, timeout_s: float) -> bool:
        """Process the consumer's messages; return whether any arrived in time."""
        if self._socket.closed or (timeout_s > 0 and not self._socket.poll(int(timeout_s * 1000))):
            return False
        received = False
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return received
            self._handle(decode(frames, _CONTROL_LIMITS))
            received, self._heard_s = True, time.monotonic()

    def _handle(self, message: Message) -> None:
        if message.kind == REFUSED:
            self._closed = str(message.fields.get("text", "refused"))
        elif message.kind == "farewell":
            self._closed = "closed by this producer"
        elif message.kind == "credit":
            self._received = max(self._received, read_number(message, "received"))
            self._released = max(self._released, read_number(message, "released"))
            if message.fields.get("resend") and time.monotonic() - self._resent_s > _SYNC_S / 2:
                self._resent_s = time.monotonic()
                for index, number in list(self._on_the_way):
                    # what ZeroMQ still holds is not lost: a link may take seconds for a block
                    if index >= self._received and self._blocks[number].is_free():
                        self._send_block(number)


def read_number(message: Message, name: str) -> int:
    """Return a count in a message: an integer from 0."""
    value = message.fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CodecError(f"{message.kind}: {name} is {value!r}, expected an integer from 0.")
    return value
