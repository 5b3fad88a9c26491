"""Waiting for requests on any of several inference streams."""

from __future__ import annotations

from collections.abc import Iterable

import zmq

from jsrl.transport.base import InferenceServer


class Arrivals:
    """Waits until a request has arrived at any of these ends."""

    def __init__(self, servers: Iterable[InferenceServer]) -> None:
        self._poller = zmq.Poller()
        for server in servers:
            if server.waitable is not None:
                self._poller.register(server.waitable, zmq.POLLIN)

    def wait(self, max_wait_s: float) -> None:
        self._poller.poll(int(1000 * max_wait_s))
