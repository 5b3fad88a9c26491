"""The worker processes of a run on this host, seen from outside, and a hang of one as a debugger makes it (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re

import psutil

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_ALL_THREADS = 0x40000000  # __WALL


class HungProcess:
    """Stops the main thread of another process like a debugger, until `release`, or until this process ends.

    Args:
      pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._held = pid, False
        self._ask(_SEIZE)
        self._held = True
        self._ask(_INTERRUPT)

    def has_died(self) -> bool:
        """Return whether the process has died; its parent learns it only after its debugger."""
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self._pid, os.WNOHANG | _ALL_THREADS)
            self._held = self._held and not (pid and (os.WIFEXITED(status) or os.WIFSIGNALED(status)))
        return not self._held

    def release(self) -> None:
        """Continue the thread; nothing if the process has died."""
        while self._held and not self.has_died():
            with contextlib.suppress(OSError):  # ptrace answers only once the thread has stopped
                self._ask(_DETACH)
                self._held = False

    def _ask(self, request: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        if libc.ptrace(request, self._pid, None, None) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace: {os.strerror(number)}")


class ObservedWorker:
    """One incarnation of a worker; two observations of the same incarnation are equal."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._hung: HungProcess | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservedWorker) and self._process == other._process

    __hash__ = None  # type: ignore[assignment]

    @property
    def alive(self) -> bool:
        if self._hung is not None:
            self._hung.has_died()  # the process that traces it learns of its death first
        with contextlib.suppress(psutil.Error):
            return bool(self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE)
        return False

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()

    def pause(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.suspend()

    def hang(self) -> None:
        """Stop only its main thread, until `release`."""
        self._hung = HungProcess(self._process.pid)

    def release(self) -> None:
        """Continue its main thread; nothing if it does not hang."""
        if self._hung is not None:
            self._hung.release()


class ObservedRun:
    """A run seen from outside: the workers and other processes started by the controller process `pid`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, psutil.Process] = {}

    def workers(self) -> dict[str, ObservedWorker]:
        """Return worker name -> its current incarnation, in its own interpreter or forked by an actor host."""
        found: dict[str, ObservedWorker] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    self._seen[child.pid] = child
                    name = _worker_name(child)
                    if name and child.status() != psutil.STATUS_ZOMBIE:
                        found[name] = ObservedWorker(child)
        return found

    def left(self) -> list[str]:
        """Return, as text, all processes ever seen that still run."""
        return [f"process {pid}" for pid, process in self._seen.items() if ObservedWorker(process).alive]


def _worker_name(process: psutil.Process) -> str:
    words = process.cmdline()
    if "--name" in words:
        return words[words.index("--name") + 1]
    forked = "jsrl.workers" in words and re.fullmatch(r"actor-\d+", process.name())  # it takes its worker's name
    return process.name() if forked else ""
