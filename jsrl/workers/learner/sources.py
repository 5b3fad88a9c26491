"""Sources of a learner's batches: actors, actors through a ring on the devices, replay workers, a recording."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jsrl.agents.base import UpdateOutput
from jsrl.parallel import join_devices
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import Ledger, SampleConsumer
from jsrl.types import Trajectory
from jsrl.workers.base import Reporter
from jsrl.workers.learner.batching import Batch, Batcher

if TYPE_CHECKING:
    from jsrl.workers.attached.ranks import RankLink
    from jsrl.workers.learner.replay_link import ReplayConsumer

RANKS = "ranks"  # the port to the other ranks of a learner


class Source(Protocol):
    """Batches for a learner. `next` is called from one thread at a time."""

    def example(self) -> Trajectory:
        """Return a batch of zeros in device form, to compile the update with."""
        ...

    def begin(self) -> None:
        """Start preparing batches: the learner is ready."""
        ...

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if none is full within `timeout_s`."""
        ...

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back after the last update that reads it; return how many rows it was trained on.

        Args:
          batch: from `next`. output: of its last update; metrics as floats, empty where no update was made.
        """
        ...

    def stand_in(self, absent: Collection[int]) -> None:
        """Let other groups make the rows of those that nobody steps now, if batches are joined by groups."""
        ...

    def env_steps(self, updates: int) -> int:
        """Return the env steps trained on after `updates` updates (with replay workers: those inserted)."""
        ...

    def pending(self) -> int:
        """Return how many trajectories wait for the learner."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts of faults, by metric."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Return the fate of every trajectory."""
        ...

    def close(self) -> None:
        """Drop waiting trajectories and close the stream."""
        ...


class FromStream:
    """Batches of the trajectories of a consumer, such as the actors' or a recording's.

    Args:
      batcher: joins the leases of `consumer`. env_steps: of one batch. updates: made with one batch.
    """

    def __init__(self, batcher: Batcher, consumer: SampleConsumer, env_steps: int, updates: int) -> None:
        self._batcher, self._consumer = batcher, consumer
        self._env_steps, self._updates = env_steps, updates

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
        return updates // self._updates * self._env_steps

    def pending(self) -> int:
        return self._consumer.pending()

    @property
    def counts(self) -> dict[str, int]:
        return {"refused": self._batcher.refusals.count}

    @property
    def ledger(self) -> Ledger:
        return self._consumer.ledger

    def close(self) -> None:
        self._batcher.close()
        self._consumer.close()


class IntoRing(FromStream):
    """Batches that the update adds to a ring of rows on its devices; it trains on windows drawn from there.

    Args:
      windows: that one call of the update trains on. For the others see FromStream.
    """

    def __init__(self, batcher: Batcher, consumer: SampleConsumer, env_steps: int, updates: int, windows: int) -> None:
        super().__init__(batcher, consumer, env_steps, updates)
        self._windows = windows

    def stand_in(self, absent: Collection[int]) -> None:
        """Do nothing: each column of the ring has the rows of one environment."""

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back; return the windows trained on: none until the ring holds `min_size` rows."""
        self._batcher.recycle(batch)
        return self._windows if output.metrics else 0


class FromReplay(IntoRing):
    """Batches of windows that replay workers drew; their new priorities go back to these workers.

    Args:
      begun: env steps inserted before this start. Replay workers report theirs with their first batches.
    """

    def __init__(self, batcher: Batcher, consumer: ReplayConsumer, windows: int, begun: int = 0) -> None:
        super().__init__(batcher, consumer, 0, 1, windows)
        self._replay, self._begun = consumer, begun

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back and send its priorities, if the agent has any; return its windows."""
        if output.priorities is not None:
            self._replay.feedback(np.concatenate(batch.ids), join_devices(output.priorities))
        return super().used(batch, output)

    def env_steps(self, updates: int) -> int:
        return max(self._begun, self._replay.env_steps)

    @property
    def counts(self) -> dict[str, int]:
        return super().counts | {"priorities_lost": self._replay.lost_feedback}


class Prefetched:
    """A source with a thread that prepares batches: batch N+1 is joined while update N runs.

    Args:
      source: of the batches. phases: of the thread.
    """

    def __init__(self, source: Source, phases: Phases) -> None:
        self._source, self._phases = source, phases
        self.example, self.used, self.env_steps = source.example, source.used, source.env_steps
        self.pending, self.stand_in = source.pending, source.stand_in
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._phases.begin()
            while not self._stop.is_set():
                batch = self._source.next(0.1)
                self._phases.enter("wait_learner")
                while batch is not None and not self._stop.is_set():
                    try:
                        self._ready.put(batch, timeout=0.1)
                        batch = None
                    except queue.Full:
                        continue
        except BaseException as error:
            self._error = error

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None; an error of the thread is raised here."""
        if self._error is not None:
            raise self._error
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def counts(self) -> dict[str, int]:
        return self._source.counts

    @property
    def ledger(self) -> Ledger:
        return self._source.ledger

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._source.close()


class NoLimit:
    """No limit but that of any worker: no other rank waits."""

    seconds = None

    def lifted(self, reporter: Reporter) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()


class OneRank:
    """In place of a RankLink, for a learner that has no other ranks."""

    limit = NoLimit()

    def halt(self) -> bool:
        """Do nothing."""
        return False

    def leave(self) -> None:
        """Do nothing."""


ONE_RANK = OneRank()


class SynchronizedSource:
    """The batches of one rank of a learner, each lent once all ranks have one.

    Args:
      source: of the batches. group: of the ranks.
    """

    def __init__(self, source: Source, group: RankLink) -> None:
        self._source, self._group = source, group
        self.example, self.begin, self.env_steps = source.example, source.begin, source.env_steps
        self.pending, self.stand_in, self.close = source.pending, source.stand_in, source.close
        self._waiting: Batch | None = None
        self._lent_s = 0.0

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if this rank or another has none within `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        if self._waiting is None:
            self._waiting = self._source.next(timeout_s)
        left_s = max(0.0, until_s - time.monotonic())
        return self._lend() if self._group.agree(self._waiting is not None, left_s) else None

    def last(self) -> Batch | None:
        """Stop making updates; return the batch that must still be trained on, after which call this again."""
        return self._lend() if self._group.halt() else None

    def _lend(self) -> Batch | None:
        batch, self._waiting, self._lent_s = self._waiting, None, time.monotonic()
        return batch

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        self._group.limit.note(time.monotonic() - self._lent_s)
        return self._source.used(batch, output)

    @property
    def counts(self) -> dict[str, int]:
        return self._source.counts

    @property
    def ledger(self) -> Ledger:
        return self._source.ledger
