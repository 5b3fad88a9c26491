"""What each worker of a plan needs of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jsrl.launch.plan import Plan, memory_mb
from jsrl.workers.kinds import find_kind


@dataclass(frozen=True)
class Need:
    """What one worker needs.

    Attributes:
      device: what it uses an accelerator for, where there is one. gpus: how many of one host it wants at least; 0: any
        number. alone: it wants one that no learner uses.
      cores: that it keeps busy; None: all that there are. memory_mb: about.
      travels: it may live on a host that does not see the run folder.
      spreads: it and its like take whatever the others leave, in proportion to the cores of hosts.
      beside: a worker whose host is the best for it; empty: none.
    """

    worker: str
    device: Literal["cpu", "learns", "serves"] = "cpu"
    gpus: int = 0
    alone: bool = False
    cores: int | None = 1
    memory_mb: int = 0
    travels: bool = False
    spreads: bool = False
    beside: str = ""


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
