"""The writing end of samples that follows its reader: when that is replaced, it goes over to its next life."""

from __future__ import annotations

import time

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.runs.names import Registration
from jsrl.transport.base import Block, Origin, SampleProducer
from jsrl.transport.stream import epoch_at
from jsrl.types import Tree
from jsrl.workers.ends import connect_writer, find_reader
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job
from jsrl.workers.peers import CONNECT_S, REFUSED_S, Peer


class FollowingProducer:
    """Writes to the reader of a port's stream, whichever life of it is the present one.

    Args:
      job: of the worker. port: that writes samples. schema: of what it writes.

    Attributes:
      renewed: how often another life of the reader was found.
    """

    def __init__(self, job: Job, port: str, schema: Tree) -> None:
        self._job, self._port, self._schema = job, port, schema
        self._peer: Peer | None = None
        self._producer: SampleProducer | None = None
        self._refused_since_s: float | None = None
        self.renewed = 0

    def open(self) -> None:
        """Connect, waiting for the reader."""
        self._peer = find_reader(self._job, self._port)
        self._connect(self._peer.known, CONNECT_TIMEOUT_S)

    def _connect(self, found: Registration, timeout_s: float) -> None:
        self._producer = connect_writer(self._job, self._port, self._schema, found.address, timeout_s)

    def reserve(self, timeout_s: float) -> Block | None:
        """Return room for a trajectory; None: there is none now, or the reader is being replaced. Ask again."""
        if self._producer is None:
            self._follow(timeout_s)
            return None
        try:
            return self._producer.reserve(timeout_s)
        except StreamTimeout:
            self.look()
        except StreamClosed:
            self._lose()
        return None

    def commit(self, block: Block, group: int, origin: Origin | None = None) -> bool:
        """Hand a trajectory over; return False where the reader has gone meanwhile, so that it is to be written again."""
        try:
            block.commit(group, origin)
            return True
        except StreamClosed:
            self._lose()
            return False

    def look(self) -> None:
        """See, now and then, whether the reader still lives, and go over to its next life."""
        assert self._peer is not None
        if self._producer is None:
            self._follow(0.0)
        elif not self._job.in_process:
            try:
                self._peer.check()
            except StreamClosed:
                self._lose()

    def read_epoch(self) -> int:
        """Return the epoch in which the reader trains what it is given; 0 where it does not say."""
        end = self._job.end(self._port)
        try:
            return int(self._job.names.lookup(epoch_at(end.stream.name, end.peers[0].worker), 0.0).address)
        except StreamTimeout:
            return 0

    def _lose(self) -> None:
        if self._producer is not None:
            self._producer.lose("its reader was replaced")
            self._producer.close()
            self._producer = None

    def _follow(self, timeout_s: float) -> None:
        """Connect to the reader's present life, where there is one.

        Raises:
          StreamClosed: it lives, but has not taken this worker back for a while.
        """
        assert self._peer is not None
        found = self._peer.find(timeout_s)
        if found is None:
            return
        try:
            again = self._peer.is_known(found)
            self._connect(found, CONNECT_S)
        except StreamTimeout:
            return
        except StreamClosed:
            now_s = time.monotonic()
            self._refused_since_s = self._refused_since_s or now_s
            if now_s - self._refused_since_s > REFUSED_S:
                raise
            time.sleep(0.05)
            return
        self._peer.known, self._refused_since_s = found, None
        self.renewed += not again

    def close(self) -> None:
        """Leave."""
        if self._producer is not None:
            self._producer.close()
