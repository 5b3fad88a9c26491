"""The reading end of sample streams over ZeroMQ (messages: see jsrl.transport.samples.zmq)."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from jsrl.errors import CodecError, JsrlError, SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import Entry, Lease, Ledger, Origin, ProducerId, remaining
from jsrl.transport.ledger.hop_page import ZEROMQ, HopPage, new_session
from jsrl.transport.meeting.address import check_origin
from jsrl.transport.meeting.admission import ANYBODY, HELLO, HelloChecker, JoinRules
from jsrl.transport.meeting.curve import Listener, incoming, keys_to_bind
from jsrl.transport.meeting.handshake import WELCOME, hello_limits, refusal_frames
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.meeting.sockets import configure
from jsrl.transport.samples.ends import SampleQueue, check_blocks, choose_blocks
from jsrl.transport.samples.packing import Packer
from jsrl.transport.samples.zmq import BUFFER_BYTES, read_number
from jsrl.transport.wire.codec import Limits, Message, decode, encode
from jsrl.transport.wire.packing import PLAIN, Packing
from jsrl.transport.wire.schema import flatten_schema, make_layout
from jsrl.types import Tree

_LINGER_MS = 500
_ATTEND_S = 0.02
_LOOK_S = 0.1  # how often `get` releases the socket's lock
_LARGE_BYTES = 1 << 17  # above this the C library asks the kernel for every message, unless configured otherwise
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST_REUSED_BYTES = 32 << 20  # glibc's maximum


@dataclass
class _Peer:
    """The consumer's record of a connected producer."""

    producer: ProducerId
    route: bytes
    num_groups: int
    num_blocks: int
    page: HopPage
    received: int = 0
    released: int = 0
    acknowledged: int = 0  # the part of `released` that the producer knows
    asked: int = -1  # the index requested again last
    sequences: dict[int, int] = field(default_factory=dict)
    left: set[bytes] = field(default_factory=set)  # routes of connections that the producer gave up


class ZmqSampleConsumer:
    """The reading end of `tcp://` and `ipc://` addresses.

    `get` receives in the caller's own thread. An attendant thread checks the socket every 20 ms while no other thread does,
    so that hellos and syncs are answered while the consumer is busy; a thread that uses the socket holds its lock.
    """

    def __init__(
        self,
        endpoint: str,
        schema: Tree,
        *,
        blocks_per_producer: int | None = None,
        keys: KeyPath = None,
        ledger: Ledger | None = None,
        join_rules: JoinRules = ANYBODY,
        hop: Path | None = None,
        packing: Packing = PLAIN,
    ):
        self._keys = own_keys = keys_to_bind(endpoint, keys)
        self._packing = packing if own_keys is not None else PLAIN  # messages within this host are not packed
        self._packer = Packer(schema, self._packing)
        self.schema = schema
        self.leaves = flatten_schema(schema)
        self._layout = make_layout(self.leaves)
        self._blocks_per_producer = check_blocks(blocks_per_producer)
        self._hello_checker = HelloChecker("the consumer", self.leaves, join_rules)
        header_bytes = hello_limits(self._hello_checker).header_bytes
        self._limits = Limits(header_bytes, frames=2, message_bytes=header_bytes + self._layout.size_bytes)
        self._peers: dict[bytes, _Peer] = {}
        self._unsent: list[list[Any]] = []  # messages that the thread must send
        self._unacknowledged: dict[bytes, _Peer] = {}  # producers that do not know of everything that was released
        if self._layout.size_bytes >= _LARGE_BYTES:
            reuse_freed_memory()
        self._lock = threading.RLock()
        self._socket_lock = threading.Lock()
        self._socket = zmq.Context().socket(zmq.ROUTER)
        configure(self._socket, max(self._layout.size_bytes, header_bytes), buffer_bytes=BUFFER_BYTES)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._listener = Listener(self._socket, endpoint, own_keys)
        self.address = self._listener.address
        self._queue = SampleQueue(self.address, ledger)
        self._hop, self._session = hop, new_session()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sample-attendant", daemon=True)
        self._thread.start()

    @property
    def ledger(self) -> Ledger:
        self._serve()
        return self._queue.ledger

    def get(self, timeout_s: float) -> Lease:
        deadline = time.monotonic() + timeout_s
        while (lease := self._queue.take()) is None:
            left_s = remaining(deadline)
            with self._socket_lock:
                received = self._receive_and_send()
                if not received:
                    self._socket.poll(math.ceil(1000 * min(left_s, _LOOK_S)))
                    received = self._receive_and_send()
            if not received and left_s <= 0:
                raise self._queue.nothing_came(timeout_s)
        return lease

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        """Free the memory of a lease that nothing reads any more; the producer may send one more.

        The producer is told at once when half of its blocks are free, else when this end waits or checks its socket.
        """
        peer = self._queue.settle(lease, outcome)
        if peer is None:
            return
        with self._lock:
            peer.released += 1
            if peer.route in self._peers:
                self._unacknowledged[peer.route] = peer
        if 2 * (peer.released - peer.acknowledged) >= peer.num_blocks:
            self._serve()

    def pending(self) -> int:
        self._serve()
        return len(self._queue)

    def fence(self, producer: ProducerId) -> None:
        with self._lock:
            self._hello_checker.admission.fence(producer)
            for peer in [peer for peer in self._peers.values() if peer.producer == producer]:
                self._part(peer, "this incarnation was fenced by the consumer.")
        self._serve()

    def close(self) -> None:
        if not self._queue.close():
            return
        self._stop.set()
        self._thread.join(10)
        with self._lock:
            for peer in list(self._peers.values()):
                self._part(peer, "the consumer is closed.")
        with self._socket_lock:
            self._receive_and_send()
            self._listener.close(_LINGER_MS)

    def _part(self, peer: _Peer, reason: str) -> None:
        self._peers.pop(peer.route, None)
        peer.page.stop_reading()
        self._queue_send(peer.route, refusal_frames(StreamClosed(reason)))

    def _queue_send(self, route: bytes, frames: list[Any]) -> None:
        self._unsent.append([route, *frames])

    # -- the socket, with its lock held

    def _run(self) -> None:
        while not self._stop.wait(_ATTEND_S):
            self._serve()

    def _serve(self) -> None:
        """Receive and send, unless another thread does."""
        if self._socket_lock.acquire(blocking=False):
            try:
                if not self._socket.closed:
                    self._receive_and_send()
            finally:
                self._socket_lock.release()

    def _receive_and_send(self) -> bool:
        """Return whether a message has arrived."""
        received = self._receive()
        with self._lock:
            unsent, self._unsent = self._unsent, []
            for peer in self._unacknowledged.values():
                if peer.route in self._peers and peer.acknowledged < peer.released:
                    unsent.append([peer.route, *_credit(peer)])
            self._unacknowledged.clear()
        for frames in unsent:
            self._socket.send_multipart(frames)
        return received

    def _receive(self) -> bool:
        """Process the messages that have arrived (a limited number, so that answers get their turn)."""
        for number in range(64):
            try:
                frames = self._listener.receive(zmq.NOBLOCK)
            except zmq.Again:
                return number > 0
            route = frames[0].bytes
            with self._lock:
                peer = self._peers.get(route)
                try:
                    whole = incoming([frame.buffer for frame in frames[1:]], self._keys, self._limits.message_bytes)
                    self._handle(frames, peer, decode(whole, self._limits))
                except JsrlError as error:
                    self._refuse(route, peer, error)
        return True

    def _handle(self, frames: list[zmq.Frame], peer: _Peer | None, message: Message) -> None:
        route = frames[0].bytes
        if message.kind == HELLO:
            self._welcome(route, message, functools.partial(self._listener.speaks_for, frames[-1]))
        elif peer is None:
            raise StreamClosed("this consumer does not know the producer: join again with a new incarnation.")
        elif message.kind == "sample":
            self._take_sample(peer, message)
        elif message.kind == "sync":
            peer.asked = -1
            self._queue_send(route, _credit(peer, resend=peer.received < read_number(message, "sent")))
        elif message.kind == "bye":
            if peer.received < read_number(message, "sent"):
                self._queue_send(route, _credit(peer, resend=True))
            else:
                self._peers.pop(route)
                peer.page.record_sent(read_number(message, "sent"))
                peer.page.stop_reading()
                self._queue_send(route, encode("farewell"))
        else:
            raise CodecError(f"unknown message {message.kind[:40]!r}.")

    def _welcome(self, route: bytes, message: Message, speaks_for: Callable[[str], bool]) -> None:
        hello = self._hello_checker.read(message, speaks_for)
        producer, num_groups = hello.sender, len(hello.groups)
        known = self._known(route, producer)
        if known is not None:  # repeated: the welcome was late, or lost
            self._queue_send(route, self._welcome_frames(known.num_blocks))
            return
        num_blocks = choose_blocks(self._blocks_per_producer, num_groups)
        self._hello_checker.admission.admit(producer)
        for old in [peer for peer in self._peers.values() if peer.producer.name == producer.name]:
            self._part(old, f"replaced by incarnation {producer.incarnation}.")
        page = HopPage.create(self._hop, producer, self._session, blocks=num_blocks, transport=ZEROMQ)
        self._queue.ledger.join()
        self._peers[route] = _Peer(producer, route, num_groups, num_blocks, page)
        self._queue_send(route, self._welcome_frames(num_blocks))

    def _known(self, route: bytes, producer: ProducerId) -> _Peer | None:
        """Return the record of a producer that was welcomed before; None: it was not.

        A producer that gave up before its welcome came asks again over another connection. It has sent nothing before.
        """
        for peer in self._peers.values():
            if peer.producer != producer or route in peer.left:
                continue
            if peer.route != route and peer.received == 0:
                peer.left.add(peer.route)
                del self._peers[peer.route]
                peer.route = route
                self._peers[route] = peer
            return peer if peer.route == route else None
        return None

    def _welcome_frames(self, num_blocks: int) -> list[Any]:
        packing = {"packing": self._packing.fields} if self._packing else {}
        return encode(WELCOME, {"blocks": num_blocks, "session": self._session, **packing})

    def _take_sample(self, peer: _Peer, message: Message) -> None:
        index = read_number(message, "index")
        if index < peer.received:
            return  # a duplicate: sent again before the producer knew that it had arrived
        if index > peer.received:
            if peer.asked != peer.received:
                peer.asked = peer.received
                self._queue_send(peer.route, _credit(peer, resend=True))
            return
        group, sequence = read_number(message, "group"), read_number(message, "sequence")
        expected = peer.sequences.get(group, 0)
        if not 0 <= group < peer.num_groups or sequence != expected or index - peer.released >= peer.num_blocks:
            raise StreamError(
                f"{peer.producer.name} sent group {group}, sequence {sequence}, index {index}; expected sequence "
                f"{expected} of one of {peer.num_groups} groups, at most {peer.num_blocks} ahead of {peer.released}. "
                "It was fenced."
            )
        origin = _read_origin(message)
        raw = self._packer.unpack(message.fields, message.arrays)
        if (
            raw.ctypes.data % 8
        ):  # small messages lie anywhere in ZeroMQ's buffer; arrays of 8-byte numbers must be aligned
            raw = raw.copy()
        peer.received += 1
        peer.sequences[group] = expected + 1
        trajectory = self._layout.tree(self.schema, raw, writeable=False)
        self._queue.add(trajectory, Entry(peer.producer, group, sequence, origin), peer, peer.page)

    def _refuse(self, route: bytes, peer: _Peer | None, error: JsrlError) -> None:
        if isinstance(error, SpecMismatch):
            self._queue.complain(SpecMismatch(str(error)))
        elif peer is not None:  # a welcomed producer violates the protocol
            self._queue.complain(StreamError(str(error)))
            self._hello_checker.admission.fence(peer.producer)
            self._peers.pop(route, None)
            peer.page.stop_reading()
        self._queue_send(route, refusal_frames(error))


def _read_origin(message: Message) -> Origin | None:
    origin = message.fields.get("origin")
    if origin is None:
        return None
    if not isinstance(origin, list) or len(origin) != 3:
        raise StreamError(f"a sample of origin {str(origin)[:80]}, expected [name, incarnation, sequence].")
    return check_origin(*origin)


def _credit(peer: _Peer, *, resend: bool = False) -> list[Any]:
    peer.acknowledged = peer.released
    return encode("credit", {"received": peer.received, "released": peer.released, "resend": resend})


@functools.cache
def reuse_freed_memory() -> bool:
    """Make the C library reuse freed pieces of up to 32 MiB instead of returning them to the kernel; return whether it can.

    ZeroMQ allocates every large message. By default glibc maps new memory for it, or unmaps it when it is freed, and
    every page of every message faults again: three times the CPU time of the transfer itself on a virtual machine. The
    thresholds set here are those that glibc itself reaches once a program has freed 32 MiB, so a process keeps at
    most 64 MiB of freed memory more than before. Does nothing with other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    largest, kept = _LARGEST_REUSED_BYTES, 2 * _LARGEST_REUSED_BYTES
    return bool(mallopt(_MMAP_THRESHOLD, largest)) and bool(mallopt(_TRIM_THRESHOLD, kept))
