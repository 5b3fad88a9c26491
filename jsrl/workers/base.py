"""What every worker is: setup / step / close, and the receiver of its reports. Its process is jsrl.workers.process."""

from __future__ import annotations

from typing import Any, Protocol

from jsrl.errors import ConfigError
from jsrl.metrics.metrics import Meter, as_number
from jsrl.runs.control import Command


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
    """A worker: `step` is bounded in time, so that one process can call all workers in turn.

    It may also have these, which a kind with a last task (`due`) or one that must finish (`counts`) needs:

    * `drop_pending()`, called before `close` if a step failed: closes the ends that it reads, so that the rest is counted.
    * `due`: in serial mode it only works after updates, and only while this is true.
    * `counts`: its `updates`, `version` and `env_steps`, as in its facts.
    """

    name: str
    meter: Meter

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


def step_of(worker: Worker) -> int:
    """Return what a step of a worker achieved; refuse None, which a function without `return` gives."""
    done: int | None = worker.step()
    if done is None:
        raise ConfigError(f"step of {worker.name} returned None; return the amount of work done, 0 for none.")
    return done


def report_of(worker: Worker) -> tuple[dict[str, float], dict[str, Any]]:
    """Return a worker's (metrics since the last report, facts); refuse anything else."""
    found = worker.report()
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, dict) for part in found):
        raise ConfigError(
            f"report of {worker.name} returned {found!r}; return two dicts, metrics and facts, as in `return "
            "self.meter.flush(), {}`."
        )
    metrics, facts = found
    for name, value in metrics.items():
        as_number(f"{name} of {worker.name}", value)
    return metrics, facts
