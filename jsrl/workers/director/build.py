"""Building the director's worker. Never imports jax."""

from __future__ import annotations

import functools
from pathlib import Path

from jsrl.experiment.policies import wants_scores
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.workers.base import Reporter
from jsrl.workers.director.in_order import OrderSettings
from jsrl.workers.director.state_file import FOLDER, StateFile
from jsrl.workers.director.worker import DirectorWorker
from jsrl.workers.jobs import STARTS_PER_GENERATION, Job
from jsrl.workers.kinds import make_meter


def build_director(job: Job, reporter: Reporter) -> DirectorWorker:
    e, start = job.experiment, job.start_point
    first = job.run.policies[0]
    players = {
        policy: PlayerStore(Path(job.folder, PLAYERS_FOLDER, "" if policy == first else policy))
        for policy in job.run.policies
    }
    resumes = start.restore is not None and not start.params_only and not job.incarnation
    warn = functools.partial(reporter.event, "warning", once="director")
    states = StateFile(Path(job.folder, FOLDER), start.updates if resumes else None, warn)
    assert job.run.sides is not None
    return DirectorWorker(
        job.name,
        e.director,
        e.seed,
        players,
        states,
        reporter,
        make_meter(job),
        session=job.incarnation + STARTS_PER_GENERATION * start.generation,
        exact=resumes and start.journal_generation is not None,
        poll_s=job.poll_s,
        check=job.run.sides.check,
        order=_order(job) if e.is_deterministic else None,
    )


def _order(job: Job) -> OrderSettings:
    e = job.experiment
    return OrderSettings(
        groups=e.groups,
        learners=len(job.run.policies) if wants_scores(e.director) else 0,
        rows=e.rollout_length,
        begun=job.start_point.updates // e.updates_per_batch,
        updates=e.updates_per_batch,
    )
