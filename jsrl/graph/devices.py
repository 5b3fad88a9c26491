"""The environment of a worker process: its devices, memory share and threads, set before anything is imported."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.graph.graph import RANKS, WorkerNode
from jsrl.graph.machine import THREADS, accelerators, cache_variables
from jsrl.graph.plan import Plan
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import find_kind, value_of

GPU_BITS = "--xla_gpu_deterministic_ops"
LEARNERS_SHARE = 0.6  # of the memory of an accelerator that inference servers use as well


def process_environment(plan: Plan, job: Job, gpus: list[str], here: Collection[str] | None = None) -> dict[str, str]:
    """Return the environment variables that give a worker its devices, memory share and threads.

    Args:
      gpus: accelerators of its host. here: the workers there, whose accelerators it may share; None: all. A worker that
        is not among them computes on CPU.
    """
    e = plan.experiment
    kind = find_kind(job.kind)
    threads = value_of(kind.resources.threads, e)
    variables = cache_variables()
    if threads is not None:
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    uses = kind.resources.device != "cpu"  # thousands of actors do not
    there = [worker for worker in plan.graph.workers if uses and (here is None or worker.name in here)]
    devices = devices_of(there, e.inference.device, gpus)
    own = devices.get(job.name, [])
    if kind.resources.device == "learns" and e.learner.num_ranks > 1:  # a rank uses all that are visible
        own = own[: e.learner_devices]
    if not own:
        variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        threads = e.learner.threads if e.deterministic else threads  # all placements give the same bits
        return variables | cpu_flags(threads, e.learner_devices if kind.resources.device == "learns" else None)
    variables |= {"CUDA_VISIBLE_DEVICES": ",".join(own)} | gpu_flags(e)
    serving = {w.name: gpu for w in there if find_kind(w.kind).resources.device == "serves" for gpu in devices[w.name]}
    if kind.resources.device == "serves" and not any(find_kind(w.kind).resources.device == "learns" for w in there):
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # others of a lost host may move to this one
    elif kind.resources.device == "serves":
        share = (0.9 - LEARNERS_SHARE) / len(serving)
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{max(share, 0.05):.2f}"
    elif set(own) & set(serving.values()):
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{LEARNERS_SHARE / len(job.run.policies):.2f}"
    elif len(job.run.policies) > 1:  # several learners share the devices
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / len(job.run.policies):.2f}"
    return variables


def check_devices(plan: Plan, gpus: list[str]) -> None:
    """Check the devices of a run whose workers are all on this host; other hosts were checked with the layout."""
    if not plan.experiment.where.processes:
        from jsrl.workers.learner.build_updater import devices_for

        for policy in plan.policies.values():
            devices_for(policy.experiment)
    elif not plan.hosts.of:
        devices_of(plan.graph.workers, plan.experiment.inference.device, gpus)


def devices_of(workers: Iterable[WorkerNode], device: str, gpus: list[str]) -> dict[str, list[str]]:
    """Return worker -> the accelerators of a host that it uses; none: on CPU.

    A server shares the learner's first one, or has the last one to itself (`own_device`); `device` (`inference.device`) may
    name one. On a host without a learner, servers take turns.
    """
    workers = list(workers)
    servers = {w.name: w.own_device for w in workers if find_kind(w.kind).resources.device == "serves"}
    learners = [w for w in workers if find_kind(w.kind).resources.device == "learns"]
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
            f"{len(ranks)} ranks of one learner are on a host with {counted(len(gpus), 'accelerator')}, and each needs "
            "its own; use fewer ranks there, or CPU (JAX_PLATFORMS=cpu)."
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
            f"inference.device is {device}, but this host shows {counted(len(gpus), 'accelerator')}, counted from 0; use "
            f"auto, cpu{f' or gpu:0 to gpu:{len(gpus) - 1}' if gpus else ''}."
        )
    return [gpus[index]]


def gpu_flags(e: Experiment) -> dict[str, str]:
    """Return XLA's flags for a process with GPUs: `deterministic` needs kernels whose sums have a fixed order.

    XLA also stops choosing kernels by their measured speed. The user's own setting of this flag stays.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if not e.deterministic or GPU_BITS in flags:
        return {}
    return {"XLA_FLAGS": f"{flags} {GPU_BITS}=true".strip()}


def set_flags_here(e: Experiment) -> None:
    """Set the flags of a serial run in this process; they have no effect once jax has found its devices.

    The environment is restored, because later runs in this process may start workers with it.
    """
    flags = {} if e.where.processes else gpu_flags(e) if accelerators() else {THREADS: str(e.learner.threads)}
    if not flags:
        return
    import jax

    before = {name: os.environ.get(name) for name in flags}
    os.environ.update(flags)
    jax.local_devices()  # reads the flags
    for name, value in before.items():
        os.environ.pop(name)
        os.environ.update({} if value is None else {name: value})


def cpu_flags(threads: int | None, devices: int | None) -> dict[str, str]:
    """Return XLA's variables for a CPU process with `threads` threads and `devices` (fake) devices."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    variables = {} if threads is None else {THREADS: str(threads)}
    if devices is not None and devices > 1:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
        variables[THREADS] = str(max(8, 2 * devices))  # fewer threads deadlock in the all-reduce
    if flags:
        variables["XLA_FLAGS"] = " ".join(flags)
    return variables
