"""Where features attach to a learner: gates around its updates, what leaves it, and how it ends. These do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from jsrl.agents.base import UpdateOutput
from jsrl.services.metrics.metrics import Meter
from jsrl.transport.base import Ledger
from jsrl.types import Tree
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.sources import Source

Snapshot = tuple[Tree, dict[str, Any]]  # the whole state, and its metadata


class LearnerState(NamedTuple):
    """The state of a learner between two updates. number: of its version. updates: made so far."""

    version: int
    number: int
    updates: int
    state: Any


class Skip(NamedTuple):
    """Continue with this state, and learn nothing from this batch; a version is published all the same."""

    state: Any


class Refused(NamedTuple):
    """A refused update: the state to continue from, and the error to raise once it is saved."""

    state: Any
    error: Exception


class Gate:
    """What stands around each update; a learner has any number of them."""

    def begin(self, now: LearnerState) -> None:
        """Note the first state of this process."""

    def before(self, now: LearnerState, batch: Batch) -> Any:
        """Return the state to update with a batch, or Skip."""
        return now.state

    def after(self, before: LearnerState, state: Any, batch: Batch, metrics: dict[str, float]) -> Refused | None:
        """Check the update that made `state` and `metrics`, before it is published; `before` may be donated."""
        return None

    def trained(self, batch: Batch, output: UpdateOutput, batches: int) -> None:
        """Note a batch and its last update; `batches`: number of batches so far, this one included."""

    def command(self, name: str, facts: dict[str, Any], now: LearnerState, save: Callable[[], None]) -> None:
        """Execute a command, if it is one of this gate's; `save` writes a snapshot."""

    def meta(self) -> dict[str, Any]:
        """Return metadata that a snapshot must keep for a restart."""
        return {}


class Outlet:
    """What leaves a learner: nothing but the numbers of its meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def open(self) -> None:
        """Bind the params."""

    def event(self, name: str, **facts: Any) -> None:
        """Report an event to the controller."""

    def publish(self, version: int, params: Tree) -> None:
        """Publish params, as numpy arrays."""

    def learned(self, metrics: dict[str, float], replay: dict[str, float]) -> None:
        """Note the metrics of an update, and those of the replay with their full names."""

    def trained(self, rows: int) -> None:
        """Note how many rows a batch was trained on."""

    def save(self, version: int, snapshot: Callable[[], Snapshot], tags: tuple[str, ...], *, wait: bool) -> None:
        """Write a snapshot; training continues without it if the disk fails."""

    def report(self, ledger: Ledger, facts: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        """Return (metrics since the last report, facts)."""
        return self.meter.flush(), {}

    def close(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Close; return the last facts."""
        return {}


class Lifecycle:
    """How a learner ends, and how long a turn of its loop may take (None: as for any worker). This one is alone.

    Attributes:
      leads: it publishes, saves and reports.
    """

    leads = True
    limit_s: float | None = None

    def shared(self, source: Source) -> Source:
        """Return the source from which the learner takes its batches."""
        return source

    def saving(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for the time in which a snapshot is written."""
        return contextlib.nullcontext()

    def last(self) -> Batch | None:
        """Stop making updates; return a batch that must still be trained on, after which call this again."""
        return None

    def leave(self) -> None:
        """Leave, after the last snapshot."""
