"""What each worker of a plan needs of a host."""

from __future__ import annotations

from jsrl.launch.launcher import Need
from jsrl.launch.plan import Plan, memory_mb
from jsrl.workers.kinds import find_kind


def needs_of(plan: Plan) -> tuple[Need, ...]:
    """Return what each worker of a plan needs, in the graph's order."""
    e, found = plan.experiment, []
    for worker, job in zip(plan.graph.workers, plan.jobs, strict=True):
        kind = find_kind(worker.kind)
        serves_on_cpu = kind.device == "serves" and e.inference.device == "cpu"
        learner = plan.policies[job.policy].learner
        found.append(
            Need(
                worker.name,
                "cpu" if serves_on_cpu else kind.device,
                gpus=e.learner_devices or 0 if kind.device == "learns" else 0,
                alone=worker.own_device,
                cores=kind.threads(e),
                memory_mb=memory_mb(plan, job),
                travels=kind.travels,
                spreads=kind.forks,
                beside="" if kind.forks or worker.name == learner else learner,
            )
        )
    return tuple(found)
