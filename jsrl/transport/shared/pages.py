"""The shared memory of one producer: a counter page, two rings of block numbers, and the blocks.

| words (int64) | written by | |
|---|---|---|
| 0 number of blocks, 1 bytes per block, 2 incarnation, 3 incarnation of the consumer | consumer, once | |
| 8 released, 9 ended | consumer | credits returned so far; why the connection ended |
| 16 produced, 17 attached, 18 left, 19 waiting | producer | survives the producer |
| released blocks | consumer | ring of block numbers, `released` counts all that were ever put in |
| commits: block, group, sequence, incarnation, origin | producer | ring, `produced` counts all that were ever put in |

The origin of a commit is its incarnation (-1: this producer made it), its sequence, and the name in 8 words.

Each word has one writer. An entry is written before its counter, so a producer that dies in the middle of
a block or a commit leaves nothing readable. Either ring can hold every block, so neither overflows.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from jsrl.errors import ConfigError, StreamClosed, StreamError
from jsrl.transport.base import Origin, ProducerId
from jsrl.transport.door.address import check_origin
from jsrl.transport.shared.segment import Segment, memory_fence
from jsrl.transport.wire.schema import Layout, align
from jsrl.types import Trajectory, Tree

_HEADER_WORDS = 24
_NUM_BLOCKS, _STRIDE, _INCARNATION, _SESSION = 0, 1, 2, 3
_RELEASED, _ENDED = 8, 9
_PRODUCED, _ATTACHED, _LEFT, _WAITING = 16, 17, 18, 19
_NAME_WORDS = 8
_COMMIT_WORDS = 6 + _NAME_WORDS
_OWN = -1
_NAME_AT = 8 * (_COMMIT_WORDS - _NAME_WORDS)  # bytes into a commit
_PAGE_BYTES = 4096

RUNNING, CLOSED, FENCED = 0, 1, 2
_ENDINGS = {CLOSED: "the consumer is closed", FENCED: "this incarnation was fenced by the consumer"}


class Commit(NamedTuple):
    """A line of the commit ring."""

    block: int
    group: int
    sequence: int
    incarnation: int
    origin: Origin | None = None


def file_stem(stream: str, producer: ProducerId) -> str:
    """Return the first part of the file names of one producer."""
    return f"{stream}.samples.{producer.name}.{producer.incarnation}"


class ProducerPages:
    """One end's view of a producer's segment; the consumer calls `create`, the producer `attach`."""

    def __init__(self, segment: Segment, layout: Layout, schema: Tree, *, writeable: bool):
        self.segment = segment
        self._words = segment.words(0, _HEADER_WORDS)
        self.num_blocks = self._words[_NUM_BLOCKS]
        stride = align(layout.size_bytes)
        expected_bytes = _data_offset(self.num_blocks) + self.num_blocks * stride
        if self.num_blocks < 1 or self._words[_STRIDE] != stride or segment.size_bytes < expected_bytes:
            raise StreamError(
                f"{segment.path} has other blocks than {stride} bytes; do both ends run the same version?"
            )
        self._credits = segment.words(8 * _HEADER_WORDS, self.num_blocks)
        self._commits = segment.words(8 * (_HEADER_WORDS + self.num_blocks), _COMMIT_WORDS * self.num_blocks)
        start = _data_offset(self.num_blocks)
        self.blocks: list[Trajectory] = [
            segment.tree(layout, schema, start + number * stride, writeable=writeable)
            for number in range(self.num_blocks)
        ]

    @classmethod
    def create(
        cls, path: Path, layout: Layout, schema: Tree, num_blocks: int, incarnation: int, session: int = 0
    ) -> ProducerPages:
        """Make the segment with all its blocks granted (the consumer's end)."""
        stride = align(layout.size_bytes)
        segment = Segment.create(path, max(_data_offset(num_blocks) + num_blocks * stride, _PAGE_BYTES))
        words = segment.words(0, _HEADER_WORDS)
        words[_NUM_BLOCKS], words[_STRIDE], words[_INCARNATION], words[_SESSION] = (
            num_blocks,
            stride,
            incarnation,
            session,
        )
        pages = cls(segment, layout, schema, writeable=False)
        for number in range(num_blocks):
            pages.grant(number)
        return pages

    @classmethod
    def attach(cls, path: Path, layout: Layout, schema: Tree) -> ProducerPages:
        """Map the segment and mark its producer as alive (the producer's end).

        Raises:
          StreamClosed: the segment is gone, or belongs to a living process already.
        """
        segment = Segment.attach(path)
        if not segment.lock():
            raise StreamClosed(f"{path} is in use by another process: two workers run under one name and incarnation.")
        pages = cls(segment, layout, schema, writeable=True)
        pages._words[_ATTACHED] = 1
        return pages

    # -- the consumer's end

    def grant(self, block: int) -> bool:
        """Give a block to the producer; return whether it waits for one."""
        released = self._words[_RELEASED]
        self._credits[released % self.num_blocks] = block
        memory_fence()
        self._words[_RELEASED] = released + 1
        memory_fence()
        return bool(self._words[_WAITING])

    def commits_since(self, seen: int) -> list[Commit]:
        """Return the commits after the first `seen` ones."""
        produced = self._words[_PRODUCED]
        if produced == seen:
            return []
        if not seen <= produced <= seen + self.num_blocks:
            raise StreamError(f"{self.segment.path}: the counter of commits jumped from {seen} to {produced}.")
        memory_fence()
        found = []
        for index in range(seen, produced):
            start = _COMMIT_WORDS * (index % self.num_blocks)
            line = self._commits[start : start + _COMMIT_WORDS]
            origin = None if line[4] == _OWN else _read_origin(line)
            found.append(Commit(line[0], line[1], line[2], line[3], origin))
        return found

    @property
    def attached(self) -> bool:
        return bool(self._words[_ATTACHED])

    @property
    def left(self) -> bool:
        """Return whether the producer closed its end; all its commits are visible then."""
        left = bool(self._words[_LEFT])
        memory_fence()
        return left

    def end(self, why: int) -> None:
        """Tell the producer that its connection has ended."""
        self._words[_ENDED] = why
        memory_fence()

    # -- the producer's end

    def ending(self) -> str:
        """Return why this producer must stop, or an empty string."""
        why = self._words[_ENDED]
        return _ENDINGS.get(why, "ended") if why else ""

    @property
    def committed(self) -> int:
        return self._words[_PRODUCED]

    def take(self, taken: int) -> int | None:
        """Return the next granted block after `taken` earlier ones, or None."""
        if self._words[_RELEASED] <= taken:
            return None
        memory_fence()
        return self._credits[taken % self.num_blocks]

    def waiting(self, yes: bool) -> None:
        """Record whether this producer sleeps until a block is granted."""
        self._words[_WAITING] = int(yes)
        memory_fence()

    def commit(self, block: int, group: int, sequence: int, origin: Origin | None = None) -> None:
        """Show a written block to the consumer; `origin`: its maker, None: this producer as `sequence`."""
        produced = self._words[_PRODUCED]
        start = _COMMIT_WORDS * (produced % self.num_blocks)
        line = self._commits[start : start + _COMMIT_WORDS]
        line[0], line[1], line[2], line[3] = block, group, sequence, self._words[_INCARNATION]
        line[4] = _OWN
        if origin is not None:
            line[4], line[5] = origin.producer.incarnation, origin.sequence
            line.cast("B")[_NAME_AT:] = origin.producer.name.encode().ljust(8 * _NAME_WORDS, b"\0")
        memory_fence()
        self._words[_PRODUCED] = produced + 1

    def leave(self) -> None:
        """Record that no commit will follow."""
        memory_fence()
        self._words[_LEFT] = 1

    # -- both

    def close(self) -> None:
        """Close this end's mapping; it ends with the last array that shows it."""
        self.blocks = []
        self.segment.close()


def _read_origin(line: memoryview) -> Origin:
    name = bytes(line.cast("B")[_NAME_AT:]).rstrip(b"\0")
    return check_origin(name.decode("ascii", "replace"), line[4], line[5])


def end_ring(path: Path) -> None:
    """End the connection of a dead consumer: its producer, if it is alive, commits nothing more."""
    with contextlib.suppress(StreamClosed, ConfigError):  # no segment any more
        segment = Segment.attach(path)
        if segment.size_bytes >= 8 * _HEADER_WORDS:
            segment.words(0, _HEADER_WORDS)[_ENDED] = CLOSED
            memory_fence()
        segment.close()


def read_commits(path: Path, session: int) -> int:
    """Return the number of commits in a ring; -1: it is gone, or belongs to another incarnation of the consumer."""
    try:
        with path.open("rb") as file:
            header = file.read(8 * _HEADER_WORDS)
    except OSError:
        return -1
    words = memoryview(header).cast("q") if len(header) == 8 * _HEADER_WORDS else [-1] * _HEADER_WORDS
    return words[_PRODUCED] if words[_SESSION] == session else -1


def _data_offset(num_blocks: int) -> int:
    return align(8 * (_HEADER_WORDS + num_blocks * (1 + _COMMIT_WORDS)), _PAGE_BYTES)
