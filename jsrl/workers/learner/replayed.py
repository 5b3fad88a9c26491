"""A learner's batches where it has replay: rows for the ring on its devices, or windows that replay workers drew.

Windows come as leases; what the update says of them goes back to the replay worker that drew each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jsrl.agents.base import UpdateOutput
from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.parallel import join_devices
from jsrl.replay.host.rows import read_ids
from jsrl.replay.shared import PRIORITIES, windows_spec
from jsrl.transport.base import Lease, Ledger, ProducerId, SampleConsumer, SampleProducer
from jsrl.transport.stream import name_at, priorities_spec, replay_batch_spec
from jsrl.types import Array, Trajectory
from jsrl.workers.ends import connect_writer
from jsrl.workers.jobs import Job
from jsrl.workers.learner.batching import Batch, Batcher, BatchPlan, of_any_age
from jsrl.workers.learner.build import LearnerStart, bind
from jsrl.workers.learner.seams import Source
from jsrl.workers.peers import CONNECT_S, MAX_CONNECT_S

FEEDBACK_TIMEOUT_S = 2.0


class ReplayConsumer:
    """A SampleConsumer over a stream of ReplayBatch; its leases hold windows and their ids.

    Args:
      batches: the stream that replay workers write to. priorities: number of a replay worker -> stream to it.
      batch_size: windows of a batch. wait: whether `feedback` may wait for free memory.

    Attributes:
      lost_feedback: priorities dropped because a replay worker had no free memory.
    """

    def __init__(
        self,
        batches: SampleConsumer,
        priorities: Callable[[int], SampleProducer],
        batch_size: int,
        *,
        wait: bool = True,
    ) -> None:
        self._batches, self._connect, self._batch_size = batches, priorities, batch_size
        self._timeout_s = FEEDBACK_TIMEOUT_S if wait else 0.0
        self._producers: dict[int, SampleProducer] = {}
        self._inserted: dict[int, int] = {}
        self._lives: dict[int, ProducerId] = {}
        self._renewed: set[int] = set()  # replay workers whose restart the reading thread has seen
        self.address = batches.address
        self.lost_feedback = 0

    @property
    def ledger(self) -> Ledger:
        return self._batches.ledger

    @property
    def env_steps(self) -> int:
        """Return the env steps inserted over all replay workers, as reported with the newest batches."""
        return sum(self._inserted.values())

    def get(self, timeout_s: float) -> Lease:
        lease: Any = self._batches.get(timeout_s)
        batch = lease.trajectory
        number, inserted, _ = (int(x) for x in batch.counters)
        self._inserted[number] = inserted
        if self._lives.setdefault(number, lease.entry.producer) != lease.entry.producer:
            self._lives[number] = lease.entry.producer
            self._renewed.add(number)
        return Lease(batch.windows, lease.entry, np.array(batch.ids))

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        self._batches.release(lease, outcome)

    def pending(self) -> int:
        return self._batches.pending()

    def feedback(self, ids: Array, arrays: Mapping[str, Array]) -> None:
        """Send what an update found, arrays [M, ...] by name, to the replay workers that drew the windows `ids` [M]."""
        ids = np.asarray(ids)
        replays = read_ids(ids)[0]
        for number in np.unique(replays).tolist():
            mine = np.flatnonzero(replays == number)
            for start in range(0, len(mine), self._batch_size):
                part = mine[start : start + self._batch_size]
                self._send(number, ids[part], {name: array[part] for name, array in arrays.items()})

    def _send(self, number: int, ids: np.ndarray, arrays: Mapping[str, Array]) -> None:
        if number in self._renewed:
            self._renewed.discard(number)
            self._leave(number)
        try:
            if number not in self._producers:
                self._producers[number] = self._connect(number)
            block: Any = self._producers[number].reserve(self._timeout_s)
            block.trajectory.ids[: len(ids)] = ids
            block.trajectory.ids[len(ids) :] = -1
            for name, array in arrays.items():
                block.trajectory.arrays[name][: len(ids)] = array
            block.commit(0)
        except StreamTimeout:
            self.lost_feedback += len(ids)
        except StreamClosed:  # its process ended; the rows of these priorities are gone
            self.lost_feedback += len(ids)
            self._leave(number)

    def _leave(self, number: int) -> None:
        """Close the stream to a dead replay worker; the stream to its successor opens with its first batch."""
        producer = self._producers.pop(number, None)
        if producer is not None:
            producer.mark_lost("its replay worker was replaced")
            producer.close()

    def fence(self, producer: ProducerId) -> None:
        self._batches.fence(producer)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._batches.close()


class IntoRing(Batcher):
    """Batches that the update adds to a ring of rows on its devices; it trains on windows drawn from there.

    Args:
      windows: that one call of the update trains on. For the others see Batcher.
    """

    def __init__(
        self, consumer: SampleConsumer, spec: Trajectory, plan: BatchPlan, windows: int, **options: Any
    ) -> None:
        super().__init__(consumer, spec, plan, **options)
        self._windows = windows

    def stand_in(self, absent: Collection[int]) -> None:
        """Do nothing: each column of the ring has the rows of one environment."""

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back; return the windows trained on: none until the ring holds `min_size` rows."""
        super().used(batch, output)
        return self._windows if output.metrics else 0


class FromReplay(IntoRing):
    """Batches of windows that replay workers drew; their new priorities go back to these workers.

    Args:
      begun: env steps inserted before this start. Replay workers report theirs with their first batches.
    """

    consumer: ReplayConsumer

    def __init__(self, *args: Any, begun: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._begun = begun

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        """Take a batch back and send its priorities, if the agent has any; return its windows."""
        if output.priorities is not None:
            self.consumer.feedback(np.concatenate(batch.ids), {PRIORITIES: join_devices(output.priorities)})
        return super().used(batch, output)

    def env_steps(self, updates: int) -> int:
        return max(self._begun, self.consumer.env_steps)

    def counts(self) -> dict[str, int]:
        return super().counts() | {"priorities_lost": self.consumer.lost_feedback}


def from_replay(job: Job, plan: BatchPlan, start: LearnerStart, options: dict[str, Any]) -> Source:
    """Return the source of rows for the ring, or of the windows that replay workers draw: a batch for each compiled call."""
    e, spec = job.experiment, job.schemas.trajectory
    assert e.buffer is not None
    size, windows = e.buffer.batch_size, e.buffer.batch_size * e.updates_per_call
    if not job.has("priorities"):
        return IntoRing(bind(job, spec, start), spec, plan, windows, **options)
    spec = windows_spec(e.buffer, spec)
    plan = dataclasses.replace(plan, judge=of_any_age, group_size=size, columns=windows, num_rows=e.buffer.window)
    drawn = replay_consumer(bind(job, replay_batch_spec(spec), start), job)
    return FromReplay(drawn, spec, plan, windows, begun=job.start_point.env_steps, **options)


def replay_consumer(batches: SampleConsumer, job: Job) -> ReplayConsumer:
    end, config = job.end("priorities"), job.experiment.buffer
    assert config is not None
    number = config.batch_size

    def priorities(index: int) -> SampleProducer:
        reader = next(peer.worker for peer in end.peers if index in peer.groups)
        found = job.names.lookup(name_at(end.stream.name, reader), CONNECT_S)  # bound before its first batch was drawn
        connect_s = CONNECT_S if found.host else MAX_CONNECT_S
        return connect_writer(job, "priorities", priorities_spec(number), 0, found, connect_s)

    return ReplayConsumer(batches, priorities, number, wait=not job.in_process)
