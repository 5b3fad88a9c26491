"""The writing end of samples: it connects to the readers, and again to their next incarnations."""

from __future__ import annotations

import functools

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.references.importing import import_target
from jsrl.services.runs.values import Registration
from jsrl.transport.base import Block, Origin, SampleProducer
from jsrl.transport.door.hello import Check
from jsrl.transport.stream import generation_at
from jsrl.types import Tree
from jsrl.workers.ends import connect_writer, find_readers
from jsrl.workers.jobs import Job, WorkerJob, whole
from jsrl.workers.peers import CLOSED_S, Connector

BROADCAST = "jsrl.transport.ends.samples:reserve_all"  # imported where a stream has several readers


class Writer:
    """The writing end for every reader of an output port: one, or several if the stream is broadcast.

    It has a connection to each reader. A trajectory goes to all of them, so that the slowest sets the pace.

    Args:
      job: of the worker. port: output port. schema: of the samples.

    Attributes:
      renewed: how often it has connected to a new incarnation of a reader.
    """

    def __init__(self, job: Job, port: str, schema: Tree) -> None:
        self._job, self._port, self._schema = job, port, schema
        self._readers: list[Connector[SampleProducer]] = []
        self._ends: list[SampleProducer | None] = []
        self.renewed = 0

    def open(self) -> None:
        """Connect; wait for the readers."""
        peers = find_readers(self._job, self._port)
        self._readers = [Connector(peer, functools.partial(self._connect, n)) for n, peer in enumerate(peers)]
        self._ends = [reader.first() for reader in self._readers]

    def _connect(self, number: int, found: Registration, timeout_s: float, check: Check) -> SampleProducer:
        return connect_writer(self._job, self._port, self._schema, found.address, timeout_s, number, check)

    def reserve(self, timeout_s: float) -> Block:
        """Return memory for a trajectory at every reader.

        Raises:
          StreamTimeout: a reader freed no memory in time. StreamClosed: a reader is gone; see `connect`.
        """
        ends = [end for end in self._ends if end is not None]
        if len(ends) < len(self._ends):
            raise StreamClosed(f"a reader of {self._job.name}.{self._port} is being replaced.")
        return ends[0].reserve(timeout_s) if len(ends) == 1 else import_target(BROADCAST)(ends, timeout_s)

    def check(self) -> None:
        """Check, now and then, that the readers are alive. Raises StreamClosed."""
        for reader in self._readers:
            reader.peer.check()

    def connect(self, timeout_s: float) -> bool:
        """Connect to the new incarnations of replaced readers; return whether every reader takes samples: else call again.

        Raises:
          StreamClosed: one is alive, but takes none for a while.
        """
        return all([self._connect_reader(number, timeout_s) for number in range(len(self._readers))])

    def _connect_reader(self, number: int, timeout_s: float) -> bool:
        reader, end = self._readers[number], self._ends[number]
        if end is not None:
            found = reader.peer.find(timeout_s)
            if found is None:
                reader.reset()
                return False
            if reader.peer.is_known(found):
                return self._is_open(end, reader)
            self._ends[number] = None
            end.mark_lost("its reader was replaced")
            end.close()
        self._ends[number] = reader.connect(timeout_s)
        self.renewed += self._ends[number] is not None
        return self._ends[number] is not None

    def _is_open(self, end: SampleProducer, reader: Connector[SampleProducer]) -> bool:
        """Return whether the end of a reader that is alive can be used."""
        try:
            end.reserve(0.0).abandon()
        except StreamTimeout:
            pass
        except StreamClosed as error:  # a reader closes its stream before its process ends
            reader.pause(error, CLOSED_S)
            return False
        reader.reset()
        return True

    def read_generation(self) -> int:
        """Return the learner generation that trains on these samples; 0 if no reader reports one."""
        found, stream = [0], self._job.end(self._port).stream.name
        for peer in self._job.end(self._port).peers:
            try:
                found.append(int(self._job.names.lookup(generation_at(stream, peer.worker), 0.0).address))
            except StreamTimeout:
                continue
        return max(found)

    def close(self) -> None:
        """Close; committed trajectories still reach the remaining readers."""
        for end, reader in zip(self._ends, self._readers, strict=True):
            found = reader.peer.find(0.0)
            if end is not None:
                if found is None or not reader.peer.is_known(found):
                    end.mark_lost("its reader is gone")
                end.close()


class SampleWriter:
    """Writes samples to the readers of an output port; follows their restarts.

    Args:
      job: of the worker. port: output port. schema: of the samples.

    Attributes:
      is_lost: a reader is being replaced.
    """

    def __init__(self, job: WorkerJob, port: str, schema: Tree) -> None:
        self._in_process, self._writer = job.in_process, Writer(whole(job), port, schema)
        self.is_lost = False

    @property
    def renewed(self) -> int:
        """Return how often it has connected to a new incarnation of a reader."""
        return self._writer.renewed

    def open(self) -> None:
        """Connect; wait for the readers."""
        self._writer.open()

    def reserve(self, timeout_s: float) -> Block | None:
        """Return memory for a trajectory; None: there is none now, or a reader is being replaced; call again.

        Raises:
          StreamClosed: a reader is alive, but has refused this worker for a while, or not answered it from another host.
        """
        if self.is_lost:
            self.is_lost = not self._writer.connect(timeout_s)
            return None
        try:
            return self._writer.reserve(timeout_s)
        except StreamTimeout:
            self.poll()
        except StreamClosed:
            self.is_lost = True
        return None

    def commit(self, block: Block, group: int, origin: Origin | None = None) -> bool:
        """Commit a trajectory; return False if no reader took it: write it again then."""
        try:
            block.commit(group, origin)
            return True
        except StreamClosed:
            self.is_lost = True
            return False

    def poll(self) -> None:
        """Check, now and then, that the readers are alive, and connect to their new incarnations."""
        if self.is_lost:
            self.is_lost = not self._writer.connect(0.0)
        elif not self._in_process:
            try:
                self._writer.check()
            except StreamClosed:
                self.is_lost = True

    def read_generation(self) -> int:
        """Return the learner generation that trains on these samples; 0 if no reader reports one."""
        return self._writer.read_generation()

    def close(self) -> None:
        """Close the stream."""
        self._writer.close()
