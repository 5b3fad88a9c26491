"""Worker processes: started as `python -m jsrl.workers KIND`, watched, and ended for good."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsrl.launch.local.actor_host import ActorHost, HostedActor
from jsrl.references.reference import SpawnEnvironment, to_json
from jsrl.runs.control import AnyMessage, Crash, Heartbeat, Report, Stacks, Stage
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import CRASHES

MOST_CRASH_LINES = 40
EXPECTED = ("ConfigError", "MissingExtra", "VideoError")  # errors whose own sentence says everything


@dataclass
class Process:
    """One worker process and what is known of it.

    Attributes:
      stage: of its start; `ready` ends it. beat_s: when it was heard of last. left: it said goodbye. restarts: lives before.
      replaced: it is dead, and its next life is about to be started. dropped: the run ended it in its start.
      activity: what it was inside of at its last heartbeat. known: its last metrics and counters. stacks: what its threads
        were doing at `stacks_s`, where it told that.
    """

    job: Job
    popen: subprocess.Popen[bytes] | HostedActor
    log: Path
    started_s: float
    stage: str = "starting the interpreter"
    stage_s: float = field(default_factory=time.monotonic)
    beat_s: float = field(default_factory=time.monotonic)
    left: bool = False
    restarts: int = 0
    replaced: bool = False
    dropped: bool = False
    activity: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    stacks: str = ""
    stacks_s: float = 0.0

    @property
    def name(self) -> str:
        """Return the worker's name."""
        return self.job.name

    @property
    def ready(self) -> bool:
        """Return whether the worker works."""
        return self.stage == "ready"

    @property
    def hears(self) -> bool:
        """Return whether a command reaches it."""
        return self.ready and not self.replaced

    @property
    def exit_status(self) -> int | None:
        """Return the exit status, None while it lives."""
        return self.popen.poll()

    def hear(self, message: AnyMessage) -> None:
        """Take note of what the worker says of itself."""
        self.beat_s = time.monotonic()
        if isinstance(message, Stage):
            self.stage, self.stage_s = message.stage, self.beat_s
        elif isinstance(message, Heartbeat):
            self.activity = f"{message.activity} for {message.activity_s:.1f} s" if message.activity else ""
        elif isinstance(message, Report):
            self.known |= message.metrics | message.facts
        elif isinstance(message, Stacks):
            self.stacks, self.stacks_s = message.text, self.beat_s

    def exit_text(self) -> str:
        """Return how the process ended, for people."""
        if isinstance(self.popen, HostedActor) and self.popen.died_with_host:
            return f"with its actor host, {ending(self.popen.host.popen.poll())} (log: {self.popen.host.log})"
        return ending(self.popen.poll())

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the worker's log."""
        hosted = isinstance(self.popen, HostedActor) and self.popen.died_with_host
        log = self.popen.host.log if hosted else self.log  # type: ignore[union-attr]
        try:
            lines = log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        crashed = -(self.popen.poll() or 0) in CRASHES
        return "\n".join((crash_lines(lines) if crashed else []) or lines[-count:])

    def kill(self) -> None:
        """End the process and whatever it started."""
        if isinstance(self.popen, HostedActor):
            self.popen.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(5.0)


def end_all(processes: Iterable[Process], host: ActorHost | None) -> None:
    """End what still runs, and the actor host last."""
    for process in processes:
        if not process.replaced and (not process.left or process.exit_status is None):
            with contextlib.suppress(subprocess.TimeoutExpired):  # inside the kernel: it goes when it comes back
                process.kill()
    if host is not None:
        host.close()


def death_notice(process: Process, what: str, crash: Crash | None) -> str:
    """Return which worker died, why, and what it said."""
    title = f"{process.name} {what}."
    if crash is not None:
        return f"{process.name}: {crash.error}: {crash.text}\n\n{crash.trace.rstrip()}\n\n(log: {process.log})"
    tail = process.last_lines()
    return f"{title} It sent no traceback; its log ends with:\n{tail or '(nothing)'}\n\n(log: {process.log})"


def loss_notice(worker: str, notice: str, crash: Crash | None) -> str:
    """Return why a worker that the run can do without ended: its own sentence where that says everything."""
    return f"{worker}: {crash.error}: {crash.text}" if crash is not None and crash.error in EXPECTED else notice


def crash_lines(lines: list[str]) -> list[str]:
    """Return what a log says of the thread that crashed in C code (faulthandler's words); empty: nothing."""
    fatal = max((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), default=None)
    current = max((i for i, line in enumerate(lines) if line.startswith("Current thread")), default=None)
    if fatal is None or current is None or current < fatal:
        return []
    ends = (i for i, line in enumerate(lines) if i > current and not line.startswith("  "))
    return [lines[fatal], *lines[current : min(next(ends, len(lines)), current + MOST_CRASH_LINES)]]


def ending(status: int | None) -> str:
    """Return how a process with this exit status ended, for people."""
    if status is None:
        return "still running"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
    return f"exit status {status}"


def start(
    job: Job,
    control: str,
    folder: Path,
    spawn: SpawnEnvironment,
    variables: dict[str, str],
    restarts: int = 0,
    host: ActorHost | None = None,
) -> Process:
    """Start a worker in its own session, with its output in the run's logs; `host`: forked there, if it is given."""
    jobs, logs = folder / "jobs", folder / "logs"
    jobs.mkdir(exist_ok=True)
    logs.mkdir(exist_ok=True)
    path = jobs / f"{job.name}.json"
    path.write_text(json.dumps(to_json(job)))
    log = logs / f"{job.name}.log"
    if host is not None:
        hosted = host.start(path, job.name, job.incarnation, log)
        return Process(job, hosted, log, time.monotonic(), restarts=restarts)
    command = [sys.executable, "-m", "jsrl.workers", job.kind, "--job", str(path), "--control", control]
    command += ["--name", job.name, "--incarnation", str(job.incarnation), "--parent", str(os.getpid())]
    with log.open("ab") as output:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **spawn.variables, **variables},
            cwd=spawn.working_directory,
            start_new_session=True,
        )
    return Process(job, popen, log, time.monotonic(), restarts=restarts)
