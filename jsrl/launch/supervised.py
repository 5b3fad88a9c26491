"""One incarnation of a worker in the controller: its handle, and its messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from jsrl.launch.launcher import Handle
from jsrl.runs.control_bodies import REPLAYING, AnyMessage, Crash, Heartbeat, Report, Stacks, Stage
from jsrl.runs.door import Drops, TextBudget
from jsrl.workers.jobs import Job

EXPECTED = ("ConfigError", "MissingExtra", "VideoError")  # errors whose message is complete without a traceback
NOT_BEGUN = "starting the interpreter"  # the first stage
LOG_LINES = 15


@dataclass
class SupervisedWorker:
    """A worker's handle and state. Times are of the monotonic clock.

    Attributes:
      drops, budget: of its messages, if it is on this host. cut_off: why none are read any more; empty: they are.
      stage: of its start; `ready` ends it. pid: of its process, once it sent a stage; else 0.
      beat_s: time of its last message. left: it said goodbye.
      restarts: earlier incarnations.
      replaced: it is dead, and its next incarnation is about to start. dropped: the run ended it during its start.
      moves: why it was asked to leave at `moves_s`, to restart on another host; empty: it was not.
      activity: its call at its last heartbeat. known: its last metrics and counters. stacks: of its threads
        at `stacks_s`, if it sent them.
    """

    job: Job
    handle: Handle
    restarts: int = 0
    drops: Drops = field(default_factory=Drops)
    budget: TextBudget = field(default_factory=TextBudget)
    cut_off: str = ""
    stage: str = NOT_BEGUN
    pid: int = 0
    started_s: float = field(default_factory=time.monotonic)
    stage_s: float = field(default_factory=time.monotonic)
    beat_s: float = field(default_factory=time.monotonic)
    left: bool = False
    replaced: bool = False
    dropped: bool = False
    moves: str = ""
    moves_s: float = 0.0
    activity: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    stacks: str = ""
    stacks_s: float = 0.0

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def ready(self) -> bool:
        return self.stage == "ready"

    @property
    def is_reachable(self) -> bool:
        """Return whether commands reach it."""
        return self.ready and not self.replaced

    @property
    def is_absent(self) -> bool:
        """Return whether it worked before and does not now: its replacement is not ready, or its host is away."""
        replaced = self.replaced or (self.job.incarnation > 0 and not self.ready)
        return replaced or getattr(self.handle, "is_away", False)

    @property
    def alive(self) -> bool:
        return self.handle.alive

    @property
    def ending(self) -> str:
        ended = self.handle.exit
        return "still running" if ended is None else ended.text

    def receive(self, message: AnyMessage) -> None:
        self.beat_s = time.monotonic()
        if isinstance(message, Stage):
            self.stage, self.pid, self.stage_s = message.stage, message.pid, self.beat_s
            if message.stage.startswith(REPLAYING):  # the time to become ready begins again
                self.started_s = self.beat_s
        elif isinstance(message, Heartbeat):
            self.activity = f"{message.activity} for {message.activity_s:.1f} s" if message.activity else ""
        elif isinstance(message, Report):
            self.known |= message.metrics | message.facts
        elif isinstance(message, Stacks):
            self.stacks, self.stacks_s = message.text, self.beat_s


def last_seen(worker: SupervisedWorker) -> str:
    """Return the call that a worker was in at its last heartbeat, as the end of a sentence; empty: it was in none."""
    return f". At its last heartbeat it was in this call: {worker.activity}" if worker.activity else ""


def crash_text(worker: str, crash: Crash) -> str:
    """Return a worker's error as text without the worker's name, which texts about environments begin with."""
    return f"{crash.error}: {crash.text.removeprefix(f'{worker}: ')}"


def death_notice(worker: SupervisedWorker, what: str, crash: Crash | None) -> str:
    """Return which worker died, why, and its last message."""
    title, log = f"{worker.name} {what}.", worker.handle.log
    if crash is not None:
        return f"{worker.name}: {crash_text(worker.name, crash)}\n\n{crash.trace.rstrip()}\n\n(log: {log})"
    tail = worker.handle.tail(LOG_LINES)
    return f"{title}\nIt sent no traceback; its log ends with:\n{tail or '(nothing)'}\n\n(log: {log})"


def loss_notice(worker: str, notice: str, crash: Crash | None) -> str:
    """Return why a dispensable worker ended: only its own message if that is complete."""
    return f"{worker}: {crash_text(worker, crash)}" if crash is not None and crash.error in EXPECTED else notice
