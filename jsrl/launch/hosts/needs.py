"""The resources that each worker of a plan needs of a host."""

from __future__ import annotations

from collections.abc import Collection

from jsrl.experiment import Experiment
from jsrl.graph.ranks import RANKS
from jsrl.launch.launcher import Need
from jsrl.launch.plan import Plan, memory_mb
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, Port, find_kind


def needs_of(plan: Plan) -> tuple[Need, ...]:
    """Return the needs of the workers of a plan, in the graph's order."""
    e, found = plan.experiment, []
    one_each = e.num_inference_servers == 1 and len(plan.policies) == 1 and not (e.is_deterministic or plan.changed)
    ranks = {worker.name for worker in plan.graph.workers if worker.has(RANKS)}
    for worker, job in zip(plan.graph.workers, plan.jobs, strict=True):
        kind = find_kind(worker.kind)
        serves_on_cpu = kind.device == "serves" and e.inference.device == "cpu"
        learner, stays = plan.policies[job.policy].learner, _stays(kind, job, e)
        is_near = bool(stays) or worker.own_device or _sends(kind)
        found.append(
            Need(
                worker.name,
                "cpu" if serves_on_cpu else kind.device,
                gpus=_least_gpus(e, kind),
                alone=worker.own_device,
                cores=kind.threads(e),
                memory_mb=memory_mb(plan, job),
                stays=stays,
                spreads=kind.forks,
                each=one_each and kind.device == "serves" and not stays,
                answers=any(port.sort == "inference" and port.does == "answers" for port in kind.ports),
                asks=next((end.peers[0].worker for port, end in job.ends if _asks(kind.port(port))), ""),
                feeds=_rank_fed(job, kind, ranks),
                follows=learner if any((port.sort, port.does) == (RANKS, "asks") for port in kind.ports) else "",
                beside=learner if is_near and not kind.forks and worker.name != learner else "",
            )
        )
    return tuple(found)


def _least_gpus(e: Experiment, kind: Kind) -> int:
    """Return the number of accelerators that a worker's host must have, if it has any; 0: any number."""
    if kind.device == "learns":
        return e.learner_devices or 0
    index = e.inference.device.removeprefix("gpu:")
    return int(index) + 1 if kind.device == "serves" and index.isdigit() else 0


def _stays(kind: Kind, job: Job, e: Experiment) -> str:
    """Return why a worker may not run on a host without the run folder; empty: it may."""
    why = kind.needs_folder(e) if callable(kind.needs_folder) else kind.needs_folder
    if why:
        return why
    if kind.must_finish and job.keeps_initial:
        return "it keeps its first params there"
    if kind.reads_samples and not (job.has(RANKS) or kind.keeps_files(job)):  # the agents of these send their counts
        return "it counts what it reads in the run folder"
    if any(end.stream.transport and kind.port(port).binds for port, end in job.ends):
        return "it binds a stream with a transport of its own"
    return ""


def _sends(kind: Kind) -> bool:
    """Return whether it receives samples and sends them on: best on the host of their receiver."""
    return kind.reads_samples and any(port.sort == "samples" and port.does == "writes" for port in kind.ports)


def _asks(port: Port) -> bool:
    return (port.sort, port.does) == ("inference", "asks")


def _rank_fed(job: Job, kind: Kind, ranks: Collection[str]) -> str:
    """Return the rank of a learner that reads the samples of a worker; empty: none does."""
    ends = (end for port, end in job.ends if (kind.port(port).sort, kind.port(port).does) == ("samples", "writes"))
    return next((peer.worker for end in ends for peer in end.peers if peer.worker in ranks), "")
