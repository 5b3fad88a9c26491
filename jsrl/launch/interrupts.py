"""Ctrl-C, SIGTERM and alarms: what interrupts the launching process, and what it does then."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts(first: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C (SIGINT) and SIGTERM call `first`; the second of them raises KeyboardInterrupt, later ones do nothing.

    From a thread other than the main one nothing is changed: signals are the main thread's.
    """
    count = 0

    def interrupt(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == 1:
            first()
        elif count == 2:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deadline(limit_s: float, error: Exception) -> Iterator[None]:
    """Raise `error` inside the `with` block when it takes longer; has no effect outside the main thread.

    What hangs inside a C function that never returns to Python cannot be interrupted so.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def too_late(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
