"""`jsrl run NAME --plan`: workers with processes, devices and memory, and streams with their content; nothing is run."""

from __future__ import annotations

from jsrl.cli.main import user_path
from jsrl.cluster.launcher import placed
from jsrl.cluster.layout import Layout, lay_out, layout_text
from jsrl.cluster.this_host import read_hosts
from jsrl.control.start_points import find_start_points
from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.experiment.options import RunOptions
from jsrl.graph.addresses import stays_here
from jsrl.graph.devices import process_environment
from jsrl.graph.drawing import draw
from jsrl.graph.graph import Link, WorkerNode
from jsrl.graph.graph_file import Edit, stored_graph
from jsrl.graph.launcher import ALONE, Hosts
from jsrl.graph.machine import accelerators, within_gpu_memory
from jsrl.graph.needs import needs_of
from jsrl.graph.plan import ACTOR_MB, Plan, decided, make_plan, memory_mb
from jsrl.graph.policies import PolicyPart
from jsrl.graph.recording_plan import recording_lines
from jsrl.linux import SHM
from jsrl.services.runs.runs import RunFolder
from jsrl.transport.stream import Stream
from jsrl.types import leaves
from jsrl.workers.jobs import Job, Schemas
from jsrl.workers.memory import batch_bytes, row_bytes

BETWEEN_HOSTS = "zeromq (tcp, encrypted)"


def show_plan(experiment: Experiment, options: RunOptions) -> int:
    """Print the plan of a run; draw it or assign it to hosts if the options say so."""
    plan_file, hosts_file = (user_path(one) if one else None for one in (options.plan_file, options.hosts_file))
    experiment, chosen = decided(experiment)
    if chosen:
        print(chosen)
    find_start_points(None, options.init_from, options.runs_dir)
    graph: Edit | None = options.graph
    if graph is None and options.resume is not None:  # a resume continues with the graph of the run
        graph = stored_graph(RunFolder.open(options.resume, options.runs_dir))
    if hosts_file is not None and not experiment.where.processes:
        raise ConfigError("a serial run has one process on one host; choose another placement to lay workers on hosts.")
    layouts: list[Layout] = []

    def place(alone: Plan) -> Hosts:
        if hosts_file is None:
            return ALONE
        needs = placed(needs_of(alone), options.keep_here, options.learner_on or "")
        layouts.append(layout := lay_out(needs, read_hosts(hosts_file)))
        return layout.hosts_of_workers

    plan = make_plan(experiment, "(not run)", SHM / "jsrl", edit=graph, place=place)
    print(describe(plan, accelerators(), *layouts))
    if plan_file is not None:
        try:
            plan_file.write_text(draw(plan.graph))
        except OSError as error:
            raise ConfigError(f"the plan cannot be drawn to {plan_file}: {error.strerror}.") from error
        print(f"picture: {plan_file}")
    for layout in layouts:
        print("", layout_text(layout), sep="\n")
    return 0


def describe(plan: Plan, gpus: list[str], layout: Layout | None = None) -> str:
    """Return the worker and stream graph with process counts, devices and memory, as text.

    Args:
      gpus: accelerators of this host. layout: the hosts of the workers; None: this one.
    """
    e, schemas = plan.experiment, plan.schemas
    lines = [
        f"{plan.title}, transport {_transport(e)}",
        f"{plan.sizes}; order {e.order}; max policy lag {e.max_policy_lag}",
        *(_policy_line(policy) for policy in plan.policies.values() if len(plan.policies) > 1),
        "",
        f"  {'worker':<18}{'processes':>9}  {'device':<24}{'memory MB (estimate)':>20}",
    ]
    total = 0
    for kind in dict.fromkeys(job.kind for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.kind == kind]
        memory = len(jobs) * memory_mb(plan, jobs[0])
        total += memory
        count = str(len(jobs)) if e.where.processes else "0 (serial)"
        lines.append(f"  {kind:<18}{count:>9}  {_devices(plan, jobs, gpus, layout):<24}{memory:>20}")
        if plan.forked and jobs[0].name in plan.forked:
            total += ACTOR_MB
            lines.append(f"  {'actor-host':<18}{1:>9}  {'cpu':<24}{ACTOR_MB:>20}")
    lines += [
        f"  {'in all':<18}{len(plan.jobs) + bool(plan.forked) if e.where.processes else 1:>9}  {'':<24}{total:>20}",
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
        f"  policy {policy.name!r}: {policy.learner} trains {type(e.agent).__name__}, seed {e.seed}, on {e.envs} "
        f"environments; {e.total_updates} updates of {e.env_steps_per_batch:g} env steps"
    )


def _transport(e: Experiment) -> str:
    if e.where.uses_zeromq:
        return f"zeromq ({'tcp, encrypted' if e.encrypted else 'ipc'})"
    return e.transport if e.where.processes else "in-process"


def _devices(plan: Plan, jobs: list[Job], gpus: list[str], layout: Layout | None) -> str:
    if layout is None:
        return _device(plan, jobs[0], gpus)
    found = []
    for host in layout.hosts:
        here = layout.on(host.name)
        first = next((job for job in jobs if job.name in here), None)
        found += [_device(plan, first, [str(i) for i in range(host.gpus)], here)] if first is not None else []
    return ", ".join(dict.fromkeys(found))


def _device(plan: Plan, job: Job, gpus: list[str], here: list[str] | None = None) -> str:
    if job.in_process:
        return "this process"
    variables = within_gpu_memory(process_environment(plan, job, gpus, here))
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    share = variables.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if not visible:
        return "cpu"
    return f"gpu {visible}" + (f" ({float(share):.0%} of memory)" if share else "")


def _streams(plan: Plan) -> list[str]:
    e = plan.experiment
    lines = [_stream(plan, stream) for stream in plan.graph.streams]
    for name, policy in plan.policies.items():
        lines += [line for line in replay_lines(policy.experiment, plan.schemas_of[name]) if line not in lines]
    lines += recording_lines(plan)
    if e.learner.split != "none":
        lines.append(
            f"policy <-> critics: params between two devices of the learner, at most {counted(e.split_lead, 'call')} apart"
        )
    return lines


def _stream(plan: Plan, stream: Stream) -> str:
    """Return a stream as a line: its workers, its content, and its transport."""
    graph, schemas, e = plan.graph, plan.schemas_of[stream.policy], plan.policies[stream.policy].experiment
    left, right = _families(graph.sources(stream.name)), _families(graph.sinks(stream.name))
    arrow = "<->" if stream.type in ("inference", "ranks") else "->"
    own = _transport(e) if stays_here(graph, stream, plan.hosts) else BETWEEN_HOSTS
    transport = stream.transport or own
    if stream.type == "inference":
        row = sum(leaf.size_bytes for leaf in leaves(schemas.act.observation))
        what = f"{transport}: {row} B per observation, groups of {e.group_size}"
    elif stream.type == "params":
        what = "latest wins"
    elif stream.type == "ranks":
        what = f"agree on each update, with {e.batch_columns // e.learner.num_ranks} of {e.batch_columns} columns each"
    elif stream.schema == "trajectory":
        block = sum(leaf.size_bytes for leaf in leaves(schemas.trajectory))
        several = ", every reader gets all" if stream.routing == "broadcast" else ""
        what = f"{transport}: blocks of {block / 2**10:.0f} KiB, {stream.blocks} per group, "
        what += f"{counted(len(stream.groups), 'group')}{several}"
    elif stream.schema == "batches":
        what = f"{transport}: batches of about {batch_bytes(e, schemas) / 2**10:,.0f} KiB"
    else:
        what = transport
    return f"{left} {arrow} {right}".ljust(22) + f" {stream.name:<10} {what}"


def _families(ends: list[tuple[WorkerNode, Link]]) -> str:
    return ", ".join(dict.fromkeys(worker.family for worker, _ in ends)) or "nobody"


def replay_lines(e: Experiment, schemas: Schemas) -> list[str]:
    r = e.buffer
    if r is None:
        return []
    how = "prioritised" if r.prioritised else "uniform"
    if e.is_free_running:
        ratio = "free-running"
    else:
        made = r.updates_per_env_step if e.has_replay_workers else e.updates_per_env_step
        ratio = f"{made:g} updates per env step"
    per_row = row_bytes(e, schemas)
    kept = (
        f"replay ({r.kind}): {r.capacity:,} env steps of {per_row:,.0f} B = {r.capacity * per_row / 2**20:,.0f} MiB; {how}; "
        f"batches of {r.batch_size} windows of {counted(r.window, 'row')}, {counted(e.updates_per_call, 'update')} per call; "
        f"{ratio}, from {r.min_size:,} env steps on"
    )
    return [kept]
