"""The counts of both ends of one connection of a sample stream, in a page that outlives them.

A connection joins one incarnation of a producer with one incarnation of a consumer. The consumer makes the page when it
welcomes the producer: a file in the leg's folder. A producer on the same host maps it; one on another host cannot.

| words (int64) | written by | |
|---|---|---|
| 0 magic, 1 format, 2 incarnation of the consumer, 3 blocks, 4 transport | consumer, once | |
| 8 attached, 9 started, 10 committed | producer | commits started, by the stream's own count, and finished |
| 11 left | producer, or who finds the consumer dead | commits that no consumer will ever take; -1: not counted |
| 16 received, 17 counted, 18 has_left | consumer | received; commits by the producer's last message (-1: none); has ended |
| from byte 256: path | consumer, once | of its socket on this host |

Every change is one 8-byte store. A producer killed between `started` and `committed` leaves one trajectory that may or may
not be committed, and the page shows it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jsrl.errors import StreamError
from jsrl.plain_files import read_plain
from jsrl.transport.base import ProducerId

LOCAL, SHARED, ZEROMQ = 0, 1, 2  # transports
_MAGIC, _FORMAT, _PAGE_BYTES, _PATH_AT = 0x4A53524C484F5053, 1, 4096, 256
_SESSION, _BLOCKS, _TRANSPORT = 2, 3, 4
_ATTACHED, _STARTED, _COMMITTED, _LEFT = 8, 9, 10, 11
_RECEIVED, _COUNTED, _HAS_LEFT = 16, 17, 18
_SUFFIX = ".page"


class Connection(NamedTuple):
    """The counts of one connection; see the table of the page.

    Attributes:
      here: the stream is within this host: what was started and not received is in its connection.
    """

    name: str
    transport: int
    blocks: int
    attached: bool = True
    started: int = 0
    committed: int = 0
    left: int = -1
    received: int = 0
    counted: int = -1
    has_left: bool = True
    here: bool = False


class LegPage:
    """One end's view of a connection's page; the consumer calls `create`, the producer `attach`.

    Attributes:
      session: number of the consumer's incarnation. has_file: it is in a file that both ends map.
    """

    def __init__(self, page: mmap.mmap, *, has_file: bool = True) -> None:
        self.has_file = has_file
        self._words = memoryview(page)[:_PATH_AT].cast("q")
        self.session = self._words[_SESSION]

    @classmethod
    def create(
        cls,
        folder: Path | None,
        producer: ProducerId,
        session: int,
        *,
        blocks: int,
        transport: int,
        place: Path | None = None,
    ) -> LegPage:
        """Make the page in a leg's folder; in memory only if there is no folder, or it cannot be written."""
        content = bytearray(_PAGE_BYTES)
        words = memoryview(content)[:_PATH_AT].cast("q")
        words[0], words[1], words[_SESSION], words[_BLOCKS], words[_TRANSPORT] = (
            _MAGIC,
            _FORMAT,
            session,
            blocks,
            transport,
        )
        words[_LEFT] = words[_COUNTED] = -1
        name = os.fsencode(place or "")
        if len(name) <= _PAGE_BYTES - _PATH_AT:
            content[_PATH_AT : _PATH_AT + len(name)] = name
        try:
            if folder is not None:
                return cls(new_page(page_path(folder, producer, session), bytes(content)))
        except OSError:
            pass  # the ledger counts connections, so a missing page is noticed
        page = mmap.mmap(-1, _PAGE_BYTES)
        page[:] = bytes(content)
        return cls(page, has_file=False)

    @classmethod
    def attach(cls, folder: Path | None, producer: ProducerId, session: int) -> LegPage:
        """Map the consumer's page; on another host, count in memory only."""
        try:
            if folder is not None:
                found = cls(_map(_open(page_path(folder, producer, session))))
                found.mark_attached()
                return found
        except (OSError, ValueError):
            pass
        return cls(mmap.mmap(-1, _PAGE_BYTES), has_file=False)

    # -- the producer's end

    def mark_attached(self) -> None:
        """Record that this producer counts its commits here."""
        self._words[_ATTACHED] = 1

    def begin(self, number: int) -> None:
        """Record that the commit with this number begins, from 1 on, by the stream's own count."""
        self._words[_STARTED] = number

    def commit(self) -> None:
        self._words[_COMMITTED] += 1

    def leave(self) -> None:
        """Record how many commits no consumer will take; call it only when the consumer is dead, or reads no more."""
        self._words[_LEFT] = max(0, self._words[_STARTED] - self._words[_RECEIVED])

    # -- the consumer's end

    def receive(self) -> None:
        self._words[_RECEIVED] += 1

    def record_sent(self, committed: int) -> None:
        """Record the number of commits in the producer's message, for producers that cannot reach this page."""
        self._words[_COUNTED] = committed

    def stop_reading(self) -> None:
        """Record that nothing more will be read."""
        self._words[_HAS_LEFT] = 1

    @property
    def has_left(self) -> bool:
        """Return whether the consumer reads no more."""
        return bool(self._words[_HAS_LEFT])


def new_session() -> int:
    """Return a unique number for one incarnation of a consumer."""
    return secrets.randbits(48)


def page_path(folder: Path, producer: ProducerId, session: int) -> Path:
    return folder / f"{producer.name}.{producer.incarnation}.{session:012x}{_SUFFIX}"


def read_connections(folder: Path) -> list[Connection]:
    """Return the counts of all connections of a leg, by name."""
    return sorted(_read(path) for path in pages_in(folder))


def pages_in(folder: Path) -> Iterator[Path]:
    return folder.glob(f"*{_SUFFIX}")


def count_unread(folder: Path) -> None:
    """Record how many commits no reader will take: all consumers of the leg on this host are dead.

    Unreadable pages are left to `read_connections`.
    """
    for path in pages_in(folder):
        with contextlib.suppress(OSError, StreamError):
            connection = _read(path)
            if connection.here and connection.left < 0 and not connection.has_left:
                LegPage(_map(_open(path))).leave()


def _read(path: Path) -> Connection:
    try:
        page = read_plain(path)
    except ValueError as error:
        raise StreamError(f"{error}, so it is not a page of a connection.") from None
    name = path.name.removesuffix(_SUFFIX)
    words = memoryview(page.ljust(_PATH_AT, b"\0"))[:_PATH_AT].cast("q")
    if len(page) != _PAGE_BYTES or (words[0], words[1]) != (_MAGIC, _FORMAT):
        raise StreamError(
            f"{path} is not a page of a connection ({len(page)} bytes, expected {_PAGE_BYTES}); delete the folder "
            f"{path.parent} to continue without its counts."
        )
    place = os.fsdecode(page[_PATH_AT:].rstrip(b"\0"))
    return Connection(
        name=re.sub(r"\.[0-9a-f]{12}$", "", name),
        transport=words[_TRANSPORT],
        blocks=words[_BLOCKS],
        attached=bool(words[_ATTACHED]),
        started=words[_STARTED],
        committed=words[_COMMITTED],
        left=words[_LEFT],
        received=words[_RECEIVED],
        counted=words[_COUNTED],
        has_left=bool(words[_HAS_LEFT]),
        here=words[_TRANSPORT] == LOCAL or (bool(place) and Path(place).exists()),
    )


def new_page(path: Path, content: bytes, *, durable: bool = False) -> mmap.mmap:
    """Write a page to a new file, put it in the place of an old one, and return it mapped.

    Args:
      durable: it is on disk then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(
        f".{path.name}.{os.getpid()}.draft"
    )  # readers find a whole page, and hosts send no hidden ones
    try:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        page = write_page(descriptor, content, durable=durable)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    return page


def write_page(descriptor: int, content: bytes, *, durable: bool) -> mmap.mmap:
    """Write a page to an open file, which is closed; return it mapped."""
    try:
        os.write(descriptor, content)  # allocates the blocks: a store into a hole on a full disk would be SIGBUS
        if durable:
            os.fsync(descriptor)
        return mmap.mmap(descriptor, len(content))
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _map(descriptor: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)
