"""Building actors. Never imports jax."""

from __future__ import annotations

from functools import partial

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.references.importing import import_target, shown_target
from jsrl.services.metrics.metrics import Meter
from jsrl.workers.actor.policies import ActingPolicy, PolicySettings
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.attached.journaled import journaled
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter

# imported only where a run records, or has a director
RECORDER = "jsrl.workers.attached.recording:recording_writer"
ASSIGNMENTS = "jsrl.workers.attached.selfplay:assignments_of"


def build_actor(job: Job, reporter: Reporter) -> Actor:
    e, parts = job.experiment, job.by_policy
    settings = ActorSettings(
        num_rows=e.rollout_length,
        incarnation=job.incarnation,
        step_deadline_s=e.actor.step_deadline_s,
        poll_s=job.poll_s,
        environment=shown_target(e.env.id),
        makes=e.group_size,
        most_ahead=e.actor.blocks_per_group - 1 if any(part.experiment.order == "by_group" for part in parts) else None,
        connects="compiling act" if job.in_process else "connecting to streams",
    )
    meter = make_meter(job)
    groups = job.end("samples").groups
    environments = {group: partial(make_group, job, group, reporter, meter) for group in groups}
    writer = None if e.record is None else import_target(RECORDER)(job, meter, reporter)
    assignments = None if e.director is None else import_target(ASSIGNMENTS)(job, reporter)
    policies = [_policy(part, meter) for part in parts]
    return Actor(job.name, settings, environments, policies, reporter, meter, writer, assignments)


def _policy(job: Job, meter: Meter) -> ActingPolicy:
    e = job.experiment
    settings = PolicySettings(
        number=job.policy_number,
        view=job.view,
        max_lag=e.min_updates_lag,
        start_updates=job.start_point.updates,
        updates_per_batch=e.updates_per_batch,
        total_updates=e.last_number,
        acts_here=not job.has("inference"),
    )
    streams = ActorStreams(job, meter)
    return ActingPolicy(
        settings, streams.open, None if job.in_process else streams
    )  # in one process no worker is replaced


def make_group(job: Job, group: int, reporter: Reporter, meter: Meter) -> VectorEnv | VectorGame:
    """Return a group's environments; each rebuilt one is reported and counted."""
    e = job.experiment

    def warn(text: str) -> None:
        meter.count("env_faults")
        reporter.event("warning", f"group {group}: {text}")

    env = make(e.env, e.group_size, job.incarnation_seed, group=group, groups=job.seat_groups or None, warn=warn)
    return journaled(job, group, env, reporter)
