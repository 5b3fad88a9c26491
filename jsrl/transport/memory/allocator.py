"""How this process's C library treats freed memory, which decides the cost of receiving large messages."""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST_REUSED_BYTES = 32 << 20  # glibc's maximum


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
    largest, kept = _LARGEST_REUSED_BYTES, 2 * _LARGEST_REUSED_BYTES
    return bool(mallopt(_MMAP_THRESHOLD, largest)) and bool(mallopt(_TRIM_THRESHOLD, kept))
