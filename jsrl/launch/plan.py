"""From an experiment to jobs: schemas, addresses, devices and threads of every process, and the same as text."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.building import agent_faults, agent_name, build_agent, check_split, resolved_agent
from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.experiment import Experiment
from jsrl.launch.compilation import cache_variables
from jsrl.launch.filming import check_filming, players
from jsrl.launch.interrupts import deadline
from jsrl.launch.links import make_links
from jsrl.launch.recording_plan import recording_lines
from jsrl.launch.replay_plan import replay_lines, replay_memory_mb, replay_stream_bytes, rows_go_to
from jsrl.transport.base import InferenceSpec
from jsrl.types import ArraySpec, EnvSpec, leaves, make_trajectory_spec, map_tree
from jsrl.workers.jobs import Job, Origin, Schemas
from jsrl.workers.kinds import Kind, find_kind

# As measured on CPU; environments come on top. Of actors that a host forked, what each keeps to itself.
JAX_PROCESS_MB, LEARNER_MB, ACTOR_MB, HOSTED_ACTOR_MB = 300, 350, 45, 10
HOST_ACTORS = 3  # from so many actors on, one process that forks them is faster as well (benchmarks/actor_start.py)
STAGING_BUFFERS = 3


def make_schemas(experiment: Experiment) -> Schemas:
    """Return everything that streams will carry, by tracing the agent's functions on shapes alone.

    Raises:
      ConfigError: the environment cannot be made, or the agent does not fit its spaces.
      EnvironmentFault: making it raised or hung. AgentFault: the agent's code raised.
    """
    spec = find_spec(experiment)
    agent = build_agent(experiment.agent, spec)
    if experiment.learner.split != "none":
        check_split(agent, agent_name(experiment.agent))
    with agent_faults(f"functions, traced on shapes of {spec.name!r},"):
        state, act_spec = trace_agent(agent, spec)
    core = act_spec.core if agent.store_core else ()
    trajectory = make_trajectory_spec(
        spec, act_spec.extras, core, num_rows=experiment.rollout_length, num_envs=experiment.group_size
    )
    _check_action(spec.action.array, spec.num_agents, act_spec.action)
    return Schemas(spec, act_spec, trajectory, _size_bytes(state.params), _size_bytes(state))


def find_spec(experiment: Experiment) -> EnvSpec:
    """Return what the environment looks like; makes one, which may take as long as one step of an actor.

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


def _check_action(expected: ArraySpec, num_agents: int | None, given: ArraySpec) -> None:
    if num_agents is not None:
        expected = expected.batched(num_agents)
    if given != expected:
        raise ConfigError(
            f"act returns actions of shape {given.shape} and dtype {given.dtype} per environment; the environment takes "
            f"shape {expected.shape} and dtype {expected.dtype}. Return exactly that from `act`."
        )


@dataclass(frozen=True)
class Plan:
    """Which workers exist, joined by which streams. `memory_folder`: where shared memory of this run lies."""

    experiment: Experiment
    schemas: Schemas
    jobs: tuple[Job, ...]
    memory_folder: Path

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each worker."""
        return {job.name: find_kind(job.kind) for job in self.jobs}

    @property
    def hosts_actors(self) -> bool:
        """Return whether one process forks the actors: where they are many and load no jax."""
        actors = [job for job in self.jobs if job.kind == "actor" and job.experiment.agent is None]
        return len(actors) >= HOST_ACTORS

    @property
    def shared_memory_bytes(self) -> int:
        """Return the bytes that this run takes of the shared-memory file system."""
        e = self.experiment
        if e.placement == "serial" or e.road != "shared-memory" or e.recording is not None:
            return 3 * self.schemas.params_bytes
        rows = self.experiment.num_envs * sum(leaf.size_bytes for leaf in leaves(self.schemas.act))
        return (
            self.stream_bytes
            + replay_stream_bytes(self.experiment, self.schemas)
            + 3 * self.schemas.params_bytes
            + 2 * rows
        )

    @property
    def stream_bytes(self) -> int:
        """Return the bytes of all blocks of the sample stream."""
        block = sum(leaf.size_bytes for leaf in leaves(self.schemas.trajectory))
        return block * self.experiment.groups * self.experiment.actor.blocks_per_group


def make_plan(experiment: Experiment, folder: str, memory_folder: Path, origin: Origin | None = None) -> Plan:
    """Return the jobs of an experiment.

    Args:
      experiment: what to run. folder: the run's. memory_folder: for shared memory and sockets. origin: where to begin.
    """
    experiment = dataclasses.replace(experiment, agent=resolved_agent(experiment))
    schemas = make_schemas(experiment)
    links = make_links(experiment, folder, memory_folder)
    served = experiment.placement in ("served", "apart")
    without_agent = dataclasses.replace(experiment, agent=None)

    def job(kind: str, name: str, index: int = 0) -> Job:
        own = without_agent if kind == "replay" or (kind == "actor" and served) else experiment
        poll_s = 0.0 if experiment.placement == "serial" else 0.1
        return Job(kind, name, index, own, schemas, links, folder, origin or Origin(), poll_s=poll_s)

    jobs = [job("learner", "learner")]
    if links.params_relay is not None:
        jobs.append(job("parameter-server", "parameter-server"))
    jobs += [job("inference", f"inference-{i}", i) for i in range(len(links.inference))]
    jobs += [job("replay", f"replay-{i}", i) for i in range(len(links.replays))]
    jobs += [job("actor", f"actor-{i}", i) for i in range(experiment.actors if experiment.recording is None else 0)]
    if experiment.evaluator.enabled:
        jobs.append(job("evaluator", "evaluator"))
    if experiment.recorder.enabled:
        check_filming(experiment)
        jobs.append(job("recorder", "recorder"))
    return Plan(experiment, schemas, tuple(jobs), memory_folder)


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


def inference_gpus(e: Experiment, gpus: list[str]) -> list[str]:
    """Return the accelerators of inference servers; none where they act on CPU.

    Raises:
      ConfigError: one is asked for that is not there.
    """
    device = e.inference.device
    if e.placement not in ("served", "apart") or device == "cpu":
        return []
    if device == "auto":
        return gpus[:1] if e.placement == "served" else gpus[1:][-1:]
    index = int(device.removeprefix("gpu:"))
    if index >= len(gpus):
        raise ConfigError(
            f"inference.device is {device}, but this host shows {len(gpus)} accelerator(s), counted from 0; use auto, cpu"
            f"{f' or gpu:0 to gpu:{len(gpus) - 1}' if gpus else ''}."
        )
    return [gpus[index]]


def process_environment(job: Job, gpus: list[str]) -> dict[str, str]:
    """Return the environment variables that give a worker its devices, memory share and threads.

    Raises:
      ConfigError: an accelerator is asked for that is not there.
    """
    e = job.experiment
    threads = {"learner": e.learner.threads, "inference": e.inference.threads}.get(job.kind, 1)
    variables = cache_variables()
    if threads is not None:
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    serving = inference_gpus(e, gpus)
    learning = [gpu for gpu in gpus if gpu not in serving] if e.placement == "apart" and len(gpus) > 1 else gpus
    own = {"learner": learning, "inference": serving}.get(job.kind, [])
    if not own:
        variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        return variables | cpu_flags(threads, e.learner_devices if job.kind == "learner" else None)
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    servers_share = (0.9 - e.learner.memory_share) / e.num_inference_servers
    if job.kind == "inference":
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{max(servers_share, 0.05):.2f}"
    elif set(learning) & set(serving):
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{e.learner.memory_share:.2f}"
    return variables


def cpu_flags(threads: int | None, devices: int | None) -> dict[str, str]:
    """Return XLA's flags for a CPU process of so many threads and (fake) devices."""
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
    """Return the worker and stream graph with process counts, devices and memory, for people."""
    e, schemas = plan.experiment, plan.schemas
    lines = [
        f"{e.name}: {type(e.agent).__name__} on {e.env.id}, placement {e.placement}, road {_road(e)}",
        f"  {e.num_envs} environments = {e.actors} actor(s) x ring {e.ring} x {e.group_size} slots; "
        f"batch {e.batch_columns} x {e.rollout_length} rows; {e.total_updates} updates; order {e.order}; "
        f"max policy lag {e.max_policy_lag}",
        "",
        f"  {'worker':<18}{'processes':>9}  {'device':<24}{'memory MB (estimate)':>20}",
    ]
    total = 0
    for kind in dict.fromkeys(job.kind for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.kind == kind]
        memory = len(jobs) * _memory_mb(plan, jobs[0])
        total += memory
        count = "0 (serial)" if e.placement == "serial" else str(len(jobs))
        lines.append(f"  {kind:<18}{count:>9}  {_device(jobs[0], gpus):<24}{memory:>20}")
        if kind == "actor" and plan.hosts_actors:
            total += ACTOR_MB
            lines.append(f"  {'actor-host':<18}{1:>9}  {_device(jobs[0], gpus):<24}{ACTOR_MB:>20}")
    lines += [
        f"  {'in all':<18}{len(plan.jobs) + plan.hosts_actors if e.placement != 'serial' else 1:>9}  {'':<24}{total:>20}",
        "",
    ]
    lines += ["  streams", *(f"    {line}" for line in _streams(plan))]
    lines.append(
        f"  shared memory: {plan.shared_memory_bytes / 2**20:.1f} MiB; params {schemas.params_bytes / 2**10:.0f} KiB"
    )
    return "\n".join(lines)


def _road(e: Experiment) -> str:
    road = f"zeromq ({'tcp, encrypted' if e.encrypted else 'ipc'})" if e.road == "zeromq" else e.road
    return "in-process" if e.placement == "serial" else road


def _memory_mb(plan: Plan, job: Job) -> int:
    blocks = plan.stream_bytes // 2**20 if _road(plan.experiment).startswith("zeromq") else 0  # each end has its own
    if job.kind == "actor" and plan.experiment.placement in ("served", "apart"):
        return (HOSTED_ACTOR_MB if plan.hosts_actors else ACTOR_MB) + blocks // plan.experiment.actors
    staging = (
        STAGING_BUFFERS * plan.stream_bytes // plan.experiment.actor.blocks_per_group if job.kind == "learner" else 0
    )
    replayed = replay_memory_mb(plan.experiment, plan.schemas, job.kind)
    replayed += blocks if job.kind in ("learner", "replay") else 0
    if job.kind == "replay":
        return ACTOR_MB + replayed
    jax_mb = LEARNER_MB if job.kind == "learner" else JAX_PROCESS_MB
    return jax_mb + replayed + (staging + 2 * plan.schemas.state_bytes) // 2**20


def _device(job: Job, gpus: list[str]) -> str:
    if job.experiment.placement == "serial":
        return "this process"
    variables = process_environment(job, gpus)
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    share = variables.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if not visible:
        return "cpu"
    return f"gpu {visible}" + (f" ({float(share):.0%} of memory)" if share else "")


def _streams(plan: Plan) -> list[str]:
    e = plan.experiment
    block = sum(leaf.size_bytes for leaf in leaves(plan.schemas.trajectory))
    row = sum(leaf.size_bytes for leaf in leaves(plan.schemas.act.observation))
    road = _road(e)
    if e.recording is not None:
        return [*recording_lines(e, plan.schemas), f"learner -> {', '.join(players(e))}   params     latest wins"]
    streams = [
        f"actor -> {rows_go_to(e):<10} samples    {road}: blocks of {block / 2**10:.0f} KiB, "
        f"{e.actor.blocks_per_group} per group, {e.groups} groups"
    ]
    streams += replay_lines(plan.experiment, schemas=plan.schemas, road=road)
    streams += recording_lines(e, plan.schemas)
    if e.learner.split != "none":
        streams.append(
            f"policy <-> critics    params     two devices of the learner, at most {e.split_lead} call(s) apart"
        )
    if e.placement in ("served", "apart"):
        streams.append(f"actor <-> inference  inference  {road}: {row} B per observation, groups of {e.group_size}")
    reader = "inference" if e.placement in ("served", "apart") else "actor"
    relay = "learner -> parameter-server -> " if plan.jobs[0].links.params_relay else "learner -> "
    streams.append(f"{relay}{', '.join([reader, *players(e)])}   params     latest wins")
    return streams
