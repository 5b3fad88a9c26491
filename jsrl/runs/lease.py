"""The lease of a joined host: how long its workers may run without an answer of the controller.

The agent of the host extends it, and ends the workers when it is over. They read it too, so they also end while the agent is
stopped.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

_END = struct.Struct("=d")
_FILE = "lease"


def now_s() -> float:
    """Return a clock that neither jumps nor stops while the machine sleeps, and is the same in all processes of a host."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The end of a host's lease, in a file that its agent writes and its workers read.

    Args:
      folder: of the agent. extends: this process is the agent; the lease is over until it is extended.
    """

    def __init__(self, folder: Path, *, extends: bool = False) -> None:
        self._file = os.open(folder / _FILE, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if extends else 0), 0o600)
        if extends:
            self.extend(0.0)

    def extend(self, until_s: float) -> None:
        os.pwrite(self._file, _END.pack(until_s), 0)

    def left_s(self) -> float:
        """Return how long it lasts; negative once it is over."""
        return float(_END.unpack(os.pread(self._file, _END.size, 0))[0]) - now_s()
