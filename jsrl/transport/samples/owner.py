"""The lock file that shows whether the consumer of a stream in shared memory is alive."""

from __future__ import annotations

import os
from pathlib import Path

from jsrl.errors import ConfigError, StreamClosed
from jsrl.transport.memory.segment import try_lock


def open_owner(path: Path) -> int:
    """Return the owner file of a living consumer, opened to check its lock.

    Raises:
      StreamClosed: it does not exist any more.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StreamClosed(f"{path} is gone: the consumer closed just after its welcome.") from None


def claim_owner(path: Path, address: str) -> int:
    """Return a new, locked owner file; an old one is replaced once no process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    old = os.open(path, flags, 0o600)
    try:
        if not try_lock(old):
            raise ConfigError(f"{address} has a living consumer; stop it first or choose another name.")
        path.unlink()  # producers of the old consumer hold the old file, unlocked from now on
    finally:
        os.close(old)
    claimed = os.open(path, flags | os.O_EXCL, 0o600)
    try_lock(claimed)
    return claimed
