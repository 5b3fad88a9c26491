"""The launcher of this host: workers are its child processes; if there are many actors, one child forks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from jsrl.control.processes.actor_host import ActorHost, control_args
from jsrl.control.processes.processes import HostedHandle, Leader, LocalHandle
from jsrl.graph.graph import Graph
from jsrl.graph.launcher import ALONE, Hosts, Need, Start
from jsrl.graph.machine import within_gpu_memory
from jsrl.references.reference import to_json
from jsrl.services.runs.limits import owns_machine
from jsrl.workers.jobs import Job


class Local:
    """Starts workers as `python -m jsrl.workers KIND`, each in its own session, with its output in the run's logs.

    They end when the thread that started them does. May be used again after `close`.

    Attributes:
      host: the process that forks actors, if there is one.
    """

    def __init__(self) -> None:
        self.host: ActorHost | None = None
        self._handles: list[LocalHandle] = []
        self._own = psutil.Process()
        self._whole = owns_machine()

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        return ALONE

    def moves(self) -> Mapping[str, str]:
        return {}

    def start(self, job: Job, start: Start) -> LocalHandle:
        """Start a worker, or let the actor host fork it; see Launcher."""
        write_job(json.dumps(to_json(job)), job.name, start.folder)
        return self.begin(job.kind, job.name, job.incarnation, start)

    def begin(self, kind: str, name: str, incarnation: int, start: Start) -> LocalHandle:
        """Start a worker whose job file has been written."""
        forks = start.forks and not (self.host is not None and self.host.mute)
        handle = self._fork(name, incarnation, start) if forks else spawn(kind, name, incarnation, start)
        self._handles = [known for known in self._handles if known.alive] + [handle]
        return handle

    def _fork(self, name: str, incarnation: int, start: Start) -> LocalHandle:
        if self.host is not None and self.host.is_over():
            self.host.close()
            self.host = None
        if self.host is None:
            self.host = ActorHost(start)
        log = start.folder / "logs" / f"{name}.log"
        return HostedHandle(self.host.start(job_path(name, start.folder), name, incarnation, log), log, name)

    def busy_s(self) -> float | None:
        """Return the CPU seconds of all other programs; None if this process may use only a part of the machine.

        Programs on the rest of the machine do not matter then.
        """
        return machine_cpu_s() - sum(self._own.cpu_times()[:2]) if self._whole else None

    def close(self) -> None:
        """End everything that still runs, the actor host last."""
        for handle in self._handles:
            if handle.alive:
                handle.kill()
        self._handles = []
        if self.host is not None:
            self.host.close()
        self.host = None


def job_path(name: str, folder: Path) -> Path:
    return folder / "jobs" / f"{name}.json"


def write_job(job: str, name: str, folder: Path) -> None:
    """Write a worker's job, as JSON, to the folder of its run, and create the folder of its log."""
    path = job_path(name, folder)
    path.parent.mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    path.write_text(job)


def spawn(kind: str, name: str, incarnation: int, start: Start) -> LocalHandle:
    """Start a worker, whose job file has been written, in its own interpreter."""
    job_file, log = job_path(name, start.folder), start.folder / "logs" / f"{name}.log"
    command = [sys.executable, "-m", "jsrl.workers", kind, "--job", str(job_file), *control_args(start)]
    command += ["--name", name, "--incarnation", str(incarnation), "--parent", str(os.getpid())]
    with log.open("ab") as output:
        popen = Leader(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **start.spawn.variables, **within_gpu_memory(start.variables)},
            cwd=start.spawn.working_directory,
            start_new_session=True,
        )
    return LocalHandle(popen, log, name)


def machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)
