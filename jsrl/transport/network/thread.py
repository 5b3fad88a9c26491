"""A thread that serves ZeroMQ sockets while its owner is busy with something else."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from socket import socketpair
from typing import Any

import zmq


class WakeUp:
    """Wakes a thread that polls `socket`, from any thread, also after it was closed."""

    def __init__(self) -> None:
        self._sender, self.socket = socketpair()
        self._sender.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the thread wakes anyway; closed: it has ended
            self._sender.send(b"!")

    def clear(self, ready: dict[Any, int]) -> None:
        """Forget the calls so far, if there were any."""
        if self.socket.fileno() in ready:
            self.socket.recv(1 << 16)

    def close(self) -> None:
        self._sender.close()
        self.socket.close()


class SocketThread:
    """Serves sockets until it is stopped.

    Args:
      sockets: belong to the thread from now on, until it has stopped.
      serve: called with the sockets that are readable, after each `wake`, and when the time is over.
      wait_ms: returns the longest time until the next call; None: no limit.
    """

    def __init__(
        self,
        name: str,
        sockets: Sequence[zmq.Socket],
        serve: Callable[[dict[Any, int]], None],
        wait_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._sockets, self._serve, self._wait_ms, self._stopping = sockets, serve, wait_ms, False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if not self._stopping:  # else the number of the pipe may be that of another file
            self._write()

    def _write(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full: the thread will wake anyway

    def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._write()
        self._thread.join(10)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._wake_read, *self._sockets):
            poller.register(source, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll(self._wait_ms()))
            if self._wake_read in ready:
                os.read(self._wake_read, 65536)
            if not self._stopping:
                self._serve(ready)
