"""The writing end of a sample stream in shared memory (files: see jsrl.transport.shared.samples)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from jsrl.errors import StreamClosed
from jsrl.transport.base import Entry, Origin, ProducerId, remaining
from jsrl.transport.door.hello import Check, Refused, hello_of_producer
from jsrl.transport.ends.samples import OpenBlock, ProducerEnd, Welcome, wait_until
from jsrl.transport.ledger.hop_page import HopPage
from jsrl.transport.network.link import ConnectingLink
from jsrl.transport.shared.doorbell import Doorbell
from jsrl.transport.shared.locks import is_locked
from jsrl.transport.shared.pages import ProducerPages, file_stem
from jsrl.transport.wire.schema import make_layout
from jsrl.types import Tree

_LOOK_S = 0.25  # how often a waiting end checks that the other one is alive
_ANSWERS = msgspec.msgpack.Decoder(Welcome | Refused)
_LEAVING_S = 0.5  # longest wait for a consumer that is just ending this connection


class SharedSampleProducer(ProducerEnd):
    """The writing end of `shm:FOLDER/NAME`."""

    def __init__(
        self,
        path: str | Path,
        schema: Tree,
        producer: ProducerId,
        num_groups: int,
        timeout_s: float,
        hop: Path | None = None,
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
        self._page = HopPage.attach(hop, producer, welcome.session)
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
                if not self._bell.wait(min(remaining(deadline), _LOOK_S)) and not is_locked(self._owner_fd):
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
