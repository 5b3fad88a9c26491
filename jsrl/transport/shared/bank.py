"""Layout of params in shared memory: a head, the schema, and three numbered copies that are written in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jsrl.errors import CodecError
from jsrl.transport.shared.segment import Segment, memory_fence
from jsrl.transport.wire.schema import Layout, align, decode_schema, encode_schema, make_layout

_MAGIC = 0x4A53524C_50520001  # "JSRLPR", layout 1
COPIES = 3
HEAD_WORDS = 8  # of the segment, and of each copy: one cache line
LATEST, REPLACED, _SCHEMA_BYTES, CHECKED = 1, 2, 3, 4  # words of the segment's head
NUMBER, VERSION, SUM = 0, 1, 2  # words of a copy's head
_HEADS_BYTES = 8 * HEAD_WORDS * (1 + COPIES)
MAX_TRIES = 64


def copy_head(number: int) -> int:
    """Return the position of a numbered copy's head, in words."""
    return HEAD_WORDS * (1 + number % COPIES)


def word_sum(buffer: np.ndarray) -> int:
    """Return the wrapping sum of a uint8 buffer's 64-bit words, as a signed word."""
    return int(np.add.reduce(buffer.view(np.int64))) if buffer.size else 0


class Bank:
    """The copies of one policy's params in a segment."""

    def __init__(self, segment: Segment, layout: Layout):
        self.segment = segment
        self.layout = layout
        self.words = segment.words(0, HEAD_WORDS * (1 + COPIES))
        start = align(_HEADS_BYTES + self.words[_SCHEMA_BYTES])
        size = layout.size_bytes
        everything = np.frombuffer(segment.buffer, np.uint8)
        self.copies = [everything[start + k * size : start + (k + 1) * size] for k in range(COPIES)]

    @classmethod
    def create(cls, path: Path, layout: Layout, checked: bool) -> Bank:
        schema = encode_schema(layout.leaves)
        size_bytes = align(_HEADS_BYTES + len(schema)) + COPIES * layout.size_bytes
        segment = Segment.create(path, size_bytes)
        segment.buffer[_HEADS_BYTES : _HEADS_BYTES + len(schema)] = schema
        words = segment.words(0, HEAD_WORDS)
        words[0], words[_SCHEMA_BYTES], words[CHECKED] = _MAGIC, len(schema), int(checked)
        words.release()
        return cls(segment, layout)

    @classmethod
    def attach(cls, path: Path) -> Bank:
        """Open a segment of params.

        Raises:
          StreamClosed: it does not exist. CodecError: it holds something else.
        """
        segment = Segment.attach(path)
        words = segment.words(0, HEAD_WORDS) if segment.size_bytes >= _HEADS_BYTES else None
        if words is None or words[0] != _MAGIC:
            raise CodecError(f"{path} holds no params of this version of jsrl; remove it or use another run folder.")
        end = _HEADS_BYTES + words[_SCHEMA_BYTES]
        words.release()
        leaves = decode_schema(segment.buffer[_HEADS_BYTES:end])
        layout = make_layout(leaves)
        if align(end) + COPIES * layout.size_bytes > segment.size_bytes:
            raise CodecError(f"{path} is shorter than its schema says; remove it or use another run folder.")
        return cls(segment, layout)

    def views(self, number: int) -> list[np.ndarray]:
        return self.layout.views(self.copies[number % COPIES])

    def latest_version(self) -> int | None:
        """Return the version of the latest copy, None if there is none yet."""
        for _ in range(MAX_TRIES):
            number = self.words[LATEST]
            if number == 0:
                return None
            head = copy_head(number)
            version = self.words[head + VERSION]
            memory_fence()
            if self.words[head + NUMBER] == number:
                return version
        return None

    def close(self) -> None:
        self.copies.clear()
        self.words.release()
        self.segment.close()
