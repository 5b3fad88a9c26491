"""Sample streams inside one process: serial mode, tests, notebooks, and threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import ConfigError, SpecMismatch, StreamClosed, StreamTimeout
from jsrl.transport.base import Entry, Lease, Origin, ProducerId
from jsrl.transport.door.address import check_name
from jsrl.transport.door.hello import Check, hello_of_producer
from jsrl.transport.ends.samples import ConsumerEnd, OpenBlock, ProducerEnd, choose_blocks
from jsrl.transport.ledger.leg_page import LOCAL, LegPage
from jsrl.transport.wire.schema import ALIGNMENT_BYTES, Layout
from jsrl.types import Trajectory, Tree, map_tree

_bound: dict[str, LocalSampleConsumer] = {}
_arrival = threading.Condition()


def aligned_zeros(size_bytes: int) -> np.ndarray:
    """Return `size_bytes` zero bytes that start at a multiple of 64."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


def read_only(tree: Tree) -> Tree:

    def freeze(array: np.ndarray) -> np.ndarray:
        view = array.view()
        view.flags.writeable = False
        return view

    return map_tree(freeze, tree)


class LocalSampleProducer(ProducerEnd):
    """The writing end of `local:NAME`."""

    def __init__(self, consumer: LocalSampleConsumer, schema: Tree, producer: ProducerId, num_groups: int):
        super().__init__(schema, producer, num_groups)
        self._consumer = consumer
        self._closed = ""
        self._num_blocks, self.page = consumer.join(self)
        self.page.mark_attached()
        self._blocks = [_block(consumer.layout, schema) for _ in range(self._num_blocks)]
        self._free = list(range(self._num_blocks))

    def reserve(self, timeout_s: float) -> OpenBlock:
        deadline = time.monotonic() + timeout_s
        with self._consumer.queue.changed:
            while True:
                self._check_open()
                if self._free:
                    number = self._free.pop(0)
                    return OpenBlock(self, number, self._blocks[number][0])
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise self._no_room(timeout_s, self._num_blocks)
                self._consumer.queue.changed.wait(remaining_s)

    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry:
        """Send block `number` (called by the block)."""
        self._check_group(group)
        with self._consumer.queue.changed:
            self._check_open()
            entry = self._next_entry(group, origin)
            self.page.begin()
            self._consumer.queue.add(self._blocks[number][1], entry, (self, number), self.page)
            self.page.commit()
        return entry

    def abandon_block(self, number: int) -> None:
        """Take block `number` back, unwritten or read (called by the block and by the consumer)."""
        with self._consumer.queue.changed:
            self._free.append(number)
            self._consumer.queue.changed.notify_all()

    def disconnect(self, reason: str) -> None:
        """Stop all sending (called by the consumer)."""
        with self._consumer.queue.changed:
            self._closed = self._closed or reason
            self._consumer.queue.changed.notify_all()

    def close(self) -> None:
        self.disconnect("closed by this producer")
        self._consumer.leave(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosed(f"{self.producer.name} on {self._consumer.address}: {self._closed}.")


class LocalSampleConsumer(ConsumerEnd):
    """The reading end of `local:NAME`; the blocks are arrays of this process."""

    def __init__(self, name: str, schema: Tree, **options: Any):
        super().__init__(schema, **options)
        self.queue.address = f"local:{check_name(name, 'stream')}"
        self._producers: dict[ProducerId, LocalSampleProducer] = {}
        with _arrival:
            if name in _bound:
                raise ConfigError(f"{self.address} is in use in this process; close it first or choose another name.")
            _bound[name] = self
            _arrival.notify_all()

    def join(self, producer: LocalSampleProducer) -> tuple[int, LegPage]:
        """Admit a producer and return its number of blocks and its page (called by the producer)."""
        with self.queue.changed:
            if self.queue.closed:
                raise StreamClosed(f"{self.address} is closed.")
            try:
                self._hello_checker.check(hello_of_producer(producer.producer, producer.num_groups, producer.leaves))
            except SpecMismatch as error:
                self.queue.complain(SpecMismatch(str(error)))
                raise
            self._hello_checker.admission.admit(producer.producer)
            for old in [known for known in self._producers if known.name == producer.producer.name]:
                self._disconnect(old, "replaced by a later incarnation")
            self._producers[producer.producer] = producer
            blocks = choose_blocks(self._blocks_per_producer, producer.num_groups)
            return blocks, self._count(producer.producer, blocks, LOCAL)

    def leave(self, producer: LocalSampleProducer) -> None:
        """Forget a producer (called by the producer)."""
        with self.queue.changed:
            self._producers.pop(producer.producer, None)
            producer.page.stop_reading()

    def get(self, timeout_s: float) -> Lease:
        return self.queue.take_within(timeout_s)

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        token = self.queue.finish(lease, outcome)
        if token is not None:
            producer, number = token
            producer.abandon_block(number)

    def fence(self, producer: ProducerId) -> None:
        with self.queue.changed:
            self._hello_checker.admission.fence(producer)
            self._disconnect(producer, "fenced by the consumer")

    def close(self) -> None:
        if not self.queue.close():
            return
        with _arrival:
            _bound.pop(self.address.removeprefix("local:"), None)
        with self.queue.changed:
            for producer in list(self._producers):
                self._disconnect(producer, "the consumer is closed")

    def _disconnect(self, producer: ProducerId, reason: str) -> None:
        end = self._producers.pop(producer, None)
        if end is not None:
            end.disconnect(reason)
            end.page.stop_reading()


def connect_local(
    name: str,
    schema: Tree,
    producer: ProducerId,
    num_groups: int,
    timeout_s: float,
    leg: Path | None = None,
    check: Check = lambda: None,
) -> LocalSampleProducer:
    """Return the writing end of `local:NAME`; waits for the consumer in this process, which knows the `leg`.

    No process is replaced here: `check` is not called.
    """
    with _arrival:
        if not _arrival.wait_for(lambda: name in _bound, timeout_s):
            raise StreamTimeout(f"local:{name}: no consumer of that name in this process within {timeout_s:g} s.")
        consumer = _bound[name]
    return LocalSampleProducer(consumer, schema, producer, num_groups)


def _block(layout: Layout, schema: Tree) -> tuple[Trajectory, Trajectory]:
    tree = layout.tree(schema, aligned_zeros(layout.size_bytes))
    return tree, read_only(tree)
