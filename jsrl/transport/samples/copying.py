"""A sample producer whose rows are written elsewhere and copied into the stream when a trajectory is complete.

It makes one copy more than writing in place, to measure what that saves (`--actor.rows-in-place false`).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from jsrl.transport.base import Block, Entry, Origin, SampleProducer
from jsrl.types import Trajectory, leaves, zeros


class CopyingProducer:
    """Producer that lends its own arrays instead of the stream's memory.

    Args:
      producer: the stream's end. spec: schema of one group's trajectory.
    """

    def __init__(self, producer: SampleProducer, spec: Trajectory) -> None:
        self._producer, self._spec = producer, spec
        self._spare: deque[Trajectory] = deque()

    def reserve(self, timeout_s: float) -> CopiedBlock:
        """Return memory for a trajectory; see SampleProducer.reserve (a block of the stream is reserved, too)."""
        block = self._producer.reserve(timeout_s)
        return CopiedBlock(block, self._spare.pop() if self._spare else zeros(self._spec), self._spare)

    def put(self, trajectory: Trajectory, group: int, timeout_s: float) -> Entry:
        """Reserve, copy and commit."""
        return self._producer.put(trajectory, group, timeout_s)

    def mark_lost(self, reason: str) -> None:
        """Mark the consumer as gone for good, so that `close` waits for nothing."""
        self._producer.mark_lost(reason)

    def close(self) -> None:
        """Close; committed trajectories still arrive."""
        self._producer.close()


class CopiedBlock:
    """Memory for one trajectory outside the stream; `commit` copies it into the stream's block."""

    def __init__(self, block: Block, trajectory: Trajectory, spare: deque[Trajectory]) -> None:
        self.trajectory, self._block, self._spare = trajectory, block, spare
        self._open = True

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        """Copy the rows and send the trajectory.

        Raises:
          StreamError: it was committed or abandoned before.
        """
        if self._open:
            for target, source in zip(leaves(self._block.trajectory), leaves(self.trajectory), strict=True):
                np.copyto(target, source)
        entry = self._block.commit(group, origin)
        self._give_back()
        return entry

    def abandon(self) -> None:
        """Free the memory unsent."""
        self._block.abandon()
        self._give_back()

    def _give_back(self) -> None:
        if self._open:
            self._open = False
            self._spare.append(self.trajectory)
