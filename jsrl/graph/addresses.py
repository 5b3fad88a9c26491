"""Addresses and keys of an experiment's streams."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph, WorkerNode
from jsrl.graph.launcher import ALONE, Hosts
from jsrl.graph.policies import learners_of, policy_of
from jsrl.transport.door.address import check_ipc_path
from jsrl.transport.ledger.legs import SAMPLES, recorded_leg
from jsrl.transport.stream import End, Peer, Stream, name_at
from jsrl.transport.table import own_address

KEYS_MODULE = "jsrl.transport.door.keys"  # imported where streams are encrypted
KEYS = "keys"  # in the run folder
_MAX_PORT = 65535


def bind_addresses(
    graph: Graph, experiment: Experiment, memory_folder: Path, hosts: Hosts = ALONE
) -> dict[tuple[str, str], str]:
    """Return (stream, worker) -> the address at which the worker binds the stream, for every binding end.

    A stream with its own transport uses that; another one between hosts uses TCP, and one that stays on this host
    uses the experiment's transport.
    """
    over_zmq, found = zmq_addresses(experiment, memory_folder), {}
    for stream in graph.streams:
        for worker, port, _ in graph.ends(stream.name):
            if port.binds:
                name = name_at(stream.name, worker.name)
                channel = experiment.where.channel(stream)
                if channel == "local":
                    address = f"local:{memory_folder.name}-{name}"
                elif channel == stream.transport:
                    address = own_address(channel, f"{memory_folder}/{name}")
                elif not stays_here(graph, stream, hosts):
                    address = tcp(hosts.address(worker.name))
                elif stream.type == "ranks":
                    address = f"ipc://{check_ipc_path(str(memory_folder / name))}"
                elif channel == "zeromq" and not _only_relays_read(graph, stream):
                    address = over_zmq(name)
                else:
                    address = f"shm:{memory_folder}/{name}"
                found[stream.name, worker.name] = address
    return found


def stays_here(graph: Graph, stream: Stream, hosts: Hosts) -> bool:
    return hosts.are_here(worker.name for worker, _, _ in graph.ends(stream.name))


def tcp(host: str, port: int = 0) -> str:
    """Return the TCP address of a port at an IP address; 0: a free port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _only_relays_read(graph: Graph, stream: Stream) -> bool:
    """Return whether only relays read a stream of params: it never leaves the host."""
    sinks = graph.sinks(stream.name)
    return stream.type == "params" and bool(sinks) and all(graph.kind(worker.name).travel.relays for worker, _ in sinks)


def ends_of(
    graph: Graph, worker: WorkerNode, addresses: dict[tuple[str, str], str], policy: str
) -> tuple[tuple[str, End], ...]:
    """Return the ends of a worker's streams: its addresses where it binds them, or its peers.

    For ports with several streams, one per policy, only this policy's end is returned.
    """
    found = []
    for link in worker.links:
        stream, port = graph.stream(link.stream), graph.kind(worker.name).port(link.port)
        if port.by_policy and stream.policy != policy:
            continue
        mine = graph.groups(link)
        wanted = frozenset(mine)
        others = graph.sinks(stream.name) if port.gives else graph.sources(stream.name)
        peers = [
            Peer(other.name, tuple(g for g in graph.groups(theirs) if g in wanted), leg_of(graph, stream, other))
            for other, theirs in others
        ]
        if stream.type == "inference" and port.role == "asks":
            peers = _own_first(peers)
        elif stream.type == "samples":
            peers = [peer for peer in peers if peer.groups]
        address = addresses.get((stream.name, worker.name), "")
        found.append((link.port, End(stream, mine, address, tuple(peers), leg_of(graph, stream, worker))))
    return tuple(found)


def leg_of(graph: Graph, stream: Stream, reader: WorkerNode) -> str:
    """Return the name under which a reader's trajectories are counted; that of the first learner is `samples`."""
    if stream.type != "samples" or stream.feedback:
        return ""
    first = next((worker.name for worker in graph.workers if graph.kind(worker.name).lifecycle.must_finish), "")
    return SAMPLES if reader.name == first else name_at(stream.name, reader.name)


def learner_leg(graph: Graph, learner: str) -> str:
    """Return the name under which a learner's input trajectories are counted."""
    worker = graph.worker(learner)
    reads = [graph.stream(link.stream) for link in worker.links if graph.kind(learner).port(link.port).role == "reads"]
    first = learners_of(graph)[0].name == learner
    recorded = recorded_leg("" if first else policy_of(graph, worker))
    return next((leg_of(graph, stream, worker) for stream in reads), recorded)


def _own_first(servers: list[Peer]) -> list[Peer]:
    """Return the servers in a client's order: its own (for its groups) first, then the following ones in turn."""
    own = next((i for i, server in enumerate(servers) if server.groups), 0)
    return servers[own:] + servers[:own]


def keys_folder(experiment: Experiment, folder: str, hosts: Hosts) -> str | None:
    """Return the folder of a run's keys if one of its streams uses TCP; None: none does."""
    if not (experiment.encrypted or hosts.of):
        return None
    import_module(KEYS_MODULE).check_encryption()
    return f"{folder}/{KEYS}"


def zmq_addresses(experiment: Experiment, memory_folder: Path) -> Callable[[str], str]:
    """Return the function that gives the bind address of a ZeroMQ stream by its name.

    On one host these are Unix sockets in `memory_folder`. With --bind or --encrypt they are TCP ports, which have keys: free
    ones, or consecutive ones from the first one on; call it once per stream, always in the same order.
    """
    if not experiment.encrypted:
        return lambda name: f"ipc://{check_ipc_path(str(memory_folder / name))}"
    host, first_port = experiment.bind_to
    numbers = itertools.count()

    def next_port(name: str) -> str:
        number = next(numbers)
        port = 0 if first_port is None else first_port + number
        if port > _MAX_PORT:
            raise ConfigError(
                f"--bind {experiment.bind} leaves {number} ports for its streams, too few for {name}; start at a lower port."
            )
        return tcp(host, port)

    return next_port


def begin_encryption(experiment: Experiment, keys: str | None, *, show: Callable[[str], None]) -> None:
    """Make a run's keys if its streams are encrypted and it has none yet, and tell the user their path."""
    if keys is not None:
        made = import_module(KEYS_MODULE)
        path = made.make_keys(keys) / made.CLIENT_FILE
        if experiment.encrypted:  # for programs of the user; joined hosts have their own keys
            show(f"streams listen on {experiment.bind} and are encrypted; ends on other hosts need {path}")


def check_address(experiment: Experiment) -> None:
    """Check that streams can listen on the address of the option `bind`."""
    if not experiment.where.uses_zeromq:
        return
    host, port = experiment.bind_to
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # as ZeroMQ does: a run just ended does not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port or 0))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"bind is {experiment.bind}, but another process listens on port {port}; give another first port, or "
                f"--bind {host} for free ones."
            ) from error
        raise ConfigError(
            f"bind is {experiment.bind}, on which this host cannot listen ({error.strerror}); give an address of this host "
            "(`hostname -I` lists them)."
        ) from error
