"""Building the replay worker: its share of the rows, the limiter, its streams. No jax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsrl.replay.host import HostReplay
from jsrl.replay.host_files import load_replay
from jsrl.replay.host_rows import rows_shape, windows_spec
from jsrl.replay.limiter import make_limiter
from jsrl.transport.base import Ledger, SampleProducer
from jsrl.transport.guests import Guests
from jsrl.transport.hops import SAMPLES, hop_folder, ledger_path
from jsrl.transport.ledger_page import begin_life
from jsrl.transport.replay_batch import priorities_spec, replay_batch_spec
from jsrl.transport.samples import bind_samples, connect_samples
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job, make_recorder
from jsrl.workers.peers import Peer
from jsrl.workers.replay.worker import FOLDER, ReplaySettings, ReplayWorker, Roads


def build_replay(job: Job, reporter: Reporter) -> ReplayWorker:
    """Return the replay worker of a job: it serves the actors index, index + R, ... of R replay workers."""
    e, config, spec = job.experiment, job.experiment.replay, job.schemas.trajectory
    assert config is not None
    mine = range(job.index, e.actors, config.num_replays)
    shape = rows_shape(
        spec,
        lanes=len(mine) * e.ring,
        capacity=max(1, config.capacity * len(mine) // e.actors),
        window=config.window,
        frames=job.schemas.env.frames,
    )
    replay = HostReplay(
        shape,
        spec,
        prioritised=config.prioritised,
        alpha=config.alpha,
        epsilon=config.epsilon,
        seed=job.life_seed,
        replay=job.index,
    )
    share = len(mine) / e.actors
    limiter = make_limiter(
        max(1, round(config.min_size * share)),
        config.samples_per_insert,
        config.tolerance,
        insert_size=shape.lanes * shape.num_rows * shape.group_size,
        draw_size=2 * config.batch_size * e.updates_per_call,
    )
    settings = ReplaySettings(
        index=job.index,
        groups=tuple(actor * e.ring + group for actor in mine for group in range(e.ring)),
        batch_size=config.batch_size,
        threads=0 if e.placement == "serial" else config.threads,
        beta=config.beta,
        beta_end=config.beta_end,
        total_env_steps=max(1, round(e.total_env_steps * share)),
        folder=f"{job.folder}/{FOLDER}/{job.index}",
        save_rows=config.save,
        period_s=e.snapshots.period_s,
        poll_s=job.poll_s,
    )
    if job.origin.restore is not None and not job.origin.params_only:
        load_replay(Path(settings.folder), replay, limiter)
    return ReplayWorker(job.name, settings, replay, limiter, _connect(job, reporter), reporter, make_recorder(job))


def begin_counting(job: Job, reporter: Reporter) -> Ledger:
    """Return the ledger of the rows that actors send, over all lives of this replay worker: what it inserted stands."""
    path = ledger_path(Path(job.folder), f"rows-{job.index}")
    try:
        return begin_life(path, 0, None, hop=path.parent, rolls_back=False)[1]
    except OSError as error:
        text = f"the ledger cannot be kept in {path.parent} ({error}); this life counts in memory only"
        reporter.event("warning", text)
        return Ledger(dropped={})


def _connect(job: Job, reporter: Reporter) -> Callable[[], Roads]:
    e, config = job.experiment, job.experiment.replay
    assert config is not None

    def connect() -> Roads:
        links, number, keys = job.links.replays[job.index], config.batch_size, job.links.keys
        blocks = e.ring * e.actor.blocks_per_group
        run, hop = Path(job.folder), hop_folder(Path(job.folder), f"rows-{job.index}")
        counted: dict[str, Any] = {"ledger": begin_counting(job, reporter), "hop": hop, "guests": job.actors}
        rows = bind_samples(links.rows, job.schemas.trajectory, blocks_per_producer=blocks, keys=keys, **counted)
        job.announce(f"replay-{job.index}", rows.address)
        learners = Guests(frozenset({"learner"}), num_groups=1)
        spec = priorities_spec(number)
        priorities = bind_samples(links.priorities, spec, blocks_per_producer=16, keys=keys, guests=learners)
        job.announce(f"priorities-{job.index}", priorities.address)
        windows = windows_spec(job.schemas.trajectory, window=config.window, number=number, weighted=config.prioritised)
        spec = replay_batch_spec(windows)

        def connect_batches(address: str, timeout_s: float) -> SampleProducer:
            hop = hop_folder(run, SAMPLES)
            return connect_samples(address, spec, job.producer, 1, timeout_s, keys=keys, hop=hop)

        learner = Peer(job.names, "samples", job.find("samples"))
        batches = connect_batches(learner.known.address, CONNECT_TIMEOUT_S)
        return Roads(rows, batches, priorities, learner, connect_batches)

    return connect
