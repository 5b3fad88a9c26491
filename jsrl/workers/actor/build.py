"""Building actors. Never imports jax."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.references.importing import import_target, shown_target
from jsrl.services.metrics.metrics import Meter
from jsrl.workers.actor.kind import loads_jax
from jsrl.workers.actor.lineup import Tap
from jsrl.workers.actor.policies import ActingPolicy
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.attached.journaled import journaled
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter

# attached only where they are wanted
RECORDING = "jsrl.workers.attached.recording:recording_writer"
DIRECTED_LINEUP = "jsrl.workers.attached.selfplay:directed_lineup"
TRAINED_SHARE = "jsrl.workers.attached.selfplay:TrainedShare"


def build_actor(job: Job, reporter: Reporter) -> Actor:
    e, parts = job.experiment, job.by_policy
    settings = ActorSettings(
        num_rows=e.rollout_length,
        incarnation=job.incarnation,
        poll_s=job.poll_s,
        environment=shown_target(e.env.id),
        makes=e.group_size,
        max_ahead=e.actor.blocks_per_group - 1 if any(part.experiment.order == "by_group" for part in parts) else None,
        connects="compiling act" if job.in_process else "connecting to streams",
    )
    meter = make_meter(job)
    environments = {group: partial(make_group, job, group, reporter, meter) for group in job.end("samples").groups}
    taps = [list[Tap]() for _ in parts]
    if e.director is not None:
        for taps_of_policy in taps:
            taps_of_policy.append(import_target(TRAINED_SHARE)(meter))
    if e.record is not None:
        taps[0].append(import_target(RECORDING)(job, meter, reporter))
    policies = [_policy(part, meter, of_policy) for part, of_policy in zip(parts, taps, strict=True)]
    lineup = None if e.director is None else import_target(DIRECTED_LINEUP)(job, reporter)
    return Actor(job.name, settings, environments, policies, reporter, meter, lineup)


def _policy(job: Job, meter: Meter, taps: Sequence[Tap]) -> ActingPolicy:
    e = job.experiment
    return ActingPolicy(
        ActorStreams(job, meter),
        number=job.policy_number,
        view=job.view,
        max_lag=e.min_updates_lag,
        start_updates=job.start_point.updates,
        updates_per_batch=e.updates_per_batch,
        total_updates=e.last_number,
        acts_here=not job.has("inference"),
        taps=taps,
    )


def make_group(job: Job, group: int, reporter: Reporter, meter: Meter) -> VectorEnv | VectorGame:
    """Return a group's environments; each rebuilt one is reported and counted."""
    e = job.experiment

    def warn(text: str) -> None:
        meter.count("env_faults")
        reporter.event("warning", f"group {group}: {text}")

    note = partial(reporter.event, "warning") if group == 0 else None  # one of the run is enough
    groups = job.seat_groups or None
    env = make(e.env, e.group_size, job.incarnation_seed, group=group, groups=groups, warn=warn, note=note)
    if "jax" in sys.modules and not (job.in_process or loads_jax(job)):
        reporter.event(
            "warning",
            "the environment imported jax, which costs each process about 150 MB and slows its start; "
            "keep jax out of the modules that environments import.",
            once="jax",
        )
    return journaled(job, group, env, reporter)
