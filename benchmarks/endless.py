"""Connections that send ZeroMQ frames without a last one, as a broken or malicious peer may; pyzmq cannot send these."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
FRAME_BYTES = 1 << 14  # below the limit of every stream


def shake_hands(path: str, identity: bytes, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to a Unix socket of ZeroMQ, after the handshake that a DEALER makes."""
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", identity)):
        body += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    connection.connect(path)
    connection.sendall(_GREETING + bytes([_COMMAND, len(body)]) + body)
    _receive(connection, 64)
    _receive(connection, _receive(connection, 2)[1])  # the other end is ready and accepts messages
    return connection


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    heard = b""
    while len(heard) < size_bytes:
        part = connection.recv(size_bytes - len(heard))
        if not part:
            raise ConnectionError("the connection was closed during the handshake")
        heard += part
    return heard


def as_sent(frames: Sequence[bytes], *, ended: bool) -> bytes:
    """Return the bytes of these frames; not `ended`: more frames of the same message follow."""
    return b"".join(
        struct.pack(">BQ", _LONG | (0 if ended and number == len(frames) - 1 else _MORE), len(frame)) + frame
        for number, frame in enumerate(frames)
    )


class Flood:
    """Sends frames over a Unix socket from a separate thread until the other end closes, or `close`.

    Attributes:
      sent_bytes: so far. ended: set once the other end closed the connection.
    """

    def __init__(self, path: str, most_bytes: int = 1 << 40) -> None:
        self.sent_bytes, self.ended, self._most_bytes = 0, threading.Event(), most_bytes
        self._socket = shake_hands(path, b"flood")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        frame = as_sent([bytes(FRAME_BYTES)], ended=False)
        try:
            while self.sent_bytes < self._most_bytes:
                self._socket.sendall(frame)
                self.sent_bytes += FRAME_BYTES
        except OSError:
            self.ended.set()

    def close(self) -> None:
        """End the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._socket.close()
        self._thread.join(10)
