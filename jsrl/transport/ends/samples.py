"""The common part of all sample streams: open blocks, the queue with its ledger, and admission."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from jsrl.errors import ConfigError, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import Block, Entry, Lease, Ledger, Origin, ProducerId, SampleProducer, remaining
from jsrl.transport.door.address import check_producer
from jsrl.transport.door.hello import ANYBODY, Door, JoinRules
from jsrl.transport.ledger.leg_page import LegPage, new_session
from jsrl.transport.wire.message import Message
from jsrl.transport.wire.schema import Leaf, check_tree, flatten_schema, make_layout
from jsrl.types import Trajectory, Tree, leaves

MAX_GROUPS = 65536
BLOCKS_PER_GROUP = 2  # one being written, one on its way


class Welcome(Message, tag="welcome"):
    """The consumer's answer to a hello: the producer's number of blocks, and the number of the consumer's incarnation."""

    blocks: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    session: Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class _BlockOwner(Protocol):
    def commit_block(self, number: int, group: int, origin: Origin | None) -> Entry: ...

    def abandon_block(self, number: int) -> None: ...


class OpenBlock:
    """Memory for one trajectory: write into `trajectory`, then `commit` (or `abandon`) once.

    The memory is reused: leaves never written are zero, the rest shows an earlier trajectory.
    """

    __slots__ = ("_number", "_owner", "trajectory")

    def __init__(self, owner: _BlockOwner, number: int, trajectory: Trajectory):
        self.trajectory = trajectory
        self._owner: _BlockOwner | None = owner
        self._number = number

    def _leave(self) -> _BlockOwner:
        if self._owner is None:
            raise StreamError("this block was committed or abandoned before; reserve another one.")
        return self._owner

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        owner = self._leave()
        entry = owner.commit_block(self._number, group, origin)
        self._owner = None
        return entry

    def abandon(self) -> None:
        owner = self._leave()
        self._owner = None
        owner.abandon_block(self._number)


class ProducerEnd:
    """The part of a producer that all transports share: `put`, and the numbers of trajectories per group."""

    def __init__(self, schema: Tree, producer: ProducerId, num_groups: int):
        self.producer = check_producer(producer)
        self.schema = schema
        self.leaves: tuple[Leaf, ...] = flatten_schema(schema)
        self.num_groups = check_groups(num_groups)
        self._sequences = [0] * num_groups

    def reserve(self, timeout_s: float) -> OpenBlock:
        raise NotImplementedError

    def mark_lost(self, reason: str) -> None:
        """Mark the consumer as gone for good, so that `close` waits for nothing."""

    def put(self, trajectory: Trajectory, group: int, timeout_s: float) -> Entry:
        arrays = check_tree(trajectory, self.leaves)
        self._check_group(group)
        block = self.reserve(timeout_s)
        for destination, source in zip(leaves(block.trajectory), arrays, strict=True):
            np.copyto(destination, source)
        return block.commit(group)

    def _check_group(self, group: int) -> None:
        if not 0 <= group < self.num_groups:
            raise ConfigError(f"{self.producer.name}: group {group}, expected 0 to {self.num_groups - 1}.")

    def _next_entry(self, group: int, origin: Origin | None) -> Entry:
        """Return the entry of the next trajectory of `group`, and count it."""
        sequence = self._sequences[group]
        self._sequences[group] = sequence + 1
        return Entry(self.producer, group, sequence, None if origin == (self.producer, sequence) else origin)

    def _no_room(self, timeout_s: float, num_blocks: int) -> StreamTimeout:
        return StreamTimeout(
            f"{self.producer.name}: none of {num_blocks} blocks was released within {timeout_s:g} s; the consumer is "
            "slower than its producers (back-pressure), or hangs."
        )


class ConsumerEnd:
    """The part of a consumer that all transports share: trajectories that wait or are lent, their counts, and who may join.

    Any thread may add trajectories.

    Args: see jsrl.transport.table.bind_samples. A transport sets the address.
    """

    address = ""

    def __init__(
        self,
        schema: Tree,
        *,
        blocks_per_producer: int | None = None,
        ledger: Ledger | None = None,
        join_rules: JoinRules = ANYBODY,
        leg: Path | None = None,
    ):
        self.schema, self.leaves = schema, flatten_schema(schema)
        self.layout = make_layout(self.leaves)
        self.door = Door("the consumer", self.leaves, join_rules)
        self._blocks_per_producer = check_blocks(blocks_per_producer)
        self._leg, self._session = leg, new_session()
        self._ledger = ledger or Ledger(dropped={})
        self._changed = threading.Condition()  # guards all of these
        self._waiting: deque[tuple[Lease, Any]] = deque()
        self._lent: dict[Entry, Any] = {}
        self._faults: deque[Exception] = deque()
        self._closed = False

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def pending(self) -> int:
        return len(self._waiting)

    def get(self, timeout_s: float) -> Lease:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (lease := self._take()) is None:
                if (remaining_s := deadline - time.monotonic()) <= 0:
                    raise StreamTimeout(f"{self.address}: no trajectory was committed within {timeout_s:g} s.")
                self._changed.wait(remaining_s)
            return lease

    def _take(self) -> Lease | None:
        """Lend the oldest waiting trajectory; None: none waits."""
        with self._changed:
            if self._closed:
                raise StreamClosed(f"{self.address} is closed at this end.")
            if self._faults:
                raise self._faults.popleft()
            if not self._waiting:
                return None
            lease, token = self._waiting.popleft()
            self._lent[lease.entry] = token
            return lease

    def _connect(self, producer: ProducerId, blocks: int, transport: int, place: Path | None = None) -> LegPage:
        """Count a new connection; return its page."""
        self._ledger.join()
        return LegPage.create(self._leg, producer, self._session, blocks=blocks, transport=transport, place=place)

    def _add(self, trajectory: Trajectory, entry: Entry, token: Any, page: LegPage) -> None:
        """Receive a committed trajectory; `token` identifies its memory, `page` counts its connection."""
        with self._changed:
            self._ledger.mark(True)
            page.receive()
            self._ledger.arrive()
            if self._closed:
                self._ledger.finish("closed")
            else:
                self._waiting.append((Lease(trajectory, entry), token))
                self._hold()
                self._changed.notify_all()
            self._ledger.mark(False)

    def _hold(self) -> None:
        self._ledger.hold(len(self._waiting) + len(self._lent))

    def _complain(self, error: Exception) -> None:
        """Have the next `get` raise `error`, once."""
        with self._changed:
            self._faults.append(error)
            self._changed.notify_all()

    def _finish(self, lease: Lease, outcome: str) -> Any:
        """Count the outcome of a lent trajectory; return its token, or None if this end is closed."""
        with self._changed:
            if self._closed:
                return None
            token = self._lent.pop(lease.entry, None)
            if token is None:
                raise StreamError(f"{self.address}: {lease.entry} is not lent; every lease is released exactly once.")
            self._ledger.mark(True)
            self._ledger.finish(outcome)
            self._hold()
            self._ledger.mark(False)
            return token

    def _drop_all(self) -> bool:
        """Drop everything that waits, is lent, or comes later, as `closed`; return False if that was done before."""
        with self._changed:
            if self._closed:
                return False
            self._closed = True
            held = len(self._waiting) + len(self._lent)
            if held:
                self._ledger.finish("closed", held)
            self._waiting.clear()
            self._lent.clear()
            self._hold()
            self._changed.notify_all()
            return True


def check_groups(num_groups: int) -> int:
    if not isinstance(num_groups, int) or not 1 <= num_groups <= MAX_GROUPS:
        raise ConfigError(f"num_groups {num_groups!r}, expected 1 to {MAX_GROUPS}.")
    return num_groups


def choose_blocks(blocks_per_producer: int | None, num_groups: int) -> int:
    return blocks_per_producer or BLOCKS_PER_GROUP * check_groups(num_groups)


def check_blocks(blocks_per_producer: int | None) -> int | None:
    if blocks_per_producer is not None and not 1 <= blocks_per_producer <= 1 << 20:
        raise ConfigError(f"blocks_per_producer {blocks_per_producer}, expected 1 to {1 << 20}, or None.")
    return blocks_per_producer


def reserve_all(ends: Sequence[SampleProducer], timeout_s: float) -> BroadcastBlock:
    """Return memory for one trajectory at every reader; if one has none, none is reserved at the others.

    Raises:
      StreamTimeout: a reader freed no memory in time. StreamClosed: a reader is gone.
    """
    deadline, blocks = time.monotonic() + timeout_s, list[Block]()
    try:
        for end in ends:
            blocks.append(end.reserve(remaining(deadline)))
    except (StreamTimeout, StreamClosed):
        for block in blocks:
            block.abandon()
        raise
    return BroadcastBlock(blocks)


class BroadcastBlock:
    """Memory for one trajectory at several readers: rows are written at the first, and copied to the others at the commit.

    Args:
      blocks: one for each reader.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks, self.trajectory = blocks, blocks[0].trajectory

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        """Send the trajectory to every reader that is still there; the next `reserve` reports the others.

        A reader that is gone misses it, like everything in its process. Return the entry at the first reader that got it.

        Raises:
          StreamClosed: no reader got it.
        """
        for block in self._blocks[1:]:
            for target, source in zip(leaves(block.trajectory), leaves(self.trajectory), strict=True):
                np.copyto(target, source)
        entries, lost = [], []
        for block in self._blocks:
            try:
                entries.append(block.commit(group, origin))
            except StreamClosed as error:
                lost.append(error)
        if not entries:
            raise lost[0]
        return entries[0]

    def abandon(self) -> None:
        for block in self._blocks:
            block.abandon()
