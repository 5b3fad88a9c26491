"""From an experiment to its graph: one short function of parts for each placement."""

from __future__ import annotations

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph, Link, WorkerNode, node
from jsrl.transport.stream import Stream

SAMPLES, BATCHES, PRIORITIES, INFERENCE, PARAMS, RELAYED = (
    "samples", "batches", "priorities", "inference", "params", "relayed",
)  # fmt: skip


def make_graph(experiment: Experiment) -> Graph:
    """Return the workers of an experiment and the streams between them."""
    e = experiment
    relayed = e.road == "zeromq" and e.where.has_processes
    params = RELAYED if relayed else PARAMS
    served = e.where.has_servers and e.recording is None  # without actors only the evaluator acts, by itself
    workers = [_learner(e)]
    if relayed:
        workers.append(
            WorkerNode("parameter-server", "parameter-server", (Link("params", PARAMS), Link("relayed", RELAYED)))
        )
    if served:
        workers += _servers(e, params)
    if e.has_replay_workers:
        workers += _replays(e)
    if e.recording is None:
        workers += _actors(e, params)
    for name, config in (("evaluator", e.evaluator), ("recorder", e.recorder)):
        if config.enabled:
            workers.append(WorkerNode(name, name, (Link("params", params),)))
    return Graph(_streams(e, workers), tuple(workers))


def _learner(e: Experiment) -> WorkerNode:
    links = [Link("params", PARAMS)]
    if e.has_replay_workers:
        links += [Link("samples", BATCHES), Link("priorities", PRIORITIES)]
    elif e.recording is None:
        links.append(Link("samples", SAMPLES))
    return WorkerNode("learner", "learner", tuple(links))


def _actors(e: Experiment, params: str) -> list[WorkerNode]:
    workers = []
    for actor in range(e.actors):
        groups = groups_of(e, actor)
        acts = Link("inference", INFERENCE, groups) if e.where.has_servers else Link("params", params)
        workers.append(WorkerNode(f"actor-{actor}", "actor", (Link("samples", SAMPLES, groups), acts)))
    return workers


def _servers(e: Experiment, params: str) -> list[WorkerNode]:
    """Return the inference servers: server i answers the actors i, i + S, ... first."""
    count = e.num_inference_servers
    shares = [tuple(g for actor in range(i, e.actors, count) for g in groups_of(e, actor)) for i in range(count)]
    own = e.where.servers_alone
    return [
        node(f"inference-{i}", "inference", own_device=own, inference=(INFERENCE, groups), params=params)
        for i, groups in enumerate(shares)
    ]


def _replays(e: Experiment) -> list[WorkerNode]:
    """Return the replay workers: worker i takes the rows of the actors i, i + R, ..."""
    assert e.replay is not None
    count = e.replay.num_replays
    workers = []
    for i in range(count):
        groups = tuple(group for actor in range(i, e.actors, count) for group in groups_of(e, actor))
        links = (Link("samples", SAMPLES, groups), Link("batches", BATCHES, (i,)), Link("priorities", PRIORITIES, (i,)))
        workers.append(WorkerNode(f"replay-{i}", "replay", links))
    return workers


def _streams(e: Experiment, workers: list[WorkerNode]) -> tuple[Stream, ...]:
    """Return the streams that these workers use."""
    groups = tuple(range(e.groups))
    replays = tuple(range(e.replay.num_replays if e.replay is not None else 0))
    on_the_way = 2 * e.updates_per_call + e.replay.threads if e.replay is not None else 0
    streams = (
        Stream(SAMPLES, "samples", groups=groups, blocks=e.actor.blocks_per_group),
        Stream(BATCHES, "samples", schema="batches", groups=replays, blocks=on_the_way),
        Stream(PRIORITIES, "samples", schema="priorities", groups=replays, blocks=16, feedback=True),
        Stream(INFERENCE, "inference", groups=groups),
        Stream(PARAMS, "params"),
        Stream(RELAYED, "params"),
    )
    used = {link.stream for worker in workers for link in worker.links}
    return tuple(stream for stream in streams if stream.name in used)


def check_groups(graph: Graph, experiment: Experiment) -> None:
    """Refuse a graph whose actors step other groups of environments than those that the experiment has.

    Raises:
      ConfigError: says which groups nobody steps, or which the experiment does not have.
    """
    wanted = set(range(experiment.groups if experiment.recording is None else 0))
    stepped = {
        group
        for stream in graph.streams
        if stream.sort == "samples" and stream.schema == "trajectory"
        for worker, link in graph.sources(stream.name)
        if not graph.kind(worker.name).reads_samples
        for group in graph.groups(link)
    }
    if missing := sorted(wanted - stepped):
        raise ConfigError(
            f"nobody steps the groups {missing} of the experiment's {len(wanted)}; give them to an actor."
        )
    if unknown := sorted(stepped - wanted):
        raise ConfigError(f"the experiment has no groups {unknown}; it has {len(wanted)} (num_groups).")


def groups_of(e: Experiment, actor: int) -> tuple[int, ...]:
    """Return the groups of environments that an actor steps."""
    return tuple(range(actor * e.ring, (actor + 1) * e.ring))
