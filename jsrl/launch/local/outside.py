"""The worker processes of a run on this host, seen from outside."""

from __future__ import annotations

import contextlib
import re

import psutil

from jsrl.launch.local.hang import HungProcess


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
