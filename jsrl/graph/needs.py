"""The resources that each worker of a plan needs of a host."""

from __future__ import annotations

from collections.abc import Collection

from jsrl.experiment import Experiment
from jsrl.graph.graph import RANKS
from jsrl.graph.launcher import Need
from jsrl.graph.plan import Plan, memory_mb
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, Port, find_kind, value_of


def needs_of(plan: Plan) -> tuple[Need, ...]:
    e, found = plan.experiment, []
    one_each = e.num_inference_servers == 1 and len(plan.policies) == 1 and not (e.is_deterministic or plan.changed)
    ranks = {worker.name for worker in plan.graph.workers if worker.has(RANKS)}
    for worker, job in zip(plan.graph.workers, plan.jobs, strict=True):
        kind = find_kind(worker.kind)
        serves_on_cpu = kind.resources.device == "serves" and e.inference.device == "cpu"
        learner, stays = plan.policies[job.policy].learner, _stays(kind, job, e)
        is_near = bool(stays) or worker.own_device or _sends(kind)
        found.append(
            Need(
                worker.name,
                "cpu" if serves_on_cpu else kind.resources.device,
                gpus=_least_gpus(e, kind),
                alone=worker.own_device,
                cores=value_of(kind.resources.threads, e),
                memory_mb=memory_mb(plan, job),
                stays=stays,
                spreads=kind.resources.forks,
                each=one_each and kind.resources.device == "serves" and not stays,
                answers=any(port.stream_type == "inference" and port.role == "answers" for port in kind.ports),
                asks=next((end.peers[0].worker for port, end in job.ends if _asks(kind.port(port))), ""),
                feeds=_rank_fed(job, kind, ranks),
                follows=learner if any((port.stream_type, port.role) == (RANKS, "asks") for port in kind.ports) else "",
                beside=learner if is_near and not kind.resources.forks and worker.name != learner else "",
            )
        )
    return tuple(found)


def _least_gpus(e: Experiment, kind: Kind) -> int:
    """Return the number of accelerators that a worker's host must have, if it has any; 0: any number."""
    if kind.resources.device == "learns":
        return e.learner_devices or 0
    index = e.inference.device.removeprefix("gpu:")
    return int(index) + 1 if kind.resources.device == "serves" and index.isdigit() else 0


def _stays(kind: Kind, job: Job, e: Experiment) -> str:
    """Return why a worker may not run on a host without the run folder; empty: it may."""
    if why := value_of(kind.travel.needs_folder, e):
        return str(why)
    if kind.lifecycle.must_finish and job.run.keeps_initial:
        return "it keeps its first params there"
    counted_there = job.has(RANKS) or value_of(kind.travel.keeps_files, job)  # their hosts' agents send the counts
    if kind.reads_samples and not counted_there:
        return "it counts what it reads in the run folder"
    if any(end.stream.transport and kind.port(port).binds for port, end in job.ends):
        return "it binds a stream with a transport of its own"
    return ""


def _sends(kind: Kind) -> bool:
    """Return whether it receives samples and sends them on: best on the host of their receiver."""
    return kind.reads_samples and any(port.stream_type == "samples" and port.role == "writes" for port in kind.ports)


def _asks(port: Port) -> bool:
    return (port.stream_type, port.role) == ("inference", "asks")


def _rank_fed(job: Job, kind: Kind, ranks: Collection[str]) -> str:
    """Return the rank of a learner that reads the samples of a worker; empty: none does."""
    ends = (
        end for port, end in job.ends if (kind.port(port).stream_type, kind.port(port).role) == ("samples", "writes")
    )
    return next((peer.worker for end in ends for peer in end.peers if peer.worker in ranks), "")
