"""The writing end of samples, with failover: when a reader is replaced, it connects to the new incarnation."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.references.importing import import_target
from jsrl.services.runs.values import Registration
from jsrl.transport.base import Block, Entry, Origin, SampleProducer
from jsrl.transport.door.hello import Check
from jsrl.transport.stream import epoch_at
from jsrl.types import Trajectory, Tree, leaves
from jsrl.workers.ends import connect_writer, find_readers
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job, WorkerJob, whole
from jsrl.workers.peers import CLOSED_S, ELSEWHERE_S, REFUSED_S, BriefRetry, Peer, meet_present, silent, stays

BROADCAST = "jsrl.transport.ends.samples:reserve_all"  # imported where a stream has several readers


class Writer:
    """A SampleProducer for every reader of an output port: one, or several if the stream is broadcast.

    It has a connection to each reader. A trajectory goes to all of them, so that the slowest sets the pace.

    Args:
      job: of the worker. port: output port. schema: of the samples.

    Attributes:
      peers: the readers, as of the last connection.
    """

    def __init__(self, job: Job, port: str, schema: Tree) -> None:
        self._job, self._port, self._schema = job, port, schema
        self.peers: list[Peer] = []
        self._ends: list[SampleProducer | None] = []

    def open(self) -> None:
        """Connect; wait for the readers."""
        self.peers = find_readers(self._job, self._port)
        self._ends = [None] * len(self.peers)
        for number, peer in enumerate(self.peers):
            meet_present(peer, CONNECT_TIMEOUT_S, functools.partial(self._connect, number))

    def _connect(self, number: int, found: Registration, timeout_s: float, check: Check = lambda: None) -> None:
        self._ends[number] = connect_writer(
            self._job, self._port, self._schema, found.address, timeout_s, number, check
        )
        self.peers[number].known = found

    def reserve(self, timeout_s: float) -> Block:
        """Return memory for a trajectory at every reader.

        Raises:
          StreamTimeout: a reader freed no memory in time. StreamClosed: a reader is gone; see `follow`.
        """
        ends = [end for end in self._ends if end is not None]
        if len(ends) < len(self._ends):
            raise StreamClosed(f"a reader of {self._job.name}.{self._port} is being replaced.")
        return ends[0].reserve(timeout_s) if len(ends) == 1 else import_target(BROADCAST)(ends, timeout_s)

    def put(self, trajectory: Trajectory, group: int, timeout_s: float) -> Entry:
        block = self.reserve(timeout_s)
        for target, source in zip(leaves(block.trajectory), leaves(trajectory), strict=True):
            np.copyto(target, source)
        return block.commit(group)

    def check(self) -> None:
        """Check, now and then, that the readers are alive. Raises StreamClosed."""
        for peer in self.peers:
            peer.check()

    def follow(self, found: Sequence[Registration], connect_s: float) -> bool:
        """Connect to the new incarnations of replaced readers; return whether there are any.

        Args:
          found: current registration of each of `peers`. connect_s: for each to answer.

        Raises:
          StreamTimeout, StreamClosed: one does not answer, or refuses this worker. The others are connected; try again.
        """
        renewed = False
        for number, (peer, present) in enumerate(zip(self.peers, found, strict=True)):
            if not peer.is_known(present):
                self._leave(number, "its reader was replaced")
                self._connect(number, present, connect_s, stays(peer, present))
                renewed = True
        return renewed

    def silent(self, found: Sequence[Registration], silence: StreamTimeout) -> StreamClosed | None:
        """Return the error about the first reader on another host that did not answer in `follow`; None: there is none."""
        pairs = zip(self.peers, found, strict=True)
        away = [present for peer, present in pairs if not (present.host or peer.is_known(present))]
        return silent(away[0], silence) if away else None

    @property
    def patience_s(self) -> float:
        """Return how long new readers may refuse this worker."""
        return ELSEWHERE_S if any(peer.is_elsewhere for peer in self.peers) else REFUSED_S

    def _leave(self, number: int, reason: str) -> None:
        end, self._ends[number] = self._ends[number], None
        if end is not None:
            end.mark_lost(reason)
            end.close()

    def read_epoch(self) -> int:
        """Return the learner epoch that trains on these samples; 0 if no reader reports one."""
        found, stream = [0], self._job.end(self._port).stream.name
        for peer in self._job.end(self._port).peers:
            try:
                found.append(int(self._job.names.lookup(epoch_at(stream, peer.worker), 0.0).address))
            except StreamTimeout:
                continue
        return max(found)

    def mark_lost(self, reason: str) -> None:
        """Mark readers as gone for good, so that `close` does not wait for them."""
        for end, peer in zip(self._ends, self.peers, strict=True):
            found = peer.find(0.0)
            if end is not None and (found is None or not peer.is_known(found)):
                end.mark_lost(reason)

    def close(self) -> None:
        """Close; committed trajectories still reach the remaining readers."""
        self.mark_lost("its reader is gone")
        for end in self._ends:
            if end is not None:
                end.close()


class SampleWriter:
    """Writes samples to the readers of an output port; follows their restarts.

    Args:
      job: of the worker. port: output port. schema: of the samples.

    Attributes:
      renewed: how often new incarnations of readers were found.
    """

    def __init__(self, job: WorkerJob, port: str, schema: Tree) -> None:
        self._in_process, self._writer = job.in_process, Writer(whole(job), port, schema)
        self._lost: StreamClosed | None = None
        self._patience = BriefRetry()
        self.renewed = 0

    @property
    def is_lost(self) -> bool:
        """Return whether a reader is being replaced."""
        return bool(self._lost)

    def open(self) -> None:
        """Connect; wait for the readers."""
        self._writer.open()

    def reserve(self, timeout_s: float) -> Block | None:
        """Return memory for a trajectory; None: there is none now, or a reader is being replaced; call again."""
        if self._lost is not None:
            self._follow(self._lost, timeout_s)
            return None
        try:
            return self._writer.reserve(timeout_s)
        except StreamTimeout:
            self.poll()
        except StreamClosed as error:
            self._lost = error
        return None

    def commit(self, block: Block, group: int, origin: Origin | None = None) -> bool:
        """Commit a trajectory; return False if no reader took it: write it again then."""
        try:
            block.commit(group, origin)
            return True
        except StreamClosed as error:
            self._lost = error
            return False

    def poll(self) -> None:
        """Check, now and then, that the readers are alive, and connect to their new incarnations."""
        if self._lost is not None:
            self._follow(self._lost, 0.0)
        elif not self._in_process:
            try:
                self._writer.check()
            except StreamClosed as error:
                self._lost = error

    def read_epoch(self) -> int:
        """Return the learner epoch that trains on these samples; 0 if no reader reports one."""
        return self._writer.read_epoch()

    def _follow(self, lost: StreamClosed, timeout_s: float) -> None:
        """Connect to the readers' current incarnations, if they exist.

        Raises:
          StreamClosed: they are alive, but have refused this worker for a while, or not answered it from another host.
        """
        present = [found for peer in self._writer.peers if (found := peer.find(timeout_s)) is not None]
        if len(present) < len(self._writer.peers):
            self._patience.end()
            return
        try:
            renewed = self._writer.follow(present, self._patience.connect_s)
        except StreamTimeout as silence:
            if (error := self._writer.silent(present, silence)) is not None:
                self._patience.unanswered(error)
            return
        except StreamClosed as refusal:
            self._patience.pause(refusal, self._writer.patience_s)
            return
        if not renewed:  # a reader closes its stream before its process ends
            self._patience.pause(lost, CLOSED_S)
            return
        self._patience.end()
        self._lost = None
        self.renewed += 1

    def close(self) -> None:
        """Close."""
        self._writer.close()
