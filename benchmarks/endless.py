"""Connections that send ZeroMQ frames without a last one, as a broken or malicious peer may; pyzmq cannot send these."""

from __future__ import annotations

import socket
import struct
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
