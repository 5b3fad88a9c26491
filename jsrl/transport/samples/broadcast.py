"""One trajectory for several readers: each has a stream, a connection and a ledger of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.transport.base import Block, Entry, Origin, SampleProducer
from jsrl.transport.meeting.handshake import remaining
from jsrl.types import leaves


def reserve_all(ends: Sequence[SampleProducer], timeout_s: float) -> Block:
    """Return room for one trajectory at every reader; where one has none, no other keeps room for it.

    Raises:
      StreamTimeout: a reader released no room in time. StreamClosed: a reader is gone.
    """
    deadline, blocks = time.monotonic() + timeout_s, list[Block]()
    try:
        for end in ends:
            blocks.append(end.reserve(remaining(deadline)))
    except (StreamTimeout, StreamClosed):
        for block in blocks:
            block.abandon()
        raise
    return blocks[0] if len(blocks) == 1 else BroadcastBlock(blocks)


class BroadcastBlock:
    """Room for one trajectory at several readers: rows are written at the first, and copied to the others at the commit.

    Args:
      blocks: one for each reader.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks, self.trajectory = blocks, blocks[0].trajectory

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        """Hand the trajectory to every reader that is still there; the next `reserve` tells of those that are gone.

        A reader that is gone misses it, like all that its process held. Return the entry at the first one that took it.

        Raises:
          StreamClosed: nobody took it.
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
        """Give the room back at every reader."""
        for block in self._blocks:
            block.abandon()
