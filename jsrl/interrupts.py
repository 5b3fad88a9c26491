"""Ctrl-C, SIGTERM, SIGHUP and alarms in the launching process, and their effects.

    the process                      handled by                     first signal          second signal
    before a run begins, and after   `remembered`: EarlyInterrupt   KeyboardInterrupt     KeyboardInterrupt
    runs                             `interrupts`: Interrupts       the run is ended      KeyboardInterrupt
    has begun to clear away          Interrupts.ignore              nothing               nothing

An early one that Python has dropped ends the run as soon as it begins. `repeated` sends a dropped one again, and `requests`
answers SIGUSR1.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

LONGEST_S = 1e6  # of a deadline: the system's timers take no infinite one
AGAIN_S = 0.05  # from a Ctrl-C that cannot take effect to the next one
NATIVE = (ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__)


class Stopped(KeyboardInterrupt):
    """`jsrl stop` ended a run before it had begun."""


class Interrupts:
    """Handler of Ctrl-C, SIGTERM and SIGHUP: the first calls `first`, the second raises KeyboardInterrupt.

    A repeated SIGTERM has no effect where the engine sends several: see `may_repeat`. While a native module is loaded it
    waits, like EarlyInterrupt: `first` may raise as well.
    """

    def __init__(self, first: Callable[[], None]) -> None:
        self._first, self._count = first, 0

    def __call__(self, number: int = 0, frame: FrameType | None = None) -> None:
        if loads_native(frame):
            send_again(number)
            return
        if self._count and may_repeat(number):
            return
        self._count += 1
        if self._count == 1:
            self._first()
        elif self._count == 2:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Do nothing from now on: the end has begun, and must be completed."""
        self._count = 2  # as if both had come: later ones have no effect


class EarlyInterrupt:
    """Handles Ctrl-C, SIGTERM and SIGHUP before a run has begun: raises KeyboardInterrupt, and remembers it.

    While a native module is loaded it waits: an exception in there becomes a SystemError, or aborts the process. It
    remembers, because Python prints and drops exceptions in a destructor or a callback of the garbage collector (jax
    has one).
    """

    def __init__(self) -> None:
        self.taken = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.taken = True
        if not loads_native(frame):
            raise KeyboardInterrupt
        send_again(number)


def may_repeat(number: int) -> bool:
    """Return whether a signal may come twice without haste.

    Slurm sends SIGTERM to all processes of a job at the end of a time limit or of GraceTime, to which the job's script has
    reacted earlier. If the job does not end, SIGKILL follows.
    """
    return number == signal.SIGTERM and "SLURM_JOB_ID" in os.environ


def loads_native(frame: FrameType | None) -> bool:
    """Return whether a native module is loaded in a frame, or in one that called it."""
    while frame is not None and frame.f_code not in NATIVE:
        frame = frame.f_back
    return frame is not None


def send_again(number: int) -> None:
    """Send a signal to the main thread in AGAIN_S, unless its handler has changed by then."""
    handler = signal.getsignal(number)

    def send() -> None:
        time.sleep(AGAIN_S)
        if signal.getsignal(number) == handler:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    _thread.start_new_thread(send, ())  # a Thread waits for its start, and that wait can be interrupted


@contextlib.contextmanager
def repeated() -> Iterator[None]:
    """Send Ctrl-C again if it came in a destructor or a callback of the garbage collector (jax has one).

    Python drops exceptions there, so the command would go on.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            send_again(signal.SIGINT)
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def remembered(*, ends: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)) -> Iterator[None]:
    """Handle Ctrl-C by EarlyInterrupt inside the `with` block; a dropped one takes effect at the start of `interrupts`.

    The signals in `ends` act like Ctrl-C, so that resources are freed, also where Ctrl-C is ignored: in a script's
    background job.
    """
    handler = signal.getsignal(signal.SIGINT)
    early = handler if isinstance(handler, EarlyInterrupt) else EarlyInterrupt()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or handler not in (early, signal.default_int_handler, signal.SIG_IGN):
        yield
        return
    taken = [signal.SIGINT] if handler is signal.default_int_handler else []  # else ignored, or remembered already
    taken += [n for n in ends if signal.getsignal(n) is signal.SIG_DFL]
    before = {number: signal.signal(number, early) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupts(first: Callable[[], None]) -> Iterator[Interrupts]:
    """Handle the signals that end a run, as in Interrupts, inside the `with` block.

    Ignored signals stay ignored (nohup, background jobs). In a thread other than the main one nothing changes: signals
    belong to the main thread.
    """
    taken = Interrupts(first)
    if threading.current_thread() is not threading.main_thread():
        yield taken
        return
    wanted = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, taken) for number in wanted}
    try:
        if any(isinstance(before, EarlyInterrupt) and before.taken for before in handlers.values()):
            taken()
        yield taken
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def requests(asked: Callable[[], None]) -> Iterator[None]:
    """Call `asked` at each SIGUSR1 inside the `with` block; otherwise the signal would end the process.

    A handler set by others (such as a cluster's) stays; in a thread other than the main one nothing changes.
    """
    free = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGUSR1, lambda *_: asked())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@contextlib.contextmanager
def deadline(limit_s: float, error: Exception) -> Iterator[None]:
    """Raise `error` inside the `with` block when it takes longer than `limit_s`; has no effect outside the main thread.

    A C function that never returns to Python cannot be interrupted this way.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def too_late(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, min(limit_s, LONGEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
