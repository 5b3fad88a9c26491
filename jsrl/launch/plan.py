"""From an experiment to jobs: schemas, addresses, devices and threads of every process, and the plan as text."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.directors.base import first_hyperparameters, wants_scores
from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import Machine, settled
from jsrl.experiment.building import agent_faults, agent_name, build_agent, check_split, resolved_agent
from jsrl.experiment.dividing import divided, may_need_policies
from jsrl.experiment.policies import find_seats
from jsrl.graph.check import check
from jsrl.graph.graph import Graph, Link, WorkerNode
from jsrl.graph.placements import check_groups
from jsrl.graph.policies import PolicyPart, policies_at, policies_of, policy_of
from jsrl.graph.ranks import RANKS
from jsrl.launch.compilation import cache_variables
from jsrl.launch.directing import check_director
from jsrl.launch.filming import check_filming
from jsrl.launch.graph_file import Edit, resolve
from jsrl.launch.interrupts import deadline
from jsrl.launch.launcher import ALONE, Hosts
from jsrl.launch.links import bind_addresses, ends_of, keys_folder
from jsrl.launch.opponents import check_scores, plays_initial
from jsrl.launch.recording_plan import recording_lines
from jsrl.launch.replay_plan import batch_bytes, replay_lines, replay_stream_bytes
from jsrl.transport.base import InferenceSpec
from jsrl.transport.stream import Stream
from jsrl.types import ArraySpec, EnvSpec, GameSpec, leaves, make_trajectory_spec, map_tree, spec_for_one
from jsrl.workers.jobs import Job, Schemas, StartPoint
from jsrl.workers.kinds import Kind, find_kind

# Measured on CPU, without environments. For forked actors: the private memory of each.
JAX_PROCESS_MB, ACTOR_MB, HOSTED_ACTOR_MB = 300, 45, 10
HOST_ACTORS = 3  # from this number of actors on, one process that forks them is also faster (benchmarks/actor_start.py)


def make_schemas(experiment: Experiment, spec: EnvSpec | None = None) -> Schemas:
    """Return the schemas of all streams, by tracing the agent's functions on shapes alone.

    Args:
      experiment: of the agent. spec: of its environment; None: one environment is made.

    Raises:
      ConfigError: the environment cannot be made, or the agent does not fit its spaces.
      EnvironmentFault: making it raised or hung. AgentFault: the agent's code raised.
    """
    spec = spec_for_one(find_spec(experiment)) if spec is None else spec
    check_batch = getattr(experiment.agent, "check_batch", None)
    if check_batch is not None:
        columns = experiment.batch_columns // experiment.learner.num_ranks // (experiment.learner.num_devices or 1)
        check_batch(experiment.rollout_length, columns * (spec.num_agents or 1))
    agent = build_agent(experiment.agent, spec)
    if experiment.learner.split != "none":
        check_split(agent, agent_name(experiment.agent))
    with agent_faults(f"functions, traced on shapes of {spec.name!r},"):
        state, act_spec = trace_agent(agent, spec)
    core = act_spec.core if agent.store_core else ()
    trajectory = make_trajectory_spec(
        spec,
        act_spec.extras,
        core,
        num_rows=experiment.rollout_length,
        num_envs=experiment.group_size,
        scored=wants_scores(experiment.director),
    )
    _check_act(spec, act_spec)
    return Schemas(spec, act_spec, trajectory, _size_bytes(state.params), _size_bytes(state))


def find_spec(experiment: Experiment) -> EnvSpec | GameSpec:
    """Return the environment's spec; makes one environment, which may take as long as one step of an actor.

    Raises:
      EnvironmentFault: it did not return in time, or ended the interpreter.
    """
    limit_s, name = experiment.actor.step_deadline_s, experiment.env.id
    too_late = EnvironmentFault(
        f"environment {name!r} was not made within {limit_s:g} s; the traceback above shows where it was. If it is only "
        "slow, raise actor.step_deadline_s."
    )
    try:
        with deadline(limit_s, too_late):
            return make_spec(experiment.env)
    except SystemExit as error:
        raise EnvironmentFault(
            f"environment {name!r} called sys.exit({error.code!r}) while it was made; raise an error instead."
        ) from error


def trace_agent(agent: Any, spec: EnvSpec) -> tuple[Any, InferenceSpec]:
    """Return (shapes of the agent's state, schema of one environment's request and reply)."""
    import jax
    import jax.numpy as jnp

    state = jax.eval_shape(lambda seed: agent.init(jax.random.key(seed)), jax.ShapeDtypeStruct((), jnp.uint32))
    observation = map_tree(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), spec.observation)
    core = jax.eval_shape(lambda: agent.initial_core(1))

    def act(params, seed, observation, is_first, core):
        return agent.act(params, jax.random.key(seed), observation, is_first, core)

    is_first = jax.ShapeDtypeStruct((1,), jnp.bool_)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    output, core_after = jax.eval_shape(act, state.params, seed, observation, is_first, core)
    if _specs(core_after) != _specs(core):
        raise ConfigError(
            f"act returns a core of {_specs(core_after)}, initial_core one of {_specs(core)}; they must agree."
        )
    one = jax.tree.map(_without_batch, (output.action, output.log_prob, output.extras, core))
    act_spec = InferenceSpec(spec.observation, *one)
    return state, act_spec


def _without_batch(leaf: Any) -> ArraySpec:
    return ArraySpec(tuple(leaf.shape[1:]), str(leaf.dtype))


def _specs(tree: Any) -> list[tuple[tuple[int, ...], str]]:
    import jax

    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


def _size_bytes(tree: Any) -> int:
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _check_act(spec: EnvSpec, given: InferenceSpec) -> None:
    """Refuse an agent whose `act` returns other arrays than rows hold.

    Raises:
      ConfigError: names the array; if a policy plays seats, explains their axis.
    """
    agents = () if spec.num_agents is None else (spec.num_agents,)
    wanted = {"actions": spec.action.array.batched(*agents), "log-probabilities": ArraySpec(agents, "float32")}
    for (name, expected), found in zip(wanted.items(), (given.action, given.log_prob), strict=True):
        if found != expected:
            seats = (
                f" One policy plays {spec.num_agents} seat(s) of {spec.name!r}: after the batch axis, observations, actions "
                "and log-probabilities have an axis for them. See Several seats in docs/algorithm.md."
            )
            raise ConfigError(
                f"act returns {name} of shape {found.shape} and dtype {found.dtype} per environment; rows hold "
                f"shape {expected.shape} and dtype {expected.dtype}. Return exactly that from `act`.{seats if agents else ''}"
            )


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
        """Return the plan with the start points of its policies, by name."""
        return dataclasses.replace(self, jobs=tuple(_begun_at(job, start_points) for job in self.jobs))

    def job(self, name: str) -> Job:
        """Return the job of a worker."""
        return next(job for job in self.jobs if job.name == name)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each worker."""
        return self.graph.kinds

    @property
    def registry(self) -> str:
        """Return the folder of the names under which its workers find each other."""
        return self.jobs[0].registry

    @property
    def forked(self) -> frozenset[str]:
        """Return the workers that one process forks: actors, if there are many and they load no jax."""
        forks = [job.name for job in self.jobs if find_kind(job.kind).forks and not find_kind(job.kind).loads_jax(job)]
        return frozenset(forks if len(forks) >= HOST_ACTORS else ())

    @property
    def shared_memory_bytes(self) -> int:
        """Return the bytes that this run needs in the shared-memory file system."""
        e = self.experiment
        apart = not self.hosts.are_here(job.name for job in self.jobs)  # streams to other hosts need none
        if not e.where.has_processes or e.uses_zeromq or e.recording is not None or apart:
            return 3 * self.schemas.params_bytes
        return self.stream_bytes + sum(map(self._bytes_beside, self.policies.values()))

    def _bytes_beside(self, policy: PolicyPart) -> int:
        """Return the bytes of a policy's windows, params, requests and replies."""
        schemas, own = self.schemas_of[policy.name], policy.experiment
        rows = own.num_envs * sum(leaf.size_bytes for leaf in leaves(schemas.act))
        return replay_stream_bytes(own, schemas) + 3 * schemas.params_bytes + 2 * rows

    @property
    def stream_bytes(self) -> int:
        """Return the bytes of all blocks of the streams of trajectories."""
        block = {name: sum(leaf.size_bytes for leaf in leaves(s.trajectory)) for name, s in self.schemas_of.items()}
        streams = [stream for stream in self.graph.streams if stream.schema == "trajectory"]
        readers = {s.name: len(self.graph.sinks(s.name)) if s.routing == "broadcast" else 1 for s in streams}
        samples = [stream for stream in streams if stream.sort == "samples"]
        return sum(block[s.policy] * len(s.groups) * s.blocks * readers[s.name] for s in samples)


def _begun_at(job: Job, start_points: Mapping[str, StartPoint]) -> Job:
    others = tuple(_begun_at(other, start_points) for other in job.others)
    return dataclasses.replace(job, start_point=start_points[job.policy], others=others)


def make_plan(
    experiment: Experiment,
    folder: str,
    memory_folder: Path,
    graph: Edit | None = None,
    place: Callable[[Plan], Hosts] = lambda plan: ALONE,
) -> Plan:
    """Return the jobs of an experiment.

    Args:
      experiment: what to run. folder: the run's. memory_folder: for shared memory and sockets.
      graph: see jsrl.launch.graph_file.resolve.
      place: returns the host of each worker, from the plan in which all are on this one.

    Raises:
      ConfigError: something cannot work; the message says what.
    """
    resolved, changed = resolve(experiment, graph)
    check(resolved)
    check_groups(resolved, experiment)
    policies = {name: _resolved(policy) for name, policy in policies_of(resolved, experiment).items()}
    experiment = dataclasses.replace(experiment, agent=resolved_agent(experiment))
    if experiment.recorder.enabled:
        check_filming(experiment)
    seats, schemas = _seats_and_schemas(experiment, policies)
    _check_same_rows(resolved, schemas)
    alone = Plan(experiment, resolved, policies, schemas, (), memory_folder, changed=changed)
    alone = _with_jobs(alone, seats, folder)
    hosts = place(alone)
    return alone if hosts == ALONE else _with_jobs(dataclasses.replace(alone, hosts=hosts), seats, folder)


def _with_jobs(plan: Plan, seats: Mapping[str, dict[str, int]], folder: str) -> Plan:
    """Return a plan with the job of each worker, and the keys that its streams need on the workers' hosts."""
    graph, experiment, hosts = plan.graph, plan.experiment, plan.hosts
    addresses = bind_addresses(graph, experiment, plan.memory_folder, hosts)
    keys = keys_folder(experiment, folder, hosts)
    places = counts_within(worker.kind for worker in graph.workers)
    keeps_initial = any(plays_initial(policy.experiment.evaluator.against) for policy in plan.policies.values())
    explored = first_hyperparameters(experiment.director, next(iter(plan.policies.values())).experiment.seed)

    def job(worker: WorkerNode, index: int, name: str) -> Job:
        policy = plan.policies[name]
        own = policy.experiment
        return Job(
            kind=worker.kind,
            name=worker.name,
            index=index,
            experiment=own if find_kind(worker.kind).loads_jax(worker) else dataclasses.replace(own, agent=None),
            schemas=plan.schemas_of[name],
            ends=ends_of(graph, worker, addresses, name),
            folder=folder,
            registry=str((Path(folder) if hosts.of else plan.memory_folder) / "names"),
            keys=keys,
            settings=worker.settings,
            workers=len(graph.workers),
            in_process=not experiment.where.has_processes,
            restart=worker.restart,
            policy=name,
            policy_folder=policy.folder,
            policies=tuple(plan.policies),
            seats=seats[name],
            seat_group=next(first for first in seats if seats[first] == seats[name]),
            hyperparameters=explored.get(name, {}),
            plays_along=len(experiment.policies) > 1,
            keeps_initial=keeps_initial,
        )

    jobs = []
    for worker, index in zip(graph.workers, places, strict=True):
        first, *others = (job(worker, index, name) for name in policies_at(graph, worker))
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
    experiment: Experiment, policies: Mapping[str, PolicyPart]
) -> tuple[dict[str, dict[str, int]], dict[str, Schemas]]:
    """Return policy -> its seats (see find_seats), and policy -> the schemas of its streams.

    Policies of a changed graph have their own environments, and all of their seats.
    """
    spec = find_spec(experiment)
    found = find_seats(experiment.policies, spec, shared=experiment.director is not None)
    seats = {name: found[name if experiment.policies else ""] for name in policies}
    if experiment.director is not None:
        check_director(experiment, spec, seats)
    views = {name: spec.view(list(seats[name])) if isinstance(spec, GameSpec) else spec for name in policies}
    schemas = {name: make_schemas(policy.experiment, views[name]) for name, policy in policies.items()}
    check_scores(experiment, spec, seats)
    return seats, schemas


def _resolved(policy: PolicyPart) -> PolicyPart:
    """Return a policy with its experiment's values filled into its agent's config."""
    own = policy.experiment
    return dataclasses.replace(policy, experiment=dataclasses.replace(own, agent=resolved_agent(own)))


def _check_same_rows(graph: Graph, schemas: Mapping[str, Schemas]) -> None:
    """Refuse a learner that gets another policy's rows with other leaves.

    Raises:
      ConfigError: names both policies.
    """
    for stream in graph.streams:
        for worker, _ in graph.sinks(stream.name) if stream.sort == "samples" else ():
            own = policy_of(graph, worker)
            if own != stream.policy and leaves(schemas[own].trajectory) != leaves(schemas[stream.policy].trajectory):
                raise ConfigError(
                    f"{worker.name} trains {own!r} on rows of {stream.policy!r} ({stream.name}), whose agent stores other "
                    "leaves or shapes; give both the same kind of agent, core and rollout."
                )


# -- the environment of a process: devices and threads, in one place, before anything is imported ---------------------


def accelerators() -> list[str]:
    """Return the indices of the accelerators that processes of this host may use, without loading jax."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [index for index in visible.split(",") if index.strip() not in ("", "-1")]
    return [str(i) for i in range(64) if os.path.exists(f"/dev/nvidia{i}")]


def usable_cores() -> int:
    """Return the CPU cores that this process may use: by its affinity, and by the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def this_machine() -> Machine:
    """Return the facts that the choice of a placement depends on."""
    return Machine(usable_cores(), len(accelerators()))


def settle(experiment: Experiment) -> tuple[Experiment, str | None]:
    """Return the experiment with its open options decided, and lines about them; None: nothing was open.

    Open are `auto` options, for this machine, and the policies of different seats.

    Raises:
      ConfigError, EnvironmentFault: its environment cannot be made.
    """
    line = None
    if may_need_policies(experiment):
        experiment, line = divided(experiment, find_spec(experiment))
    experiment, chosen = settled(experiment, this_machine(), lambda: spec_for_one(find_spec(experiment)))
    return experiment, "\n".join(filter(None, (line, chosen))) or None


def devices_of(workers: Iterable[WorkerNode], device: str, gpus: list[str]) -> dict[str, list[str]]:
    """Return worker -> the accelerators of a host that it uses; none: on CPU.

    A server shares the learner's first one, or has the last one to itself (`own_device`); `device` (`inference.device`) may
    name one. On a host without a learner, servers take turns.

    Raises:
      ConfigError: a requested one does not exist.
    """
    workers = list(workers)
    servers = {w.name: w.own_device for w in workers if find_kind(w.kind).device == "serves"}
    learners = [w for w in workers if find_kind(w.kind).device == "learns"]
    serving = {name: _server_gpus(device, gpus, own) for name, own in servers.items()}
    if not learners and device == "auto" and gpus:
        return {name: [gpus[number % len(gpus)]] for number, name in enumerate(servers)}
    taken = {gpu for name, given in serving.items() if servers[name] for gpu in given}
    learning = [gpu for gpu in gpus if gpu not in taken] if len(gpus) > 1 else gpus
    return serving | {worker.name: _share_of(worker, learners, learning) for worker in learners}


def _share_of(worker: WorkerNode, learners: list[WorkerNode], gpus: list[str]) -> list[str]:
    """Return the accelerators of a learner on its host: ranks of one learner divide them, others share them."""
    link = worker.link(RANKS)
    ranks = [w.name for w in learners if link is not None and w.link(RANKS) == link]
    if len(ranks) < 2 or not gpus:
        return gpus
    size = len(gpus) // len(ranks)
    if not size:
        raise ConfigError(
            f"{len(ranks)} ranks of one learner are on a host with {len(gpus)} accelerator(s), and each needs its own; "
            "use fewer ranks there, or CPU (JAX_PLATFORMS=cpu)."
        )
    at = ranks.index(worker.name) * size
    return gpus[at : at + size]


def _server_gpus(device: str, gpus: list[str], own: bool) -> list[str]:
    if device == "cpu":
        return []
    if device == "auto":
        return gpus[1:][-1:] if own else gpus[:1]
    index = int(device.removeprefix("gpu:"))
    if index >= len(gpus):
        raise ConfigError(
            f"inference.device is {device}, but this host shows {len(gpus)} accelerator(s), counted from 0; use auto, cpu"
            f"{f' or gpu:0 to gpu:{len(gpus) - 1}' if gpus else ''}."
        )
    return [gpus[index]]


def process_environment(plan: Plan, job: Job, gpus: list[str], here: Collection[str] | None = None) -> dict[str, str]:
    """Return the environment variables that give a worker its devices, memory share and threads.

    Args:
      gpus: accelerators of its host. here: the workers there, whose accelerators it may share; None: all. A worker that
        is not among them computes on CPU.

    Raises:
      ConfigError: a requested accelerator does not exist.
    """
    e = plan.experiment
    kind = find_kind(job.kind)
    threads = kind.threads(e)
    variables = cache_variables()
    if threads is not None:
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    there = [worker for worker in plan.graph.workers if here is None or worker.name in here]
    devices = devices_of(there, e.inference.device, gpus)
    own = devices.get(job.name, [])
    if kind.device == "learns" and e.learner.num_ranks > 1:  # a rank uses all that are visible
        own = own[: e.learner_devices]
    if not own:
        variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        return variables | cpu_flags(threads, e.learner_devices if kind.device == "learns" else None)
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    serving = {w.name: gpu for w in there if find_kind(w.kind).device == "serves" for gpu in devices[w.name]}
    if kind.device == "serves" and not any(find_kind(w.kind).device == "learns" for w in there):
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # others of a lost host may move to this one
    elif kind.device == "serves":
        share = (0.9 - e.learner.memory_share) / len(serving)
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{max(share, 0.05):.2f}"
    elif set(own) & set(serving.values()):
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{e.learner.memory_share / len(job.policies):.2f}"
    elif len(job.policies) > 1:  # several learners share the devices
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / len(job.policies):.2f}"
    return variables


def cpu_flags(threads: int | None, devices: int | None) -> dict[str, str]:
    """Return XLA's flags for a CPU process with `threads` threads and `devices` (fake) devices."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    variables: dict[str, str] = {}
    if threads == 1:
        flags.append("--xla_cpu_multi_thread_eigen=false")
    if devices is not None and devices > 1:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
        variables["PJRT_NPROC"] = str(max(8, 2 * devices))  # fewer threads deadlock in the all-reduce
    if flags:
        variables["XLA_FLAGS"] = " ".join(flags)
    return variables


# -- the plan as text -------------------------------------------------------------------------------------------------


def describe(plan: Plan, gpus: list[str]) -> str:
    """Return the worker and stream graph with process counts, devices and memory, as text."""
    e, schemas = plan.experiment, plan.schemas
    agents = dict.fromkeys(type(policy.experiment.agent).__name__ for policy in plan.policies.values())
    lines = [
        f"{e.name}: {', '.join(agents)} on {e.env.id}, placement {e.placement}, transport {_transport(e)}",
        f"  {e.num_envs} environments = {e.actors} actor(s) x {e.ring} group(s) of {e.group_size}; "
        f"batch {e.batch_columns} x {e.rollout_length} rows; {e.total_updates} updates; order {e.order}; "
        f"max policy lag {e.max_policy_lag}",
        *(_policy_line(policy) for policy in plan.policies.values() if len(plan.policies) > 1),
        "",
        f"  {'worker':<18}{'processes':>9}  {'device':<24}{'memory MB (estimate)':>20}",
    ]
    total = 0
    for kind in dict.fromkeys(job.kind for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.kind == kind]
        memory = len(jobs) * memory_mb(plan, jobs[0])
        total += memory
        count = str(len(jobs)) if e.where.has_processes else "0 (serial)"
        lines.append(f"  {kind:<18}{count:>9}  {_device(plan, jobs[0], gpus):<24}{memory:>20}")
        if plan.forked and jobs[0].name in plan.forked:
            total += ACTOR_MB
            lines.append(f"  {'actor-host':<18}{1:>9}  {_device(plan, jobs[0], gpus):<24}{ACTOR_MB:>20}")
    lines += [
        f"  {'in all':<18}{len(plan.jobs) + bool(plan.forked) if e.where.has_processes else 1:>9}  {'':<24}{total:>20}",
        "",
    ]
    lines += ["  streams", *(f"    {line}" for line in _streams(plan))]
    lines.append(
        f"  shared memory: {plan.shared_memory_bytes / 2**20:.1f} MiB; params {schemas.params_bytes / 2**10:.0f} KiB"
    )
    return "\n".join(lines)


def _policy_line(policy: PolicyPart) -> str:
    e = policy.experiment
    return (
        f"  policy {policy.name!r}: {policy.learner} trains {type(e.agent).__name__}, seed {e.seed}, on {e.num_envs} "
        f"environments; {e.total_updates} updates of {e.rows_per_update} env steps"
    )


def _transport(e: Experiment) -> str:
    if e.uses_zeromq:
        return f"zeromq ({'tcp, encrypted' if e.encrypted else 'ipc'})"
    return e.transport if e.where.has_processes else "in-process"


def memory_mb(plan: Plan, job: Job) -> int:
    """Return the estimated memory of a worker: interpreter, libraries, its kind's data, and blocks in flight."""
    kind = find_kind(job.kind)
    found = kind.keeps(job)
    if _transport(plan.experiment).startswith("zeromq"):  # each end has its own
        block = sum(leaf.size_bytes for leaf in leaves(plan.schemas.trajectory))
        ends = [end for _, end in job.ends if end.stream.sort == "samples" and end.stream.schema == "trajectory"]
        found += block * sum(len(end.groups) * end.stream.blocks for end in ends)
    if kind.loads_jax(job):
        return JAX_PROCESS_MB + (found + 2 * plan.schemas.state_bytes) // 2**20
    return (HOSTED_ACTOR_MB if job.name in plan.forked else ACTOR_MB) + found // 2**20


def _device(plan: Plan, job: Job, gpus: list[str]) -> str:
    if job.in_process:
        return "this process"
    variables = process_environment(plan, job, gpus)
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    share = variables.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if not visible:
        return "cpu"
    return f"gpu {visible}" + (f" ({float(share):.0%} of memory)" if share else "")


def _streams(plan: Plan) -> list[str]:
    e = plan.experiment
    lines = [_stream(plan, stream) for stream in plan.graph.streams]
    lines += replay_lines(e, plan.schemas)
    lines += recording_lines(e, plan.schemas)
    if e.learner.split != "none":
        lines.append(
            f"policy <-> critics: params between two devices of the learner, at most {e.split_lead} call(s) apart"
        )
    return lines


def _stream(plan: Plan, stream: Stream) -> str:
    """Return a stream as a line: its workers, its content, and its transport."""
    graph, schemas, e = plan.graph, plan.schemas, plan.experiment
    left, right = _families(graph.sources(stream.name)), _families(graph.sinks(stream.name))
    arrow, transport = ("<->" if stream.sort in ("inference", "ranks") else "->"), stream.transport or _transport(e)
    if stream.sort == "inference":
        row = sum(leaf.size_bytes for leaf in leaves(schemas.act.observation))
        what = f"{transport}: {row} B per observation, groups of {e.group_size}"
    elif stream.sort == "params":
        what = "latest wins"
    elif stream.sort == "ranks":
        what = f"agree on each update, with {e.batch_columns // e.learner.num_ranks} of {e.batch_columns} columns each"
    elif stream.schema == "trajectory":
        block = sum(leaf.size_bytes for leaf in leaves(schemas.trajectory))
        several = ", every reader gets all" if stream.routing == "broadcast" else ""
        what = f"{transport}: blocks of {block / 2**10:.0f} KiB, {stream.blocks} per group, "
        what += f"{len(stream.groups)} groups{several}"
    elif stream.schema == "batches":
        what = f"{transport}: batches of about {batch_bytes(e, schemas) / 2**10:,.0f} KiB"
    else:
        what = transport
    return f"{left} {arrow} {right}".ljust(22) + f" {stream.name:<10} {what}"


def _families(ends: list[tuple[WorkerNode, Link]]) -> str:
    """Return the workers at one side of a stream; those of a family as one word."""
    return ", ".join(dict.fromkeys(worker.family for worker, _ in ends)) or "nobody"
