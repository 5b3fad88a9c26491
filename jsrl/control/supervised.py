"""One incarnation of a worker in the controller: its handle, and its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jsrl.control.supervision import Life, crash_text
from jsrl.graph.launcher import Handle
from jsrl.services.runs.control_bodies import AnyMessage, Crash, Heartbeat, Report, Stacks
from jsrl.services.runs.message_limits import Drops, TextBudget
from jsrl.workers.jobs import Job

EXPECTED = ("ConfigError", "MissingExtra", "VideoError")  # errors whose message is complete without a traceback
LOG_LINES = 15


@dataclass
class SupervisedWorker:
    """A worker's handle, and what it told.

    Attributes:
      life: its state in the supervision. activity: its call at its last heartbeat.
      known: its last metrics and counters. stacks: of its threads at `stacks_s`, if it sent them.
      budget, drops: of its messages, if they come over TCP.
    """

    job: Job
    handle: Handle
    life: Life = field(default_factory=Life)
    activity: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    stacks: str = ""
    stacks_s: float = 0.0
    budget: TextBudget = field(default_factory=TextBudget)
    drops: Drops = field(default_factory=Drops)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def alive(self) -> bool:
        return self.handle.alive

    def receive(self, message: AnyMessage, now_s: float) -> None:
        if isinstance(message, Heartbeat):
            self.activity = f"{message.activity} for {message.activity_s:.1f} s" if message.activity else ""
        elif isinstance(message, Report):
            self.known |= message.metrics | message.facts
        elif isinstance(message, Stacks):
            self.stacks, self.stacks_s = message.text, now_s


def last_seen(worker: SupervisedWorker) -> str:
    """Return the call that a worker was in at its last heartbeat, as the end of a sentence; empty: it was in none."""
    return f". At its last heartbeat it was in this call: {worker.activity}" if worker.activity else ""


def death_notice(worker: SupervisedWorker, what: str, crash: Crash | None) -> str:
    """Return which worker died, why, and its last message."""
    log = f"\n\n(log: {worker.handle.log})"
    if crash is not None:
        trace = f"\n\n{crash.trace.rstrip()}" if crash.trace else ""
        return f"{worker.name}: {crash_text(worker.name, crash)}{trace}{log}"
    if tail := worker.handle.tail(LOG_LINES):
        return f"{worker.name} {what}.\nIt sent no traceback; its log ends with:\n{tail}{log}"
    return f"{worker.name} {what}.\nIt sent no traceback, and its log is empty."


def loss_notice(worker: str, notice: str, crash: Crash | None) -> str:
    """Return why a dispensable worker ended: only its own message if that is complete."""
    return f"{worker}: {crash_text(worker, crash)}" if crash is not None and crash.error in EXPECTED else notice
