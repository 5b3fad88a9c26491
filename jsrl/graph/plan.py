"""The plan of a run: from an experiment to its graph and a job for each worker."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jsrl.envs.config import SUITES
from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import decided_for, with_replays
from jsrl.experiment.building import resolved_agent
from jsrl.experiment.policies import all_opponents, check_team, find_seats, first_hyperparameters
from jsrl.fields import filled
from jsrl.graph.addresses import bind_addresses, ends_of, keys_folder
from jsrl.graph.check import check, check_fits
from jsrl.graph.graph import Graph, WorkerNode
from jsrl.graph.graph_file import Edit, resolve
from jsrl.graph.launcher import ALONE, Hosts
from jsrl.graph.machine import this_machine
from jsrl.graph.placements import with_servers
from jsrl.graph.policies import PolicyPart, learners_of, policies_at, policies_of, policy_of, taken_names
from jsrl.graph.schemas import find_spec, make_schemas
from jsrl.references.importing import import_target, shown_target
from jsrl.types import EnvSpec, GameSpec, leaves, spec_for_one
from jsrl.workers.jobs import Job, JobPart, JobPlace, RunFacts, Schemas, Sides, StartPoint, sides_of
from jsrl.workers.kinds import Kind, find_kind, value_of
from jsrl.workers.memory import replay_stream_bytes

# Measured on CPU, without environments. For forked actors: the private memory of each.
JAX_PROCESS_MB, ACTOR_MB, HOSTED_ACTOR_MB = 300, 45, 10
HOST_ACTORS = 3  # from this number of actors on, one process that forks them is also faster (benchmarks/actor_start.py)
PARTS = {  # imported where a run needs them
    "seats differ": "jsrl.experiment.dividing:divided",
    "director": "jsrl.graph.directing:check_director",
    "scores": "jsrl.graph.opponents:check_scores",
    "plays initial": "jsrl.graph.opponents:plays_initial",
    "films": "jsrl.workers.video_recorder.worker:check_films",
}


@dataclass(frozen=True)
class Plan:
    """A planned run: the experiment, its graph, and a job for each worker.

    Attributes:
      policies: by name, the first learner's first. schemas_of: name of a policy -> schemas of its streams.
      memory_folder: of its shared memory. keys: folder of its keys, if its streams use TCP.
      changed: the graph differs from the experiment's own. hosts: of its workers.
    """

    experiment: Experiment
    graph: Graph
    policies: dict[str, PolicyPart]
    schemas_of: dict[str, Schemas]
    jobs: tuple[Job, ...]
    memory_folder: Path
    keys: str | None = None
    changed: bool = False
    hosts: Hosts = ALONE

    @property
    def schemas(self) -> Schemas:
        """Return the schemas of the first policy's streams."""
        return next(iter(self.schemas_of.values()))

    def begun_at(self, start_points: Mapping[str, StartPoint]) -> Plan:
        return dataclasses.replace(self, jobs=tuple(_begun_at(job, start_points) for job in self.jobs))

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)

    @property
    def title(self) -> str:
        """Return what runs: experiment, algorithms, environment, placement."""
        e, agents = self.experiment, dict.fromkeys(type(p.experiment.agent).__name__ for p in self.policies.values())
        return f"{e.name}: {', '.join(agents)} on {shown_target(e.env.id)}, placement {e.placement}"

    @property
    def sizes(self) -> str:
        """Return environments, batch and number of updates as text."""
        e = self.experiment
        of_actors = f"{counted(e.actors, 'actor')} x " if e.where.has_actors else ""
        return (
            f"  {counted(e.envs, 'environment')} = {of_actors}{counted(e.ring, 'group')} of {e.group_size}; "
            f"batch {e.batch_columns} x {e.rollout_length} rows; {counted(e.total_updates, 'update')}"
        )

    @property
    def kinds(self) -> dict[str, Kind]:
        return self.graph.kinds

    @property
    def registry(self) -> str:
        return self.jobs[0].place.registry

    @property
    def forked(self) -> frozenset[str]:
        """Return the workers that one process forks: actors, if there are many and they load no jax."""
        kinds = ((job, find_kind(job.kind)) for job in self.jobs)
        forks = [job.name for job, kind in kinds if kind.resources.forks and not value_of(kind.loads_jax, job)]
        return frozenset(forks if len(forks) >= HOST_ACTORS else ())

    @property
    def shared_memory_bytes(self) -> int:
        e = self.experiment
        apart = not self.hosts.are_here(job.name for job in self.jobs)  # streams to other hosts need none
        if not e.where.shares_memory or e.recording is not None or apart:
            return 3 * self.schemas.params_bytes  # their segment holds three copies
        return self.stream_bytes + sum(map(self._bytes_beside, self.policies.values()))

    def _bytes_beside(self, policy: PolicyPart) -> int:
        """Return the bytes of a policy's windows, params, requests and replies."""
        schemas, own = self.schemas_of[policy.name], policy.experiment
        rows = own.envs * sum(leaf.size_bytes for leaf in leaves(schemas.act))
        return replay_stream_bytes(own, schemas) + 3 * schemas.params_bytes + 2 * rows

    @property
    def stream_bytes(self) -> int:
        block = {name: sum(leaf.size_bytes for leaf in leaves(s.trajectory)) for name, s in self.schemas_of.items()}
        streams = [stream for stream in self.graph.streams if stream.schema == "trajectory"]
        readers = {s.name: len(self.graph.sinks(s.name)) if s.routing == "broadcast" else 1 for s in streams}
        samples = [stream for stream in streams if stream.type == "samples"]
        return sum(block[s.policy] * len(s.groups) * s.blocks * readers[s.name] for s in samples)


def _begun_at(job: Job, start_points: Mapping[str, StartPoint]) -> Job:
    others = tuple(_begun_at(other, start_points) for other in job.others)
    return dataclasses.replace(job, start_point=start_points[job.policy], others=others)


def make_plan(
    experiment: Experiment,
    folder: str,
    memory_folder: Path,
    edit: Edit | None = None,
    place: Callable[[Plan], Hosts] = lambda plan: ALONE,
) -> Plan:
    """Return the jobs of an experiment.

    Args:
      experiment: what to run. folder: the run's. memory_folder: for shared memory and sockets.
      edit: of its graph; see jsrl.graph.graph_file.resolve.
      place: returns the host of each worker, from the plan in which all are on this one.
    """
    graph, changed = resolve(experiment, edit)
    check(graph)
    check_fits(graph, experiment)
    policies = {name: _with_values_filled(policy) for name, policy in policies_of(graph, experiment).items()}
    experiment = filled(experiment, agent=resolved_agent(experiment))
    if experiment.video.enabled:
        import_target(PARTS["films"])(experiment.filmed_env)
    spec = find_spec(experiment)
    seats, schemas = _seats_and_schemas(experiment, policies, spec)
    sides = None if experiment.director is None else sides_of(spec, seats)
    _check_same_rows(graph, schemas)
    alone = Plan(experiment, graph, policies, schemas, (), memory_folder, changed=changed)
    alone = _with_jobs(alone, seats, sides, folder)
    hosts = place(alone)
    if hosts == ALONE:
        return alone
    graph = with_servers(graph, hosts.servers) if hosts.servers else graph
    return _with_jobs(dataclasses.replace(alone, graph=graph, hosts=hosts), seats, sides, folder)


def _with_jobs(plan: Plan, seats: Mapping[str, dict[str, int]], sides: Sides | None, folder: str) -> Plan:
    """Return a plan with the job of each worker, and the keys that its streams need on the workers' hosts."""
    graph, experiment, hosts = plan.graph, plan.experiment, plan.hosts
    addresses = bind_addresses(graph, experiment, plan.memory_folder, hosts)
    keys = keys_folder(experiment, folder, hosts)
    numbers = counts_within(worker.kind for worker in graph.workers)
    against = [name for policy in plan.policies.values() for name in policy.experiment.evaluator.against]
    keeps_initial = bool(against) and import_target(PARTS["plays initial"])(against)
    explored = first_hyperparameters(experiment.director, next(iter(plan.policies.values())).experiment.seed)
    place = JobPlace(folder, str((Path(folder) if hosts.of else plan.memory_folder) / "names"), keys)
    several = len(experiment.policies) > 1
    run = RunFacts(len(graph.workers), tuple(plan.policies), several, keeps_initial, sides)

    without_agent = {name: filled(policy.experiment, agent=None) for name, policy in plan.policies.items()}

    def job_of(worker: WorkerNode, index: int, name: str) -> Job:
        policy, seat_group = plan.policies[name], next(first for first in seats if seats[first] == seats[name])
        job = Job(
            kind=worker.kind,
            name=worker.name,
            index=index,
            experiment=policy.experiment,
            schemas=plan.schemas_of[name],
            ends=ends_of(graph, worker, addresses, name),
            place=place,
            part=JobPart(name, policy.folder, seats[name], seat_group, explored.get(name, {})),
            run=run,
            settings=worker.settings,
        )
        if not value_of(find_kind(worker.kind).loads_jax, job):
            job = dataclasses.replace(job, experiment=without_agent[name])
        return job

    jobs = []
    for worker, index in zip(graph.workers, numbers, strict=True):
        first, *others = (job_of(worker, index, name) for name in policies_at(graph, worker))
        jobs.append(dataclasses.replace(first, others=tuple(others)))
    return dataclasses.replace(plan, jobs=tuple(jobs), keys=keys)


def counts_within(kinds: Iterable[str]) -> list[int]:
    """Return how many entries of the same kind come before each entry."""
    seen, found = Counter[str](), []
    for kind in kinds:
        found.append(seen[kind])
        seen[kind] += 1
    return found


def _seats_and_schemas(
    experiment: Experiment, policies: Mapping[str, PolicyPart], spec: EnvSpec | GameSpec
) -> tuple[dict[str, dict[str, int]], dict[str, Schemas]]:
    """Return policy -> its seats (see find_seats), and policy -> the schemas of its streams.

    Policies of a changed graph have their own environments, and all of their seats.
    """
    found = find_seats(experiment.policies, spec, shared=experiment.director is not None)
    seats = {name: found[name if experiment.policies else ""] for name in policies}
    if experiment.director is not None:
        import_target(PARTS["director"])(experiment, sides_of(spec, seats), seats)
    for name, policy in policies.items():
        check_team(name, policy.experiment, seats[name], spec)
    views = {name: spec.view(list(seats[name])) if isinstance(spec, GameSpec) else spec for name in policies}
    schemas = {name: make_schemas(policy.experiment, views[name]) for name, policy in policies.items()}
    if isinstance(spec, GameSpec) or all_opponents(experiment):
        import_target(PARTS["scores"])(experiment, spec, seats)
    return seats, schemas


def _with_values_filled(policy: PolicyPart) -> PolicyPart:
    """Return a policy with its experiment's values filled into its agent's config."""
    own = policy.experiment
    return dataclasses.replace(
        policy, experiment=filled(own, agent=resolved_agent(own), replay=own.buffer, num_envs=own.envs)
    )


def _check_same_rows(graph: Graph, schemas: Mapping[str, Schemas]) -> None:
    """Refuse a reader that gets another policy's rows with other leaves."""
    for stream in graph.streams:
        for worker, _ in graph.sinks(stream.name) if stream.type == "samples" else ():
            own = policy_of(graph, worker)
            if own != stream.policy and leaves(schemas[own].trajectory) != leaves(schemas[stream.policy].trajectory):
                trains = worker in learners_of(graph)
                does = f"trains {own!r} on" if trains else f"belongs to {own!r} and reads"
                remedy = (
                    "give both the same kind of agent, core and rollout" if trains else "add a worker for each policy"
                )
                raise ConfigError(
                    f"{worker.name} {does} rows of {stream.policy!r} ({stream.name}), whose agent stores other leaves or "
                    f"shapes; {remedy}."
                )


def may_need_policies(experiment: Experiment) -> bool:
    """Return whether an experiment has one agent for an environment with seats, which may differ."""
    seated = experiment.env.in_jax or str(experiment.env.id).partition(":")[0] in SUITES
    return experiment.agent is not None and not experiment.policies and seated


def decided(experiment: Experiment) -> tuple[Experiment, str | None]:
    """Return the experiment with its open options decided, and lines about them; None: nothing was open.

    Open are `auto` options, for this machine, and the policies of different seats.
    """
    line = None
    if may_need_policies(experiment):
        experiment, line = import_target(PARTS["seats differ"])(experiment, find_spec(experiment), taken_names())
    experiment, replays = with_replays(experiment)
    experiment, chosen = decided_for(experiment, this_machine(), lambda: spec_for_one(find_spec(experiment)))
    return experiment, "\n".join(filter(None, (line, *replays, chosen))) or None


def memory_mb(plan: Plan, job: Job) -> int:
    """Return the estimated memory of a worker: interpreter, libraries, its kind's data, and blocks in flight.

    Workers of a serial run share one process, which is counted with the learner.
    """
    kind = find_kind(job.kind)
    found = value_of(kind.resources.memory_bytes, job)
    if plan.experiment.where.uses_zeromq:  # each end has its own
        block = sum(leaf.size_bytes for leaf in leaves(plan.schemas.trajectory))
        ends = [end for _, end in job.ends if end.stream.type == "samples" and end.stream.schema == "trajectory"]
        found += block * sum(len(end.groups) * end.stream.blocks for end in ends)
    if job.in_process and not kind.lifecycle.must_finish:
        return found // 2**20
    if value_of(kind.loads_jax, job):
        return JAX_PROCESS_MB + (found + 2 * plan.schemas.state_bytes) // 2**20
    return (HOSTED_ACTOR_MB if job.name in plan.forked else ACTOR_MB) + found // 2**20
