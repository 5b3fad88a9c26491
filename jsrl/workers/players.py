"""Parts of workers that act with jax: the agent, its params, and the inline client of actors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jsrl.agents.base import Agent
from jsrl.experiment.building import build_agent
from jsrl.metrics.phases import Phases
from jsrl.runs.limits import MIB
from jsrl.snapshots.queue import Job as WrittenJob
from jsrl.snapshots.store import SnapshotStore
from jsrl.workers.acting import Engine
from jsrl.workers.base import Reporter
from jsrl.workers.ends import subscribe
from jsrl.workers.frozen import FrozenParams
from jsrl.workers.inline import FrozenInline, InlineInference
from jsrl.workers.jobs import Job, WorkerJob
from jsrl.workers.play import PlayedPolicy


def make_agent(job: Job) -> Agent:
    return build_agent(job.experiment.agent, job.schemas.env)


def frozen_players(job: Job, *, background: bool) -> Callable[..., FrozenParams] | None:
    """Return the function that makes the frozen players of an engine; None: the run has none."""
    if job.experiment.director is None:
        return None
    load, max_bytes = job.players.load, job.experiment.inference.frozen_mb * MIB
    return functools.partial(FrozenParams, load, max_bytes=max_bytes, background=background)


def inline_client(job: Job, group_sizes: dict[int, int], phases: Phases) -> InlineInference:
    return InlineInference(_actors_engine(job, group_sizes), subscribe(job), group_sizes, phases)


def frozen_inline(job: Job, group_sizes: dict[int, int], phases: Phases) -> FrozenInline:
    """Return the client whose frozen players act in the actor's own process; it needs a server for the others."""
    return FrozenInline(_actors_engine(job, group_sizes), group_sizes, phases)


def _actors_engine(job: Job, group_sizes: dict[int, int]) -> Engine:
    engine = Engine(
        make_agent(job),
        job.schemas.env,
        num_slots=sum(group_sizes.values()),
        sizes=[*group_sizes.values()],
        seed=job.incarnation_seed,
        policy=job.policy_number,
        policy_name=job.policy,
        frozen=frozen_players(job, background=False),
    )
    engine.warm_up()
    return engine


def played_policies(job: Job) -> list[PlayedPolicy]:
    """Return the policies that a player plays: its own first, then one for each group of other seats."""
    of_group: dict[str, Job] = {}
    for part in job.by_policy:
        of_group.setdefault(part.seat_group, part)
    return [
        PlayedPolicy(
            make_agent(part),
            part.schemas.env,
            functools.partial(subscribe, part),
            part.experiment.seed + 1,
            part.view,
            part.policy,
        )
        for part in of_group.values()
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
        "step_deadline_s": e.actor.step_deadline_s,
        "max_steps": e.evaluator.max_steps,
        "max_s": e.deadlines.evaluation_s,
    }


def snapshot_store(job: WorkerJob, reporter: Reporter, name: str = "state", *, keep_last: int = 3) -> SnapshotStore:
    """Return a store of the policy's snapshots, which reports what was written.

    Args:
      name: `state` (what a resume begins with), or `params` (`best`). keep_last: newest snapshots that it keeps.
    """

    def report(written: WrittenJob) -> None:
        reporter.event("saved", store=name, version=written.version, tags=list(written.tags))

    warn = functools.partial(reporter.event, "warning", once="snapshots")
    return SnapshotStore(job.snapshots / name, keep_last=keep_last, on_warning=warn, on_written=report)
