"""The environments of an actor: made from its job, with a journal; logs each rebuilt environment."""

from __future__ import annotations

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.metrics.metrics import Recorder
from jsrl.workers.actor.journaled import journaled
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job


def make_group(job: Job, group: int, reporter: Reporter, recorder: Recorder) -> VectorEnv | VectorGame:
    """Return a group's environments; each rebuilt one is reported and counted."""
    e = job.experiment

    def warn(text: str) -> None:
        recorder.count("env_faults")
        reporter.event("warning", f"group {group}: {text}")

    env = make(e.env, e.group_size, job.incarnation_seed, group=group, groups=job.seat_groups or None, warn=warn)
    return journaled(job, group, env, reporter)
