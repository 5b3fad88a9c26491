"""What supervision.py and ending.py are told from the start: rules of each worker, stop order and last tasks, from a plan."""

from __future__ import annotations

import functools
from collections.abc import Collection

from jsrl.control.ending import Ending, Level, Task
from jsrl.control.supervision import Rules, Supervision
from jsrl.experiment import Experiment
from jsrl.graph.graph import ranks_of
from jsrl.graph.plan import Plan
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, value_of


def restarts(e: Experiment, kind: Kind) -> int:
    own = e.supervision.restarts.get(kind.prefix)
    return max(e.restart, value_of(kind.lifecycle.min_restarts, e)) if own is None else own


def supervision_of(plan: Plan) -> Supervision:
    e, rules = plan.experiment, {}
    for job in plan.jobs:
        kind, worker = plan.kinds[job.name], plan.graph.worker(job.name)
        samples = [end for _, end in job.ends if end.stream.type == "samples"]
        rules[job.name] = Rules(
            kind.prefix,
            restarts(e, kind) if worker.restart is None else worker.restart,
            tuple(rank.name for rank in ranks_of(plan.graph, worker)),
            saves=kind.lifecycle.saves,
            keeps_files=bool(kept_files(kind, job)),
            must_finish=kind.lifecycle.must_finish,
            loss_ends_run=kind.lifecycle.loss_ends_run,
            may_restart=functools.partial(value_of, kind.lifecycle.may_restart, job),
            groups=tuple(group for end in samples for group in end.groups) if kind.plays else (),
            learns=kind.resources.device == "learns",
        )
    return Supervision(rules, e.deadlines, e.supervision, tells_absent=not e.is_deterministic)


def kept_files(kind: Kind, job: Job) -> tuple[str, ...]:
    """Return the folders below the run's in which a worker keeps files of its own."""
    return tuple(value_of(kind.travel.keeps_files, job))


def ending_of(plan: Plan, supervision: Supervision, reason: str, done: Collection[str]) -> Ending:
    """Return the end of a run. `done`: workers whose last task is finished, or that were lost."""
    e, levels = plan.experiment, []
    for level in plan.graph.stop_order:
        names = frozenset(worker.name for worker in level)
        levels.append(Level(names, any(port.publishes for name in names for port in plan.kinds[name].ports)))
    return Ending(
        supervision,
        levels,
        {name: task for name, task in last_tasks(plan, reason).items() if name not in done},
        interrupted=reason == "interrupted",
        drains=e.is_deterministic and len(e.policies) > 1,
    )


def last_tasks(plan: Plan, reason: str) -> dict[str, Task]:
    """Return worker -> its last task, if it has one after a run that ends for this reason."""
    tasks = {}
    for name, kind in plan.kinds.items():
        task = kind.lifecycle.last_task
        facts = value_of(task.facts, plan.experiment, reason)
        if facts is not None and reason != "interrupted":
            limit_s = getattr(plan.experiment.deadlines, task.deadline)
            tasks[name] = Task(task.name, facts, limit_s, task.deadline, task.hint)
    return tasks
