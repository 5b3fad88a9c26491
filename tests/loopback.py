"""An address of this machine on which only this test process listens, so that a port on it is free for the test."""

from __future__ import annotations

import os


def own_loopback() -> str:
    """Return an address of 127.0.0.0/8 that follows from the process id."""
    pid = os.getpid()
    return f"127.{1 + (pid >> 16) % 254}.{(pid >> 8) % 256}.{pid % 256}"
