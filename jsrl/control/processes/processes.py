"""Handles of worker processes on this host: state, signals, and ends."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from jsrl.control.processes.actor_host import HostedActor
from jsrl.linux import catches, killed_for_memory, parent_of
from jsrl.services.runs.limits import usable_memory_bytes
from jsrl.services.runs.process import MAX_STACKS_CHARS
from jsrl.services.runs.values import Exit, ResourceUsage
from jsrl.workers.kinds import CRASHES
from jsrl.workers.process import stacks_path

MAX_CRASH_LINES = 40
GONE_S, LOOK_S = 5.0, 0.02
NO_MEMORY = "the kernel killed it because the {:,} MB of memory that may be used here were full; use fewer workers"
CHILDREN_S = 10.0  # between two looks at all processes of the host


class Leader(subprocess.Popen[bytes]):
    """A process that leads its session; the processes that it started end with it."""

    def poll(self) -> int | None:
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            if (
                self.returncode is None
                and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            ):
                os.killpg(self.pid, signal.SIGKILL)  # while its id is still taken
        return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(LOOK_S / 4)
        return status


class LocalHandle:
    """A worker that is a process of this host; see jsrl.graph.launcher.Handle.

    Args:
      popen: its process. log: file of its output, in the folder `logs` of the run. name: of the worker.
    """

    def __init__(self, popen: subprocess.Popen[bytes] | HostedActor, log: Path, name: str) -> None:
        self.popen, self._log, self._name = popen, log, name
        self._seen: psutil.Process | None = None
        self._memory_kills, self._ending = killed_for_memory(), ""

    @property
    def pid(self) -> int | None:
        return self.popen.pid

    @property
    def where(self) -> str:
        return f"pid {self.pid}"

    @property
    def host(self) -> str:
        return ""

    @property
    def log(self) -> str:
        return str(self._log)

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def exit(self) -> Exit | None:
        status = self.popen.poll()
        if status is not None and not self._ending:  # once: the kernel's later kills are of others
            self._ending = ending(status)
            if status == -signal.SIGKILL and killed_for_memory() > self._memory_kills:
                self._ending += f": {NO_MEMORY.format(usable_memory_bytes() >> 20)}"
        return None if status is None else Exit(status, self._ending)

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        return not self.alive

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.pid is not None:
                os.killpg(self.pid, signal.SIGKILL)
        self.wait(GONE_S)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.pid is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def tail(self, lines: int) -> str:
        try:
            found = Path(self.log).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        crashed = -(self.popen.poll() or 0) in CRASHES
        return "\n".join((crash_lines(found) if crashed else []) or found[-lines:])

    def usage(self) -> ResourceUsage | None:
        if self.pid is None or not self.alive:
            return None
        try:
            self._seen = self._seen or psutil.Process(self.pid)
            with self._seen.oneshot():
                resident = self._seen.memory_info().rss
                return ResourceUsage(self._seen.status(), spent_s(self._seen), resident, self._seen.num_threads())
        except psutil.Error:  # it has just ended
            return None

    def stacks(self, timeout_s: float) -> str:
        """Make a signal handler, which needs no GIL, write the stacks of its threads, and return them."""
        path, pid = stacks_path(self._log.parents[1], self._name), self.pid
        if pid is None or not catches(pid, signal.SIGUSR1):
            return ""
        try:
            before, written = path.stat().st_size, 0
            os.kill(pid, signal.SIGUSR1)
        except OSError:  # it has just ended, or could not open its file
            return ""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
            grown = size_of(path) - before
            if grown and grown == written:
                break  # the output is complete
            written = grown
        return read_from(path, before)


class HostedHandle(LocalHandle):
    """A worker that the actor host forked; it may end with its host."""

    popen: HostedActor

    @property
    def where(self) -> str:
        """Return where it runs, as text."""
        return "not forked yet" if self.pid is None else super().where

    @property
    def log(self) -> str:
        """Return the place of its output, or its host's if it ended with the host."""
        return str(self.popen.host.log) if self.popen.died_with_host else super().log

    @property
    def exit(self) -> Exit | None:
        ended = super().exit
        if ended is None or not self.popen.died_with_host:
            return ended
        host = self.popen.host
        return Exit(ended.status, f"with its actor host, {ending(host.popen.poll())} (log: {host.log})")

    def kill(self) -> None:
        """End it and the processes it started; if it is not forked yet, its host and all its actors."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # inside the kernel: it ends when it returns
            self.popen.kill()
        self.wait(GONE_S)


def spent_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children, running and ended.

    The kernel adds a child's time to its parent's only when the child has ended, all at once.
    """
    times = process.cpu_times()
    seconds = times.user + times.system + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    for child in PROCESSES.children_of(process.pid):
        with contextlib.suppress(psutil.Error):  # it has just ended
            seconds += spent_s(psutil.Process(child))
    return float(seconds)


class HostProcesses:
    """The children of each process of this host, of which there may be thousands; at most CHILDREN_S old."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        self._look_s = 0.0

    def children_of(self, pid: int) -> list[int]:
        if time.monotonic() >= self._look_s:
            self._look()
            self._look_s = time.monotonic() + CHILDREN_S
        return self._children.get(pid, [])

    def _look(self) -> None:
        """Read the parents of processes that are new; those of others change only when the parent ends."""
        known, self._parents, self._children = self._parents, {}, {}
        for pid in psutil.pids():
            if parent := known.get(pid) or parent_of(pid):
                self._parents[pid] = parent
                self._children.setdefault(parent, []).append(pid)


PROCESSES = HostProcesses()


def crash_lines(lines: list[str]) -> list[str]:
    """Return the log's lines about the thread that crashed in C code (from faulthandler); empty: none."""
    fatal = max((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), default=None)
    current = max((i for i, line in enumerate(lines) if line.startswith("Current thread")), default=None)
    if fatal is None or current is None or current < fatal:
        return []
    ends = (i for i, line in enumerate(lines) if i > current and not line.startswith("  "))
    return [lines[fatal], *lines[current : min(next(ends, len(lines)), current + MAX_CRASH_LINES)]]


def ending(status: int | None) -> str:
    """Return how a process with this exit status ended, as text."""
    if status is None:
        return "still running"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
    return f"exit status {status}"


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0: it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_from(path: Path, start: int) -> str:
    """Return the text added to a file after its first `start` bytes; only its beginning if it is long."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(MAX_STACKS_CHARS).decode(errors="replace")
    except OSError:
        return ""
