"""Building a learner's source: the stream or recording that its batches come from, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jsrl.references.importing import import_target
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger, SampleConsumer
from jsrl.transport.ledger.hops import hop_folder, ledger_path
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.stream import epoch_at
from jsrl.types import Trajectory, Tree
from jsrl.workers.base import Refusals, Reporter
from jsrl.workers.ends import bind_reader
from jsrl.workers.jobs import Job
from jsrl.workers.learner.batching import Batcher, BatchPlan, by_lag, of_another_policy
from jsrl.workers.learner.sources import FromStream, IntoRing, Prefetched, Source

# imported only where the learner reads a recording, or has replay workers
RECORDED = "jsrl.workers.learner.recorded:from_recording"
REPLAYED = "jsrl.workers.learner.replay_link:from_replay"
Join = Callable[[SampleConsumer, Trajectory, BatchPlan], Batcher]


class LearnerStart(NamedTuple):
    """The starting point of this learner process.

    Attributes:
      epoch: of this process. trained: trajectories that the restored state was trained on. ledger: over all incarnations.
      saved_epoch: of the restored snapshot. directed: its metadata, with that of DirectorLink.
    """

    epoch: int
    trained: int
    ledger: Ledger
    saved_epoch: int | None = None
    directed: Mapping[str, Any] = MappingProxyType({})


def make_source(job: Job, devices: int, start: LearnerStart, meter: Meter, reporter: Reporter) -> Source:
    """Return the source of a job, bound; `devices`: number of devices that share a batch."""
    prefetch = not job.in_process
    phases = meter.thread("prefetch") if prefetch else meter.phases
    refusals = Refusals(job.name, reporter)

    def ask(batch: int, each: Mapping[int, int]) -> None:
        number, pairs = job.policy_number, list(each.items())
        reporter.event("stand_in", policy=number, epoch=start.epoch, batch=batch, each=pairs)

    def join(consumer: SampleConsumer, spec: Trajectory, plan: BatchPlan) -> Batcher:
        return Batcher(consumer, spec, plan, phases, refusals, ask)

    source = source_of(job)(job, batch_plan(job, devices, start.epoch), start, join)
    return Prefetched(source, phases) if prefetch else source


def source_of(job: Job) -> Callable[[Job, BatchPlan, LearnerStart, Join], Source]:
    if job.experiment.recording is not None:
        return import_target(RECORDED)
    if job.has("priorities"):
        return import_target(REPLAYED)
    return from_actors if job.experiment.buffer is None else into_ring


def batch_plan(job: Job, devices: int, epoch: int) -> BatchPlan:
    e = job.experiment
    return BatchPlan(
        order=e.order,
        groups=job.end("samples").groups if job.has("samples") else (0,),
        group_size=e.group_size,
        columns=e.batch_columns // e.learner.num_ranks,
        num_rows=e.rollout_length,
        devices=devices,
        max_lag=e.max_policy_lag if e.buffer is None else None,
        reuse=e.updates_per_batch,
        start_updates=job.start_point.updates,
        epoch=epoch,
        judge=by_lag if of_own_policy(job) else of_another_policy,
    )


def of_own_policy(job: Job) -> bool:
    """Return whether the writers of a learner's samples act with its params, so that versions give the age of rows."""
    return not job.has("samples") or job.end("samples").stream.policy == job.policy


def from_actors(job: Job, plan: BatchPlan, start: LearnerStart, join: Join) -> Source:
    spec = job.schemas.trajectory
    consumer = bind(job, spec, start)
    return FromStream(join(consumer, spec, plan), consumer, job.experiment.rows_per_update, plan.reuse)


def into_ring(job: Job, plan: BatchPlan, start: LearnerStart, join: Join) -> Source:
    e, spec = job.experiment, job.schemas.trajectory
    assert e.buffer is not None
    consumer, windows = bind(job, spec, start), e.buffer.batch_size * e.updates_per_call
    return IntoRing(join(consumer, spec, plan), consumer, e.rows_per_update, plan.reuse, windows)


def bind(job: Job, schema: Tree, start: LearnerStart) -> SampleConsumer:
    """Return the reading end of the learner's samples; first announces the epoch to those that wait for its params."""
    if of_own_policy(job):
        job.announce(epoch_at(job.end("samples").stream.name, job.name), str(start.epoch))
    return bind_reader(job, "samples", schema, start.ledger)


def begin_counting(job: Job) -> LearnerStart:
    """Return the starting point of a learner.

    The epoch on disk rises at each start, even if no snapshot was written since the last one, so that no two incarnations
    of the learner publish under the same version.
    """
    saved, meta = None, dict[str, Any]()
    if job.start_point.restore and not job.start_point.params_only:
        folder, _, selector = job.start_point.restore.rpartition("@")
        meta = SnapshotStore(folder).meta(selector)
        saved = meta["ledger"] | {"epoch": meta["epoch"]} if "ledger" in meta else None
    trained, saved_epoch = (int(saved["trained"]), int(saved["epoch"])) if saved else (0, None)
    epoch, ledger = count_on(job, saved)
    return LearnerStart(epoch, trained, ledger, saved_epoch, meta)


def count_on(job: Job, saved: dict[str, Any] | None) -> tuple[int, Ledger]:
    """Return (new epoch, ledger of the worker's input); `saved`: ledger of the restored snapshot, see open_ledger."""
    run = Path(job.folder)
    path, hop = ledger_path(run, job.input_hop), hop_folder(run, job.input_hop)
    return open_ledger(path, job.start_point.epoch, saved, hop=hop)
