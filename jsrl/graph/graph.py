"""A dataflow as a frozen value: workers connected by streams. It has no addresses and no processes, and starts nothing.

A user changes a graph with `add`, `without`, `replace`, `scale` and `insert`; each returns a new one.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from jsrl.errors import ConfigError, counted
from jsrl.references.importing import nearest
from jsrl.references.reference import from_json, is_equal, to_json
from jsrl.transport.stream import Stream
from jsrl.workers.kinds import Kind, Port, find_kind


@dataclass(frozen=True)
class Link:
    """One end of a stream at a worker. groups: of environments that this worker writes, reads, requests, or answers first."""

    port: str
    stream: str
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class WorkerNode:
    """One worker.

    Attributes:
      name: such as `actor-3`. kind: `actor`, or a user's `module:NAME`. links: its ends of streams.
      settings: for a user's kind; JSON values.
      restart: how often it is replaced when it dies; None: as the experiment says.
      own_device: the inference server has an accelerator without the learner, if there are several.
    """

    name: str
    kind: str
    links: tuple[Link, ...] = ()
    settings: Any = None
    restart: int | None = None
    own_device: bool = False

    def link(self, port: str) -> Link | None:
        """Return the link of a port; None: it has no stream."""
        return next((link for link in self.links if link.port == port), None)

    def end(self, port: str) -> Link:
        """Return the link of a port."""
        link = self.link(port)
        if link is None:
            joined = ", ".join(link.port for link in self.links) or "none"
            raise ConfigError(f"{self.name}.{port} is connected to no stream; its connected ports: {joined}.")
        return link

    def has(self, port: str) -> bool:
        """Return whether a port has a stream."""
        return self.link(port) is not None

    @property
    def family(self) -> str:
        """Return the name without its number: `actor` of `actor-3`."""
        return re.sub(r"-\d+$", "", self.name)


def node(
    name: str,
    kind: str,
    /,
    settings: Any = None,
    restart: int | None = None,
    own_device: bool = False,
    **ports: str | tuple[str, Sequence[int]],
) -> WorkerNode:
    """Return a worker with its ports by name: a stream's name, or (name, groups).

    A port without groups has all groups of its stream: `node("watcher", "my_workers:WATCHER", params="params")`.
    """
    return WorkerNode(name, kind, tuple(_link(*each) for each in ports.items()), settings, restart, own_device)


def _link(port: str, stream: str | tuple[str, Sequence[int]]) -> Link:
    return Link(port, stream) if isinstance(stream, str) else Link(port, stream[0], tuple(stream[1]))


Entry = TypeVar("Entry", WorkerNode, Stream)


@dataclass(frozen=True)
class Graph:
    """The dataflow of a run."""

    streams: tuple[Stream, ...] = ()
    workers: tuple[WorkerNode, ...] = ()

    def __str__(self) -> str:
        """Return the graph as text: a line for each stream, with its writers and readers."""
        wide = max((len(stream.name) for stream in self.streams), default=0)
        lines = []
        for stream in self.streams:
            left, right = ([w.name for w, _ in ends] for ends in (self.sources(stream.name), self.sinks(stream.name)))
            arrow = "<->" if stream.type in ("inference", "ranks") else "->"
            lines.append(
                f"{stream.name:<{wide}}  {', '.join(left) or 'no worker'} {arrow} {', '.join(right) or 'no worker'}"
            )
        return "\n".join(lines)

    # -- reading ------------------------------------------------------------------------------------------------------

    def stream(self, name: str) -> Stream:
        """Return a stream by its name."""
        return _named(self.streams, name, "stream")

    def worker(self, name: str) -> WorkerNode:
        """Return a worker by its name."""
        return self._by_name.get(name) or _named(self.workers, name, "worker")

    def kind(self, worker: str) -> Kind:
        """Return the kind of a worker."""
        return find_kind(self.worker(worker).kind)

    @functools.cached_property  # asked for each message of each worker
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each worker."""
        return {worker.name: find_kind(worker.kind) for worker in self.workers}

    @functools.cached_property
    def _by_name(self) -> dict[str, WorkerNode]:
        return {worker.name: worker for worker in reversed(self.workers)}

    @functools.cached_property
    def _ends(self) -> dict[str, list[tuple[WorkerNode, Port, Link]]]:
        """Return stream -> its ends, found once: each of thousands of workers is asked about."""
        found: dict[str, list[tuple[WorkerNode, Port, Link]]] = {}
        for worker in self.workers:
            for link in worker.links:
                found.setdefault(link.stream, []).append((worker, find_kind(worker.kind).port(link.port), link))
        return found

    @functools.cached_property
    def _sources(self) -> dict[str, list[tuple[WorkerNode, Link]]]:
        return {name: [(w, link) for w, port, link in ends if port.gives] for name, ends in self._ends.items()}

    @functools.cached_property
    def _sinks(self) -> dict[str, list[tuple[WorkerNode, Link]]]:
        return {name: [(w, link) for w, port, link in ends if not port.gives] for name, ends in self._ends.items()}

    def ends(self, stream: str) -> list[tuple[WorkerNode, Port, Link]]:
        """Return every end of a stream."""
        return list(self._ends.get(stream, ()))

    def sources(self, stream: str) -> list[tuple[WorkerNode, Link]]:
        """Return the workers that write to a stream, or are its clients."""
        return list(self._sources.get(stream, ()))

    def sinks(self, stream: str) -> list[tuple[WorkerNode, Link]]:
        """Return the workers that read a stream, or serve it."""
        return list(self._sinks.get(stream, ()))

    def groups(self, link: Link) -> tuple[int, ...]:
        """Return the groups of a link: its own, or all of its stream's."""
        return link.groups or self.stream(link.stream).groups

    def family(self, name: str) -> list[WorkerNode]:
        """Return the workers of a family: `actor` means actor-0, actor-1, ..."""
        return [worker for worker in self.workers if name in (worker.family, worker.name)]

    @property
    def params(self) -> str:
        """Return the name of the params stream that all workers read: a relay's, if there is one."""
        streams = [stream.name for stream in self.streams if stream.type == "params"]
        relayed = [name for name in streams if any(self.kind(w.name).travel.relays for w, _ in self.sources(name))]
        found = relayed or streams
        if len(found) != 1:
            raise ConfigError(f"the params are in {' and '.join(found) or 'no stream'}; name the stream that you mean.")
        return found[0]

    @property
    def stop_order(self) -> list[list[WorkerNode]]:
        """Return the workers in stop order: those of one list at once, readers after their writers."""
        return self._levels(self._stops_before())

    @property
    def start_order(self) -> list[WorkerNode]:
        """Return the workers in start order, so that each finds its peers: readers, servers and publishers first."""
        pairs = []
        for stream in self.streams:
            sources, sinks = self.sources(stream.name), self.sinks(stream.name)
            for (source, _), (sink, _) in ((a, b) for a in sources for b in sinks if not stream.feedback):
                pairs.append((source.name, sink.name) if stream.type == "params" else (sink.name, source.name))
        return [worker for level in self._levels(pairs) for worker in level]

    def _levels(self, pairs: Iterable[tuple[str, str]]) -> list[list[WorkerNode]]:
        """Return the workers sorted by (first, then) pairs; the order within a list is arbitrary."""
        before = {worker.name: set[str]() for worker in self.workers}
        for first, then in pairs:
            before[then].add(first)
        levels, left = [], dict(before)
        while left:
            free = [name for name, others in left.items() if not others & left.keys()]
            if not free:
                raise ConfigError(
                    f"the streams between {', '.join(sorted(left))} form a cycle, so that none of them could stop first; "
                    "mark the stream that leads back with feedback=True."
                )
            levels.append([worker for worker in self.workers if worker.name in free])
            for name in free:
                del left[name]
        return levels

    def _stops_before(self) -> list[tuple[str, str]]:
        """Return (worker that stops first, worker that stops later) pairs.

        Samples: writers before readers. Inference: clients before servers. Params: the publisher before its subscribers,
        except those whose actions lead to its own updates. Workers that receive others' events stop after all others.
        """
        pairs, leads_to = [], {worker.name: set[str]() for worker in self.workers}
        for stream in self.streams:
            sources, sinks = self.sources(stream.name), self.sinks(stream.name)
            for (source, _), (sink, _) in ((a, b) for a in sources for b in sinks):
                if stream.type == "samples" and not stream.feedback:
                    pairs.append((source.name, sink.name))
                    leads_to[source.name].add(sink.name)
                elif stream.type == "inference":
                    pairs.append((source.name, sink.name))
                    leads_to[sink.name].add(source.name)
        learned_from = {worker.name: _reachable(worker.name, leads_to) for worker in self.workers}
        for stream in self.streams:
            for (source, _), (sink, _) in (
                (a, b) for a in self.sources(stream.name) for b in self.sinks(stream.name) if stream.type == "params"
            ):
                if not learned_from[sink.name] & {source.name, *self._publishers_before(source)}:
                    pairs.append((source.name, sink.name))
        hearing = [worker.name for worker in self.workers if find_kind(worker.kind).receives]
        others = [worker.name for worker in self.workers if worker.name not in hearing]
        return pairs + [(other, name) for name in hearing for other in others]

    def _publishers_before(self, worker: WorkerNode) -> set[str]:
        """Return the workers that a worker's params come from."""
        found: set[str] = set()
        names = [worker.name]
        while names:
            for link in self.worker(names.pop()).links:
                if self.stream(link.stream).type == "params":
                    new = {source.name for source, _ in self.sources(link.stream)} - found - {worker.name}
                    found |= new
                    names += new
        return found

    @property
    def flow(self) -> list[WorkerNode]:
        """Return the workers in the order of the data flow, which is the stop order."""
        return [worker for level in self.stop_order for worker in level]

    # -- changing -----------------------------------------------------------------------------------------------------

    def add(self, worker: WorkerNode, *streams: Stream) -> Graph:
        """Return a graph with one more worker and its new streams."""
        return Graph((*self.streams, *streams), (*self.workers, worker))

    def without(self, name: str) -> Graph:
        """Return a graph without a worker or a family of workers, and without the streams that are then unused."""
        gone = self.family(name)
        if not gone:
            self.worker(name)  # raises if there is none
        return Graph(self.streams, tuple(worker for worker in self.workers if worker not in gone))._used()

    def _used(self) -> Graph:
        used = {link.stream for worker in self.workers for link in worker.links}
        return Graph(tuple(stream for stream in self.streams if stream.name in used), self.workers)

    def replace(self, name: str, worker: WorkerNode | None = None, **changes: Any) -> Graph:
        """Return a graph with a worker replaced, or with other fields: `replace("actor-0", restart=3)`."""
        new = _changed(worker or self.worker(name), changes)
        self.worker(name)
        return Graph(self.streams, tuple(new if w.name == name else w for w in self.workers))

    def connect(self, name: str, **ports: str | tuple[str, Sequence[int]] | None) -> Graph:
        """Return a graph in which ports of a worker have other streams: by name, (name, groups), or None for no stream.

        Streams that become unused are removed.

        `graph.connect("actor-0", inference=None, params="params")` lets an actor act by itself.
        """
        worker = self.worker(name)
        kept = [link for link in worker.links if link.port not in ports]
        new = [_link(port, stream) for port, stream in ports.items() if stream is not None]
        return self.replace(name, links=(*kept, *new))._used()

    def with_stream(self, name: str, **changes: Any) -> Graph:
        """Return a graph in which a stream has other fields: `with_stream("samples", blocks=4)`."""
        new = _changed(self.stream(name), changes)
        return Graph(tuple(new if stream.name == name else stream for stream in self.streams), self.workers)

    def scale(self, family: str, count: int) -> Graph:
        """Return a graph with `count` workers of a family, which divide its groups evenly.

        Raises:
          ConfigError: there is no such family, its workers differ, or its groups cannot be divided evenly.
        """
        old = self.family(family)
        if not old:
            self.worker(family)
        if unlike := [worker.name for worker in old if not is_equal(_pattern(worker), _pattern(old[0]))]:
            raise ConfigError(
                f"{family} cannot be scaled: {unlike[0]} has other streams, settings, restart or own_device than "
                f"{old[0].name}; scale first, and change single workers afterwards."
            )
        if type(count) is not int or count < 1:
            raise ConfigError(
                f"{family} cannot be scaled to {count!r} workers; give a whole number from 1 on, or use "
                f"without({family!r}) to have none."
            )
        shares = [_shares(self, old, number, count) for number in range(count)]
        new = [dataclasses.replace(old[0], name=f"{family}-{i}", links=links) for i, links in enumerate(shares)]
        first = self.workers.index(old[0])
        others = [worker for worker in self.workers if worker not in old]
        place = sum(worker not in old for worker in self.workers[:first])
        return Graph(self.streams, (*others[:place], *new, *others[place:]))

    def insert(
        self, kind: str, *, stream: str = "samples", name: str | None = None, settings: Any = None, count: int = 1
    ) -> Graph:
        """Return a graph with workers of a kind inserted between the writers and the readers of a stream.

        The stream ends at the new workers; `STREAM-NAME` continues from them. Several workers divide the groups evenly.

        Args:
          kind: with one port that reads samples and one that writes them. stream: to split.
          name: of the new worker (default: its kind's). settings: of the new worker. count: number of workers.

        Raises:
          ConfigError: the kind has no such ports, or there is no such stream.
        """
        found = find_kind(kind)
        name = name or found.name
        reads = [port.name for port in found.ports if port.stream_type == "samples" and port.role == "reads"]
        writes = [port.name for port in found.ports if port.stream_type == "samples" and port.role == "writes"]
        if len(reads) != 1 or len(writes) != 1:
            raise ConfigError(
                f"{kind} has {len(reads)} ports that read samples and {len(writes)} that write them; to stand between a "
                "stream's writers and readers it needs one of each. Use add() and replace() for other dataflows."
            )
        upstream = self.stream(stream)
        onwards = dataclasses.replace(upstream, name=f"{stream}-{name}")
        readers = {worker.name for worker, _ in self.sinks(stream)}
        workers = tuple(
            dataclasses.replace(
                worker, links=tuple(_moved(worker, link, stream, onwards.name) for link in worker.links)
            )
            if worker.name in readers
            else worker
            for worker in self.workers
        )
        groups = upstream.groups
        new = WorkerNode(name, kind, (Link(reads[0], stream, groups), Link(writes[0], onwards.name, groups)), settings)
        streams = tuple(dataclasses.replace(s, routing="by-group") if s.name == stream else s for s in self.streams)
        graph = Graph((*streams, onwards), (*workers, new))
        return graph if count == 1 else graph.scale(name, count)

    # -- JSON -------------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the graph as JSON values."""
        return {
            "streams": [dataclasses.asdict(stream) for stream in self.streams],
            "workers": [
                {
                    "name": worker.name,
                    "kind": worker.kind,
                    "restart": worker.restart,
                    "own_device": worker.own_device,
                    "settings": to_json(worker.settings),
                    "links": [dataclasses.asdict(link) for link in worker.links],
                }
                for worker in self.workers
            ],
        }

    @staticmethod
    def from_json(tree: Any, *, decode: Callable[[Any, str], Any] = from_json) -> Graph:
        """Return the graph from `to_json` (lists may stand for tuples); decode: gives the value of a worker's settings."""
        try:
            graph = msgspec.convert(tree, Graph)
            _check_fields(tree, Graph, "the graph")
            workers = [
                dataclasses.replace(worker, settings=decode(worker.settings, f"{worker.name}.settings"))
                for worker in graph.workers
            ]
        except ValueError as error:
            raise ConfigError(f"this is not a graph of workers and streams: {error}.") from error
        return dataclasses.replace(graph, workers=tuple(workers))


def _check_fields(entry: dict[str, Any], cls: type, path: str) -> None:
    """Refuse a graph, stream, worker or link with other fields than it has: they would be lost, or have other values."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in entry:
        if name not in names:
            raise ValueError(f"{path} has no field {name!r}{nearest(name, names)}; it has: {', '.join(names)}")
    if missing := [name for name in names if name not in entry]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    for name, part in {"streams": Stream, "workers": WorkerNode, "links": Link}.items():
        for index, value in enumerate(entry.get(name, ())):
            _check_fields(value, part, f"{name}[{index}]" if cls is Graph else f"{path}.{name}[{index}]")


def _named(entries: Sequence[Any], name: str, what: str) -> Any:
    for entry in entries:
        if entry.name == name:
            return entry
    raise ConfigError(
        f"there is no {what} {name!r}; there are: {', '.join(entry.name for entry in entries) or 'none'}."
    )


def _changed(entry: Entry, changes: dict[str, Any]) -> Entry:
    names = [field.name for field in dataclasses.fields(entry)]
    for name in changes.keys() - set(names):
        raise ConfigError(f"{entry.name} has no field {name!r}{nearest(name, names)}; it has: {', '.join(names)}.")
    return dataclasses.replace(entry, **changes)


def _moved(worker: WorkerNode, link: Link, old: str, new: str) -> Link:
    reads = find_kind(worker.kind).port(link.port).role == "reads"
    return dataclasses.replace(link, stream=new) if link.stream == old and reads else link


def _reachable(start: str, leads_to: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    names = [start]
    while names:
        new = leads_to[names.pop()] - found
        found |= new
        names += new
    return found


def _pattern(worker: WorkerNode) -> WorkerNode:
    """Return a worker without what differs within a family: its name and its groups."""
    links = sorted((link.port, link.stream) for link in worker.links)
    return dataclasses.replace(worker, name="", links=tuple(Link(*each) for each in links))


def _shares(graph: Graph, old: Iterable[WorkerNode], number: int, count: int) -> tuple[Link, ...]:
    """Return the links of one of `count` workers that divide the links of `old`."""
    links = []
    for link in next(iter(old)).links:
        given = [other.link(link.port) for other in old]
        groups = sorted({group for other in given if other is not None for group in other.groups})
        answers = graph.kind(next(iter(old)).name).port(link.port).role == "answers"  # any server answers any group
        if len(groups) % count and not answers:
            raise ConfigError(
                f"{counted(len(groups), 'group')} of {link.stream} cannot be divided evenly among {count} workers; use a "
                "number that divides them, or another number of groups (num_groups)."
            )
        size = len(groups) // count
        own = groups[number::count] if answers else groups[number * size : (number + 1) * size]
        links.append(dataclasses.replace(link, groups=tuple(own)))
    return tuple(links)


RANKS: Literal["ranks"] = "ranks"  # the port, the type of the stream, and its name


def ranks_of(graph: Graph, worker: WorkerNode) -> list[WorkerNode]:
    """Return all ranks of a worker's learner, the learner first; of another worker, the worker itself.

    Ranks are processes, on one host or several, that make each update together. Rank 0 is the learner. A stream of type
    `ranks` connects it to the others; they use it to agree before each update.
    """
    link = worker.link(RANKS)
    if link is None:
        return [worker]
    return [w for w, _ in (*graph.sinks(link.stream), *graph.sources(link.stream))]
