"""A lock on a file between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, timeout_s: float = math.inf) -> Iterator[None]:
    """Hold a file's advisory lock, which the kernel frees when its holder dies; the file is made if it is missing.

    On a file system without locks it holds nothing.

    Raises:
      TimeoutError: another process held it for `timeout_s`.
      OSError: the lock file cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    break
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process held {path} for more than {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        yield
    finally:
        os.close(descriptor)
