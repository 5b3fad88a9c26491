"""Memory limits of processes that read from sockets, and how they detect a connection that fills their memory.

ZeroMQ delivers a message only after its last frame. A connection that sends frames without a last one is therefore
invisible, and its frames stay in memory. So a process with such sockets watches its resident memory:

    bound = baseline (resident once the worker is settled) + declared size of its streams and state + a margin
"""

from __future__ import annotations

import ctypes

from jsrl.linux import resident_bytes
from jsrl.runs.limits import free_memory_bytes

MIB = 1 << 20
MARGIN_BYTES = 256 << 20  # growth of the controller's memory before its ports end all their connections
ENDLESS = "%s held %d MiB of messages that never end; its connections were recreated: look who else connects"
HURRY_BYTES = 16 << 20  # growth between two checks after which checks become frequent


def give_freed_memory_back() -> None:
    """Make the C library return freed memory to the system, if it can (glibc)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


class Growth:
    """Growth of this process's memory, by which a port notices connections with messages that never end.

    Args:
      margin_bytes: beyond the memory at the start.
    """

    def __init__(self, margin_bytes: int) -> None:
        self._margin, self._baseline = margin_bytes, resident_bytes()

    def is_large(self) -> bool:
        """Return whether the memory has grown by more than the margin: the port should end all its connections."""
        return resident_bytes() > self._baseline + self._margin

    def freed(self, before_bytes: int) -> int:
        """Return how much memory was freed since it was `before_bytes`, in MiB; 0: another part of this process has it."""
        give_freed_memory_back()
        now = resident_bytes()
        if before_bytes - now < self._margin // 2:
            self._baseline = now
            return 0
        return (before_bytes - now) // MIB


class MemoryWatch:
    """A worker's watch over its own resident memory.

    Args:
      declared_bytes: of its streams and state beyond the baseline. margin_bytes: added to that.

    Attributes:
      bound_bytes: the limit; None: not watched yet.
      hurries: whether its memory grew fast, so that the next check should come soon.
    """

    def __init__(self, declared_bytes: int, margin_bytes: int) -> None:
        self._declared, self._margin = declared_bytes, margin_bytes
        self._baseline = self._last = 0
        self.bound_bytes: int | None = None
        self.hurries = False

    def begin(self, *, settled: bool) -> None:
        """Use the current memory as the baseline.

        Not settled: the memory of the worker's first work is not known yet. Until the next `begin`, half of the free
        memory is allowed as well.
        """
        self._baseline = self._last = resident_bytes()
        if self._baseline:
            more = 0 if settled else free_memory_bytes() // 2
            self.bound_bytes = self._baseline + self._declared + self._margin + more

    def look(self) -> str | None:
        """Return a message if the bound is exceeded, else None."""
        if self.bound_bytes is None:
            return None
        now = resident_bytes()
        self.hurries, self._last = now - self._last >= HURRY_BYTES, now
        if now <= self.bound_bytes:
            return None
        baseline, declared, bound = self._baseline // MIB, self._declared // MIB, self.bound_bytes // MIB
        return (
            f"{now // MIB} MiB are resident, above the bound of {bound} MiB ({baseline} once it was ready, {declared} for its "
            "streams and state, the rest margin). Most likely a connection sends messages that never end (unfinished "
            "multiparts), which only ZeroMQ sees: check what else connects to this run. If the worker itself needs more, "
            "raise supervision.memory_margin_mb."
        )
