"""Reliable: samples over ZeroMQ, each delivered once and in order, in messages of a header and the bytes of a whole block.

    producer                         consumer
    hello(schema, groups)     ->     welcome(blocks, session) or refused(error, text)
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

import functools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from jsrl.errors import JsrlError, SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import Entry, Lease, Origin, ProducerId, remaining
from jsrl.transport.door.address import check_origin
from jsrl.transport.door.hello import Check, Hello, HelloMessage, Refused, hello_of_producer, refusal
from jsrl.transport.door.keys import ClientKeys, KeyPath
from jsrl.transport.ends import samples as ends
from jsrl.transport.ends.packing import PLAIN, Packed, Packer, Packing
from jsrl.transport.ends.samples import ConsumerEnd, OpenBlock, ProducerEnd, choose_blocks
from jsrl.transport.ledger.leg_page import ZEROMQ, LegPage
from jsrl.transport.network.link import BindingLink, ConnectingLink, Received
from jsrl.transport.network.sockets import reuse_freed_memory
from jsrl.transport.network.thread import SocketThread
from jsrl.transport.wire.message import Count, Message
from jsrl.transport.wire.schema import aligned_zeros, make_layout
from jsrl.types import Trajectory, Tree

_SYNC_S = 0.5
_SOON_S = 0.001  # until ZeroMQ gives back a block that has arrived, of which it sends no news
_BUFFER_BYTES = 1 << 20  # of the kernel, each way
_RECONNECT_MS = 1000
_FAREWELL_S = 5.0
_LINGER_MS = 500
_MAX_AT_ONCE = 64  # messages
_LARGE_BYTES = 1 << 17  # above this the C library asks the kernel for every message, unless configured otherwise


class Welcome(ends.Welcome, tag="welcome"):
    """The answer to a hello; packing: of the blocks."""

    packing: Packing


class Sample(Message, tag="sample"):
    """A block: its number on this connection, and its entry. origin: name, incarnation, sequence."""

    index: Count
    group: Count
    sequence: Count
    origin: tuple[str, int, int] | None
    thin: bool
    compressed: bool


class Credit(Message, tag="credit"):
    """How many blocks have been received and released; resend: send what has not been received."""

    received: Count
    released: Count
    resend: bool


class Sync(Message, tag="sync"):
    """Asks for a credit; sent: blocks sent so far."""

    sent: Count


class Bye(Message, tag="bye"):
    """The producer leaves, having sent this many blocks."""

    sent: Count


class Farewell(Message, tag="farewell"):
    """All blocks have arrived."""


_TO_CONSUMER = msgspec.msgpack.Decoder(HelloMessage | Sample | Sync | Bye)
_TO_PRODUCER = msgspec.msgpack.Decoder(Welcome | Credit | Farewell | Refused)


@dataclass
class _Block:
    """The memory of one block, and its state since it was sent."""

    raw: np.ndarray
    trajectory: Trajectory
    index: int = -1
    entry: Entry | None = None
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
        leg: Path | None = None,
        check: Check = lambda: None,
    ):
        super().__init__(schema, producer, num_groups)
        self.address = endpoint
        self._closed = ""
        self._lock = threading.RLock()  # guards the link and the counts of blocks in flight
        self._stop, self._awaits = threading.Event(), threading.Event()
        self._link = ConnectingLink(
            endpoint, keys, _TO_PRODUCER, max_waiting=0, buffer_bytes=_BUFFER_BYTES, reconnect_ms=_RECONNECT_MS
        )
        hello = hello_of_producer(producer, num_groups, self.leaves)
        welcome: Welcome = self._link.meet(hello, timeout_s, check, again_s=_SYNC_S)
        self._packer = Packer(schema, welcome.packing)
        self._page = LegPage.attach(leg, producer, welcome.session)
        layout = make_layout(self.leaves)
        raws = [aligned_zeros(layout.size_bytes) for _ in range(welcome.blocks)]
        self._blocks = [_Block(raw, layout.tree(schema, raw)) for raw in raws]
        self._free = deque(range(welcome.blocks))
        self._on_the_way: deque[int] = deque()  # numbers of blocks, oldest first
        self._open = self._sent = self._received = self._released = 0
        self._resent_s, self._heard_s = 0.0, time.monotonic()
        self._departed = self._lost = False
        self._thread = threading.Thread(target=self._run, name="sample-attendant", daemon=True)
        self._thread.start()

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
            has_arrived = self._on_the_way and self._blocks[self._on_the_way[0]].index < self._received
            self._receive(min(remaining(deadline), _SOON_S if has_arrived else _SYNC_S))
        self._check_open()
        number = self._free.popleft()
        self._open += 1
        return OpenBlock(self, number, self._blocks[number].trajectory)

    def _ask_again(self) -> None:
        """Send a sync if nothing was heard for a while: the connection may have broken and lost a credit."""
        now_s = time.monotonic()
        if now_s - self._heard_s >= _SYNC_S:
            self._heard_s = now_s
            self._link.send(Sync(self._sent))

    def _has_room(self) -> bool:
        while self._on_the_way:
            block = self._blocks[self._on_the_way[0]]
            if block.index >= self._received or not block.is_free():
                break
            block.trackers.clear()
            self._free.append(self._on_the_way.popleft())
        return bool(self._free) and self._open + self._sent - self._released < len(self._blocks)

    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry:
        with self._lock:
            return self._commit(number, group, origin)

    def _commit(self, number: int, group: int, origin: Origin | None) -> Entry:
        self._check_group(group)
        self._receive(0.0)
        self._check_open()
        entry, block = self._next_entry(group, origin), self._blocks[number]
        self._page.begin(self._sent + 1)
        block.index, block.entry = self._sent, entry
        self._on_the_way.append(number)
        self._sent += 1
        self._open -= 1
        self._awaits.set()
        self._send_block(block)
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
                self._link.send(Bye(self._sent))
                self._receive(_SYNC_S)
            self._closed = self._closed or "closed by this producer"
            if self._lost or self._page.has_left:  # the counts are final
                self._page.leave()
            self._link.close()

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
                    self._link.send(Sync(self._sent))
            except JsrlError as error:  # raised in the next call
                self._closed = str(error)
            finally:
                self._lock.release()

    def _check_open(self) -> None:
        if self._closed or self._departed:
            raise StreamClosed(f"{self.producer.name} on {self.address}: {self._closed or 'closed by this producer'}")

    def _send_block(self, block: _Block) -> None:
        assert block.entry is not None
        entry, made_as = block.entry, block.entry.made_as
        origin = None if made_as is None else (made_as.producer.name, made_as.producer.incarnation, made_as.sequence)
        data, *packed = self._packer.pack(block.raw)
        sample = Sample(block.index, entry.group, entry.sequence, origin, *packed)
        if not self._link.send(sample, data, block.trackers):  # its queue has no limit
            self._closed = "the connection to the consumer broke, and it was not accepted again"

    def _receive(self, timeout_s: float) -> bool:
        """Process the consumer's messages; return whether any arrived in time."""
        received = False
        while not self._link.socket.closed and (found := self._link.receive(0.0 if received else timeout_s)):
            self._handle(found[0])
            received, self._heard_s = True, time.monotonic()
        return received

    def _handle(self, message: Any) -> None:
        match message:
            case Refused():
                self._closed = message.text
            case Farewell():
                self._closed = "closed by this producer"
            case Credit():
                self._received = max(self._received, message.received)
                self._released = max(self._released, message.released)
                if message.resend and time.monotonic() - self._resent_s > _SYNC_S / 2:
                    self._resent_s = time.monotonic()
                    for block in [self._blocks[number] for number in self._on_the_way]:
                        # what ZeroMQ still holds is not lost: a link may take seconds for a block
                        if block.index >= self._received and block.is_free():
                            self._send_block(block)


@dataclass
class _Peer:
    """The consumer's record of a connected producer."""

    producer: ProducerId
    route: bytes
    num_groups: int
    num_blocks: int
    page: LegPage
    received: int = 0
    released: int = 0
    asked: int = -1  # the index requested again last
    sequences: dict[int, int] = field(default_factory=dict)
    left: set[bytes] = field(default_factory=set)  # routes of connections that the producer gave up


class ZmqSampleConsumer(ConsumerEnd):
    """The reading end of `tcp://` and `ipc://` addresses; a thread receives, and answers while the consumer is busy."""

    def __init__(self, endpoint: str, schema: Tree, *, keys: KeyPath = None, packing: Packing = PLAIN, **options: Any):
        super().__init__(schema, **options)
        self._peers: dict[bytes, _Peer] = {}
        self._unsent: list[tuple[bytes, Message]] = []  # messages that the thread must send
        self._unacknowledged: dict[bytes, _Peer] = {}  # producers that do not know of everything that was released
        if self.layout.size_bytes >= _LARGE_BYTES:
            reuse_freed_memory()
        self._lock = threading.RLock()  # guards all of these
        self._link = BindingLink(
            endpoint,
            keys,
            _TO_CONSUMER,
            header_bytes=self.door.header_bytes,
            body_bytes=self.layout.size_bytes,
            buffer_bytes=_BUFFER_BYTES,
        )
        self._packing = PLAIN if self._link.keys is None else packing  # messages within this host are not packed
        self._packer = Packer(schema, self._packing)
        self.address = self._link.address
        self._thread = SocketThread("sample-attendant", [self._link.socket], lambda ready: self._serve())

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        """Free the memory of a lease that nothing reads any more; the producer may send one more."""
        peer = self._finish(lease, outcome)
        if peer is None:
            return
        with self._lock:
            peer.released += 1
            self._unacknowledged[peer.route] = peer
        self._thread.wake()

    def fence(self, producer: ProducerId) -> None:
        with self._lock:
            self.door.fence(producer)
            for peer in [peer for peer in self._peers.values() if peer.producer == producer]:
                self._part(peer, "this incarnation was fenced by the consumer.")
        self._thread.wake()

    def close(self) -> None:
        if not self._drop_all():
            return
        self._thread.stop()
        for peer in list(self._peers.values()):
            self._part(peer, "the consumer is closed.")
        self._serve()
        self._link.close(_LINGER_MS)

    def _part(self, peer: _Peer, reason: str) -> None:
        self._peers.pop(peer.route, None)
        peer.page.stop_reading()
        self._unsent.append((peer.route, refusal(StreamClosed(reason))))

    # -- the thread

    def _serve(self) -> None:
        """Process messages that have arrived (a limited number, so that answers get their turn), and send what is due."""
        with self._lock:
            for _ in range(_MAX_AT_ONCE):
                if (received := self._link.receive()) is None:
                    break
                peer = self._peers.get(received.route)
                try:
                    self._handle(received, peer)
                except JsrlError as error:
                    self._refuse(received.route, peer, error)
            credits = [(route, _credit(peer)) for route, peer in self._unacknowledged.items() if route in self._peers]
            unsent, self._unsent = self._unsent + credits, []
            self._unacknowledged.clear()
            for route, message in unsent:
                self._link.send(route, message)

    def _handle(self, received: Received, peer: _Peer | None) -> None:
        route, (message, body) = received.route, self._link.read(received)
        if isinstance(message, HelloMessage):
            speaks_for = functools.partial(self._link.speaks_for, received)
            self._welcome(route, self.door.read(message, speaks_for))
        elif peer is None:
            raise StreamClosed("this consumer does not know the producer: join again with a new incarnation.")
        elif isinstance(message, Sample):
            self._take_sample(peer, message, body)
        elif isinstance(message, Sync) or peer.received < message.sent:
            peer.asked = -1
            self._unsent.append((route, _credit(peer, resend=peer.received < message.sent)))
        else:
            self._peers.pop(route)
            peer.page.record_sent(message.sent)
            peer.page.stop_reading()
            self._unsent.append((route, Farewell()))

    def _welcome(self, route: bytes, hello: Hello) -> None:
        producer, num_groups = hello.sender, len(hello.groups)
        peer = self._known(route, producer)  # if the hello is repeated, as the welcome was late, or lost
        if peer is None:
            num_blocks = choose_blocks(self._blocks_per_producer, num_groups)
            self.door.admit(producer)
            for old in [peer for peer in self._peers.values() if peer.producer.name == producer.name]:
                self._part(old, f"replaced by incarnation {producer.incarnation}.")
            page = self._connect(producer, num_blocks, ZEROMQ)
            peer = self._peers[route] = _Peer(producer, route, num_groups, num_blocks, page)
        self._unsent.append((route, Welcome(peer.num_blocks, self._session, self._packing)))

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

    def _take_sample(self, peer: _Peer, sample: Sample, body: memoryview) -> None:
        if sample.index < peer.received:
            return  # a duplicate: sent again before the producer knew that it had arrived
        if sample.index > peer.received:
            if peer.asked != peer.received:
                peer.asked = peer.received
                self._unsent.append((peer.route, _credit(peer, resend=True)))
            return
        group, expected = sample.group, peer.sequences.get(sample.group, 0)
        has_room = sample.index - peer.released < peer.num_blocks
        if group >= peer.num_groups or sample.sequence != expected or not has_room:
            raise StreamError(
                f"{peer.producer.name} sent group {group}, sequence {sample.sequence}, index {sample.index}; expected "
                f"sequence {expected} of one of {peer.num_groups} groups, at most {peer.num_blocks} ahead of "
                f"{peer.released}. It was fenced."
            )
        origin = None if sample.origin is None else check_origin(*sample.origin)
        raw = self._packer.unpack(Packed(np.frombuffer(body, np.uint8), sample.thin, sample.compressed))
        if raw.ctypes.data % 8:  # a small body lies anywhere in its message; arrays of 8-byte numbers must be aligned
            raw = raw.copy()
        peer.received += 1
        peer.sequences[group] = expected + 1
        trajectory = self.layout.tree(self.schema, raw, writeable=False)
        self._add(trajectory, Entry(peer.producer, group, sample.sequence, origin), peer, peer.page)

    def _refuse(self, route: bytes, peer: _Peer | None, error: JsrlError) -> None:
        if isinstance(error, SpecMismatch):
            self._complain(SpecMismatch(str(error)))
        elif peer is not None:  # a welcomed producer violates the protocol
            self._complain(StreamError(str(error)))
            self.door.fence(peer.producer)
            self._peers.pop(route, None)
            peer.page.stop_reading()
        self._unsent.append((route, refusal(error)))


def _credit(peer: _Peer, *, resend: bool = False) -> Credit:
    return Credit(peer.received, peer.released, resend)
