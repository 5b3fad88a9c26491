"""Where a learner's batches come from, and the usual source: trajectories of a stream."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from jsrl.agents.base import UpdateOutput
from jsrl.transport.base import Ledger
from jsrl.types import Trajectory
from jsrl.workers.learner.batching import Batch, Batcher


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


class FromStream:
    """Batches of the trajectories of a consumer.

    Args:
      batcher: joins the consumer's leases. env_steps: of one batch.
    """

    def __init__(self, batcher: Batcher, env_steps: int) -> None:
        self._batcher, self._env_steps = batcher, env_steps

    def example(self) -> Trajectory:
        return self._batcher.example()

    def begin(self) -> None:
        """Do nothing: batches are joined in `next`."""

    def next(self, timeout_s: float) -> Batch | None:
        return self._batcher.fill(timeout_s)

    def stand_in(self, absent: Collection[int]) -> None:
        self._batcher.stand_in(absent)

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        self._batcher.recycle(batch)
        return self._env_steps

    def env_steps(self, updates: int) -> int:
        return updates // self._batcher.plan.reuse * self._env_steps

    def pending(self) -> int:
        return self._batcher.consumer.pending()

    def counts(self) -> dict[str, int]:
        return {"refused": self._batcher.refusals.count}

    def ledger(self) -> Ledger:
        return self._batcher.consumer.ledger

    def close(self) -> None:
        self._batcher.close()
        self._batcher.consumer.close()
