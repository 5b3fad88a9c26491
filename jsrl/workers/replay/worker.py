"""The replay worker: reads the actors' trajectories, stores their rows, writes batches of windows for the learner. No jax.

Its main thread inserts rows and updates priorities; drawing threads write batches straight into the learner's stream. The
limiter keeps both sides in step: while insertion is blocked, the actors' stream fills and they wait.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.errors import SnapshotError, StreamTimeout
from jsrl.replay.host.files import load_replay, save_replay
from jsrl.replay.host.limiter import Limiter, make_limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.shared import beta_at, windows_spec
from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import Phases
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import SampleConsumer
from jsrl.transport.ledger.legs import ledger_path
from jsrl.transport.ledger.page import read_page
from jsrl.transport.stream import priorities_spec, replay_batch_spec
from jsrl.workers.base import Refusals, Reporter
from jsrl.workers.ends import SampleWriter, begin_counting, bind_reader
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter

FOLDER = "replay"  # of a run: counters, and rows if they are saved
INSERTS = 16  # most trajectories of one step
LOOK_S = 0.002


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of a replay worker.

    Attributes:
      index: among the replay workers. groups: of its actors; each has a lane. threads: that draw (0: `step` draws itself).
      total_env_steps: at which the exponent of importance weights is `beta_end`. folder: for the counters.
      period_s: between snapshots.
    """

    index: int
    groups: tuple[int, ...]
    threads: int
    total_env_steps: int
    folder: str
    period_s: float = 60.0
    poll_s: float = 0.1


class ReplayWorker:
    """A worker between actors and learner.

    Args:
      connect: returns the ends of its streams: rows from actors, batches to the learner, priorities back.
    """

    def __init__(
        self,
        name: str,
        settings: ReplaySettings,
        replay: HostReplay,
        limiter: Limiter,
        connect: Callable[[], tuple[SampleConsumer, SampleWriter, SampleConsumer]],
        reporter: Reporter,
        meter: Meter | None = None,
    ) -> None:
        self.name, self._settings, self._replay, self._limiter = name, settings, replay, limiter
        self._connect, self._reporter = connect, reporter
        self.meter = self._meter = meter or Meter("replay")
        self._phases = self.meter.phases
        self._threads: list[threading.Thread] = []
        self._rows: Any = None  # until it is connected
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards the limiter, the learner's stream and the counts
        self._lanes = {group: lane for lane, group in enumerate(settings.groups)}
        self._error: BaseException | None = None
        self._drawing = 0  # number of batches being written
        self._snapshot_at = time.monotonic() + settings.period_s
        self._refusals = Refusals(name, reporter)

    def setup(self) -> None:
        self._reporter.stage("connecting to streams")
        self._rows, self._batches, self._priorities = self._connect()
        for number in range(self._settings.threads):
            phases = self.meter.thread("draw") if number == 0 else Phases()
            thread = threading.Thread(target=self._draw_on, args=(phases,), name=f"draw-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def step(self) -> int:
        """Take priorities and trajectories; without threads, also draw a batch. Return the number of all these."""
        if self._error is not None:
            raise self._error
        self._follow_learner()
        achieved = self._take_priorities() + self._insert()
        if not self._settings.threads:
            achieved += self._draw_once(self._phases)
        if time.monotonic() >= self._snapshot_at:
            self._snapshot_at = time.monotonic() + self._settings.period_s
            self.save()
        self._phases.rest()
        return achieved

    # -- rows in ------------------------------------------------------------------------------------------------------

    def _insert(self) -> int:
        shape = self._replay.shape
        env_steps, inserted = shape.num_rows * shape.group_size, 0
        while inserted < INSERTS:
            with self._lock:
                may_insert = self._limiter.may_insert(env_steps)
            if not may_insert:
                self._wait("wait_learner", inserted)
                break
            self._phases.enter("wait_rows")
            try:
                lease = self._refusals.take(self._rows.get, 0.0 if inserted else min(self._settings.poll_s, 0.01))
            except StreamTimeout:
                break
            self._phases.enter("insert")
            entry = lease.entry
            origin = (entry.origin.producer.incarnation, entry.origin.sequence)
            self._replay.insert(self._lanes[entry.group], origin, lease.trajectory)
            self._rows.release(lease)
            with self._lock:
                self._limiter.inserted += env_steps
            self._meter.rate("inserts", env_steps)
            inserted += 1
        return inserted

    def _wait(self, activity: str, achieved: int) -> None:
        """Wait for the learner, unless something was done or this is the only thread."""
        self._phases.enter(activity)
        if not achieved and self._settings.threads:
            time.sleep(LOOK_S)

    def _take_priorities(self) -> int:
        taken = 0
        while self._priorities.pending():
            self._phases.enter("insert")
            try:
                lease: Any = self._refusals.take(self._priorities.get, 0.0)
            except StreamTimeout:
                break
            self._replay.feedback(lease.trajectory.ids, lease.trajectory.arrays)
            self._priorities.release(lease)
            taken += 1
        return taken

    # -- batches out --------------------------------------------------------------------------------------------------

    def _follow_learner(self) -> None:
        """Connect to the learner's new incarnation, once there is one; until then rows are inserted and nothing is drawn."""
        batches = self._batches
        with self._lock:
            before = batches.renewed
            if not self._drawing:  # else a thread writes into memory of the stream, which closing it frees
                batches.poll()
        if batches.renewed > before:
            self._reporter.event("note", "reconnected to the restarted learner")

    def _draw_on(self, phases: Phases) -> None:
        """Write batch after batch, until this worker ends."""
        try:
            phases.begin()
            while not self._stop.is_set():
                if not self._draw_once(phases):
                    self._stop.wait(LOOK_S)
        except BaseException as error:
            self._error = error

    def _draw_once(self, phases: Phases) -> int:
        """Write a batch if there is free memory and the limiter allows it; return whether one was written."""
        number = self._replay.config.batch_size
        phases.enter("wait_rows")
        with self._lock:
            if not (self._limiter.may_draw(number) and self._replay.num_starts):
                return 0
            phases.enter("wait_learner")
            block: Any = None if self._batches.is_lost else self._batches.reserve(0.0)
            if block is None:
                return 0
            self._drawing += 1
            self._limiter.drawn += number
            counters = (self._settings.index, self._limiter.inserted, self._limiter.drawn)
        phases.enter("draw")
        batch = block.trajectory
        batch.ids[...] = self._replay.draw(batch.windows, self.beta)
        batch.counters[...] = counters
        with self._lock:
            self._drawing -= 1
            if self._batches.commit(block, 0):
                self._meter.rate("samples", number)
        return 1

    @property
    def beta(self) -> float:
        share = min(1.0, self._limiter.inserted / self._settings.total_env_steps)
        return beta_at(self._replay.config, share)

    # -- reports ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        self._phases.enter("snapshot")
        folder = Path(self._settings.folder)
        try:
            save_replay(folder, self._replay, self._limiter, rows=self._replay.config.save)
        except (OSError, SnapshotError) as error:
            self._reporter.event("warning", f"snapshot of {self.name} failed: {error}", once="snapshots")

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        replay, limiter, ledger = self._replay, self._limiter, self._rows.ledger
        last = {
            "size": replay.size,
            "inserted": limiter.inserted,
            "drawn": limiter.drawn,
            "evicted": replay.evicted,
            "priorities_late": replay.ignored,
            "samples_per_insert": limiter.drawn / max(1, limiter.inserted - limiter.free),
            "trajectories_received": ledger.received,
            "trajectories_inserted": ledger.consumed,
            "trajectories_dropped": sum((ledger.dropped or {}).values()),
            "trajectories_in_flight": ledger.in_flight,
            "refused": self._refusals.count,
        }
        for name, value in last.items():
            self._meter.last(name, float(value))
        with self._lock:
            return self._meter.flush(), {}

    def command(self, command: Command) -> None:
        if command.name == "snapshot":
            self.save()

    def drop_pending(self) -> None:
        """Count waiting trajectories as dropped and read no more; used when a step failed."""
        if self._rows is not None:
            self._rows.close()

    def close(self) -> dict[str, Any]:
        """Stop drawing, write the counters, close the streams."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)
        self.save()
        self._batches.close()
        self._rows.close()
        self._priorities.close()
        return {}


def build_replay(job: Job, reporter: Reporter) -> ReplayWorker:
    e, config = job.experiment, job.experiment.buffer
    assert config is not None
    samples = job.end("samples")
    mine, every = len(samples.groups), len(samples.stream.groups)
    (number,) = job.end("batches").groups
    replay = HostReplay(
        config,
        job.schemas.trajectory,
        lanes=mine,
        capacity=max(1, config.capacity * mine // every),
        frames=job.schemas.env.frames,
        seed=job.incarnation_seed,
        replay=number,
        incarnation=job.incarnation,
    )
    shape = replay.shape
    share = mine / every
    limiter = make_limiter(
        max(1, round(config.min_size * share)),
        None if config.updates_per_env_step is None else config.updates_per_env_step * config.batch_size,
        config.tolerance,
        insert_size=shape.lanes * shape.num_rows * shape.group_size,
        draw_size=2 * config.batch_size * e.updates_per_call,
        waiting=job.end("batches").stream.blocks * config.batch_size,
    )
    settings = ReplaySettings(
        index=number,
        groups=samples.groups,
        threads=0 if job.in_process else config.threads,
        total_env_steps=max(1, round(e.total_env_steps * share)),
        folder=f"{job.folder}/{FOLDER}/{number}",
        period_s=e.snapshots.period_s,
        poll_s=job.poll_s,
    )
    if job.incarnation or (job.start_point.restore is not None and not job.start_point.params_only):
        load_replay(Path(settings.folder), replay, limiter)
    if job.incarnation and (page := read_page(ledger_path(Path(job.folder), samples.leg))) is not None:
        limiter.count_lost(page.ledger.consumed * shape.num_rows * shape.group_size)
    connect = functools.partial(_connect, job)
    return ReplayWorker(job.name, settings, replay, limiter, connect, reporter, make_meter(job))


def _connect(job: Job) -> tuple[SampleConsumer, SampleWriter, SampleConsumer]:
    config = job.experiment.buffer
    assert config is not None
    rows = bind_reader(job, "samples", job.schemas.trajectory, begin_counting(job, "samples"))
    priorities = bind_reader(job, "priorities", priorities_spec(config.batch_size))
    batches = SampleWriter(job, "batches", replay_batch_spec(windows_spec(config, job.schemas.trajectory)))
    batches.open()
    return rows, batches, priorities
