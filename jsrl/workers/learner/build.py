"""Building a learner: its part among its ranks, the agent, the update, the source of its batches, and what attaches to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from jsrl.agents.base import Agent, AgentState, adopt
from jsrl.fields import filled
from jsrl.references.importing import import_target
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger, SampleConsumer
from jsrl.transport.ledger.legs import ledger_path, leg_folder
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.stream import generation_at
from jsrl.types import Tree, named_leaves, spec_of
from jsrl.workers.acting import INIT_STREAM, stream_key
from jsrl.workers.base import Refusals, Reporter, snapshot_store
from jsrl.workers.ends import bind_publisher, bind_reader
from jsrl.workers.jobs import Job, StartPoint, check_params
from jsrl.workers.kinds import make_meter
from jsrl.workers.learner.batching import Batcher, BatchPlan, by_lag, of_another_policy
from jsrl.workers.learner.build_updater import make_updater, missed_ratio, trained_agent, unseen_rows
from jsrl.workers.learner.checks import CountsItself, FiniteCheck
from jsrl.workers.learner.outlet import Outlet
from jsrl.workers.learner.seams import Gate, Lifecycle, Source
from jsrl.workers.learner.worker import Learner, LearnerSettings

# imported only where a learner has ranks, a director (or keeps its first params), reads a recording, or has replay
PREFETCHED = "jsrl.workers.attached.prefetched:Prefetched"
PART = "jsrl.workers.attached.ranks:part_of"
NO_OUTLET = "jsrl.workers.attached.ranks:NoOutlet"
ONLY_FINITE = "jsrl.workers.attached.ranks:OnlyFinite"
DIRECTED = "jsrl.workers.attached.directed:director_gate"
RECORDED = "jsrl.workers.attached.recorded:from_recording"
REPLAYED = "jsrl.workers.learner.replayed:from_replay"


class LearnerStart(NamedTuple):
    """The starting point of this learner process.

    Attributes:
      generation: of this process. trained: trajectories that the restored state was trained on. ledger: over all incarnations.
      saved_generation: of the restored snapshot. meta: its metadata, with those of gates.
    """

    generation: int
    trained: int
    ledger: Ledger
    saved_generation: int | None = None
    meta: Mapping[str, Any] = MappingProxyType({})


def build_learner(job: Job, reporter: Reporter) -> Learner:
    """Return the learner of a job, or one of its ranks."""
    if job.has("ranks"):
        job, start, lifecycle = import_target(PART)(job, reporter)  # before anything else uses jax
    else:
        start, lifecycle = start_of(job), Lifecycle()
    e, meter, key = job.experiment, make_meter(job), stream_key(job.experiment.seed, INIT_STREAM)
    agent = trained_agent(with_total(job), job.schemas.env, job.part.hyperparameters)
    updater, devices = make_updater(agent, job)
    gates: list[Gate] = [CountsItself(e.updates_per_call)]
    if lifecycle.leads:
        outlet = open_outlet(job, meter, reporter)
        gates = [*gates_of(job, start, updater, reporter), *gates]
    else:
        outlet = import_target(NO_OUTLET)(meter)

    def begin() -> Any:
        fresh = functools.partial(updater.fresh, key)
        if job.start_point.restore:
            return updater.place(restore_state(job.start_point, updater.agent, fresh))
        return updater.place(jax.device_get(jax.jit(fresh)())) if job.has("ranks") else updater.make(key)

    def connect() -> Source:
        return lifecycle.shared(make_source(job, devices, start, meter, reporter))

    return Learner(updater, begin, connect, outlet, settings_of(job, start), reporter, gates, lifecycle)


def open_outlet(job: Job, meter: Meter, reporter: Reporter) -> Outlet:
    """Return the outlet of a learner that publishes, and show warnings about its replay."""
    for warning in filter(None, (missed_ratio(job.experiment), unseen_rows(job))):
        reporter.event("warning", warning)
    store = snapshot_store(job, reporter, keep_last=max(3, job.experiment.snapshots.keep))
    return Outlet(functools.partial(bind_publisher, job, "params"), store, reporter, meter)


def settings_of(job: Job, start: LearnerStart) -> LearnerSettings:
    e = job.experiment
    return LearnerSettings(
        total_env_steps=e.total_env_steps,
        generation=start.generation,
        start_updates=job.start_point.updates,
        start_unmade=job.start_point.unmade,
        start_trained=start.trained,
        updates_per_call=e.updates_per_call,
        calls_per_batch=e.learner.reuse,
        snapshot_period_s=e.snapshots.period_s,
        poll_s=job.poll_s,
        shares_rows=job.run.shares_environments
        or (job.has("samples") and job.end("samples").stream.routing == "broadcast"),
        name=job.name,
        ages="window_age" if e.has_replay_workers else "policy_lag",
        drains=job.run.shares_environments and e.is_deterministic and not job.has("ranks"),
    )


def with_total(job: Job) -> Any:
    """Return the experiment of a job, whose agent knows the updates of the whole run, earlier starts included."""
    e = job.experiment
    if (
        getattr(e.agent, "total_updates", None) != e.total_updates
    ):  # the user's own number; else the plan has filled it in
        return e
    return filled(e, agent=filled(e.agent, total_updates=job.total_updates))


def gates_of(job: Job, start: LearnerStart, updater: Any, reporter: Reporter) -> list[Gate]:
    e, gates = job.experiment, list[Gate]()
    if e.director is not None or job.run.keeps_initial:
        gates.append(import_target(DIRECTED)(job, start, updater, reporter))
    if e.learner.split == "none":  # else each side checks its own updates
        ranks = e.learner.num_ranks > 1
        gates.append(import_target(ONLY_FINITE)() if ranks else FiniteCheck(updater, Path(job.folder), job.part.folder))
    return gates


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


def make_source(job: Job, devices: int, start: LearnerStart, meter: Meter, reporter: Reporter) -> Source:
    """Return the source of a job, bound; `devices`: number of devices that share a batch."""
    prefetch = not job.in_process
    phases = meter.thread("prefetch") if prefetch else meter.phases

    def ask(batch: int, each: Mapping[int, int]) -> None:
        number, pairs = job.policy_number, list(each.items())
        reporter.event("stand_in", policy=number, generation=start.generation, batch=batch, each=pairs)

    options = {"phases": phases, "refusals": Refusals(job.name, reporter), "ask": ask}
    source = source_of(job)(job, batch_plan(job, devices, start.generation), start, options)
    return import_target(PREFETCHED)(source, phases) if prefetch else source


def source_of(job: Job) -> Callable[[Job, BatchPlan, LearnerStart, dict[str, Any]], Source]:
    """Return what makes the source of a job, with options of Batcher."""
    if job.experiment.recording is not None:
        return import_target(RECORDED)
    return from_actors if job.experiment.buffer is None else import_target(REPLAYED)


def batch_plan(job: Job, devices: int, generation: int) -> BatchPlan:
    e = job.experiment
    return BatchPlan(
        order=e.order,
        groups=job.end("samples").groups if job.has("samples") else (0,),
        group_size=e.group_size,
        columns=e.batch_columns // e.learner.num_ranks,
        num_rows=e.rollout_length,
        devices=devices,
        env_steps=e.rows_per_update,
        max_lag=e.max_policy_lag if e.buffer is None else None,
        reuse=e.updates_per_batch,
        start_updates=job.start_point.updates,
        generation=generation,
        judge=by_lag if of_own_policy(job) else of_another_policy,
    )


def of_own_policy(job: Job) -> bool:
    """Return whether the writers of a learner's samples act with its params, so that versions give the age of rows."""
    return not job.has("samples") or job.end("samples").stream.policy == job.policy


def from_actors(job: Job, plan: BatchPlan, start: LearnerStart, options: dict[str, Any]) -> Source:
    spec = job.schemas.trajectory
    return Batcher(bind(job, spec, start), spec, plan, **options)


def bind(job: Job, schema: Tree, start: LearnerStart) -> SampleConsumer:
    """Return the reading end of the learner's samples; first announces the generation to those that wait for its params."""
    if of_own_policy(job):
        job.announce(generation_at(job.end("samples").stream.name, job.name), str(start.generation))
    return bind_reader(job, "samples", schema, start.ledger)


def start_of(job: Job) -> LearnerStart:
    """Return the starting point of a learner.

    The generation on disk rises at each start, even if no snapshot was written since the last one, so that no two incarnations
    of the learner publish under the same version.
    """
    saved, meta = None, dict[str, Any]()
    if job.start_point.restore and not job.start_point.params_only:
        folder, _, selector = job.start_point.restore.rpartition("@")
        meta = SnapshotStore(folder).meta(selector)
        saved = meta["ledger"] | {"generation": meta["generation"]} if "ledger" in meta else None
    trained, saved_generation = (int(saved["trained"]), int(saved["generation"])) if saved else (0, None)
    generation, ledger = count_on(job, saved)
    return LearnerStart(generation, trained, ledger, saved_generation, meta)


def count_on(job: Job, saved: dict[str, Any] | None) -> tuple[int, Ledger]:
    """Return (new generation, ledger of the worker's input); `saved`: ledger of the restored snapshot, see open_ledger."""
    run = Path(job.folder)
    path, leg = ledger_path(run, job.input_leg), leg_folder(run, job.input_leg)
    return open_ledger(path, job.start_point.generation, saved, leg=leg)
