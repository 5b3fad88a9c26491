"""A thread that answers messages at a socket, while its owner is busy with something else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

LOOK_MS = 1_000


class AnswerThread:
    """Answers messages one by one until it is closed.

    Args:
      socket: bound already; belongs to the thread from now on, which closes it at the end.
      answer: received frames -> frames to send. name: of the thread. look: called about once a second.
    """

    def __init__(
        self,
        socket: zmq.Socket,
        answer: Callable[[list[bytes]], list[Any]],
        name: str,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._socket, self._answer, self._look, self._closed = socket, answer, look, False
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop_read, zmq.POLLIN)
        looked_s = time.monotonic()
        while True:
            ready = dict(poller.poll(None if self._look is None else LOOK_MS))
            if self._stop_read in ready:
                self._socket.close()
                return
            if self._socket in ready:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
            if self._look is not None and time.monotonic() - looked_s > LOOK_MS / 1000:
                looked_s = time.monotonic()
                self._look()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            os.write(self._stop_write, b"\0")
            self._thread.join(10)
        os.close(self._stop_read)
        os.close(self._stop_write)
