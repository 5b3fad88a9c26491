"""A connection that sends ZeroMQ frames without a last one, as a broken or malicious peer may."""

from __future__ import annotations

import socket
import struct
import threading

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
FRAME_BYTES = 1 << 14  # below what any stream takes


def _ready() -> bytes:
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b"flood")):
        body += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return bytes([_COMMAND, len(body)]) + body


class Flood:
    """Sends frames over a Unix socket from a thread of its own until the other end closes, or `close`.

    Attributes:
      sent_bytes: so far. ended: set once the other end closed the connection.
    """

    def __init__(self, path: str, most_bytes: int = 1 << 40) -> None:
        self.sent_bytes, self.ended, self._most_bytes = 0, threading.Event(), most_bytes
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.sendall(_GREETING + _ready())
        self._hear(64)
        self._hear(self._hear(2)[1])  # the other end is ready, and takes messages
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _hear(self, size_bytes: int) -> bytes:
        heard = self._socket.recv(size_bytes, socket.MSG_WAITALL)
        assert len(heard) == size_bytes, "the connection was ended in the handshake"
        return heard

    def _run(self) -> None:
        frame = struct.pack(">BQ", _MORE | _LONG, FRAME_BYTES) + bytes(FRAME_BYTES)
        try:
            while self.sent_bytes < self._most_bytes:
                self._socket.sendall(frame)
                self.sent_bytes += FRAME_BYTES
        except OSError:
            self.ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait until all is sent, or the other end has closed."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """End the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._socket.close()
        self._thread.join(10)
