"""A worker's ends of its streams, made from its job: bound and registered, or connected to the worker that bound them.

Those that connect do so again when that worker was replaced.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.references.importing import import_target
from jsrl.services.runs.values import Registration
from jsrl.transport.base import (
    Block,
    InferenceClient,
    InferenceServer,
    Ledger,
    Origin,
    ParamsPublisher,
    ParamsSubscriber,
    Reply,
    Request,
    SampleConsumer,
    SampleProducer,
)
from jsrl.transport.door.hello import Check, JoinRules
from jsrl.transport.ledger.legs import ledger_path, leg_folder
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.stream import End, generation_at, name_at
from jsrl.transport.table import (
    bind_inference,
    bind_params,
    bind_samples,
    connect_inference,
    connect_params,
    connect_samples,
)
from jsrl.types import Tree
from jsrl.workers.jobs import Job
from jsrl.workers.peers import CLOSED_S, Connector, FailoverPeer, FollowingParams, Peer, first_present

if TYPE_CHECKING:
    from jsrl.transport.ends.packing import Packing

PACKING = "jsrl.transport.ends.packing:Packing"  # imported where streams have keys
BROADCAST = "jsrl.transport.ends.samples:reserve_all"  # imported where a stream has several readers


def bind_reader(job: Job, port: str, schema: Tree, ledger: Ledger | None = None) -> SampleConsumer:
    """Return the reading end of the samples at a port, registered; `schema`: of the samples."""
    end = job.end(port)
    join_rules, blocks = join_rules_of(job, end), end.blocks_per_producer
    leg = leg_folder(Path(job.folder), end.leg) if end.leg else None
    consumer = bind_samples(
        end.address,
        schema,
        blocks_per_producer=blocks,
        ledger=ledger,
        keys=job.keys,
        join_rules=join_rules,
        leg=leg,
        packing=packing_of(job),
    )
    job.announce(name_at(end.stream.name, job.name), consumer.address)
    return consumer


def begin_counting(job: Job, port: str) -> Ledger:
    """Return the ledger of a worker's input port over all incarnations: earlier counts are kept."""
    path = ledger_path(Path(job.folder), job.end(port).leg)
    return open_ledger(path, 0, None, leg=path.parent, rolls_back=False)[1]


def join_rules_of(job: Job, end: End) -> JoinRules:
    """Return who may join a stream that this worker binds: the workers at its other end, with the stream's groups."""
    groups = max(end.stream.groups, default=0) + 1
    return JoinRules(frozenset(peer.worker for peer in end.peers), num_groups=groups, rows=job.experiment.group_size)


def packing_of(job: Job) -> Packing | None:
    """Return what the messages of a job's observations leave out between hosts; None: its streams have no keys."""
    if job.keys is None:
        return None
    return import_target(PACKING)(job.schemas.env.frames, job.experiment.compress)


def bind_server(job: Job, port: str) -> InferenceServer:
    end = job.end(port)
    join_rules, packing = join_rules_of(job, end), packing_of(job)
    server = bind_inference(end.address, job.schemas.act, keys=job.keys, join_rules=join_rules, packing=packing)
    job.announce(name_at(end.stream.name, job.name), server.address)
    return server


def bind_publisher(job: Job, port: str) -> ParamsPublisher:
    """Return the publishing end of the params at a port, registered."""
    end = job.end(port)
    publisher = bind_params(end.address, keys=job.keys)
    job.announce(name_at(end.stream.name, job.name), publisher.address)
    return publisher


def subscribe(job: Job, port: str = "params") -> ParamsSubscriber:
    """Return the subscriber to the params at a port; it follows restarts of the publisher, which a serial run has none of."""
    name, connect = names_of_peers(job.end(port))[0], functools.partial(connect_params, keys=job.keys)
    found = job.find(name)
    return connect(found.address) if job.in_process else FollowingParams(Peer(job.names, name, found), connect)


def names_of_peers(end: End) -> list[str]:
    """Return the registered names of the other ends of a stream, in order of preference."""
    return [name_at(end.stream.name, peer.worker) for peer in end.peers]


def connect_writer(
    job: Job,
    port: str,
    schema: Tree,
    reader: int,
    found: Registration,
    timeout_s: float,
    check: Check = lambda: None,
) -> SampleProducer:
    """Return the writing end of the samples at a port, connected to peer `reader`; calls `check` now and then as it waits."""
    end = job.end(port)
    groups = max(end.stream.groups, default=0) + 1
    leg = leg_folder(Path(job.folder), end.peers[reader].leg) if end.peers[reader].leg else None
    return connect_samples(found.address, schema, job.producer, groups, timeout_s, keys=job.keys, leg=leg, check=check)


class Writer:
    """The writing end for every reader of an output port: one, or several if the stream is broadcast.

    It has a connection to each reader. A trajectory goes to all of them, so that the slowest sets the pace.

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
        job, names = self._job, names_of_peers(self._job.end(self._port))
        peers = [Peer(job.names, name, job.find(name)) for name in names]
        self._readers = [
            Connector(peer, functools.partial(connect_writer, job, self._port, self._schema, number))
            for number, peer in enumerate(peers)
        ]
        self._ends = [reader.first() for reader in self._readers]

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


class SampleWriter(Writer):
    """Writes samples to the readers of an output port; follows their restarts. is_lost: a reader is being replaced."""

    is_lost = False

    def reserve(self, timeout_s: float) -> Block | None:  # type: ignore[override]
        """Return memory for a trajectory; None: there is none now, or a reader is being replaced; call again.

        Raises:
          StreamClosed: a reader is alive, but has refused this worker for a while, or not answered it from another host.
        """
        if self.is_lost:
            self.is_lost = not self.connect(timeout_s)
            return None
        try:
            return super().reserve(timeout_s)
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
            self.is_lost = not self.connect(0.0)
        elif not self._job.in_process:
            try:
                self.check()
            except StreamClosed:
                self.is_lost = True


class Servers(Connector[InferenceClient]):
    """Connects to a worker's own inference server, or to a substitute while that one is gone.

    group_sizes: group -> its number of environments.
    """

    peer: FailoverPeer

    def __init__(self, job: Job, port: str, group_sizes: dict[int, int]) -> None:
        self._job, self._sizes = job, group_sizes
        names = names_of_peers(job.end(port))
        # At the start of a run each worker waits for its own server, which is still starting.
        present = first_present(job.names, names) if job.incarnation else None
        super().__init__(FailoverPeer(job.names, names, present or job.find(names[0])), self._connect_to)

    def _connect_to(self, found: Registration, timeout_s: float, check: Check) -> InferenceClient:
        job = self._job
        return connect_inference(
            found.address, job.schemas.act, job.producer, self._sizes, timeout_s, keys=job.keys, check=check
        )


class InferenceRequests:
    """Sends inference requests through a port, one at a time; fails over between servers and their incarnations.

    It does not own these groups as an actor does: a server keeps separate cores for each requesting worker. A restarted server
    begins with fresh cores.
    """

    def __init__(self, job: Job, port: str = "inference") -> None:
        self._job, self._port = job, port
        self._client: InferenceClient | None = None
        self._sent = False  # a request is pending

    def open(self) -> None:
        """Connect; wait for the server."""
        groups = self._job.end(self._port).groups
        self._servers = Servers(self._job, self._port, dict.fromkeys(groups, self._job.experiment.group_size))
        self._client = self._servers.first()

    def ask(self, group: int, request: Request, timeout_s: float) -> Reply | None:
        """Return the reply to a request of one group; None: no reply yet, call again with the same request.

        The request's arrays [B, ...] must not change until it is answered; the reply's are valid until the next call.

        Raises:
          StreamClosed: the server is alive, but has refused this worker for a while, or not answered it from another host.
          UnknownPolicy: the request is for a policy that is not served.
        """
        if self._client is None:
            self._client = self._servers.connect(timeout_s)
            return None
        try:
            if not self._sent:
                self._client.send(group, request)
                self._sent = True
            _, reply = self._client.receive(timeout_s)
        except StreamTimeout:
            self._check()
            return None
        except StreamClosed:
            self.close()
            return None
        except UnknownPolicy:
            self._sent = False
            raise
        self._sent = False
        return reply

    def _check(self) -> None:
        if not self._job.in_process:
            try:
                self._servers.peer.check()
            except StreamClosed:
                self.close()

    def close(self) -> None:
        """Close the stream."""
        if self._client is not None:
            self._client.close()
            self._client, self._sent = None, False
