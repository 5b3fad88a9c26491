"""The params stream between processes of one host: one writer, many readers, neither waits for the other.

A segment per policy holds three copies of the params; the writer fills the oldest one and then names it the latest. A
reader copies the latest and checks its number again: if the writer reused that copy meanwhile (two publishes during one
copy), the number differs and the reader starts over. It also checks a sum over all words.

A new incarnation of the learner replaces the old one's file and marks the old one; readers follow at their next
check. A waiting reader connects to the writer's socket, over which every publish wakes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path

import numpy as np

from jsrl.errors import CodecError, StreamClosed, StreamTimeout
from jsrl.transport.ends.params import too_late
from jsrl.transport.shared.connections import accept, connect_socket, listen_socket
from jsrl.transport.shared.locks import make_folder
from jsrl.transport.shared.segment import Segment, memory_fence
from jsrl.transport.wire.schema import (
    Layout,
    align,
    aligned_zeros,
    compare_schemas,
    decode_schema,
    encode_schema,
    flatten_schema,
    make_layout,
)
from jsrl.types import version_updates

_COPIES = 3
_HEAD_WORDS = 8  # of the segment, and of each copy: one cache line
_LATEST, _REPLACED, _SCHEMA_BYTES = 0, 1, 2  # words of the segment's head
_NUMBER, _VERSION, _SUM = 0, 1, 2  # words of a copy's head
_HEADS_BYTES = 8 * _HEAD_WORDS * (1 + _COPIES)
_MAX_TRIES = 64
_POLL_S = 0.2  # how often a waiting reader checks unasked, and connects to a new writer


def _policy_path(path: Path, policy: int) -> Path:
    return path.with_name(f"{path.name}.policy-{policy}")


class SharedParamsPublisher:
    """The writing end of `shm:FOLDER/NAME`."""

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self.address = f"shm:{self._path}"
        make_folder(self._path.parent)
        self._banks: dict[int, tuple[_Bank, list[list[np.ndarray]]]] = {}
        self._listener = listen_socket(self._path)
        self._readers: list[socket.socket] = []  # of those that have waited
        self._closed = False

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        if self._closed:
            raise StreamClosed(f"the params publisher {self.address} is closed.")
        found = self._banks.get(policy)
        if found is None:
            self._start(policy, version, values)
        else:
            bank, views = found
            self._check(bank, values, policy)
            self._write(bank, views, version, values)
        self._wake_readers()

    def _start(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        final = _policy_path(self._path, policy)
        fresh = final.with_name(f"{final.name}.{secrets.token_hex(4)}")
        layout = make_layout(flatten_schema(list(values)))
        bank = _Bank.create(fresh, layout)
        views = [bank.views(number) for number in range(_COPIES)]
        self._write(bank, views, version, values)
        try:
            older = Segment.attach(final)
        except StreamClosed:
            older = None
        os.replace(fresh, final)
        bank.segment.path = final
        if older is not None:
            words = older.words(0, _HEAD_WORDS)
            words[_REPLACED] = 1
            words.release()
            older.close()
        self._banks[policy] = (bank, views)

    def _check(self, bank: _Bank, values: list[np.ndarray], policy: int) -> None:
        leaves = bank.layout.leaves
        if len(values) == len(leaves) and all(v.shape == leaf.shape for v, leaf in zip(values, leaves, strict=True)):
            views = self._banks[policy][1][0]
            if all(value.dtype == view.dtype for value, view in zip(values, views, strict=True)):
                return
        compare_schemas(leaves, flatten_schema(list(values)), f"policy {policy}", "the new params")

    @staticmethod
    def _write(bank: _Bank, views: list[list[np.ndarray]], version: int, values: list[np.ndarray]) -> None:
        words = bank.words
        number = words[_LATEST] + 1
        head = _copy_head(number)
        words[head + _NUMBER] = 0
        memory_fence()
        for view, value in zip(views[number % _COPIES], values, strict=True):
            view[...] = value
        words[head + _VERSION] = version
        words[head + _SUM] = _word_sum(bank.copies[number % _COPIES])
        memory_fence()
        words[head + _NUMBER] = number
        memory_fence()
        words[_LATEST] = number

    def _wake_readers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._readers.append(accept(self._listener))
        self._readers = [reader for reader in self._readers if _wake(reader)]

    def close(self) -> None:
        """Close; the last params stay readable until the end of the run. May be called twice."""
        if not self._closed:
            self._path.unlink(missing_ok=True)
        self._closed = True
        for connection in (self._listener, *self._readers):
            connection.close()
        self._readers.clear()
        for bank, views in self._banks.values():
            views.clear()
            bank.close()
        self._banks.clear()


def _wake(reader: socket.socket) -> bool:
    """Wake a reader; return whether it is still there."""
    try:
        reader.send(b"new", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True  # it has not read earlier ones
    except OSError:
        reader.close()
        return False
    return True


class SharedParamsSubscriber:
    """The reading end of `shm:FOLDER/NAME`."""

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self.address = f"shm:{self._path}"
        self._banks: dict[int, _Bank] = {}
        self._writer: socket.socket | None = None  # once this end has waited
        self._closed = False

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        """As ParamsSubscriber; raises CodecError if the params in memory fail their checksum."""
        bank = self._banks.get(policy)
        if bank is None or bank.words[_REPLACED]:
            bank = self._follow(policy)
            if bank is None:
                return None
        if bank.words[_LATEST] == bank.seen_number:
            return None
        return self._copy(bank, policy)

    def _follow(self, policy: int) -> _Bank | None:
        """Open the policy's segment if there is one, or a newer one."""
        if self._closed:
            raise StreamClosed(f"the params subscriber {self.address} is closed.")
        older = self._banks.get(policy)
        try:
            bank = _Bank.attach(_policy_path(self._path, policy))
        except StreamClosed:
            return older
        self._banks[policy] = bank
        if older is not None:
            older.close()
        return bank

    def _copy(self, bank: _Bank, policy: int) -> tuple[int, list[np.ndarray]] | None:
        words = bank.words
        for _ in range(_MAX_TRIES):
            number = words[_LATEST]
            memory_fence()
            head = _copy_head(number)
            if words[head + _NUMBER] != number:
                continue
            version, expected_sum = words[head + _VERSION], words[head + _SUM]
            memory_fence()
            fresh = aligned_zeros(bank.layout.size_bytes)
            fresh[...] = bank.copies[number % _COPIES]
            memory_fence()
            if words[head + _NUMBER] != number:
                continue
            if _word_sum(fresh) != expected_sum:
                raise CodecError(
                    f"{self.address}: params of policy {policy}, version {version}, fail their checksum: the memory "
                    "was written by another process. Stop the run and look for a second learner in the same run folder."
                )
            bank.seen_number = number
            return version, bank.layout.views(fresh)
        return None  # the writer is faster than this reader copies: the next poll tries again

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        version = self._version(policy)
        if version is not None and version_updates(version) >= min_updates:
            return
        deadline = time.monotonic() + timeout_s
        while True:
            self._connect()
            version = self._version(policy)
            if version is not None and version_updates(version) >= min_updates:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise too_late(self.address, policy, min_updates, timeout_s, version)
            self._rest(min(left_s, _POLL_S))

    def _version(self, policy: int) -> int | None:
        bank = self._banks.get(policy)
        if bank is None or bank.words[_REPLACED]:
            bank = self._follow(policy)
        return None if bank is None else bank.latest_version()

    def _connect(self) -> None:
        """Connect to the writer, if there is one."""
        if self._writer is None:
            with contextlib.suppress(StreamTimeout):
                self._writer = connect_socket(self._path, 0.0, lambda: None)

    def _rest(self, timeout_s: float) -> None:
        """Wait until something was published, or the writer has ended."""
        if self._writer is None:
            time.sleep(timeout_s)
            return
        self._writer.settimeout(timeout_s)
        try:
            if self._writer.recv(16):
                return
        except TimeoutError:
            return
        except OSError:
            pass
        self._hang_up()

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        self._closed = True
        for bank in self._banks.values():
            bank.close()
        self._banks.clear()
        self._hang_up()


def _copy_head(number: int) -> int:
    """Return the position of a numbered copy's head, in words."""
    return _HEAD_WORDS * (1 + number % _COPIES)


def _word_sum(buffer: np.ndarray) -> int:
    """Return the wrapping sum of a uint8 buffer's 64-bit words, as a signed word."""
    return int(np.add.reduce(buffer.view(np.int64))) if buffer.size else 0


class _Bank:
    """The copies of one policy's params in a segment."""

    def __init__(self, segment: Segment, layout: Layout):
        self.segment = segment
        self.layout = layout
        self.seen_number = 0  # of the copy that a reader has taken
        self.words = segment.words(0, _HEAD_WORDS * (1 + _COPIES))
        start = align(_HEADS_BYTES + self.words[_SCHEMA_BYTES])
        size = layout.size_bytes
        everything = np.frombuffer(segment.buffer, np.uint8)
        self.copies = [everything[start + k * size : start + (k + 1) * size] for k in range(_COPIES)]

    @classmethod
    def create(cls, path: Path, layout: Layout) -> _Bank:
        schema = encode_schema(layout.leaves)
        size_bytes = align(_HEADS_BYTES + len(schema)) + _COPIES * layout.size_bytes
        segment = Segment.create(path, size_bytes)
        segment.buffer[_HEADS_BYTES : _HEADS_BYTES + len(schema)] = schema
        words = segment.words(0, _HEAD_WORDS)
        words[_SCHEMA_BYTES] = len(schema)
        words.release()
        return cls(segment, layout)

    @classmethod
    def attach(cls, path: Path) -> _Bank:
        """Open a segment of params. Raises StreamClosed: it does not exist."""
        segment = Segment.attach(path)
        words = segment.words(0, _HEAD_WORDS)
        end = _HEADS_BYTES + words[_SCHEMA_BYTES]
        words.release()
        return cls(segment, make_layout(decode_schema(segment.buffer[_HEADS_BYTES:end])))

    def views(self, number: int) -> list[np.ndarray]:
        return self.layout.views(self.copies[number % _COPIES])

    def latest_version(self) -> int | None:
        """Return the version of the latest copy, None if there is none yet."""
        for _ in range(_MAX_TRIES):
            number = self.words[_LATEST]
            if number == 0:
                return None
            head = _copy_head(number)
            version = self.words[head + _VERSION]
            memory_fence()
            if self.words[head + _NUMBER] == number:
                return version
        return None

    def close(self) -> None:
        self.copies.clear()
        self.words.release()
        self.segment.close()
