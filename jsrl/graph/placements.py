"""Makes the graph of an experiment in its placement (jsrl.experiment.placements)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jsrl.errors import ConfigError, counted, nearest_divisors
from jsrl.experiment import Experiment
from jsrl.graph.graph import RANKS, Graph, Link, WorkerNode
from jsrl.graph.policies import policy_settings
from jsrl.transport.stream import POLICY, Stream

SAMPLES, BATCHES, PRIORITIES, INFERENCE, PARAMS, RELAYED = (
    "samples", "batches", "priorities", "inference", "params", "relayed",
)  # fmt: skip


def make_graph(experiment: Experiment) -> Graph:
    """Return the workers of an experiment and the streams between them.

    Policies after the first have their own workers and streams, named after them; actors and evaluators are connected to
    the streams of all policies.
    """
    e = experiment
    params = RELAYED if e.where.uses_zeromq else PARAMS
    policies = {name: f"-{name}" if number else "" for number, name in enumerate(e.policies or (POLICY,))}
    ends = tuple(policies.values())
    own = [dataclasses.replace(e, **policy_settings(e, name, number)) for number, name in enumerate(policies)]
    # without actors only the evaluator acts, in its own process
    served = tuple(end for name, end in policies.items() if e.is_served(name) and e.recording is None)
    workers = [_trainer(mine, end) for mine, end in zip(own, ends, strict=True)]
    if e.where.uses_zeromq:
        workers += [_relay(end) for end in ends]
    for together in [served] if served and e.inference.shared else [(end,) for end in served]:
        workers += _servers(e, params, together)
    for mine, end in zip(own, ends, strict=True):
        workers += _replays(mine, end) if mine.has_replay_workers else []
    if e.where.has_actors and e.recording is None:
        workers += _actors(e, params, ends, served)
    if e.director is not None:
        workers.append(WorkerNode("director", "director"))
    for name, config in (("evaluator", e.evaluator), ("video-recorder", e.video)):
        shown = ends[:1] if name == "video-recorder" else ends  # one video shows the seats of all policies
        for end in shown if config.enabled else ():
            own_first = dict.fromkeys((end, *ends))
            workers.append(WorkerNode(name + end, name, tuple(Link("params", params + other) for other in own_first)))
    graph = Graph(_streams(own, workers, policies), tuple(workers))
    for end in ends if e.learner.num_ranks > 1 else ():
        graph = with_ranks(graph, e.where.trains + end, e.learner.num_ranks)
    return graph


def _trainer(e: Experiment, end: str) -> WorkerNode:
    """Return the worker that trains a policy; without actors it steps the environments itself."""
    links = [Link("params", PARAMS + end)]
    if e.has_replay_workers:
        links += [Link("samples", BATCHES + end), Link("priorities", PRIORITIES + end)]
    elif e.where.has_actors and e.recording is None:
        links.append(Link("samples", SAMPLES + end))
    return WorkerNode(e.where.trains + end, e.where.trains, tuple(links))


def _relay(end: str) -> WorkerNode:
    links = (Link("params", PARAMS + end), Link("relayed", RELAYED + end))
    return WorkerNode("parameter-server" + end, "parameter-server", links)


def _actors(e: Experiment, params: str, ends: tuple[str, ...], served: tuple[str, ...]) -> list[WorkerNode]:
    workers = []
    for actor in range(e.actors):
        groups, links = groups_of(e, actor), list[Link]()
        for end in ends:
            links.append(Link("samples", SAMPLES + end, groups))
            links.append(Link("inference", INFERENCE + end, groups) if end in served else Link("params", params + end))
        workers.append(WorkerNode(f"actor-{actor}", "actor", tuple(links)))
    return workers


def _servers(e: Experiment, params: str, ends: tuple[str, ...]) -> list[WorkerNode]:
    """Return the inference servers of some policies: server i is the first choice of actors i, i + S, ..."""
    count, workers = e.num_inference_servers, []
    for i in range(count):
        groups = tuple(group for actor in range(i, e.actors, count) for group in groups_of(e, actor))
        links = [(Link("inference", INFERENCE + end, groups), Link("params", params + end)) for end in ends]
        name = f"inference{ends[0]}-{i}"
        workers.append(WorkerNode(name, "inference", sum(links, ()), own_device=e.where.serves_alone))
    return workers


def _replays(e: Experiment, end: str) -> list[WorkerNode]:
    """Return the replay workers: worker i reads the rows of actors i, i + R, ..."""
    assert e.buffer is not None
    count = e.buffer.num_replays
    workers = []
    for i in range(count):
        groups = tuple(group for actor in range(i, e.actors, count) for group in groups_of(e, actor))
        links = (
            Link("samples", SAMPLES + end, groups),
            Link("batches", BATCHES + end, (i,)),
            Link("priorities", PRIORITIES + end, (i,)),
        )
        workers.append(WorkerNode(f"replay{end}-{i}", "replay", links))
    return workers


def _streams(own: list[Experiment], workers: list[WorkerNode], policies: Mapping[str, str]) -> tuple[Stream, ...]:
    """Return the streams of these workers; `own`: the experiment of each policy."""
    groups = tuple(range(own[0].groups))
    used = {link.stream for worker in workers for link in worker.links}
    streams = []
    for e, (policy, end) in zip(own, policies.items(), strict=True):
        replays = tuple(range(e.buffer.num_replays if e.buffer is not None else 0))
        on_the_way = 2 * e.updates_per_call + e.buffer.threads if e.buffer is not None else 0
        streams += [
            Stream(SAMPLES + end, "samples", policy, groups=groups, blocks=e.actor.blocks_per_group),
            Stream(BATCHES + end, "samples", policy, schema="batches", groups=replays, blocks=on_the_way),
            Stream(PRIORITIES + end, "samples", policy, schema="priorities", groups=replays, blocks=16, feedback=True),
            Stream(INFERENCE + end, "inference", policy, groups=groups),
            Stream(PARAMS + end, "params", policy),
            Stream(RELAYED + end, "params", policy),
        ]
    return tuple(stream for stream in streams if stream.name in used)


def with_servers(graph: Graph, actors: Sequence[Sequence[str]]) -> Graph:
    """Return a graph in which each of these sets of actors has its own inference server, in place of the only one."""
    (server,) = [worker for worker in graph.workers if worker.kind == "inference"]
    workers = []
    for worker in graph.workers:
        if worker is not server:
            workers.append(worker)
            continue
        for number, some in enumerate(actors):
            groups = {group for name in some for link in graph.worker(name).links for group in graph.groups(link)}
            own = tuple(sorted(groups))
            links = [dataclasses.replace(x, groups=own) if x.port == "inference" else x for x in server.links]
            workers.append(dataclasses.replace(server, name=f"inference-{number}", links=tuple(links)))
    return Graph(graph.streams, tuple(workers))


def with_ranks(graph: Graph, learner: str, count: int) -> Graph:
    """Return a graph in which a learner has `count` ranks, which divide the writers of its samples in order.

    Its experiment must have the same number: `learner.num_ranks`, or the setting `learner` of a learner with its own.

    Raises:
      ConfigError: the learner has ranks already or reads no samples, or its writers cannot be divided evenly.
    """
    worker = graph.worker(learner)
    link = worker.link("samples")
    if link is None or worker.has(RANKS):
        why = "has ranks already" if worker.has(RANKS) else "reads no samples"
        raise ConfigError(f"{learner} {why}, so it cannot be given {count} ranks.")
    if count == 1:
        return graph
    stream, wanted = graph.stream(link.stream), set(graph.groups(link))
    writers = [set(graph.groups(own)) & wanted for _, own in graph.sources(stream.name)]
    writers = [groups for groups in writers if groups]
    if len(writers) % count:
        raise ConfigError(
            f"{counted(len(writers), 'writer')} of {stream.name} cannot be divided evenly among {count} ranks of {learner}; "
            f"use {nearest_divisors(len(writers), count)} ranks, or a number of actors that is a multiple of {count}."
        )
    size = len(writers) // count
    shares = [tuple(sorted(set().union(*writers[i * size : (i + 1) * size]))) for i in range(count)]
    end = learner.removeprefix(worker.kind)
    joined = Link(RANKS, RANKS + end)
    new = [
        WorkerNode(
            f"rank{end}-{i}", "rank", (joined, dataclasses.replace(link, groups=shares[i])), restart=worker.restart
        )
        for i in range(1, count)
    ]
    links = tuple(dataclasses.replace(own, groups=shares[0]) if own is link else own for own in worker.links)
    graph = graph.replace(learner, links=(*links, joined))
    for one in new:
        graph = graph.add(one)
    policy = next(graph.stream(own.stream).policy for own in worker.links if own.port == "params")
    return Graph((*graph.streams, Stream(RANKS + end, RANKS, policy)), graph.workers)


def groups_of(e: Experiment, actor: int) -> tuple[int, ...]:
    return tuple(range(actor * e.ring, (actor + 1) * e.ring))
