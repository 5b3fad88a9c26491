"""One worker's process, from its job file to its exit status; in a fresh interpreter or a forked one."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.runs.control import HEARTBEAT_S
from jsrl.workers.base import Reporter, Worker, die_with_parent, run, show_name

if TYPE_CHECKING:
    from jsrl.workers.kinds import Kind

QUICK_WORKERS = 50  # above this number of workers in a run, actors report less often
MOST_SLOWNESS = 25.0  # then a report is 12.5 s old when the next one comes; the controller leaves out old ones
LEAST_BEATS = 6  # heartbeats within the silence after which a worker counts as hung


def work(
    job_path: Path, control_address: str, name: str, incarnation: int, parent_pid: int, keys: str | None = None
) -> int:
    """Run the worker that a job file describes; return the exit status.

    Args:
      job_path: JSON file that the controller wrote. control_address: of the controller. name: such as actor-0.
      incarnation: number of restarts. parent_pid: process that this one must not outlive. keys: folder of the controller's
        keys, if it is reached over TCP.
    """
    die_with_parent(parent_pid)
    show_name(name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    leave_traces(stacks_path(job_path.parent.parent, name))
    from jsrl.runs.control import ControlClient

    control = ControlClient(control_address, name, incarnation, parent_pid=parent_pid, keys=keys)
    signal.signal(signal.SIGTERM, lambda *_: control.stop.set())
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def build_from_file(reporter: Reporter) -> Worker:
        from jsrl.references.reference import from_json
        from jsrl.workers.kinds import build_worker, find_kind
        from jsrl.workers.memory import make_watch

        job = from_json(json.loads(job_path.read_text()))
        kind = find_kind(job.kind)
        control.stuck_s = job.experiment.deadlines.stuck_s
        control.memory = make_watch(job, kind.declares(job))
        control.slowness = slowness(kind, job.workers, job.experiment.deadlines.silence_s)
        with no_collections():
            worker = build_worker(job, reporter)
        if not kind.loads_jax(job):
            return _ReportsJax(worker, reporter)
        return worker

    return run(build_from_file, control)


def slowness(kind: Kind, workers: int, silence_s: float) -> float:
    """Return the factor by which a worker reports less often than usual in a run with `workers` workers.

    It exceeds 1 only for kinds of which there may be thousands, so that together they report as much as QUICK_WORKERS do,
    but no worker seems to hang: that is assumed after `silence_s` without a heartbeat.
    """
    most = min(MOST_SLOWNESS, silence_s / (LEAST_BEATS * HEARTBEAT_S))
    return max(1.0, min(workers / QUICK_WORKERS, most)) if kind.forks else 1.0


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Pause the garbage collector during imports, where it takes a sixth of the time; keep what they made.

    Objects at the end are frozen: later collections skip jax's hundred thousands of objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def stacks_path(folder: Path, name: str) -> Path:
    """Return the file to which a worker of the run in `folder` writes the stacks of all its threads on SIGUSR1."""
    return folder / "logs" / f"{name}.stacks"


def leave_traces(path: Path) -> None:
    """On a crash of C code write all threads' Python stacks to the log; on SIGUSR1 write them to `path`.

    Neither needs the GIL, which a thread hanging in C code may hold.
    """
    faulthandler.enable()
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:  # then the signal is known to be uncaught
        logging.getLogger("jsrl.workers").warning("SIGUSR1 will not be answered: %s", error)
        return
    faulthandler.register(signal.SIGUSR1, file=target, all_threads=True)


class _ReportsJax:
    """A worker that needs no jax; reports if the user's environment imported it (150 MB and 15 threads more)."""

    def __init__(self, worker: Worker, reporter: Reporter) -> None:
        self._worker, self._reporter = worker, reporter
        self.step, self.report = worker.step, worker.report
        self.command, self.close, self.name = worker.command, worker.close, worker.name
        self.recorder = worker.recorder

    def setup(self) -> None:
        """Set the worker up, then check."""
        self._worker.setup()
        if "jax" in sys.modules:
            self._reporter.event(
                "warning",
                f"{self.name}: the environment imported jax, which costs each process about 150 MB and slows its start; "
                "keep jax out of the modules that environments import.",
            )
