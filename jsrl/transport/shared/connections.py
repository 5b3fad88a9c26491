"""Connections within a host: a Unix socket for each, with a datagram for each message, and the memory that its ends share.

A connection ends with the process at either end, which the other end notices at once; it can still read what was sent before.
The client's hello is its first message; the answer brings the descriptor of the memory, which both ends map and which has no
name, so nothing is left behind. `local:NAME` has the same connections between two ends in one process, without the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from jsrl.errors import ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamTimeout
from jsrl.linux import descriptor_path
from jsrl.transport.base import remaining
from jsrl.transport.door.hello import (
    Check,
    Door,
    Hello,
    HelloMessage,
    Refused,
    hello_frames,
    raise_refusal,
    refusal,
)
from jsrl.transport.shared.in_process import LocalPoller, LocalSocket
from jsrl.transport.shared.locks import make_folder
from jsrl.transport.shared.segment import Segment
from jsrl.transport.stream import StreamType
from jsrl.transport.wire.message import Message, pack, unpack

_logger = logging.getLogger("jsrl.transport")
MAX_BYTES = 1 << 17  # of a message
_BUFFER_BYTES = 1 << 20  # of a connection, each way; the kernel may grant less
_BACKLOG = 1024
_RETRY_S = 0.01
_SLICE_S = 0.1  # between checks while a hello is not answered
_HELLOS = msgspec.msgpack.Decoder(HelloMessage)
_here: dict[tuple[StreamType, str], Connections] = {}  # of this process, by the NAME in `local:NAME`
_changed = threading.Condition()


class BindingEnd(Protocol):
    """The end of a stream that others connect to."""

    stream_type: StreamType
    door: Door

    def admit(self, hello: Hello, connection: Connection) -> Any:
        """Answer a hello with `welcome`, and return the peer; raise JsrlError to refuse it."""
        ...

    def read(self, peer: Any) -> None:
        """Process all messages of a peer, and its end."""
        ...

    def complain(self, error: SpecMismatch) -> None:
        """Note that a client with another schema was refused."""
        ...


class Connections:
    """The connections of a binding end; any thread may serve them.

    Args:
      place: /FOLDER/NAME of the socket, or NAME within this process.

    Attributes:
      lock: held while messages are processed. poller: says who has sent something; for other pollers, if it has a descriptor.
    """

    def __init__(self, place: str, end: BindingEnd) -> None:
        self.place, self._end = place, end
        self.lock = threading.RLock()
        self.poller: Any = LocalPoller()
        self._unidentified: dict[int, Connection] = {}  # they have sent nothing yet
        self._peers: dict[int, Any] = {}
        self._listener: socket.socket | None = None
        if is_path(place):
            make_folder(Path(place).parent)
            self._listener, self.poller = listen_socket(Path(place)), EpollPoller()
            self.poller.register(self._listener)
            return
        with _changed:
            if (end.stream_type, place) in _here:
                raise ConfigError(f"local:{place} is bound already in this process; close it or choose another name.")
            _here[end.stream_type, place] = self
            _changed.notify_all()

    def serve(self, max_wait_s: float) -> None:
        """Process what has arrived, waiting up to `max_wait_s` for the first message (below 0: until it comes)."""
        with self.lock if max_wait_s == 0 else contextlib.nullcontext():  # of two at a time, both may find nothing
            events = [] if self.poller.closed else self.poller.poll(max_wait_s, 4096)
        if not events:
            return
        with self.lock:
            peers, others = self._peers, list[int]()
            for fd, _ in events:
                peer = peers.get(fd)
                if peer is None:
                    others.append(fd)
                else:
                    self._end.read(peer)
            for fd in others:  # later: a client may have ended a connection before it makes the next
                if (connection := self._unidentified.pop(fd, None)) is not None:
                    self._identify(fd, connection)
            if self._listener is not None and self._listener.fileno() in others:
                self._accept(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                self._add(accept(listener))
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is free: the connection waits until there is one
            _logger.warning("%s cannot accept a connection: %s", address_of(self.place), error)
            time.sleep(_SLICE_S)

    def connect_here(self) -> LocalSocket:
        """Return the other end of a new connection within this process."""
        ours, theirs = LocalSocket.pair()
        self._add(ours)
        return theirs

    def _add(self, connection: Connection) -> None:
        connection.setblocking(False)
        self._unidentified[connection.fileno()] = connection
        self.poller.register(connection)

    def _identify(self, fd: int, connection: Connection) -> None:
        """Answer the hello of a connection; close it if there is none, or if its sender may not join."""
        try:
            if message := connection.recv(MAX_BYTES):
                hello, _ = unpack([message], _HELLOS, self._end.door.header_bytes)
                self._peers[fd] = self._end.admit(self._end.door.read(hello), connection)
                return
        except JsrlError as error:
            if isinstance(error, SpecMismatch):
                self._end.complain(error)
            send(connection, refusal(error))
        except OSError as error:  # the client is gone; or there is no descriptor, no memory: the next one may get some
            send(connection, refusal(StreamClosed(f"{self.place} cannot admit another client now: {error}")))
        self.poller.unregister(connection)
        connection.close()

    def memory(self, size_bytes: int) -> Segment:
        """Return new memory for a client."""
        if self._listener is None:
            return Segment.in_process(size_bytes)
        return Segment.unnamed(Path(self.place).parent, size_bytes)

    def disconnect(self, connection: Connection, reason: str) -> None:
        """End a peer's connection, which says why; messages that it has sent are not read any more."""
        if self._peers.pop(connection.fileno(), None) is not None:
            self.poller.unregister(connection)
        send(connection, refusal(StreamClosed(f"{reason}.")))
        connection.close()

    def wake(self) -> None:
        """Let a thread that serves return, even if another thread has processed what it waits for."""
        self.poller.wake()

    def close(self) -> None:
        """Close, after every peer was disconnected."""
        for connection in self._unidentified.values():
            connection.close()
        self._unidentified.clear()
        self.poller.close()
        if self._listener is not None:
            self._listener.close()
            Path(self.place).unlink(missing_ok=True)
            return
        with _changed:
            del _here[self._end.stream_type, self.place]


class EpollPoller:
    """An epoll that another thread can wake."""

    def __init__(self) -> None:
        self._epoll, self._wake = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.register(self._wake)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def register(self, connection: socket.socket | int) -> None:
        self._epoll.register(connection, select.EPOLLIN)

    def unregister(self, connection: socket.socket) -> None:
        self._epoll.unregister(connection)

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        events = self._epoll.poll(timeout_s, most)
        if (self._wake, select.EPOLLIN) in events:
            with contextlib.suppress(BlockingIOError):  # another thread has read it
                os.eventfd_read(self._wake)
        return events

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake)


class UnixSocket(socket.socket):
    """A socket that is closed with the object, without a warning."""

    def send_memory(self, message: bytes, memory: Segment) -> None:
        socket.send_fds(self, [message], [memory.fileno()])

    def recv_memory(self) -> tuple[bytes, Segment | None]:
        message, descriptors, _, _ = socket.recv_fds(self, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        return message, Segment.of(descriptors[0]) if descriptors else None

    def wait_readable(self, timeout_s: float) -> None:
        self._wait(select.POLLIN, timeout_s)

    def wait_writable(self, timeout_s: float) -> None:
        self._wait(select.POLLOUT, timeout_s)

    def _wait(self, event: int, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self, event)
        poller.poll(1000 * timeout_s)

    def __del__(self) -> None:
        self.close()


Connection: TypeAlias = UnixSocket | LocalSocket


def is_path(place: str) -> bool:
    """Return whether a place is a path, which other processes know, and not a name in this process."""
    return place.startswith("/")


def address_of(place: str) -> str:
    return f"shm:{place}" if is_path(place) else f"local:{place}"


def send(connection: Connection, message: Message) -> bool:
    """Send a message without waiting; return False if its receiver is gone, or reads nothing."""
    try:
        connection.send(pack(message)[0])
    except OSError:
        return False
    return True


def welcome(connection: Connection, message: Message, memory: Segment) -> None:
    """Answer a hello, and pass on the memory of the client. Raises OSError if it is gone; the memory is closed then."""
    try:
        connection.send_memory(pack(message)[0], memory)
    except OSError:
        memory.close()
        raise


def meet(
    stream_type: StreamType, place: str, hello: Hello, answers: Any, timeout_s: float, check: Check
) -> tuple[Connection, Any, Segment, Connections | None]:
    """Connect, and return (connection, welcome, memory, the other end's connections if they are in this process).

    Args:
      answers: decoder of the welcome and of refusals. timeout_s: how long to wait until the other end is there and answers.
      check: called periodically meanwhile.

    Raises:
      StreamTimeout: no answer in time. StreamClosed: the other end has left. Others: why it refused the hello, or what `check`
        raises.
    """
    deadline, address = time.monotonic() + timeout_s, address_of(place)
    here = None if is_path(place) else _here_at(stream_type, place, timeout_s)
    connection = connect_socket(place, timeout_s, check) if here is None else here.connect_here()
    try:
        message = b"".join(hello_frames(hello))
        if len(message) > MAX_BYTES:
            raise ConfigError(f"the hello of {hello.sender.name} has {len(message)} bytes, over {MAX_BYTES}.")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has left, as the missing answer shows
            connection.send(message)
        if here is not None:  # both ends may be in one thread
            here.serve(0.0)
            here.wake()
        while True:
            connection.settimeout(min(max(0.001, remaining(deadline)), _SLICE_S))
            try:
                answer, memory = connection.recv_memory()
                break
            except TimeoutError:
                check()
            except OSError as error:
                raise StreamClosed(f"{address} left during the hello: {error.strerror}.") from None
            if remaining(deadline) <= 0:
                raise StreamTimeout(
                    f"{address} accepted the connection but did not answer the hello within {timeout_s:g} s; the other end "
                    "is busy (compiling) or hangs: allow more time or look at its log."
                )
        if not answer:
            raise StreamClosed(f"{address} left during the hello.")
        found, _ = unpack([answer], answers, MAX_BYTES)
        if isinstance(found, Refused):
            raise_refusal(found)
        assert memory is not None
        return connection, found, memory, here
    except BaseException:
        connection.close()
        raise


def _here_at(stream_type: StreamType, place: str, timeout_s: float) -> Connections:
    with _changed:
        if not _changed.wait_for(lambda: (stream_type, place) in _here, timeout_s):
            raise StreamTimeout(f"local:{place} was not bound in this process within {timeout_s:g} s.")
        return _here[stream_type, place]


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits a socket address (107 bytes), for folders of any depth."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{descriptor_path(folder)}/{path.name}"
    finally:
        os.close(folder)


def _new_socket(kind: int = socket.SOCK_SEQPACKET) -> UnixSocket:
    return UnixSocket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)


def listen_socket(path: Path) -> socket.socket:
    """Return a non-blocking listening socket at `path` (mode 0600); a dead owner's socket is replaced."""
    try:
        with _short_name(path) as name:
            if is_alive(name):
                raise ConfigError(f"{path} is bound already by a living process; close it or choose another name.")
            path.unlink(missing_ok=True)
            listener = _new_socket()
            try:
                os.fchmod(listener.fileno(), 0o600)  # the file gets the socket's mode, before a client can connect
                listener.bind(name)
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
                listener.setblocking(False)
            except OSError:
                listener.close()
                raise
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error.strerror or error}.") from error
    return listener


def accept(listener: socket.socket) -> UnixSocket:
    """Return the next connection. Raises BlockingIOError: there is none."""
    connection = UnixSocket(fileno=listener.accept()[0].detach())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return connection


def is_alive(name: str, kind: int = socket.SOCK_SEQPACKET) -> bool:
    """Return whether a living process listens at the Unix socket `name` (of `kind`)."""
    with _new_socket(kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
    return True


def connect_socket(place: str | Path, timeout_s: float, check: Check) -> UnixSocket:
    """Return a connection to the listener at a path; waits for it to appear, and calls `check` meanwhile."""
    path = Path(place)
    deadline = time.monotonic() + timeout_s
    while True:
        connection = _new_socket()
        try:
            with _short_name(path) as name:
                connection.settimeout(max(0.001, remaining(deadline)))
                connection.connect(name)
            return connection
        except OSError as error:
            connection.close()
            if remaining(deadline) <= _RETRY_S:
                raise StreamTimeout(
                    f"no process listened at {path} within {timeout_s} s ({error.strerror or error}); "
                    "is the other end started, with the same run folder?"
                ) from None
        check()
        time.sleep(_RETRY_S)
