"""Sample streams between processes of one host: producers write into memory that the consumer reads in place.

Files in the run folder, all mode 0600 and all the consumer's: `NAME.samples.owner` (locked while the consumer is alive),
`.hello` (where producers ask to join), `.bell` (rung at every commit), and per producer incarnation
`.PRODUCER.INCARNATION.pages` (see jsrl.transport.shared.pages) and `.bell` (rung when a block is granted). A trajectory
costs no message and no copy.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from jsrl.errors import ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import Entry, Lease, Ledger, Origin, ProducerId, remaining
from jsrl.transport.door.address import check_ipc_path
from jsrl.transport.door.hello import Check, Hello, HelloMessage, Refused, hello_of_producer, refusal
from jsrl.transport.ends.samples import ConsumerEnd, OpenBlock, ProducerEnd, Welcome, choose_blocks, wait_until
from jsrl.transport.ledger.leg_page import SHARED, LegPage, count_rings
from jsrl.transport.network.link import BindingLink, ConnectingLink
from jsrl.transport.network.thread import SocketThread
from jsrl.transport.shared.doorbell import Doorbell
from jsrl.transport.shared.locks import is_locked, make_folder, try_lock
from jsrl.transport.shared.pages import CLOSED, FENCED, ProducerPages, end_ring, file_stem
from jsrl.transport.wire.message import Message
from jsrl.transport.wire.schema import make_layout
from jsrl.types import Tree

_POLL_S = 0.25  # how often a waiting end checks that the other one is alive
_LINGER_MS = 200
_HELLOS, _ANSWERS = msgspec.msgpack.Decoder(HelloMessage), msgspec.msgpack.Decoder(Welcome | Refused)
_LEAVING_S = 0.5  # longest wait for a consumer that is just ending a connection
_ATTACH_S = 60.0  # how long a welcomed producer may take to map its memory


@dataclass
class _Peer:
    """The consumer's record of a connected producer."""

    producer: ProducerId
    pages: ProducerPages
    bell: Doorbell
    num_groups: int
    page: LegPage
    granted_s: float = field(default_factory=time.monotonic)
    seen: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    with_producer: set[int] = field(default_factory=set)  # blocks that it may write
    ended: bool = False


class SharedSampleConsumer(ConsumerEnd):
    """The reading end of `shm:FOLDER/NAME`; it makes and removes all the files."""

    def __init__(self, path: str | Path, schema: Tree, **options: Any):
        super().__init__(schema, **options)
        self._folder = make_folder(Path(path).parent)
        self._name = name = Path(path).name
        self.queue.address = f"shm:{self._folder / name}"
        self._peers: dict[ProducerId, _Peer] = {}
        self._lock = threading.RLock()  # the thread that answers hellos adds peers
        self._next_poll_s = 0.0
        prefix = f"{name}.samples"
        check_ipc_path(f"{self._folder / prefix}.hello")
        self._owner_path = self._folder / f"{prefix}.owner"
        self._owner_fd = claim_owner(self._owner_path, self.address)
        for stale in self._folder.glob(f"{prefix}.*.pages"):  # of a consumer that was killed
            end_ring(stale)  # first, so that what is counted is all
        if self._leg is not None:
            count_rings(self._leg)
        for stale in self._folder.glob(f"{prefix}.*"):
            if stale != self._owner_path:
                stale.unlink(missing_ok=True)
        self._bell = Doorbell.create(self._folder / f"{prefix}.bell")
        endpoint, header_bytes = f"ipc://{self._folder / prefix}.hello", self._hello_checker.header_bytes
        self._link = BindingLink(endpoint, None, _HELLOS, header_bytes=header_bytes)
        self._thread = SocketThread("sample-hellos", [self._link.socket], self._answer_hellos)

    @property
    def ledger(self) -> Ledger:
        self._poll()
        return self.queue.ledger

    def get(self, timeout_s: float) -> Lease:
        deadline = time.monotonic() + timeout_s
        while (lease := self.queue.take()) is None:
            if self._poll():
                continue
            if remaining(deadline) <= 0:
                raise self.queue.nothing_came(timeout_s)
            self._bell.wait(min(remaining(deadline), _POLL_S))
        return lease

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        token = self.queue.finish(lease, outcome)
        if token is None:
            return
        peer, block = token
        with self._lock:
            if not peer.ended:
                peer.with_producer.add(block)
                if peer.pages.grant(block):
                    peer.bell.ring()

    def pending(self) -> int:
        self._poll()
        return len(self.queue)

    def fence(self, producer: ProducerId) -> None:
        with self._lock:
            self._hello_checker.admission.fence(producer)
            peer = self._peers.get(producer)
            if peer is not None:
                self._part(peer, FENCED)

    def close(self) -> None:
        if self.queue.closed:
            return
        self._thread.stop()
        self._link.close(_LINGER_MS)
        with self._lock:
            self.queue.close()  # later arrivals count as dropped
            for peer in list(self._peers.values()):
                self._part(peer, CLOSED)
        self._bell.close()
        for path in self._folder.glob(f"{self._name}.samples.*"):
            path.unlink(missing_ok=True)
        os.close(self._owner_fd)

    # -- joining (the thread that answers hellos while the consumer is busy)

    def _answer_hellos(self, ready: dict[Any, int]) -> None:
        while (received := self._link.receive()) is not None:
            answer: Message
            try:
                answer = self._welcome(self._link.read(received)[0])
            except JsrlError as error:
                answer = refusal(error)
            except OSError as error:  # no descriptor, no memory: the next one may get some
                answer = refusal(StreamError(f"the consumer cannot admit another producer now: {error}"))
            self._link.send(received.route, answer)

    def _welcome(self, message: HelloMessage) -> Welcome:
        try:
            hello = self._hello_checker.read(message)
        except SpecMismatch as error:
            self.queue.complain(SpecMismatch(str(error)))
            self._bell.ring()
            raise
        with self._lock:
            peer = self._peers.get(hello.sender)
            if peer is not None and not peer.pages.attached:  # it gave up before the welcome came, and asks again
                peer.granted_s = time.monotonic()
            else:
                peer = self._admit(hello)
        self._bell.ring()  # commits of an earlier incarnation may have been received here
        return Welcome(peer.pages.num_blocks, self._session)

    def _admit(self, hello: Hello) -> _Peer:
        producer, num_groups = hello.sender, len(hello.groups)
        num_blocks = choose_blocks(self._blocks_per_producer, num_groups)
        self._hello_checker.admission.admit(producer)
        for peer in [peer for peer in self._peers.values() if peer.producer.name == producer.name]:
            self._part(peer, FENCED)
        stem, session = file_stem(self._name, producer), self._session
        path = self._folder / f"{stem}.pages"
        pages = ProducerPages.create(path, self.layout, self.schema, num_blocks, producer.incarnation, session)
        bell = Doorbell.create(self._folder / f"{stem}.bell")
        page = self._count(producer, num_blocks, SHARED, path)
        self._peers[producer] = _Peer(producer, pages, bell, num_groups, page, with_producer=set(range(num_blocks)))
        return self._peers[producer]

    # -- checks and disconnections

    def _poll(self) -> bool:
        """Receive all new commits and disconnect producers that left or died; return whether anything waits."""
        if self.queue.closed:
            return False
        self._bell.drain()
        now_s = time.monotonic()
        checks_for_dead = now_s >= self._next_poll_s
        if checks_for_dead:
            self._next_poll_s = now_s + _POLL_S
        with self._lock:
            for peer in list(self._peers.values()):
                gone = peer.pages.left or (checks_for_dead and self._is_dead(peer, now_s))
                self._collect(peer)
                if gone and not peer.ended:
                    self._part(peer, FENCED)
            return len(self.queue) > 0

    def _is_dead(self, peer: _Peer, now_s: float) -> bool:
        if peer.pages.attached:
            return not peer.pages.segment.locked()
        return now_s - peer.granted_s > _ATTACH_S

    def _collect(self, peer: _Peer) -> None:
        try:
            for commit in peer.pages.commits_since(peer.seen):
                expected = peer.sequences.get(commit.group, 0)
                if (
                    commit.block not in peer.with_producer
                    or not 0 <= commit.group < peer.num_groups
                    or (commit.sequence, commit.incarnation) != (expected, peer.producer.incarnation)
                ):
                    raise StreamError(
                        f"{peer.producer.name} committed {commit}; expected sequence {expected} of one of "
                        f"{peer.num_groups} groups in blocks {sorted(peer.with_producer)[:8]}. It was fenced."
                    )
                peer.seen += 1
                peer.sequences[commit.group] = expected + 1
                peer.with_producer.discard(commit.block)
                entry = Entry(peer.producer, commit.group, commit.sequence, commit.origin)
                self.queue.add(peer.pages.blocks[commit.block], entry, (peer, commit.block), peer.page)
        except StreamError as error:
            self.queue.complain(error)
            self._forget(peer, FENCED)

    def _part(self, peer: _Peer, why: int) -> None:
        """Disconnect a producer: no more commits, the committed ones stay readable, its files are removed."""
        peer.pages.end(why)
        self._collect(peer)
        if not peer.ended:
            self._forget(peer, why)

    def _forget(self, peer: _Peer, why: int) -> None:
        peer.ended = True
        self._hello_checker.admission.fence(peer.producer)
        self._peers.pop(peer.producer, None)
        peer.pages.end(why)
        peer.page.stop_reading()
        peer.bell.ring()
        peer.bell.unlink()
        peer.bell.close()
        peer.pages.segment.unlink()
        peer.pages.close()


def claim_owner(path: Path, address: str) -> int:
    """Return a new, locked owner file; an old one is replaced once no process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    old = os.open(path, flags, 0o600)
    try:
        if not try_lock(old):
            raise ConfigError(f"{address} has a living consumer; stop it first or choose another name.")
        path.unlink()  # producers of the old consumer hold the old file, unlocked from now on
    finally:
        os.close(old)
    claimed = os.open(path, flags | os.O_EXCL, 0o600)
    try_lock(claimed)
    return claimed


class SharedSampleProducer(ProducerEnd):
    """The writing end of `shm:FOLDER/NAME`."""

    def __init__(
        self,
        path: str | Path,
        schema: Tree,
        producer: ProducerId,
        num_groups: int,
        timeout_s: float,
        leg: Path | None = None,
        check: Check = lambda: None,
    ):
        super().__init__(schema, producer, num_groups)
        self.address = f"shm:{path}"
        folder, name = Path(path).parent, Path(path).name
        prefix = f"{name}.samples"
        hello = hello_of_producer(producer, num_groups, self.leaves)
        link = ConnectingLink(f"ipc://{folder / prefix}.hello", None, _ANSWERS)
        welcome: Welcome = link.meet(hello, timeout_s, check)
        link.close()
        self._page = LegPage.attach(leg, producer, welcome.session)
        stem = file_stem(name, producer)
        self._owner_fd = open_owner(folder / f"{prefix}.owner")
        self._pages = ProducerPages.attach(folder / f"{stem}.pages", make_layout(self.leaves), schema)
        self._consumer_bell = Doorbell.attach(folder / f"{prefix}.bell")
        self._bell = Doorbell.attach(folder / f"{stem}.bell")
        self._taken = 0
        self._abandoned: list[int] = []
        self._closed = False

    def reserve(self, timeout_s: float) -> OpenBlock:
        self._check_open()
        number = self._take()
        if number is None:
            number = self._wait_for_block(timeout_s)
        return OpenBlock(self, number, self._pages.blocks[number])

    def _take(self) -> int | None:
        if self._abandoned:
            return self._abandoned.pop()
        number = self._pages.take(self._taken)
        if number is not None:
            self._taken += 1
        return number

    def _wait_for_block(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        self._pages.waiting(True)
        try:
            while (number := self._take()) is None:
                self._check_open()
                if remaining(deadline) <= 0:
                    raise self._no_room(timeout_s, self._pages.num_blocks)
                if not self._bell.wait(min(remaining(deadline), _POLL_S)) and not is_locked(self._owner_fd):
                    self._check_open()
                    raise StreamClosed(f"{self.producer.name} on {self.address}: the consumer's process died.")
            return number
        finally:
            self._pages.waiting(False)

    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry:
        self._check_group(group)
        self._check_open()
        entry = self._next_entry(group, origin)
        self._page.begin()
        self._pages.commit(number, group, entry.sequence, entry.made_as)
        self._page.commit()
        self._consumer_bell.ring()
        return entry

    def abandon_block(self, number: int) -> None:
        """Keep block `number` for the next `reserve` (called by the block)."""
        self._abandoned.append(number)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pages.leave()
        self._consumer_bell.ring()
        self._count_unread()
        self._pages.close()
        self._consumer_bell.close()
        self._bell.close()
        os.close(self._owner_fd)

    def _count_unread(self) -> None:
        """Count what is left in the ring, if the consumer reads no more: it ended this connection, or is dead."""
        if self._page.has_file and self._pages.ending():
            wait_until(self._reads_no_more, time.sleep, _LEAVING_S, 0.001)
        if self._reads_no_more():
            self._page.leave(self._pages.committed)

    def _reads_no_more(self) -> bool:
        """Return whether the consumer has ended this connection, or is dead."""
        return self._page.has_left or not is_locked(self._owner_fd)

    def _check_open(self) -> None:
        reason = "closed by this producer" if self._closed else self._pages.ending()
        if reason:
            raise StreamClosed(f"{self.producer.name} on {self.address}: {reason}.")


def open_owner(path: Path) -> int:
    """Return the owner file of a living consumer, opened to check its lock."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StreamClosed(f"{path} is gone: the consumer closed just after its welcome.") from None
