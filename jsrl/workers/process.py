"""One worker's process, from its job file to its exit status; in a fresh interpreter or a forked one."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import json
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsrl.errors import StreamClosed, users_traceback
from jsrl.linux import FORKS, die_with_parent, return_freed_memory, show_name, signal_at_parents_end
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control import HEARTBEAT_S, ControlClient
from jsrl.services.runs.control_bodies import Bye, Crash, Event, Report
from jsrl.workers.base import Reporter, Worker, report_of, step_of

if TYPE_CHECKING:
    from jsrl.workers.kinds import Kind

REPORT_S = 0.5
QUICK_WORKERS = 50  # above this number of workers in a run, actors report less often
MAX_SLOWNESS = 25.0  # then a report is 12.5 s old when the next one comes; the controller leaves out old ones
MIN_BEATS = 6  # heartbeats within the silence after which a worker counts as hung


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
    control = ControlClient(control_address, name, incarnation, parent_pid=parent_pid, keys=keys)
    # forked by an actor host, which ignores SIGTERM; programs of its environment end by it
    is_forked = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, lambda *_: None if is_forked else control.stop.set())
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def build_from_file(reporter: Reporter) -> Worker:
        from jsrl.fields import decoding
        from jsrl.references.reference import from_json
        from jsrl.services.runs.process import HostLease
        from jsrl.services.runs.state import RUNNING
        from jsrl.transport.shared.locks import share_lock
        from jsrl.workers.kinds import build_worker, find_kind

        with decoding():
            job = from_json(json.loads(job_path.read_text()))
        kind = find_kind(job.kind)
        control.step_s, control.stuck_s = job.experiment.actor.step_deadline_s, job.experiment.deadlines.stuck_s
        control.speech, control.slowness = (
            kind.speech,
            slowness(kind, job.run.workers, job.experiment.deadlines.silence_s),
        )
        if job.place.away:
            control.lease = HostLease(Path(job.folder))
        if kind.lifecycle.saves and not job.place.away:  # else nobody would get the snapshot
            control.outlives_s = job.experiment.deadlines.snapshot_s
            control.holds_run = functools.partial(share_lock, Path(job.folder, RUNNING))
        with no_collections():
            return build_worker(job, reporter)

    with FORKS:
        return run(build_from_file, control)


def run(build: Callable[[Reporter], Worker], control: ControlClient) -> int:
    """Run a worker until the controller stops it; return the exit status (0: stopped, 1: crashed)."""
    meter: Meter | None = None
    try:
        control.stage("building")
        worker = build(ControlReporter(control))
        meter = worker.meter
        worker.setup()
        return_freed_memory()
        meter.begin()
        control.stage("ready")
        _loop(worker, control)
        if control.outlives_s:
            signal_at_parents_end(0)  # it completes its last snapshot even if its controller is killed meanwhile
        control.send(Bye, facts=worker.close() or {})
        return 0
    except StreamClosed as error:
        return _closed(error, control)
    except BaseException as error:
        control.left()
        return _crashed(error, control)
    finally:
        if meter is not None:
            meter.close()
        control.close()


def _loop(worker: Worker, control: ControlClient) -> None:
    report_at = time.monotonic() + REPORT_S * control.slowness
    while not control.stop.is_set():
        control.turned_s = time.monotonic()
        control.stuck_s = getattr(worker, "turn_limit_s", None) or control.stuck_s
        control.progress += step_of(worker)
        while not control.commands.empty():
            worker.command(control.commands.get())
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + REPORT_S * control.slowness
            metrics, facts = report_of(worker)
            control.send(Report, metrics=metrics, facts=facts)
    while not control.commands.empty():  # commands from before the end
        worker.command(control.commands.get())
    control.turned_s = 0.0  # closing has its own deadline
    metrics, facts = report_of(worker)
    control.send(Report, metrics=metrics, facts=facts)


def _closed(error: StreamClosed, control: ControlClient) -> int:
    """Handle a stream whose other end is gone: expected while the run stops, else a crash, reported after its cause."""
    if control.stop.wait(3.0):
        control.send(Bye)
        return 0
    return _crashed(error, control)


def _crashed(error: BaseException, control: ControlClient) -> int:
    """Write an error to the worker's log, and tell the controller, with the traceback of a user's code."""
    traceback.print_exception(error)
    control.send(Crash, error=type(error).__name__, text=str(error), trace=users_traceback(error))
    return 1


class ControlReporter:
    """Reporter over the control connection."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self.stage = control.stage
        self.entering = control.entering
        self.left = control.left

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        self._control.send(Event, name=name, text=text, facts=facts)


def slowness(kind: Kind, workers: int, silence_s: float) -> float:
    """Return the factor by which a worker reports less often than usual in a run with `workers` workers.

    It exceeds 1 only for kinds of which there may be thousands: together they report as much as QUICK_WORKERS do. Heartbeats
    still come often enough that no worker seems to hang, which is assumed after `silence_s` without one.
    """
    most = min(MAX_SLOWNESS, silence_s / (MIN_BEATS * HEARTBEAT_S))
    return max(1.0, min(workers / QUICK_WORKERS, most)) if kind.resources.forks else 1.0


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
