"""The base of all workers: setup / step / close, the loop around them, reports, and crash reports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from jsrl.errors import StreamClosed
from jsrl.metrics.metrics import Recorder
from jsrl.runs.control import Bye, Command, ControlClient, Crash, Event, Report

REPORT_S = 0.5


class Reporter(Protocol):
    """Receives a worker's reports: sends them to the controller from a process, calls it directly in serial mode."""

    def stage(self, stage: str) -> None:
        """Report the current stage of the start."""
        ...

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        """Report an event to the controller."""
        ...

    def entering(self, activity: object, deadline_s: float | None = None) -> None:
        """Record the start of a call that may hang (`str(activity)` names it), and its time limit in seconds."""
        ...

    def left(self) -> None:
        """Record the end of the call."""
        ...


class NullReporter:
    """A Reporter that discards every report."""

    def stage(self, stage: str) -> None:
        """Do nothing."""

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        """Do nothing."""

    def entering(self, activity: object, deadline_s: float | None = None) -> None:
        """Do nothing."""

    def left(self) -> None:
        """Do nothing."""


class Worker(Protocol):
    """A worker: `step` is bounded in time, so that one process can call all workers in turn."""

    name: str
    recorder: Recorder

    def setup(self) -> None:
        """Connect, build, compile."""
        ...

    def step(self) -> int:
        """Do a bounded amount of work; return how much was achieved (0: nothing to do now)."""
        ...

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return (metrics since the last report, facts)."""
        ...

    def command(self, command: Command) -> None:
        """Execute a command of the controller."""
        ...

    def close(self) -> dict[str, Any]:
        """Close everything; return the last facts (ledger, counters)."""
        ...


class ControlReporter:
    """Reporter over the control connection."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self.stage = control.stage
        self.entering = control.entering
        self.left = control.left

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        """Report an event to the controller."""
        self._control.send(Event, name=name, text=text, facts=facts)


def run(build: Callable[[Reporter], Worker], control: ControlClient) -> int:
    """Run a worker until the controller stops it; return the exit status (0: stopped, 1: crashed)."""
    recorder: Recorder | None = None
    try:
        control.stage("building")
        worker = build(ControlReporter(control))
        recorder = worker.recorder
        worker.setup()
        recorder.begin()
        control.stage("ready")
        _loop(worker, control)
        facts = worker.close()
        control.send(Bye, facts=facts)
        return 0
    except StreamClosed as error:
        return _closed(error, control)
    except BaseException as error:
        control.left()
        control.send(Crash, error=type(error).__name__, text=str(error), trace=traceback.format_exc())
        return 1
    finally:
        if recorder is not None:
            recorder.close()
        control.close()


def _closed(error: StreamClosed, control: ControlClient) -> int:
    """Handle a stream whose other end is gone: expected while the run stops, else a crash, reported after its cause."""
    if control.stop.wait(3.0):
        control.send(Bye)
        return 0
    control.send(Crash, error="StreamClosed", text=str(error), trace=traceback.format_exc())
    return 1


def _watch_memory(worker: Worker, control: ControlClient) -> bool:
    """Start the watch of this process's memory, if it has one; return whether it has its final baseline."""
    settled = getattr(worker, "settled", True)
    if control.memory is not None:
        control.memory.begin(settled=settled)
    return control.memory is None or settled


def _loop(worker: Worker, control: ControlClient) -> None:
    report_at = time.monotonic() + REPORT_S * control.slowness
    watched = _watch_memory(worker, control)
    while not control.stop.is_set():
        control.turned_s = time.monotonic()
        control.stuck_s = getattr(worker, "turn_limit_s", None) or control.stuck_s
        control.progress += worker.step()
        if not watched and getattr(worker, "settled", True):
            watched = _watch_memory(worker, control)
        while not control.commands.empty():
            worker.command(control.commands.get())
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + REPORT_S * control.slowness
            metrics, facts = worker.report()
            control.send(Report, metrics=metrics, facts=facts)
    while not control.commands.empty():  # commands from before the end
        worker.command(control.commands.get())
    control.turned_s = 0.0  # closing has its own deadline
    metrics, facts = worker.report()
    control.send(Report, metrics=metrics, facts=facts)


def show_name(name: str) -> None:
    """Show the worker's name in `ps` and `top` (Linux; the first 15 letters)."""
    pr_set_name = 15
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the name is optional
        ctypes.CDLL(None).prctl(pr_set_name, name.encode()[:15])


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux); exit at once if it already has."""
    pr_set_pdeathsig = 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(number))
    except (OSError, AttributeError):
        pass  # not Linux: the control thread watches the parent's pid instead
    if os.getppid() != parent_pid:
        os._exit(0)
