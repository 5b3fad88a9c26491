"""Building the learner: the updater, the restored state, the streams."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from jsrl.agents.base import Agent, AgentState, adopt
from jsrl.references.importing import import_target
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import ParamsPublisher
from jsrl.types import named_leaves, spec_of
from jsrl.workers.acting import INIT_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.ends import bind_publisher
from jsrl.workers.jobs import Job, StartPoint, check_params
from jsrl.workers.kinds import make_meter
from jsrl.workers.learner.build_source import begin_counting, make_source
from jsrl.workers.learner.build_updater import make_updater, missed_ratio, trained_agent, unseen_rows
from jsrl.workers.learner.sources import ONE_RANK, RANKS, OneRank, Source, SynchronizedSource
from jsrl.workers.learner.updaters import NO_DIRECTOR
from jsrl.workers.learner.worker import Learner, LearnerSettings
from jsrl.workers.players import snapshot_store

if TYPE_CHECKING:
    from jsrl.workers.attached.ranks import RankLink

# imported only where a run has a director, or keeps its first params
DIRECTED = "jsrl.workers.attached.directed:director_commands"


def build_learner(job: Job, reporter: Reporter) -> Learner:
    e, start = job.experiment, begin_counting(job)
    ranks: RankLink | OneRank = ONE_RANK
    if job.has(RANKS):
        ranks = import_target("jsrl.workers.attached.ranks:lead")(job, start)  # before anything else uses jax
    trained = e
    if getattr(e.agent, "total_updates", None) == e.total_updates:  # filled in for a run without a resume
        trained = dataclasses.replace(e, agent=dataclasses.replace(e.agent, total_updates=job.total_updates))
    agent = trained_agent(trained, job.schemas.env, job.hyperparameters)
    updater, check, devices = make_updater(agent, job)
    for warning in filter(None, (missed_ratio(e), unseen_rows(job))):
        reporter.event("warning", warning)
    meter = make_meter(job)
    key = stream_key(e.seed, INIT_STREAM)

    def begin() -> Any:
        fresh = functools.partial(updater.fresh, key)
        if job.start_point.restore:
            return updater.place(restore_state(job.start_point, agent, fresh))
        return updater.make(key) if isinstance(ranks, OneRank) else updater.place(jax.device_get(jax.jit(fresh)()))

    def connect() -> tuple[Source, ParamsPublisher]:
        source = make_source(job, devices, start, meter, reporter)
        shared = source if isinstance(ranks, OneRank) else SynchronizedSource(source, ranks)
        return shared, bind_publisher(job, "params")

    store = snapshot_store(job, reporter, keep_last=max(3, e.snapshots.keep))
    settings = LearnerSettings(
        seed=e.seed,
        total_env_steps=e.total_env_steps,
        epoch=start.epoch,
        start_updates=job.start_point.updates,
        start_unmade=job.start_point.unmade,
        start_trained=start.trained,
        updates_per_call=e.updates_per_call,
        calls_per_batch=e.learner.reuse,
        snapshot_period_s=e.snapshots.period_s,
        poll_s=job.poll_s,
        shares_rows=job.plays_along or (job.has("samples") and job.end("samples").stream.routing == "broadcast"),
        name=job.name,
        ages="window_age" if e.has_replay_workers else "policy_lag",
        drains=job.plays_along and e.is_deterministic and isinstance(ranks, OneRank),
    )
    directed = NO_DIRECTOR
    if e.director is not None or job.keeps_initial:
        directed = import_target(DIRECTED)(job, start, agent, updater, reporter)
    return Learner(updater, begin, connect, check, store, settings, reporter, meter, directed, ranks)


def restore_state(start_point: StartPoint, agent: Agent, fresh: Callable[[], AgentState]) -> AgentState:
    """Return the first state of a run: a snapshot's, or a fresh one with a snapshot's params."""
    folder, _, selector = str(start_point.restore).rpartition("@")
    store = SnapshotStore(folder)
    if not start_point.params_only:
        return store.load(selector, template={"state": jax.eval_shape(fresh)}).tree["state"]
    loaded = store.load(selector).tree
    params = loaded["params"] if "params" in loaded else loaded["state"]["params"]
    state = jax.device_get(jax.jit(fresh)())
    wanted, given = dict(named_leaves(spec_of(state.params))), dict(named_leaves(spec_of(params)))
    check_params(start_point, wanted, given)
    found = dict(named_leaves(params))  # tuples were saved as dicts, whose leaves have another order
    return adopt(agent, state, jax.tree.unflatten(jax.tree.structure(state.params), [found[name] for name in wanted]))
