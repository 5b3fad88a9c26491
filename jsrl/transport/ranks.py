"""The ends of a stream of type `ranks`: small messages over ZeroMQ, on a Unix socket or, with keys, over TCP."""

from __future__ import annotations

import zmq

from jsrl.errors import CodecError, StreamTimeout
from jsrl.transport.meeting.curve import (
    Listener,
    connect,
    incoming,
    keys_to_bind,
    keys_to_connect,
    outgoing,
)
from jsrl.transport.meeting.keys import ClientKeys, KeyPath
from jsrl.transport.meeting.sockets import configure

_MESSAGE_BYTES = 1 << 12


class ZmqFirstRank:
    """The binding end, with keys over TCP; see FirstRank."""

    def __init__(self, endpoint: str, keys: KeyPath) -> None:
        self._keys = keys_to_bind(endpoint, keys)
        self._socket = zmq.Context().socket(zmq.ROUTER)
        configure(self._socket, _MESSAGE_BYTES)
        self._listener = Listener(self._socket, endpoint, self._keys)
        self._newest: dict[bytes, zmq.Frame] = {}  # sender -> the last frame of its newest message
        self.address = self._listener.address

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        found, wait_ms = list[tuple[bytes, bytes]](), int(timeout_s * 1000)
        while self._socket.poll(wait_ms):
            wait_ms = 0
            frames = self._listener.receive()
            sender = frames[0].bytes
            try:
                (body,) = incoming([frame.bytes for frame in frames[1:]], self._keys, _MESSAGE_BYTES)
            except (CodecError, ValueError):
                continue  # only holders of the run's keys get this far
            self._newest[sender] = frames[-1]
            found.append((sender, bytes(body)))
        return found

    def speaks_for(self, sender: bytes, worker: str) -> bool:
        return self._listener.speaks_for(self._newest[sender], worker)

    def send(self, receiver: bytes, message: bytes) -> None:
        self._socket.send_multipart([receiver, *outgoing([message], self._keys)])

    def close(self) -> None:
        if not self._socket.closed:
            self._listener.close(100)


class ZmqOtherRank:
    """A connecting end; see OtherRank."""

    def __init__(self, endpoint: str, keys: KeyPath | ClientKeys) -> None:
        self._keys = keys_to_connect(keys)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, _MESSAGE_BYTES)
        self._connection = connect(self._socket, endpoint, self._keys)

    def send(self, message: bytes) -> None:
        self._socket.send_multipart(outgoing([message], self._keys))

    def receive(self, timeout_s: float) -> bytes | None:
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        (body,) = incoming(self._socket.recv_multipart(), self._keys, _MESSAGE_BYTES)
        return bytes(body)

    def look(self) -> None:
        self._connection.look()

    def no_answer(self, timeout_s: float) -> StreamTimeout:
        return self._connection.no_answer(timeout_s)

    def close(self) -> None:
        if not self._socket.closed:
            self._connection.close()
            self._context.destroy(linger=100)
