"""Building the replay worker: its share of the rows, the limiter, its streams. No jax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jsrl.replay.host.files import load_replay
from jsrl.replay.host.limiter import make_limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.host.rows import rows_shape, windows_spec
from jsrl.runs.names import Registration
from jsrl.transport.base import SampleProducer
from jsrl.transport.ledger.hops import ledger_path
from jsrl.transport.ledger.page import read_page
from jsrl.transport.meeting.handshake import Check
from jsrl.transport.samples.replay_batch import priorities_spec, replay_batch_spec
from jsrl.workers.base import Reporter
from jsrl.workers.ends import begin_counting, bind_reader, connect_writer, find_readers
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.peers import meet_present
from jsrl.workers.replay.worker import FOLDER, ReplaySettings, ReplayStreams, ReplayWorker


def build_replay(job: Job, reporter: Reporter) -> ReplayWorker:
    e, config, spec = job.experiment, job.experiment.buffer, job.schemas.trajectory
    assert config is not None
    samples = job.end("samples")
    mine, every = len(samples.groups), len(samples.stream.groups)
    (number,) = job.end("batches").groups
    shape = rows_shape(
        spec,
        lanes=mine,
        capacity=max(1, config.capacity * mine // every),
        window=config.window,
        frames=job.schemas.env.frames,
    )
    replay = HostReplay(
        shape,
        spec,
        prioritised=config.prioritised,
        alpha=config.alpha,
        epsilon=config.epsilon,
        seed=job.incarnation_seed,
        replay=number,
        incarnation=job.incarnation,
    )
    share = mine / every
    limiter = make_limiter(
        max(1, round(config.min_size * share)),
        config.samples_per_insert,
        config.tolerance,
        insert_size=shape.lanes * shape.num_rows * shape.group_size,
        draw_size=2 * config.batch_size * e.updates_per_call,
        waiting=job.end("batches").stream.blocks * config.batch_size,
    )
    settings = ReplaySettings(
        index=number,
        groups=samples.groups,
        batch_size=config.batch_size,
        threads=0 if job.in_process else config.threads,
        beta=config.beta,
        beta_end=config.beta_end,
        total_env_steps=max(1, round(e.total_env_steps * share)),
        folder=f"{job.folder}/{FOLDER}/{number}",
        save_rows=config.save,
        period_s=e.snapshots.period_s,
        poll_s=job.poll_s,
    )
    if job.incarnation or (job.start_point.restore is not None and not job.start_point.params_only):
        load_replay(Path(settings.folder), replay, limiter)
    if job.incarnation and (page := read_page(ledger_path(Path(job.folder), samples.hop))) is not None:
        limiter.count_lost(page.ledger.consumed * shape.num_rows * shape.group_size)
    return ReplayWorker(job.name, settings, replay, limiter, _connect(job), reporter, make_meter(job))


def _connect(job: Job) -> Callable[[], ReplayStreams]:
    config = job.experiment.buffer
    assert config is not None

    def connect() -> ReplayStreams:
        size = config.batch_size
        rows = bind_reader(job, "samples", job.schemas.trajectory, begin_counting(job, "samples"))
        priorities = bind_reader(job, "priorities", priorities_spec(size))
        windows = windows_spec(job.schemas.trajectory, window=config.window, number=size, weighted=config.prioritised)

        def connect_batches(found: Registration, timeout_s: float, check: Check = lambda: None) -> SampleProducer:
            schema = replay_batch_spec(windows)
            return connect_writer(job, "batches", schema, found.address, timeout_s, check=check)

        (learner,) = find_readers(job, "batches")
        batches = meet_present(learner, CONNECT_TIMEOUT_S, connect_batches)
        return ReplayStreams(rows, batches, priorities, learner, connect_batches)

    return connect
