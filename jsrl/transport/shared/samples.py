"""Sample streams within a host: producers write into memory that the consumer reads in place.

    producer                               consumer
    hello(schema, groups)           ->     welcome(blocks, session) with the memory, or refused(error, text)
    commit(block, group, ...)       ->
                                    <-     freed(blocks)
                                    <-     refused: closed or fenced

A message is one datagram of a Unix socket (see jsrl.transport.shared.connections), so a commit outlives a producer that is
killed just after it, and a connection that ends says that the other process has ended. The consumer's process makes the
memory, anew for each producer incarnation: a late writer touches memory that nobody reads any more.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from jsrl.errors import CodecError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import Entry, Lease, Ledger, Origin, ProducerId, remaining
from jsrl.transport.door.hello import Check, Hello, Refused, hello_of_producer
from jsrl.transport.ends.samples import ConsumerEnd, OpenBlock, ProducerEnd, Welcome, choose_blocks
from jsrl.transport.ledger.leg_page import LOCAL, SHARED, LegPage, count_unread
from jsrl.transport.shared.connections import (
    MAX_BYTES,
    Connection,
    Connections,
    address_of,
    is_path,
    meet,
    send,
    welcome,
)
from jsrl.transport.shared.segment import Segment
from jsrl.transport.stream import StreamType
from jsrl.transport.wire.message import Count, Message, pack, unpack
from jsrl.transport.wire.schema import align, make_layout
from jsrl.types import Trajectory, Tree

_REASON_S = 1.0  # for the reason why a connection ended
_COMMIT_S = 60.0  # for room in a connection, which holds some hundred commits


class Commit(Message, tag="commit"):
    """A written block. origin: name, incarnation, sequence."""

    block: Count
    group: Count
    sequence: Count
    origin: tuple[str, int, int] | None


class Freed(Message, tag="freed"):
    """Blocks that the producer may write again."""

    blocks: list[int]


_COMMITS = msgspec.msgpack.Decoder(Commit)
_WELCOMES = msgspec.msgpack.Decoder(Welcome | Refused)
_ANSWERS = msgspec.msgpack.Decoder(Freed | Refused)


@dataclass(eq=False)
class _Peer:
    """The consumer's record of a connected producer."""

    producer: ProducerId
    connection: Connection
    segment: Segment
    blocks: list[Trajectory]
    page: LegPage
    freed: list[int] = field(default_factory=list)  # it does not know of these yet


class SharedSampleConsumer(ConsumerEnd):
    """The reading end of `shm:FOLDER/NAME` and `local:NAME`.

    Between processes a thread receives, and answers while the consumer is busy. Within one the producers' threads do: so
    trajectories arrive in the order in which they were committed.
    """

    stream_type: StreamType = "samples"

    def __init__(self, place: str, schema: Tree, **options: Any):
        super().__init__(schema, **options)
        self.address = address_of(place)
        self._peers: dict[ProducerId, _Peer] = {}
        self._silent: dict[ProducerId, LegPage] = {}  # pages of producers that have not committed anything yet
        self._connections = Connections(place, self)
        self._lock = self._connections.lock
        if self._leg is not None:
            count_unread(self._leg)  # an earlier consumer is dead: it had this place
        self._thread: threading.Thread | None = None
        if is_path(place):
            self._thread = threading.Thread(target=self._run, name="sample-attendant", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._connections.serve(-1)

    def _catch_up(self) -> None:
        """Receive what was committed so far; within one process the producers' threads have done that."""
        if self._thread is not None:
            self._connections.serve(0.0)

    @property
    def ledger(self) -> Ledger:
        self._catch_up()
        return self._ledger

    def pending(self) -> int:
        self._catch_up()
        return len(self._waiting)

    def get(self, timeout_s: float) -> Lease:
        if (lease := self._take()) is None:
            self._catch_up()
            return super().get(timeout_s)
        return lease

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        token = self._finish(lease, outcome)
        if token is not None:
            peer, block = token
            with self._lock:
                peer.freed.append(block)
                self._give_back(peer)

    def _give_back(self, peer: _Peer) -> None:
        """Tell a producer which blocks are free; if it has not read earlier messages, with the next one."""
        if send(peer.connection, Freed(peer.freed)):
            peer.freed = []

    def fence(self, producer: ProducerId) -> None:
        with self._lock:
            self.door.fence(producer)
            peer = self._peers.get(producer)
            if peer is not None:
                self._part(peer, "this incarnation was fenced by the consumer")

    def close(self) -> None:
        if not self._drop_all():  # later arrivals count as dropped
            return
        self._connections.wake()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for peer in list(self._peers.values()):
                self._part(peer, "the consumer is closed")
            self._connections.close()

    # -- called by the connections

    def complain(self, error: SpecMismatch) -> None:
        self._complain(SpecMismatch(str(error)))

    def admit(self, hello: Hello, connection: Connection) -> _Peer:
        producer = hello.sender
        self.door.check_incarnation(producer)
        for older in [peer for peer in self._peers.values() if peer.producer.name == producer.name]:
            self._part(older, f"replaced by incarnation {producer.incarnation}")
        num_blocks = choose_blocks(self._blocks_per_producer, len(hello.groups))
        segment = self._connections.memory(num_blocks * align(max(self.layout.size_bytes, 1)))
        if producer not in self._silent:  # else it gave up before the welcome came, and asks again
            place = self._connections.place
            transport, path = (SHARED, Path(place)) if is_path(place) else (LOCAL, None)
            self._silent[producer] = self._connect(producer, num_blocks, transport, path)
        welcome(connection, Welcome(num_blocks, self._session), segment)
        self.door.admit(producer)
        blocks = _blocks_in(segment, self.layout, self.schema, num_blocks, writeable=False)
        self._peers[producer] = peer = _Peer(producer, connection, segment, blocks, self._silent[producer])
        return peer

    def read(self, peer: _Peer) -> None:
        while True:
            try:
                if not (message := peer.connection.recv(MAX_BYTES)):
                    break
                commit, _ = unpack([message], _COMMITS, MAX_BYTES)
                trajectory = peer.blocks[commit.block]
            except BlockingIOError:
                if peer.freed:
                    self._give_back(peer)
                return
            except ConnectionResetError:  # it closed before it read everything; its own messages follow
                continue
            except (CodecError, IndexError) as error:
                self._complain(StreamError(f"{peer.producer.name} sent no commit: {error}"))
                break
            origin = None if commit.origin is None else _origin(*commit.origin)
            entry = Entry(peer.producer, commit.group, commit.sequence, origin)
            self._silent.pop(peer.producer, None)
            self._add(trajectory, entry, (peer, commit.block), peer.page)
        if peer.producer in self._silent:
            self.door.leave(peer.producer)
        self._forget(peer, "this producer left")

    def _part(self, peer: _Peer, reason: str) -> None:
        """Disconnect a producer: it commits nothing more, and what it has committed is received."""
        peer.connection.shutdown(socket.SHUT_RD)
        self.read(peer)
        self._forget(peer, reason)

    def _forget(self, peer: _Peer, reason: str) -> None:
        if self._peers.pop(peer.producer, None) is None:
            return
        self._connections.disconnect(peer.connection, reason)
        if peer.producer not in self._silent:
            peer.page.stop_reading()
        peer.segment.close()


class SharedSampleProducer(ProducerEnd):
    """The writing end of `shm:FOLDER/NAME` and `local:NAME`."""

    def __init__(
        self,
        place: str,
        schema: Tree,
        producer: ProducerId,
        num_groups: int,
        timeout_s: float,
        leg: Path | None = None,
        check: Check = lambda: None,
    ):
        super().__init__(schema, producer, num_groups)
        self.address = address_of(place)
        hello = hello_of_producer(producer, num_groups, self.leaves)
        self._connection, welcome, self._segment, self._here = meet(
            "samples", place, hello, _WELCOMES, timeout_s, check
        )
        self._connection.setblocking(False)
        self._page = LegPage.attach(leg, producer, welcome.session)
        layout = make_layout(self.leaves)
        self._blocks = _blocks_in(self._segment, layout, schema, welcome.blocks, writeable=True)
        self._free = deque(range(welcome.blocks))
        self._committed = 0
        self._closed = ""

    def reserve(self, timeout_s: float) -> OpenBlock:
        deadline = time.monotonic() + timeout_s
        self._receive()
        while True:
            self._check_open()
            if self._free:
                number = self._free.popleft()
                return OpenBlock(self, number, self._blocks[number])
            if remaining(deadline) <= 0:
                raise self._no_room(timeout_s, len(self._blocks))
            self._connection.wait_readable(remaining(deadline))
            self._receive()

    def _receive(self) -> None:
        """Process the consumer's messages that have arrived, and the end of the connection."""
        while not self._closed:
            try:
                message = self._connection.recv(MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._page.leave()
                self._end("the consumer's process died")
                return
            answer, _ = unpack([message], _ANSWERS, MAX_BYTES)
            if isinstance(answer, Refused):
                self._end(answer.text.rstrip("."))
            else:
                self._free.extend(answer.blocks)

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._closed = reason
            self._connection.close()

    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry:
        self._check_group(group)
        self._check_open()
        entry = self._next_entry(group, origin)
        made_as = entry.made_as and (
            entry.made_as.producer.name,
            entry.made_as.producer.incarnation,
            entry.made_as.sequence,
        )
        self._page.begin(self._committed + 1)
        try:
            self._send(pack(Commit(number, group, entry.sequence, made_as))[0])
        except OSError:
            self._page.begin(self._committed)
            self._connection.wait_readable(_REASON_S)
            self._receive()
            self._end("the consumer ended the connection")
            self._check_open()
        self._committed += 1
        self._page.commit()
        if self._here is not None:
            self._here.serve(0.0)
        return entry

    def _send(self, message: bytes) -> None:
        deadline = time.monotonic() + _COMMIT_S
        while True:
            try:
                self._connection.send(message)
                return
            except BlockingIOError:
                if remaining(deadline) <= 0:
                    raise StreamTimeout(
                        f"{self.address} did not read hundreds of commits in {_COMMIT_S:g} s."
                    ) from None
                self._connection.wait_writable(remaining(deadline))

    def abandon_block(self, number: int) -> None:
        """Keep block `number` for the next `reserve` (called by the block)."""
        self._free.appendleft(number)

    def close(self) -> None:
        self._receive()
        self._end("closed by this producer")
        if self._here is not None:
            self._here.serve(0.0)
        self._blocks = []
        self._segment.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosed(f"{self.producer.name} on {self.address}: {self._closed}.")


def _origin(name: str, incarnation: int, sequence: int) -> Origin:
    return Origin(ProducerId(name, incarnation), sequence)


def _blocks_in(segment: Segment, layout: Any, schema: Tree, num_blocks: int, *, writeable: bool) -> list[Trajectory]:
    stride = align(max(layout.size_bytes, 1))
    return [layout.tree(schema, segment.buffer, number * stride, writeable=writeable) for number in range(num_blocks)]
