"""A rank of a learner: makes the same updates as the learner, on its own devices, with its own share of each batch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jsrl.services.runs.control_bodies import Command
from jsrl.workers.acting import INIT_STREAM, stream_key
from jsrl.workers.attached.agreement import RankStart
from jsrl.workers.attached.ranks import Follower, own_devices
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job, StartPoint
from jsrl.workers.kinds import make_meter
from jsrl.workers.learner.build_source import LearnerStart, count_on, make_source
from jsrl.workers.learner.build_updater import make_updater, trained_agent
from jsrl.workers.learner.sources import Source, SynchronizedSource
from jsrl.workers.learner.updaters import no_check
from jsrl.workers.learner.worker import Learner, LearnerSettings


class Rank(Learner):
    """Trains like the learner; only the learner publishes params, writes snapshots and reports the updates' metrics."""

    _counts_rows = False  # the learner counts the rows of all ranks
    _source: SynchronizedSource
    _ranks: Follower

    def _publish(self, params: Any) -> None:
        pass

    def _note(self, metrics: dict[str, float]) -> None:
        pass

    def _report_finished(self) -> None:
        pass

    def save(self, *, wait: bool, tags: tuple[str, ...] = ()) -> None:
        """Write nothing."""

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        self._meter.last("queue_depth", self._source.pending())
        for name, count in self._source.counts.items():
            self._meter.last(name, count)
        return self._meter.flush(), {}

    def command(self, command: Command) -> None:
        """Execute `absent`: the other commands are for the learner."""
        if command.name == "absent":
            super().command(command)

    def close(self) -> dict[str, Any]:
        """Leave the learner, after the update that may be running."""
        while (batch := self._source.last()) is not None:
            self._train_on(batch)
        self._ranks.leave()
        self._updater.close()
        self._open.close()
        return {}


def build_rank(job: Job, reporter: Reporter) -> Rank:
    """Return the rank of a job, once the processes of all ranks have joined."""
    nothing: Any = None  # it publishes and writes none
    e, ranks = job.experiment, Follower(job)
    begins = ranks.join(own_devices(e))
    job = dataclasses.replace(job, start_point=StartPoint(begins.epoch, begins.updates))
    agent = trained_agent(e, job.schemas.env, job.hyperparameters)
    updater, _, devices = make_updater(agent, job)
    start, meter = begin_counting(job, begins), make_meter(job)
    fresh = functools.partial(updater.fresh, stream_key(e.seed, INIT_STREAM))

    def begin() -> Any:
        shapes = jax.eval_shape(fresh)
        return updater.place(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))

    def connect() -> tuple[Source, Any]:
        return SynchronizedSource(make_source(job, devices, start, meter, reporter), ranks), nothing

    settings = LearnerSettings(
        seed=e.seed,
        total_env_steps=e.total_env_steps,
        epoch=start.epoch,
        start_updates=begins.updates,
        start_trained=start.trained,
        updates_per_call=e.updates_per_call,
        calls_per_batch=e.learner.reuse,
        poll_s=job.poll_s,
        shares_rows=job.plays_along or job.end("samples").stream.routing == "broadcast",
        name=job.name,
    )
    return Rank(updater, begin, connect, no_check, nothing, settings, reporter, meter, ranks=ranks)


def begin_counting(job: Job, begins: RankStart) -> LearnerStart:
    """Return the counters that a rank starts from: as many trajectories as the learner, from its own share."""
    saved = None
    if begins.saved_epoch is not None:
        trained = begins.trained
        saved = {"epoch": begins.saved_epoch, "consumed": trained, "dropped": {}, "trained": trained}
    _, ledger = count_on(job, saved)
    return LearnerStart(begins.epoch, begins.trained, ledger)
