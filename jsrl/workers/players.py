"""Parts of workers that play or train with jax: the agent, the policies that are played, the store of snapshots."""

from __future__ import annotations

import functools
from typing import Any

from jsrl.services.snapshots.queue import Job as WrittenJob
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.workers.acting import make_agent
from jsrl.workers.base import Reporter
from jsrl.workers.ends import subscribe
from jsrl.workers.jobs import Job
from jsrl.workers.play import PlayedPolicy


def one_per_group(job: Job) -> list[Job]:
    """Return the jobs of the policies that play all seats: the own one first, then one for each group of other seats."""
    of_group: dict[str, Job] = {}
    for one in job.by_policy:
        of_group.setdefault(one.part.seat_group, one)
    return list(of_group.values())


def played_policies(job: Job) -> list[PlayedPolicy]:
    return [
        PlayedPolicy(
            make_agent(one),
            one.schemas.env,
            functools.partial(subscribe, one),
            one.experiment.seed + 1,
            one.view,
            one.policy,
        )
        for one in one_per_group(job)
    ]


def common_player_settings(job: Job) -> dict[str, Any]:
    """Return the common fields of PlayerSettings for evaluator and video recorder."""
    e = job.experiment
    return {
        "name": job.name,
        "seed": e.seed,
        "env_steps_per_batch": e.env_steps_per_batch,
        "updates_per_batch": e.updates_per_batch,
        "start_updates": job.start_point.updates,
        "max_steps": e.evaluator.max_steps,
        "max_s": e.deadlines.evaluation_s,
    }


def snapshot_store(job: Job, reporter: Reporter, name: str = "state", *, keep_last: int = 3) -> SnapshotStore:
    """Return a store of the policy's snapshots, which reports what was written.

    Args:
      name: `state` (what a resume begins with), or `params` (`best`). keep_last: newest snapshots that it keeps.
    """

    def report(written: WrittenJob) -> None:
        reporter.event("saved", store=name, version=written.version, tags=list(written.tags))

    warn = functools.partial(reporter.event, "warning", once="snapshots")
    return SnapshotStore(job.snapshots / name, keep_last=keep_last, on_warning=warn, on_written=report)
