"""What the ZeroMQ ends of inference and params have in common: socket options, and an address bound by one process."""

from __future__ import annotations

import os
import socket as sockets
from pathlib import Path

import zmq

from jsrl.errors import ConfigError
from jsrl.transport.meeting.handshake import bind
from jsrl.transport.meeting.unix_socket import is_alive

_HEARTBEAT_MS = 1000
_SILENCE_MS = 10000


def configure_socket(socket: zmq.Socket, max_message_bytes: int) -> None:
    """Bound the messages of a socket, and have it notice a host that fell silent."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)


def bind_alone(socket: zmq.Socket, endpoint: str) -> str:
    """Bind a socket and return the endpoint it got; unlike ZeroMQ, take no ipc path away from a living process.

    Raises:
      ConfigError: the endpoint is taken or not possible.
    """
    path = endpoint.removeprefix("ipc://")
    if path == endpoint:
        return bind(socket, endpoint)
    if is_alive(path, sockets.SOCK_STREAM):
        raise ConfigError(f"{endpoint} is bound already by a living process; close it or choose another path.")
    bound = bind(socket, endpoint)
    os.chmod(path, 0o600)
    return bound


def remove_ipc_path(endpoint: str) -> None:
    """Remove the socket's file of an ipc endpoint that was bound here; ZeroMQ leaves it."""
    path = endpoint.removeprefix("ipc://")
    if path != endpoint:
        Path(path).unlink(missing_ok=True)
