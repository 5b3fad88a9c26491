"""A proxy between the ends of a ZeroMQ stream that drops, repeats, delays and reorders messages in both directions."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass

import zmq


@dataclass(frozen=True)
class Faults:
    """Probabilities of faults per message.

    Attributes:
      drop: it never arrives. duplicate: it arrives twice, the second time late. delay: it arrives up to `delay_s` seconds
      late, so that later ones overtake it.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.05


class FaultProxy:
    """Producers connect to `address`; their messages are forwarded to the consumer at `target`, and the replies back.

    Both are `ipc://` addresses. Each producer has its own connection to the consumer, with its own routing id, so that
    the consumer sees the same as without the proxy. `counts` holds the number of messages per fault.
    """

    def __init__(self, target: str, faults: Faults, seed: int = 0) -> None:
        self.faults, self.counts = faults, Counter[str]()
        self._target, self._random = target, random.Random(seed)
        self._context = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self.address = f"{target}.proxy"
        self._front.bind(self.address)
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._backs: dict[bytes, zmq.Socket] = {}
        self._late: list[tuple[float, int, bool, bytes, list[bytes]]] = []
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; delayed messages are dropped."""
        self._stop.set()
        self._thread.join(10)
        self._context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _serve(self) -> None:
        while not self._stop.is_set():
            due_s = self._late[0][0] - time.monotonic() if self._late else 0.05
            for socket, _ in self._poller.poll(max(0.0, min(due_s, 0.05)) * 1000):
                self._take(socket)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, forward, route, frames = heapq.heappop(self._late)
                self._deliver(forward, route, frames)

    def _take(self, socket: zmq.Socket) -> None:
        if socket is self._front:
            route, *frames = socket.recv_multipart()
            if route not in self._backs:
                back = self._socket(zmq.DEALER)
                back.setsockopt(zmq.ROUTING_ID, route)
                back.connect(self._target)
                self._poller.register(back, zmq.POLLIN)
                self._backs[route] = back
            self._treat(True, route, frames)
        else:
            route = next(route for route, back in self._backs.items() if back is socket)
            self._treat(False, route, socket.recv_multipart())

    def _treat(self, forward: bool, route: bytes, frames: list[bytes]) -> None:
        faults, draw = self.faults, self._random.random
        if draw() < faults.drop:
            self.counts["dropped"] += 1
            return
        if draw() < faults.duplicate:
            self.counts["duplicated"] += 1
            self._later(forward, route, frames)
        if draw() < faults.delay:
            self.counts["delayed"] += 1
            self._later(forward, route, frames)
        else:
            self.counts["passed"] += 1
            self._deliver(forward, route, frames)

    def _later(self, forward: bool, route: bytes, frames: list[bytes]) -> None:
        self._number += 1
        due_s = time.monotonic() + self._random.uniform(0.0, self.faults.delay_s)
        heapq.heappush(self._late, (due_s, self._number, forward, route, frames))

    def _deliver(self, forward: bool, route: bytes, frames: list[bytes]) -> None:
        if forward:
            self._backs[route].send_multipart(frames)
        else:
            self._front.send_multipart([route, *frames])  # ZeroMQ drops it if the producer is gone
