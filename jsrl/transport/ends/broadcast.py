"""One trajectory for several readers: each has its own stream, connection and ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.transport.base import Block, Entry, Origin, SampleProducer, remaining
from jsrl.types import leaves


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
