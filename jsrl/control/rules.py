"""What the supervision of a run is told about its plan, and the start point of a replaced worker."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from pathlib import Path

from jsrl.control.ending import Ending, Level, Task
from jsrl.control.resume import newest_good
from jsrl.control.supervision import Rules, Supervision
from jsrl.errors import counted
from jsrl.experiment import Experiment
from jsrl.graph.graph import ranks_of
from jsrl.graph.plan import Plan
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.hops import ledger_path
from jsrl.transport.ledger.page import read_page
from jsrl.types import version_updates
from jsrl.workers.jobs import Job, StartPoint
from jsrl.workers.kinds import Kind, find_kind, value_of


def restarts(e: Experiment, kind: Kind) -> int:
    own = e.supervision.restarts.get(kind.prefix)
    return max(e.restart, value_of(kind.lifecycle.min_restarts, e)) if own is None else own


def supervision_of(plan: Plan) -> Supervision:
    e, rules = plan.experiment, {}
    for job in plan.jobs:
        kind = plan.kinds[job.name]
        samples = [end for _, end in job.ends if end.stream.type == "samples"]
        rules[job.name] = Rules(
            kind.prefix,
            restarts(e, kind) if job.restart is None else job.restart,
            tuple(rank.name for rank in ranks_of(plan.graph, plan.graph.worker(job.name))),
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


def replacement_job(job: Job, incarnation: int, folder: Path) -> tuple[Job, list[str]]:
    """Return the job that replaces a dead worker, and warnings; its state is the last good snapshot."""
    job = dataclasses.replace(job, incarnation=incarnation)
    if find_kind(job.kind).lifecycle.state != "snapshot":
        return job, []
    start_point, broken = last_committed(job.start_point, job.snapshots / "state", page_of(job, folder))
    used = [f"{job.name} continues from update {start_point.made:,} instead"] if broken else []
    return dataclasses.replace(job, start_point=start_point), broken + used


def lost_text(job: Job, updates: int) -> str:
    """Return how many updates a learner's replacement makes again, as text; empty: none.

    Args:
      job: of the replacement. updates: of the dead learner, when it last reported them.
    """
    start, lost = job.start_point.made, updates - job.start_point.made
    if not find_kind(job.kind).lifecycle.must_finish or lost <= 0:
        return ""
    why = "" if job.start_point.restore and not job.start_point.params_only else ", as there is no snapshot yet"
    return f"{job.name} continues from update {start:,}{why}; at least {counted(lost, 'update')} are lost"


def page_of(job: Job, folder: Path) -> Path:
    return ledger_path(folder, job.input_hop)


def last_committed(start_point: StartPoint, snapshots: Path, ledger: Path) -> tuple[StartPoint, list[str]]:
    """Return a learner's new start point in a new epoch, and what is wrong with newer snapshots.

    It is the last good snapshot, or the run's start if none was committed yet.

    Args:
      start_point: of the run. snapshots: folder of the learner's states. ledger: the page of its counts.

    Raises:
      SnapshotError: there are snapshots, and all are damaged; from the start it would replace them.
    """
    content = read_page(ledger)
    epoch = max(start_point.epoch, content.epoch if content is not None else 0) + 1
    store = SnapshotStore(snapshots)
    if not store.versions():
        return dataclasses.replace(start_point, epoch=epoch), []
    version, broken = newest_good(store)
    meta = store.meta(version)
    number, env_steps = version_updates(version), int(meta.get("env_steps", 0))
    unmade = number - int(meta["updates"])
    return StartPoint(epoch, number, f"{store.folder}@{version}", env_steps=env_steps, unmade=unmade), broken
