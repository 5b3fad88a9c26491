"""A process of a run: its identity, the lease of its host, pauses of the whole process, and stacks of its threads."""

from __future__ import annotations

import functools
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jsrl.linux import boot_id, catches, pid_namespace, start_ticks
from jsrl.services.runs.files import process_alive


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process, unique over all hosts, even after its id was reused.

    Attributes:
      host: its host's name. boot: id of the host's current boot. namespace: of its process ids (a container has its own).
      pid: process id. started: start time, in clock ticks after the boot. job: of Slurm; empty: none.
      in_main_thread: signals reach the run; in another thread, as in an idle notebook, they would end the process instead.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    job: str = ""
    in_main_thread: bool = field(default=True, compare=False)

    @classmethod
    def own(cls) -> ProcessIdentity:
        job, main = os.environ.get("SLURM_JOB_ID", ""), threading.current_thread() is threading.main_thread()
        return cls(socket.gethostname(), *_here(), os.getpid(), start_ticks(os.getpid()) or 0, job, main)

    @property
    def is_near(self) -> bool:
        """Return whether its process id is valid here: same boot of the same host, same namespace."""
        return (self.boot, self.namespace) == _here()

    @property
    def is_alive(self) -> bool:
        """Return whether the process is alive; False if it is not near."""
        return self.is_near and process_alive(self.pid) and start_ticks(self.pid) == self.started

    def interrupt(self) -> bool:
        """Ask it by SIGTERM to end regularly; return whether it was there and handles signals. No other one is signalled."""
        if not (self.is_near and self.in_main_thread):
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # the process of the descriptor cannot change any more
            if start_ticks(self.pid) != self.started or not catches(self.pid, signal.SIGTERM):
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)

    def __str__(self) -> str:
        return f"{self.pid} on {self.host}"


@functools.cache
def _here() -> tuple[str, str]:
    """Return the id of this host's boot, and this process's id namespace; if they are not known, nothing is near."""
    return boot_id(), pid_namespace() or str(os.getpid())


_END = struct.Struct("=d")
_FILE = "lease"


def now_s() -> float:
    """Return a clock that neither jumps nor stops while the machine sleeps, and is the same in all processes of a host."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HostLease:
    """The end of a joined host's lease, in a file that its agent writes and its workers read.

    The lease is how long workers may run without an answer of the controller. The agent extends it, and ends the workers
    when it is over. They read it too, so they also end while the agent is stopped.

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


PAUSE_S = 3.0
MOST_BUSY = 0.1  # CPU time per second of a gap; above it the process ran, and only the thread that looks did not


class Pauses:
    """Finds pauses of its own process, so that no deadline counts them.

    A thread that never waits long calls `look` at each turn. Deadlines then begin at the end of the last pause, if that is
    later.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._seen_s, self._seen_cpu_s = clock(), cpu_clock()
        self._resumed_s, self._paused_s = float("-inf"), 0.0

    def look(self, wait_s: float = 0.0) -> None:
        """Record that the process runs. `wait_s`: how long the thread may have waited since the last call."""
        now_s, cpu_s = self._clock(), self._cpu_clock()
        gap_s = now_s - self._seen_s
        if gap_s > wait_s + PAUSE_S and cpu_s - self._seen_cpu_s < MOST_BUSY * gap_s:
            self._resumed_s = now_s
            self._paused_s += gap_s
        self._seen_s, self._seen_cpu_s = now_s, cpu_s

    def now(self) -> float:
        """Return the clock without the pauses, for a thread that never waits long."""
        self.look()
        return self._seen_s - self._paused_s

    def since(self, began_s: float) -> float:
        """Return the seconds since `began_s`, or since the last pause ended."""
        return self._clock() - max(began_s, self._resumed_s)


MAX_FRAMES, MAX_STACKS_CHARS = 60, 1 << 16  # of one thread, of all


def main_stack() -> str:
    """Return the main thread's stack, as text."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def all_stacks() -> str:
    """Return the Python stack of every thread, the main thread first, as text of bounded length."""
    names, main = {thread.ident: thread.name for thread in threading.enumerate()}, threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda entry: entry[0] != main)
    parts = [
        f"thread {names.get(number, 'of C code')}:\n" + "".join(traceback.format_stack(frame, MAX_FRAMES))
        for number, frame in frames
    ]
    return "".join(parts)[:MAX_STACKS_CHARS]
