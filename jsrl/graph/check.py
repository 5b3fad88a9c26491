"""Checks of a graph, with one sentence each, before anything starts."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from typing import get_args, get_type_hints

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph, Link, WorkerNode
from jsrl.graph.policies import learners_of, policy_of
from jsrl.transport.door.address import check_name
from jsrl.transport.stream import Stream
from jsrl.transport.table import find_transport
from jsrl.workers.kinds import Port, own_kinds


def check(graph: Graph) -> None:
    """Refuse an invalid dataflow."""
    for what, names in (("worker", [w.name for w in graph.workers]), ("stream", [s.name for s in graph.streams])):
        for name, count in Counter(names).items():
            check_name(name, what)
            if count > 1:
                raise ConfigError(f"{count} {what}s are called {name!r}; give each a name of its own.")
    _check_values(graph)
    _check_kinds(graph)
    for worker in graph.workers:
        _check_ports(graph, worker)
    for stream in graph.streams:
        _check_ends(graph, stream)
        if stream.transport and not find_transport(stream.transport).carries(stream.type):
            raise ConfigError(f"the transport {stream.transport} carries no {stream.type}; give {stream.name} another.")
    _check_policies(graph)
    _ = graph.stop_order


def _check_values(graph: Graph) -> None:
    """Refuse fields of streams and workers with values that they cannot have."""
    hints = get_type_hints(Stream)
    for stream in graph.streams:
        for field in ("type", "schema", "routing"):
            if (given := getattr(stream, field)) not in get_args(hints[field]):
                raise ConfigError(f"{field} of {stream.name} is {given!r}; use {' or '.join(get_args(hints[field]))}.")
        if type(stream.blocks) is not int or stream.blocks < 1:
            raise ConfigError(f"blocks of {stream.name} is {stream.blocks!r}; use 1 or more trajectories of a group.")
    for worker in graph.workers:
        if worker.restart is not None and (type(worker.restart) is not int or worker.restart < 0):
            raise ConfigError(
                f"restart of {worker.name} is {worker.restart!r}; use 0 or more, or None for the experiment's."
            )


def _check_kinds(graph: Graph) -> None:
    """Refuse two kinds with the same name: their metrics would be mixed."""
    references: dict[str, str] = {}
    for worker in graph.workers:
        first = references.setdefault(graph.kind(worker.name).name, worker.kind)
        if first != worker.kind:
            raise ConfigError(f"the kinds {first} and {worker.kind} have the same name; give one of them another.")


def _check_ports(graph: Graph, worker: WorkerNode) -> None:
    kind = graph.kind(worker.name)
    ports = {port.name: port for port in kind.ports}
    for port_name, count in Counter(link.port for link in worker.links).items():
        if port_name not in ports:
            raise ConfigError(
                f"{worker.name} has no port {port_name!r}; a worker of kind {kind.name} has: {', '.join(ports) or 'none'}."
            )
        if count > 1 and not _is_by_policy(graph, worker, ports[port_name]):
            raise ConfigError(
                f"the port {port_name!r} of {worker.name} is connected to {count} streams; a port takes one."
            )
    for link in worker.links:
        stream, port = graph.stream(link.stream), ports[link.port]
        if stream.type != port.stream_type:
            raise ConfigError(
                f"{worker.name}.{port.name} is for {port.stream_type}, but {stream.name} carries {stream.type}."
            )
        if port.schemas and stream.schema not in port.schemas:
            raise ConfigError(
                f"{worker.name}.{port.name} takes {' or '.join(port.schemas)}, but {stream.name} carries {stream.schema}."
            )
        if outside := sorted(set(link.groups) - set(stream.groups)):
            raise ConfigError(f"{worker.name}.{port.name} names groups {outside}, which {stream.name} does not carry.")
    for port in ports.values():
        if not port.optional and not worker.has(port.name):
            raise ConfigError(
                f"{worker.name}.{port.name} {port.role} {port.stream_type}, but is connected to no stream; give the port one."
            )
    if kind.check is not None:
        kind.check(worker)
    if worker.settings and kind in own_kinds() and worker not in learners_of(graph):
        raise ConfigError(
            f"{worker.name} has settings, but a worker of kind {kind.name} takes none; set options of the experiment, or add "
            "a worker of your own kind."
        )


def _is_by_policy(graph: Graph, worker: WorkerNode, port: Port) -> bool:
    """Return whether a port may have all of its streams: each belongs to another policy."""
    policies = [graph.stream(link.stream).policy for link in worker.links if link.port == port.name]
    return port.by_policy and len(set(policies)) == len(policies)


def _check_ends(graph: Graph, stream: Stream) -> None:
    sources, sinks = graph.sources(stream.name), graph.sinks(stream.name)
    if stream.type == "params":
        if len(sources) != 1:
            raise ConfigError(f"the params {stream.name} are published by {_names(sources)}; exactly one worker must.")
    elif not sources:
        raise ConfigError(
            f"no worker writes to the stream {stream.name}, which {_names(sinks)} would wait for; add a worker that does, or "
            "join them to another stream."
        )
    if not sinks and stream.type != "params":
        does = "reads" if stream.type == "samples" else "answers"
        raise ConfigError(
            f"no worker {does} the stream {stream.name}, which {_names(sources)} would wait for; add a worker that does, or "
            "join them to another stream."
        )
    if stream.type == "samples" and not stream.feedback:
        _check_each_group(graph, stream, sources, "written", "written by one worker")
        if stream.routing == "by-group":
            hint = "read by one worker (or let the stream have routing='broadcast')"
            _check_each_group(graph, stream, sinks, "read", hint)
            _check_whole_writers(graph, stream, sources, sinks)
        _check_readers(graph, stream, sinks)


def _check_readers(graph: Graph, stream: Stream, sinks: list[tuple[WorkerNode, Link]]) -> None:
    """Refuse readers that would block the stream's writers forever, or that would miss part of the stream."""
    if stream.routing == "broadcast" and stream.schema != "trajectory":
        raise ConfigError(
            f"{stream.name} carries {stream.schema}, which go to one reader; only trajectories are broadcast."
        )
    for worker, link in sinks:
        if not graph.kind(worker.name).lifecycle.loss_ends_run:
            raise ConfigError(
                f"{worker.name} reads {stream.name}, whose writers would wait forever once its restarts are exhausted; "
                f"its kind {worker.kind} must have loss_ends_run=True."
            )
        if stream.routing == "broadcast" and set(graph.groups(link)) != set(stream.groups):
            raise ConfigError(f"{stream.name} is broadcast, so {worker.name} must read all of its groups.")


def _check_policies(graph: Graph) -> None:
    """Refuse policies without a learner or with two, and workers that would mix two policies."""
    learners = {worker.name: policy_of(graph, worker) for worker in learners_of(graph)}
    if not learners:
        return
    for policy, count in Counter(learners.values()).items():
        check_name(policy, "policy")
        if count > 1:
            both = " and ".join(name for name, own in learners.items() if own == policy)
            raise ConfigError(f"{both} train the same policy {policy!r}; give the params stream of one another policy.")
    for stream in graph.streams:
        if stream.policy not in learners.values():
            there = ", ".join(learners.values())
            raise ConfigError(
                f"{stream.name} is of the policy {stream.policy!r}, which no learner trains; there are: {there}."
            )
    for worker in graph.workers:
        _check_one_policy(graph, worker, is_learner=worker.name in learners)


def _check_one_policy(graph: Graph, worker: WorkerNode, *, is_learner: bool) -> None:
    """Refuse a worker that acts for, passes on or keeps data of one policy as another's. Workers that only read may mix."""
    kind = graph.kind(worker.name)
    streams = [graph.stream(link.stream) for link in worker.links]
    if any(port.by_policy for port in kind.ports):
        _check_each_policy(graph, worker)
        return
    if is_learner:  # it may train on rows that another policy chose
        streams = [stream for stream in streams if stream.type != "samples"]
    policies = dict.fromkeys(stream.policy for stream in streams)
    if len(policies) > 1 and any(kind.port(link.port).role in ("writes", "asks", "answers") for link in worker.links):
        parts = ", ".join(f"{stream.name} ({stream.policy})" for stream in streams)
        raise ConfigError(
            f"{worker.name} joins streams of several policies: {parts}; all of one worker must be of the same."
        )


def _check_each_policy(graph: Graph, worker: WorkerNode) -> None:
    """Refuse a worker with streams for only part of a policy's needs: it could not act for it, or not send its rows."""
    joined: dict[str, dict[str, tuple[int, ...]]] = {}
    for link in worker.links:
        joined.setdefault(graph.stream(link.stream).policy, {})[link.port] = link.groups and graph.groups(link)
    (first, ports), *others = joined.items()
    optional = {port.name for port in graph.kind(worker.name).ports if port.optional}
    for (
        policy,
        own,
    ) in others:  # optional ports may differ, but not in number: a server acts for one policy, the actor for another
        alike = len(own) == len(ports) and own.keys() - optional == ports.keys() - optional
        if not alike or any(set(own[port]) != set(ports[port]) for port in own.keys() & ports.keys()):
            raise ConfigError(
                f"{worker.name} has {_joined(ports)} of the policy {first!r}, but {_joined(own)} of {policy!r}; all policies "
                "that play in the same environments need the same ports and groups."
            )


def _joined(ports: Mapping[str, tuple[int, ...]]) -> str:
    return " and ".join(f"{port} ({', '.join(map(str, groups))})" if groups else port for port, groups in ports.items())


def _check_each_group(
    graph: Graph, stream: Stream, ends: list[tuple[WorkerNode, Link]], done: str, expected: str
) -> None:
    counts = Counter(group for _, link in ends for group in graph.groups(link))
    for group in stream.groups:
        if counts[group] != 1:
            by = [worker.name for worker, link in ends if group in graph.groups(link)]
            who = f"by {' and '.join(by)}" if by else "by no worker"
            raise ConfigError(f"group {group} of the stream {stream.name} is {done} {who}; each must be {expected}.")


def _check_whole_writers(
    graph: Graph, stream: Stream, sources: list[tuple[WorkerNode, Link]], sinks: list[tuple[WorkerNode, Link]]
) -> None:
    """Refuse writers whose groups have several readers: each writer has one connection."""
    for worker, link in sources:
        readers = [sink.name for sink, own in sinks if set(graph.groups(own)) & set(graph.groups(link))]
        if len(readers) > 1:
            raise ConfigError(
                f"{' and '.join(readers)} read groups of {stream.name} that {worker.name} writes; all groups of a writer must "
                "have the same reader."
            )


def _names(ends: list[tuple[WorkerNode, Link]]) -> str:
    return " and ".join(worker.name for worker, _ in ends) or "no worker"


# -- a graph and its experiment ----------------------------------------------------------------------------------------


def check_fits(graph: Graph, experiment: Experiment) -> None:
    """Refuse a graph whose workers an experiment cannot run."""
    check_groups(graph, experiment)
    _check_restarts(experiment.supervision.restarts, graph)
    if experiment.where.processes:
        _check_importable(graph)


def check_groups(graph: Graph, experiment: Experiment) -> None:
    """Refuse a graph whose actors step other groups of environments than the experiment's."""
    wanted = set(range(experiment.groups if experiment.recording is None else 0))
    stepped = {
        group
        for stream in graph.streams
        if stream.type == "samples" and stream.schema == "trajectory"
        for worker, link in graph.sources(stream.name)
        if not graph.kind(worker.name).reads_samples
        for group in graph.groups(link)
    }
    if stepped and (missing := sorted(wanted - stepped)):  # none: a worker of the user's own steps the environments
        raise ConfigError(
            f"no actor steps the groups {missing} of the experiment's {len(wanted)}; give them to an actor."
        )
    if unknown := sorted(stepped - wanted):
        raise ConfigError(f"the experiment has no groups {unknown}; it has {len(wanted)} (num_groups).")


def _check_restarts(restarts: Mapping[str, int], graph: Graph) -> None:
    known = {kind.prefix for kind in (*own_kinds(), *graph.kinds.values())} if restarts else set()
    for name in restarts.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}."
        raise ConfigError(f"supervision.restarts names {name!r}, which is no kind of worker; {hint}")


def _check_importable(graph: Graph) -> None:
    """Refuse kinds in the script or notebook itself: a worker's process has another `__main__`."""
    for worker in graph.workers:
        for reference in (worker.kind, graph.kind(worker.name).build):
            if reference.startswith("__main__:"):
                raise ConfigError(
                    f"{reference} of {worker.name} is in the script or notebook itself, which its process cannot import; put "
                    "it into a file of its own and name that module (a serial run works as it is)."
                )
