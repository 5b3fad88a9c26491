"""The policies of a graph: their learners, their workers, and their experiments.

A run of one policy has the experiment's own totals. Each of several learners trains on the groups that reach it, and
its batches, updates and lag are computed from those groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.experiment.policies import opponents_of, seed_of
from jsrl.fields import AUTO
from jsrl.graph.graph import Graph, Link, WorkerNode, ranks_of
from jsrl.transport.stream import POLICY, Stream
from jsrl.workers.kinds import find_kind, own_kinds

_ACTS = ("asks inference", "reads params")  # an actor has one of them for each policy; its first one counts
_FIRST = ("writes params", "answers inference", *_ACTS, "asks ranks")  # settings that name a worker's policy
_TAKEN = {
    "ledger",
    "restarts",
    "snapshots",
    "system",
    "state",
    "params",
}  # first parts of metrics; folders of snapshots


@dataclass(frozen=True)
class PolicyPart:
    """One policy of a run.

    Attributes:
      name: of the policy. learner: the worker that trains it. experiment: with the learner's own settings and the
        environments whose rows reach it. groups: of those environments.
      folder: subfolder for its files in a run's folders, and prefix of its metrics' names; empty for the first
        policy, whose names and folders are those of a run with one policy.
    """

    name: str
    learner: str
    experiment: Experiment
    groups: tuple[int, ...]
    folder: str

    def named(self, metric: str) -> str:
        """Return the name of a metric of this policy: `learner/loss` of the policy b is `b/learner/loss`."""
        return f"{self.folder}/{metric}" if self.folder else metric


def learners_of(graph: Graph) -> list[WorkerNode]:
    return [worker for worker in graph.workers if find_kind(worker.kind).trains]


def policy_of(graph: Graph, worker: WorkerNode) -> str:
    """Return the policy that a worker trains, acts with or watches; for one that only passes rows on, the rows' policy."""
    kind, found = find_kind(worker.kind), dict[str, str]()
    for link in worker.links:
        port = kind.port(link.port)
        end = f"{port.role} {port.stream_type}"
        if not (port.by_policy and end in _ACTS and found.keys() & _ACTS):
            found.setdefault(end, graph.stream(link.stream).policy)
    for end in (*_FIRST, *found):
        if end in found:
            return found[end]
    learners = learners_of(graph)
    return policy_of(graph, learners[0]) if learners and worker not in learners else POLICY


def folder_of(graph: Graph, worker: WorkerNode) -> str:
    """Return the subfolder for a worker's policy in the run's folders; empty for the first policy. See PolicyPart."""
    policy, learners = policy_of(graph, worker), learners_of(graph)
    return "" if not learners or policy == policy_of(graph, learners[0]) else policy


def groups_trained_on(graph: Graph, learner: WorkerNode) -> tuple[int, ...]:
    """Return the groups of environments whose rows reach a learner, directly or through replay workers."""
    kind, groups = find_kind(learner.kind), set[int]()
    for link in learner.links:
        stream = graph.stream(link.stream)
        if stream.type != "samples" or stream.feedback or kind.port(link.port).role != "reads":
            continue
        if stream.schema == "trajectory":
            groups |= set(graph.groups(link))
            continue
        sources = [w for w, own in graph.sources(stream.name) if set(graph.groups(own)) & set(graph.groups(link))]
        for worker in sources:
            groups |= set(groups_trained_on(graph, worker))
    return tuple(sorted(groups))


def policies_of(graph: Graph, experiment: Experiment) -> dict[str, PolicyPart]:
    """Return the policies of a graph by name, the first learner's first."""
    parts: dict[str, PolicyPart] = {}
    if not learners_of(graph):
        raise ConfigError("this graph has no learner, so a run would never end; add one.")
    for number, learner in enumerate(learners_of(graph)):
        name, ranks = policy_of(graph, learner), ranks_of(graph, learner)
        groups = tuple(sorted({group for rank in ranks for group in groups_trained_on(graph, rank)}))
        if not isinstance(learner.settings, dict | None):
            raise ConfigError(
                f"settings of {learner.name} are {learner.settings!r}; expected fields of the experiment."
            )
        changes = policy_settings(experiment, name, number) | (learner.settings or {})
        if "agent" in changes and experiment.buffer == experiment.usual_replay:
            changes = {"replay": AUTO} | changes
        if groups and groups != tuple(range(experiment.groups)):
            changes = _totals(graph, experiment, learner, groups) | changes
        try:
            own = dataclasses.replace(experiment, **changes) if changes else experiment
        except ConfigError as error:
            raise ConfigError(f"{learner.name}, which trains on the groups {_listed(groups)}: {error}") from error
        if parts:
            _check_name(graph, name)
        parts[name] = PolicyPart(name, learner.name, own, groups, name if parts else "")
        _check_replay(graph, learner, own)
        _check_lag(graph, learner, own)
        if len(ranks) != own.learner.num_ranks:
            raise ConfigError(
                f"{learner.name} has {counted(len(ranks), 'rank')} in this graph, but learner.num_ranks is "
                f"{own.learner.num_ranks}; set it, or change the graph by jsrl.extend.with_ranks."
            )
    if len(parts) > 1 and experiment.record is not None:
        raise ConfigError(
            f"record is for runs with one policy; this graph has {len(parts)}: {', '.join(parts)}. `jsrl record "
            "RUN@POLICY/TAG` records one of them after the run."
        )
    if len(parts) > 1 and experiment.recording is not None and not experiment.policies:
        raise ConfigError(f"recording is for runs with one policy; this graph has {len(parts)}: {', '.join(parts)}.")
    return parts


def taken_names() -> set[str]:
    """Return the names that metrics and snapshots of every run use, so that no policy but the first may have them."""
    return _TAKEN | {kind.prefix for kind in own_kinds()}


def _check_name(graph: Graph, policy: str) -> None:
    if policy in taken_names() | {find_kind(worker.kind).prefix for worker in graph.workers}:
        raise ConfigError(
            f"a policy is called {policy!r}, a name that metrics or snapshots of every run use; choose another, such as "
            f"'{policy}_1'."
        )


def policy_settings(experiment: Experiment, name: str, number: int) -> dict[str, Any]:
    """Return the settings of one of several policies in the same environments that differ from the experiment."""
    if not experiment.policies:
        return {}
    if name not in experiment.policies:
        there = ", ".join(experiment.policies)
        raise ConfigError(f"the graph trains a policy {name!r}, which the experiment does not have; it has: {there}.")
    config = experiment.policies[name]
    seed = seed_of(config, number, experiment.seed)
    goal = experiment.stop_at_return if config.stop_at_return is None else config.stop_at_return
    evaluator = dataclasses.replace(experiment.evaluator, against=opponents_of(experiment, name))
    own = {"agent": config.agent, "replay": config.buffer, "policies": {}, "seed": seed}
    own |= {"stop_at_return": goal, "evaluator": evaluator}
    if experiment.recording is not None and len(experiment.policies) > 1:
        own["recording"] = str(Path(experiment.recording) / name)
    return own


def policies_at(graph: Graph, worker: WorkerNode) -> tuple[str, ...]:
    """Return the policies for which a worker has streams, its own first; most kinds have one."""
    own, kind = policy_of(graph, worker), find_kind(worker.kind)
    by_policy = [link for link in worker.links if kind.port(link.port).by_policy]
    return tuple(dict.fromkeys((own, *(graph.stream(link.stream).policy for link in by_policy))))


def with_policy(graph: Graph, name: str, groups: Iterable[int], settings: dict[str, Any] | None = None) -> Graph:
    """Return a graph in which a further policy is trained on some of the groups, by its own workers.

    Workers that step these groups are moved to it; one worker of each other kind is added: `learner-b`, `evaluator-b`,
    ..., and a stream `samples-b` for `samples`.

    Args:
      graph: of one policy. name: of the new policy. groups: that it is trained on. settings: of its learner, such as
        {"seed": 7, "agent": PPOConfig(...)}; the rest is as in the experiment.

    Raises:
      ConfigError: the graph already has several policies, or does not have these groups.
    """
    if len({policy_of(graph, learner) for learner in learners_of(graph)}) != 1:
        raise ConfigError(
            "with_policy divides a graph of one policy; give the policies of this one by add() and replace()."
        )
    if any(stream.type == "ranks" for stream in graph.streams):
        raise ConfigError(
            "with_policy divides learners of one rank; begin with learner.num_ranks 1, and give each learner its ranks "
            "afterwards: jsrl.extend.with_ranks."
        )
    moved, carried = set(groups), {group for stream in graph.streams for group in stream.groups if _is_of_envs(stream)}
    if not moved or not moved < carried:
        raise ConfigError(
            f"the policy {name} is given the groups {_listed(tuple(sorted(moved)))}; give it some, but not all of "
            f"{_listed(tuple(sorted(carried)))} (num_groups), and none that is not there."
        )
    streams, workers = [], []
    for stream in graph.streams:
        kept, gone = stream, dataclasses.replace(stream, name=f"{stream.name}-{name}", policy=name)
        if _is_of_envs(stream):
            kept = dataclasses.replace(stream, groups=tuple(g for g in stream.groups if g not in moved))
            gone = dataclasses.replace(gone, groups=tuple(g for g in stream.groups if g in moved))
        elif stream.groups:
            gone = dataclasses.replace(gone, groups=stream.groups[:1])
        streams += [kept, gone]
    for worker in graph.workers:
        workers += _divided(graph, worker, name, moved)
    tell = {learner.name for learner in learners_of(graph)}
    workers = [
        dataclasses.replace(worker, settings=settings) if worker.name in {f"{own}-{name}" for own in tell} else worker
        for worker in workers
    ]
    return Graph(tuple(streams), tuple(workers))


def _is_of_envs(stream: Stream) -> bool:
    return stream.type == "inference" or (stream.type == "samples" and stream.schema == "trajectory")


def _divided(graph: Graph, worker: WorkerNode, policy: str, moved: set[int]) -> list[WorkerNode]:
    """Return the replacement of a worker when some groups move to another policy: itself, a worker of that policy, or both."""
    steps = [link for link in worker.links if _steps(graph, worker, link)]
    if not steps:
        kept = tuple(_without(graph, link, moved) for link in worker.links)
        new = tuple(Link(link.port, f"{link.stream}-{policy}") for link in worker.links)
        first = graph.family(worker.family)[0].name == worker.name
        added = [dataclasses.replace(worker, name=f"{worker.family}-{policy}", links=new)] if first else []
        return [dataclasses.replace(worker, links=kept), *added]
    own = {group for link in steps for group in graph.groups(link)}
    stays, goes = own - moved, own & moved
    new = tuple(
        Link(link.port, f"{link.stream}-{policy}", tuple(g for g in link.groups if g in moved)) for link in worker.links
    )
    kept = tuple(_without(graph, link, moved) for link in worker.links)
    found = [dataclasses.replace(worker, links=kept)] if stays else []
    if goes:
        found.append(dataclasses.replace(worker, name=f"{worker.name}-{policy}" if stays else worker.name, links=new))
    return found


def _steps(graph: Graph, worker: WorkerNode, link: Link) -> bool:
    """Return whether a worker writes its own rows to a stream, that is, steps environments."""
    kind, stream = find_kind(worker.kind), graph.stream(link.stream)
    writes = kind.port(link.port).role == "writes" and stream.type == "samples" and stream.schema == "trajectory"
    return writes and not kind.reads_samples


def _without(graph: Graph, link: Link, moved: set[int]) -> Link:
    if not _is_of_envs(graph.stream(link.stream)):
        return link
    return dataclasses.replace(link, groups=tuple(group for group in link.groups if group not in moved))


def _totals(graph: Graph, experiment: Experiment, learner: WorkerNode, groups: tuple[int, ...]) -> dict[str, Any]:
    """Return the totals of the workers that step and store the environments of these groups."""
    actors = {
        worker.name
        for stream in graph.streams
        if stream.type == "samples" and stream.schema == "trajectory"
        for worker, link in graph.sources(stream.name)
        if not find_kind(worker.kind).reads_samples and set(graph.groups(link)) & set(groups)
    }
    even = actors and len(groups) % len(actors) == 0
    totals: dict[str, Any] = {
        "num_envs": len(groups) * experiment.group_size,
        "num_groups": len(groups),
        "num_actors": len(actors) if even else len(groups),
    }
    link = learner.link("samples")
    if experiment.buffer is not None and experiment.has_replay_workers and link is not None:
        replays = sum(bool(set(graph.groups(own)) & set(graph.groups(link))) for _, own in graph.sources(link.stream))
        totals["replay"] = dataclasses.replace(experiment.buffer, num_replays=replays)
    return totals


def _check_replay(graph: Graph, learner: WorkerNode, own: Experiment) -> None:
    link = learner.link("samples")
    if link is None:
        return
    stream = graph.stream(link.stream)
    if (stream.schema == "batches") != own.has_replay_workers:
        given = "kind host" if own.has_replay_workers else "none, or not of kind host"
        other = "of a replay worker" if own.has_replay_workers else "of trajectories, and its port priorities to None"
        raise ConfigError(
            f"{learner.name} reads {stream.schema} from {stream.name}, but its replay is {given}; connect its port samples "
            f"to a stream {other} (docs/dataflow.md, Two policies)."
        )


def _check_lag(graph: Graph, learner: WorkerNode, own: Experiment) -> None:
    """Refuse a learner whose rows stop: their actors wait once the learner of their own policy has finished."""
    link = learner.link("samples")
    chosen_by = graph.stream(link.stream).policy if link is not None else policy_of(graph, learner)
    if chosen_by != policy_of(graph, learner) and own.min_updates_lag is not None:
        raise ConfigError(
            f"{learner.name} trains on rows that the policy {chosen_by!r} chose, whose actors stop when its own learner is "
            "done; let them continue with max_policy_lag none (--max-policy-lag none)."
        )


def _listed(groups: tuple[int, ...]) -> str:
    return ", ".join(map(str, groups)) or "of nobody"
