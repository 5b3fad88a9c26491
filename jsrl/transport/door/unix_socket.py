"""Unix sockets in the run folder: a connection that lasts as long as the processes at its ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jsrl.errors import ConfigError, StreamTimeout
from jsrl.linux import descriptor_path

_BACKLOG = 1024
_RETRY_S = 0.01


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits a socket address (107 bytes), for folders of any depth."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{descriptor_path(folder)}/{path.name}"
    finally:
        os.close(folder)


def _new_socket(kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    return socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)


def listen_socket(path: Path) -> socket.socket:
    """Return a non-blocking listening socket at `path` (mode 0600); a dead owner's socket is replaced."""
    try:
        with _short_name(path) as name:
            if is_alive(name):
                raise ConfigError(f"{path} is bound already by a living process; close it or choose another name.")
            path.unlink(missing_ok=True)
            listener = _new_socket()
            try:
                os.fchmod(listener.fileno(), 0o600)  # the file gets the socket's mode, before a client can connect
                listener.bind(name)
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
                listener.setblocking(False)
            except OSError:
                listener.close()
                raise
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error.strerror or error}.") from error
    return listener


def is_alive(name: str, kind: int = socket.SOCK_SEQPACKET) -> bool:
    """Return whether a living process listens at the Unix socket `name` (of `kind`)."""
    with _new_socket(kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
    return True


def connect_socket(path: str | Path, timeout_s: float, check: Callable[[], None]) -> socket.socket:
    """Return a connection to the listener at `path`; waits for it to appear, and calls `check` meanwhile."""
    path = Path(path)
    deadline = time.monotonic() + timeout_s
    while True:
        connection = _new_socket()
        try:
            with _short_name(path) as name:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                connection.connect(name)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() + _RETRY_S >= deadline:
                raise StreamTimeout(
                    f"no process listened at {path} within {timeout_s} s ({error.strerror or error}); "
                    "is the other end started, with the same run folder?"
                ) from None
        check()
        time.sleep(_RETRY_S)
