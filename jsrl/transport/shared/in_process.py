"""Connections within a process: what `shared/connections.py` uses of a socket and of an epoll, for any operating system."""

from __future__ import annotations

import errno
import itertools
import threading
import weakref
from collections import deque

from jsrl.transport.shared.segment import Segment

_numbers = itertools.count(1)


class LocalPoller:
    """Says which connections have something to read, once for each message and for the end."""

    def __init__(self) -> None:
        self.closed = False
        self._numbers, self._is_woken = deque[int](), False
        self._changed = threading.Condition()

    def register(self, connection: LocalSocket) -> None:
        connection.poller = self

    def unregister(self, connection: LocalSocket) -> None:
        connection.poller = None

    def add(self, number: int) -> None:
        with self._changed:
            self._numbers.append(number)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let one that polls return."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        """Return (number of a connection, 0); below 0 it waits until there is one."""
        if not self._numbers and timeout_s == 0:
            return []
        with self._changed:
            self._changed.wait_for(lambda: self._numbers or self._is_woken, None if timeout_s < 0 else timeout_s)
            self._is_woken = False
            return [(self._numbers.popleft(), 0) for _ in range(min(most, len(self._numbers)))]

    def close(self) -> None:
        self.closed = True


class LocalSocket:
    """One end of a connection; it ends with the object.

    Attributes:
      poller: where it is registered. is_closed: here.
    """

    def __init__(self) -> None:
        self.poller: LocalPoller | None = None
        self._number = next(_numbers)
        self._timeout_s: float | None = None
        self._inbox = deque[tuple[bytes, Segment | None]]()
        self.is_closed = self._ends = False  # _ends: nothing more comes
        self._arrived = threading.Condition()
        self._other: weakref.ref[LocalSocket] = weakref.ref(self)

    @classmethod
    def pair(cls) -> tuple[LocalSocket, LocalSocket]:
        one, other = cls(), cls()
        one._other, other._other = weakref.ref(other), weakref.ref(one)
        return one, other

    def fileno(self) -> int:
        return self._number

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def setblocking(self, blocking: bool) -> None:
        self.settimeout(None if blocking else 0.0)

    def send(self, message: bytes) -> None:
        self.send_memory(message, None)

    def send_memory(self, message: bytes, memory: Segment | None) -> None:
        other = self._other()
        if self.is_closed or other is None or other.is_closed:
            raise BrokenPipeError(errno.EPIPE, "the other end was closed")
        other.take(message, None if memory is None else memory.shared())

    def take(self, message: bytes, memory: Segment | None) -> None:
        """Take a message of the other end."""
        with self._arrived:
            self._inbox.append((message, memory))
            self._arrived.notify_all()
        if (poller := self.poller) is not None:
            poller.add(self._number)

    def recv(self, _: int) -> bytes:
        return self.recv_memory()[0]

    def recv_memory(self) -> tuple[bytes, Segment | None]:
        """Return the next message; empty: the other end was closed."""
        if self.is_closed:
            raise OSError(errno.EBADF, "it is closed")
        if not self._inbox:
            self.wait_readable(self._timeout_s)
        if self._inbox:
            return self._inbox.popleft()
        if self._ends:
            return b"", None
        raise BlockingIOError if self._timeout_s == 0 else TimeoutError

    def wait_readable(self, timeout_s: float | None) -> None:
        if timeout_s != 0:
            with self._arrived:
                self._arrived.wait_for(lambda: self._inbox or self._ends, timeout_s)

    def wait_writable(self, timeout_s: float) -> None:
        """Return at once: there is always room."""

    def shutdown(self, _: int) -> None:
        """Receive nothing more than what has arrived."""
        self.end()

    def end(self) -> None:
        """Note that nothing more comes."""
        with self._arrived:
            self._ends = True
            self._arrived.notify_all()
        if (poller := self.poller) is not None:
            poller.add(self._number)

    def close(self) -> None:
        self.is_closed = True
        if (other := self._other()) is not None:
            other.end()

    __del__ = close
