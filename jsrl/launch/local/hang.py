"""A process whose main thread is stopped while its other threads continue: a hang, as seen from outside (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os

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
