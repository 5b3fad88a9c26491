"""Burn a share of each process's CPU time, JSRL_SLOWED of it, to see whether a measurement notices.

Python imports this file at its start if the folder is on PYTHONPATH; only benchmarks/paired.py puts it there.
"""

from __future__ import annotations

import os
import sys
import threading
import time

SHARE = float(os.environ.get("JSRL_SLOWED", "0"))
PERIOD_S = 0.02


def burn() -> None:
    """Use the share of the CPU time that the other threads of this process use."""
    while True:
        time.sleep(PERIOD_S)
        others_s = time.process_time() - time.thread_time()
        while time.thread_time() < SHARE * others_s:
            pass


def begin() -> None:
    """Start the thread; a fork has no threads."""
    threading.Thread(target=burn, daemon=True).start()


if SHARE:
    os.register_at_fork(after_in_child=begin)
    if "actor-host" not in sys.orig_argv:  # forks actors, and must not have threads
        begin()
