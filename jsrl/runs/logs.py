"""The size of a worker's log, which prints of a user's environment may fill."""

from __future__ import annotations

import os
import shutil
import stat

MOST_BYTES = 16 * 2**20


def cut_log(fd: int = 1, most_bytes: int = MOST_BYTES) -> str | None:
    """Move a log that has grown too large to FILE.1, over the one before, and go on with an empty one.

    Args:
      fd: of the output, opened for appending. A terminal or a pipe is left alone.

    Returns:
      The path of the log that was cut; None: it is small enough, or no file. What other threads write meanwhile may be lost.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= most_bytes:
            return None
        path = os.readlink(f"/proc/self/fd/{fd}")
        shutil.copyfile(path, f"{path}.1")
        os.truncate(path, 0)
    except OSError:  # a full disk: the next beat tries again
        return None
    return path
