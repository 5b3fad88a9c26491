"""Where features attach to a learner: the source of its batches, gates around its updates, and how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from jsrl.agents.base import UpdateOutput
from jsrl.transport.base import Ledger
from jsrl.types import Trajectory, Tree
from jsrl.workers.learner.batching import Batch

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


class Source(Protocol):
    """Batches for a learner. `next` is called from one thread at a time."""

    def example(self) -> Trajectory:
        """Return a batch of zeros in device form, to compile the update with."""

    def begin(self) -> None:
        """Start preparing batches: the learner is ready."""

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if none is full within `timeout_s`."""

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back after the last update that reads it; return how many rows it was trained on.

        Args:
          batch: from `next`. output: of its last update; metrics as floats, empty where no update was made.
        """

    def stand_in(self, absent: Collection[int]) -> None:
        """Let other groups make the rows of those that nobody steps now, if batches are joined by groups."""

    def env_steps(self, updates: int) -> int:
        """Return the env steps trained on after `updates` updates (with replay workers: those inserted)."""

    def pending(self) -> int:
        """Return how many trajectories wait for the learner."""

    def counts(self) -> dict[str, int]:
        """Return the counts of faults, by metric."""

    def ledger(self) -> Ledger:
        """Return the fate of every trajectory."""

    def close(self) -> None:
        """Drop waiting trajectories and close the stream."""


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
