"""ZeroMQ sockets of streams: common options, and exclusive binding of an address."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import random
import re
import socket as sockets
from collections.abc import Sequence
from pathlib import Path

import zmq

from jsrl.errors import ConfigError
from jsrl.transport.shared.connections import is_alive

SILENCE_MS = 10000
# The ports at which sockets of this host may listen; without it any.
VARIABLE = "JSRL_PORTS"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_REUSED_BYTES = 32 << 20  # glibc's maximum
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")
MAX_WAITING = 1000


def configure(
    socket: zmq.Socket,
    max_message_bytes: int,
    *,
    max_waiting: int = MAX_WAITING,
    buffer_bytes: int = 0,
    silence_ms: int = SILENCE_MS,
) -> None:
    """Limit a socket's frames and its queue, and detect a silent host.

    Args:
      max_message_bytes: of one frame. max_waiting: messages in a connection, each way; 0: no limit, if both ends
        count themselves. buffer_bytes: of the kernel, each way; 0: the kernel's default. silence_ms: silence of the other end
        after which the connection counts as lost.
    """
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, max_waiting)
    socket.setsockopt(zmq.RCVHWM, max_waiting)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, silence_ms // 4)  # each one wakes both ends: there may be thousands of them
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silence_ms)
    if buffer_bytes:
        socket.setsockopt(zmq.SNDBUF, buffer_bytes)
        socket.setsockopt(zmq.RCVBUF, buffer_bytes)


def bind(socket: zmq.Socket, endpoint: str) -> str:
    """Bind a socket and return the endpoint it got (tcp port 0 becomes one of `allowed_ports`).

    Unlike ZeroMQ, it never takes an ipc path from a living process.
    """
    if endpoint.startswith("tcp://") and endpoint.endswith(":0"):
        _bind_any_port(socket, endpoint.removesuffix(":0"))
        return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    path = _path_of(endpoint)
    if path and is_alive(path, sockets.SOCK_STREAM):
        raise ConfigError(f"{endpoint} is bound already by a living process; stop it first or choose another path.")
    try:
        socket.bind(endpoint)
        if path:
            os.chmod(path, 0o600)
    except zmq.ZMQError as error:
        raise _cannot_bind(endpoint, error) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def _bind_any_port(socket: zmq.Socket, host: str) -> None:
    for port in allowed_ports():
        try:
            socket.bind(f"{host}:{port or '*'}")
            return
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_bind(f"{host}:{port}", error) from error
    raise none_free(host)


def _cannot_bind(endpoint: str, error: zmq.ZMQError) -> ConfigError:
    do = "Take a free port (tcp://127.0.0.1:0 chooses one) or another path."
    if error.errno == errno.EADDRNOTAVAIL:
        do = "No interface of this host has this address; `hostname -I` lists those it has."
    return ConfigError(f"cannot bind {endpoint}: {error.strerror or error}. {do}")


def remove_path(socket: zmq.Socket) -> None:
    """Remove the file of an ipc endpoint bound here, which ZeroMQ leaves. Call it before the socket is closed."""
    path = _path_of(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
    if path:
        Path(path).unlink(missing_ok=True)


def _path_of(endpoint: str) -> str:
    path = endpoint.removeprefix("ipc://")
    return "" if path == endpoint else path


def allowed_ports() -> Sequence[int]:
    """Return the ports to try, in this order; (0,): the system chooses one.

    They begin at a random place of the range, so that processes that start together rarely try the same ones.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return (0,)
    found = _RANGE.fullmatch(given)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1024 <= first <= last <= 65535:
        raise ConfigError(
            f"{VARIABLE} is {given!r}; expected a range of ports from 1024 to 65535, such as 40000-40100."
        )
    ports = range(first, last + 1)
    begin = random.randrange(len(ports))
    return [*ports[begin:], *ports[:begin]]


def none_free(host: str) -> ConfigError:
    return ConfigError(
        f"all ports of {VARIABLE}={os.environ.get(VARIABLE, '')} are in use at {host}; set a larger range, or stop what uses "
        "them (`ss -ltnp` lists it)."
    )


@functools.cache
def reuse_freed_memory() -> bool:
    """Make the C library reuse freed pieces of up to 32 MiB instead of returning them to the kernel; return whether it can.

    ZeroMQ allocates every large message. By default glibc maps new memory for it, or unmaps it when it is freed, and
    every page of every message faults again: three times the CPU time of the transfer itself on a virtual machine. The
    thresholds set here are those that glibc itself reaches once a program has freed 32 MiB, so a process keeps at
    most 64 MiB of freed memory more than before. Does nothing with other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    largest, kept = _MAX_REUSED_BYTES, 2 * _MAX_REUSED_BYTES
    return bool(mallopt(_MMAP_THRESHOLD, largest)) and bool(mallopt(_TRIM_THRESHOLD, kept))
