"""Time limits of waits in tests: none may depend on what else the machine does."""

from __future__ import annotations

import os

MOST = 6.0  # times as long


def stretched(timeout_s: float) -> float:
    """Return a time limit for now, which is longer while more processes want to run than there are cores."""
    return timeout_s * min(max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))), MOST)
