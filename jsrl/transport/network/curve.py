"""Encrypted streams (CURVE): which keys a listening socket accepts, and why a connection got no answer.

With CURVE alone a server accepts every client that knows its public key; the authenticator also requires the run's client key.
ZeroMQ sends and delivers nothing before the handshake has succeeded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as socketlib
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq
from zmq.utils import z85

from jsrl.errors import AccessDenied, StreamTimeout
from jsrl.rate_limit import is_reported
from jsrl.transport.door.address import check_reach
from jsrl.transport.door.keys import (
    ClientKeys,
    KeyPath,
    ServerKeys,
    check_encryption,
    load_client_keys,
    load_server_keys,
)
from jsrl.transport.network.sockets import bind, remove_path
from jsrl.transport.network.thread import SocketThread
from jsrl.transport.wire.message import PIECE_BYTES, cut, join

_logger = logging.getLogger("jsrl.transport")
_ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ sends its queries, in the socket's context
_DOMAIN = b"jsrl"
_OVERHEAD_BYTES = 64  # added to a message by CURVE, at least 33
_HANDSHAKE_MS = 10_000  # a connection that takes longer for the handshake is closed
_CONNECT_MS = 2_000  # without an answer, a new attempt; the kernel repeats its own after 1, 2, 4 ... 64 s
_POLL_S = 1  # between checks of admitted keys
_PATIENCE, _PATIENCE_S = 4, 1.5  # failed handshakes before the connection counts as refused
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = _FAILURES | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


def keys_to_bind(endpoint: str, keys: KeyPath) -> ServerKeys | None:
    """Return the keys of a binding end; None: it has none and needs none."""
    check_reach(endpoint, encrypted=keys is not None)
    if keys is None:
        return None
    check_encryption()
    return load_server_keys(keys)


def keys_to_connect(keys: KeyPath | ClientKeys) -> ClientKeys | None:
    """Return the keys of a connecting end, loaded if necessary; None: it has none."""
    if keys is None or isinstance(keys, ClientKeys):
        return keys
    check_encryption()
    return load_client_keys(keys)


def connect(socket: zmq.Socket, endpoint: str, keys: ClientKeys | None) -> ConnectionWatch:
    """Connect a socket, encrypted if there are keys, and return its handshakes; call it after its other options are set."""
    _prepare(socket, endpoint, keys)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
    connection = ConnectionWatch(socket, endpoint, keys)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    socket.connect(endpoint)
    return connection


Admits = Callable[[bytes], str]  # a client's key -> its own name (the User-Id of its messages); empty: rejected


class Listener:
    """Binds a socket, encrypted and with an authenticator if there are keys; make it after the socket's other options are set.

    Args:
      admits: decides who may connect, and may change its mind; without it, the keys decide.

    Attributes:
      address: the endpoint that it got.
    """

    def __init__(
        self, socket: zmq.Socket, endpoint: str, keys: ServerKeys | None, admits: Admits | None = None
    ) -> None:
        self._socket, self._keys = socket, keys
        self._authenticator: Authenticator | None = None
        _prepare(socket, endpoint, keys)
        if keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
            self._authenticator = Authenticator(socket.context, admits or keys.admits)
        try:
            self.address = bind(socket, endpoint)
        except BaseException:
            self._close(0)
            raise
        if self._authenticator is not None:
            self._authenticator.endpoint = self.address

    @property
    def refused(self) -> int:
        return 0 if self._authenticator is None else self._authenticator.refused

    def receive(self, flags: int = 0) -> tuple[bytes, list[zmq.Frame]]:
        """Return (route of the sender, frames) of the next message.

        Connections whose messages are received so end within seconds once their key is no longer admitted.

        Raises:
          zmq.Again: there is no message now.
        """
        route = self._socket.recv(flags)
        frames = [self._socket.recv(copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        if self._authenticator is not None:
            self._authenticator.note(frames[-1])
        return route, frames

    def speaks_for(self, frame: zmq.Frame, worker: str) -> bool:
        """Return whether the sender of a received frame may use the name of a worker: see ServerKeys.speaks_for."""
        return self._keys is None or self._keys.speaks_for(str(frame.get("User-Id")), worker)

    def close(self, linger_ms: int) -> None:
        """Close the socket, then its authenticator, then their context; remove an ipc path."""
        remove_path(self._socket)
        self._close(linger_ms)

    def _close(self, linger_ms: int) -> None:
        self._socket.close(linger=linger_ms)  # first: without its authenticator it would accept every client
        if self._authenticator is not None:
            self._authenticator.close()
        self._socket.context.destroy(linger=linger_ms)


def outgoing(frames: list[Any], keys: object | None) -> list[Any]:
    """Return the frames of a message for sending: cut into pieces if there are keys."""
    return frames if keys is None else cut(frames)


def incoming(frames: Sequence[Any], keys: object | None, max_bytes: int) -> Sequence[Any]:
    """Return the frames of a received message, joined again if there are keys."""
    return frames if keys is None or len(frames) == 1 else join(frames, max_bytes)


def _prepare(socket: zmq.Socket, endpoint: str, keys: Any) -> None:
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    if keys is not None:
        socket.setsockopt(zmq.MAXMSGSIZE, PIECE_BYTES + _OVERHEAD_BYTES)  # larger frames come in pieces
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)


class Authenticator:
    """A thread that ZeroMQ asks about every connection; accepts clients whose key is admitted (ZeroMQ's RFC 27, ZAP).

    It ends connections whose key is no longer admitted: ZeroMQ itself asks only when a connection is made.

    Attributes:
      endpoint: of the socket, once it is bound. refused: connections rejected so far.
    """

    def __init__(self, context: zmq.Context, admits: Admits) -> None:
        self.endpoint, self.refused = "a stream", 0
        self._admits = admits
        self._keys: dict[str, bytes] = {}  # name -> its key, for all admitted so far
        self._connections: dict[int, str] = {}  # file descriptor -> name, of connections that have sent a message
        socket = context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(_ZAP)  # here, so that it exists before the guarded socket is bound
        self._socket, self._polled_s = socket, time.monotonic()
        self._thread = SocketThread("stream-keys", [socket], self._serve, lambda: 1000 * _POLL_S)

    def note(self, frame: zmq.Frame) -> None:
        self._connections[int(frame.get(zmq.SRCFD))] = str(frame.get("User-Id"))

    def _serve(self, ready: dict[Any, int]) -> None:
        if self._socket in ready:
            self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        if time.monotonic() - self._polled_s > _POLL_S:
            self._polled_s = time.monotonic()
            self._end_revoked()

    def _end_revoked(self) -> None:
        """End the connections of keys that are no longer admitted."""
        revoked = {name for name, key in list(self._keys.items()) if not self._admits(key)}
        for number, name in list(self._connections.items()):
            if name in revoked and self._connections.pop(number, None) == name:
                self._end(number)

    def _end(self, number: int) -> None:
        """End the connection with this file descriptor, unless that belongs to something else by now."""
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socketlib.socket(fileno=os.dup(number)) as connection:
                    is_ip = connection.family in (socketlib.AF_INET, socketlib.AF_INET6)
                    if is_ip and self.endpoint.endswith(f":{connection.getsockname()[1]}"):
                        connection.shutdown(socketlib.SHUT_RDWR)  # ZeroMQ then closes its descriptor

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        """Return the answer to ZeroMQ's query (version, id, domain, address, identity, mechanism, credentials)."""
        version, number = frames[:2]
        whole = len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32
        if whole and (name := self._admits(key := z85.encode(frames[6]))):
            self._keys[name] = key
            return [version, number, b"200", b"OK", name.encode(), b""]
        self.refused += 1
        if is_reported(self.refused):
            address = frames[3][:64].decode(errors="replace") if len(frames) > 3 else "an unknown address"
            _logger.warning(
                "%s refused a connection from %s: it does not hold a key of this run (refused so far: %d)",
                self.endpoint,
                address,
                self.refused,
            )
        return [version, number, b"400", b"unknown key", b"", b""]

    def close(self) -> None:
        self._thread.stop()
        self._socket.close()


def events_of(monitor: zmq.Socket) -> Iterator[tuple[int, int]]:
    """Yield (event, value) of what a socket's monitor has seen; the value of EVENT_DISCONNECTED is a file descriptor."""
    while monitor.poll(0):
        yield struct.unpack("=Hi", monitor.recv_multipart()[0])


class ConnectionWatch:
    """Watches the connection of a connecting socket; create it before `connect`.

    Attributes:
      monitor: readable when there is news; then call `poll`.
      made: whether a connection was made. changed: whether a connection was made or lost since it was reset.
      broken: whether a made connection was lost. there: whether one exists now.
    """

    def __init__(self, socket: zmq.Socket, endpoint: str, keys: ClientKeys | None) -> None:
        self.made = self.changed = self.broken = self.there = False
        self._socket, self._endpoint, self._has_keys = socket, endpoint, keys is not None
        self._failures, self._first_s = 0, 0.0
        self.monitor = socket.get_monitor_socket(int(_EVENTS))

    def poll(self) -> None:
        """Process the connection's events.

        Raises:
          AccessDenied: the other end rejects this end's key, or the reverse.
        """
        for event, value in events_of(self.monitor):
            self.changed = True
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.made, self.there, self._failures = True, True, 0
            elif event == zmq.EVENT_DISCONNECTED:
                self.broken, self.there = self.broken or self.made, False
            elif event & _FAILURES:
                self._fail(event, value)

    def _fail(self, event: int, value: int) -> None:
        now_s = time.monotonic()
        self._first_s = self._first_s if self._failures else now_s
        self._failures += 1
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            raise AccessDenied(
                f"{self._endpoint} refused this end's key: it is that of another run. Take keys/client.key of the run that "
                "listens there."
            )
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH and not self._has_keys:
            raise AccessDenied(
                f"{self._endpoint} is encrypted and this end has no keys: give keys=PATH, the keys/client.key of the run "
                "that listens there."
            )
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            raise AccessDenied(
                f"{self._endpoint} is not encrypted, and this end has keys: another run or program listens there. Compare "
                "the address, or leave out keys where it is ipc:///PATH."
            )
        lasting = self._failures >= _PATIENCE and now_s - self._first_s >= _PATIENCE_S
        if lasting and (self._has_keys or self._endpoint.startswith("tcp://")):  # a listener at tcp requires keys
            raise AccessDenied(self._hint())

    def _hint(self) -> str:
        if self._has_keys:
            known = (
                "most likely its server key is not the one in this end's client.key, or it is not encrypted; take the key of "
                "the run that listens there"
            )
        elif self._endpoint.startswith("tcp://"):
            known = (
                "most likely it is encrypted and this end has no keys: give keys=PATH, the keys/client.key of the run that "
                "listens there"
            )
        else:
            known = "most likely no stream of jsrl listens there"
        return f"{self._endpoint} ended {self._failures} connection(s) during the handshake: {known}."

    def no_answer(self, timeout_s: float) -> StreamTimeout:
        """Return the error for an unanswered hello, with the known reasons."""
        known = self._hint() if self._failures else "is the other end running, is the address right?"
        return StreamTimeout(f"no answer from {self._endpoint} within {timeout_s:g} s: {known}")

    def close(self) -> None:
        self._socket.disable_monitor()
        self.monitor.close(linger=0)
