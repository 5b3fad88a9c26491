"""A worker's ends of its streams, made from its job: bound and registered, or connected to the worker that bound them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.references.importing import import_target
from jsrl.services.runs.values import Registration
from jsrl.transport.base import (
    InferenceServer,
    Ledger,
    ParamsPublisher,
    ParamsSubscriber,
    SampleConsumer,
    SampleProducer,
)
from jsrl.transport.door.hello import Check, JoinRules
from jsrl.transport.ledger.legs import ledger_path, leg_folder
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.stream import End, name_at
from jsrl.transport.table import bind_inference, bind_params, bind_samples, connect_params, connect_samples
from jsrl.types import Tree
from jsrl.workers.jobs import Job
from jsrl.workers.peers import FollowingParams, Peer

if TYPE_CHECKING:
    from jsrl.transport.ends.packing import Packing

PACKING = "jsrl.transport.ends.packing:Packing"  # imported where streams have keys


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
