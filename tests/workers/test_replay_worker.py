"""The replay worker and its learner's end, over in-process streams: rows in, windows out, priorities back."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any, cast

import numpy as np
import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.envs.config import EnvConfig
from jsrl.errors import StreamTimeout
from jsrl.experiment import Experiment, ReplayConfig
from jsrl.graph.plan import make_plan
from jsrl.replay.host.files import load_replay, save_replay
from jsrl.replay.host.limiter import Limiter, make_limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.host.rows import read_ids
from jsrl.replay.shared import windows_spec
from jsrl.transport.base import ProducerId
from jsrl.transport.ledger.legs import ledger_path
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.stream import priorities_spec, replay_batch_spec
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, map_tree
from jsrl.workers.base import NullReporter
from jsrl.workers.learner.batching import Batcher, BatchPlan, of_any_age
from jsrl.workers.learner.replayed import FromReplay, ReplayConsumer
from jsrl.workers.replay.worker import ReplaySettings, ReplayWorker, build_replay

T, B, M = 4, 3, 8
SPEC = make_trajectory_spec(EnvSpec(ArraySpec((2,), "float32"), Discrete(2)), (), (), num_rows=T, num_envs=B)
CONFIG = ReplayConfig(capacity=2_000, batch_size=M, min_size=1, prioritised=True)
WINDOWS = windows_spec(CONFIG, SPEC)
numbers = itertools.count()


class Quiet:
    """A reporter that stores warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, stage: str) -> None: ...

    def entering(self, activity: str, steps: float | None = None) -> None: ...

    def left(self) -> None: ...

    def event(self, name: str, text: str = "", **facts) -> None:
        self.warnings.append(text)


class Batches:
    """The writing end of batches, as a SampleWriter; a test says when the learner is being replaced."""

    def __init__(self, producer) -> None:
        self._producer, self.is_lost, self.renewed, self.polled = producer, False, 0, 0

    def reserve(self, timeout_s: float):
        try:
            return self._producer.reserve(timeout_s)
        except StreamTimeout:
            return None

    def commit(self, block, group: int) -> bool:
        block.commit(group)
        return True

    def poll(self) -> None:
        self.polled += 1
        self.renewed += self.is_lost
        self.is_lost = False

    def close(self) -> None:
        self._producer.close()


class World:
    """Two replay workers, each with a producer of rows, and one learner's end."""

    def __init__(
        self,
        folder,
        *,
        threads=0,
        ratio=None,
        min_size=24,
        capacity=2_000,
        wait=True,
        waiting=0,
        total_env_steps=10_000,
        **config,
    ):
        name = f"replay-{next(numbers)}"
        batches = bind_samples(f"local:{name}-batches", replay_batch_spec(WINDOWS), blocks_per_producer=3)
        self.workers, self.actors, self.sequence = [], [], itertools.count()
        for index in range(2):
            rows = bind_samples(f"local:{name}-rows-{index}", SPEC, blocks_per_producer=8)
            back = bind_samples(f"local:{name}-back-{index}", priorities_spec(M), blocks_per_producer=4)
            given = {"beta_end": CONFIG.beta, "alpha": 1.0, "epsilon": 0.0, "capacity": capacity} | config
            replay = HostReplay(dataclasses.replace(CONFIG, **given), SPEC, seed=index, replay=index)
            limiter = make_limiter(min_size, ratio, 0.1, insert_size=T * B, draw_size=M, waiting=waiting)
            out = connect_samples(batches.address, replay_batch_spec(WINDOWS), ProducerId(f"replay-{index}", 0), 1, 1.0)
            settings = ReplaySettings(
                index=index, groups=(index,), threads=threads, folder=str(folder / str(index)), poll_s=0.0,
                total_env_steps=total_env_steps,
            )  # fmt: skip
            transports = (rows, cast("Any", Batches(out)), back)
            worker = ReplayWorker(f"replay-{index}", settings, replay, limiter, lambda r=transports: r, Quiet())
            worker.setup()
            self.workers.append(worker)
            self.actors.append(connect_samples(rows.address, SPEC, ProducerId(f"actor-{index}", 0), 2, 1.0))

        def back_transport(index: int):
            return connect_samples(f"local:{name}-back-{index}", priorities_spec(M), ProducerId("learner", 0), 1, 1.0)

        self.learner = ReplayConsumer(batches, back_transport, M, wait=wait)

    def put(self, index: int, value: float) -> None:
        trajectory = map_tree(lambda leaf: leaf.zeros(), SPEC)
        trajectory.observation[...] = value
        trajectory.acts[:T] = 1
        self.actors[index].put(trajectory, index, 1.0)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.learner.close()


@pytest.fixture
def world(tmp_path):
    made = []

    def make(**options):
        made.append(World(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_batches_start_at_min_size_and_priorities_reach_their_window(world):
    w = world()
    for _ in range(2):
        w.put(0, 0.0)
        w.put(1, 1.0)
        for worker in w.workers:
            worker.step()
    assert w.learner.pending() == 2  # one batch of each, once 24 env steps had arrived
    plan = BatchPlan(order="fifo", groups=(0,), group_size=M, columns=2 * M, num_rows=1, max_lag=None, judge=of_any_age)
    batcher = Batcher(w.learner, WINDOWS, plan)
    assert batcher.next(0.0) is None
    batch = batcher.next(0.0)
    assert batch is not None
    np.testing.assert_array_equal(batch.trajectory.observation[0, 0, :, 0], [0.0] * M + [1.0] * M)
    np.testing.assert_array_equal(batch.trajectory.sampling, np.ones((1, 2 * M)))
    assert w.learner.env_steps == 4 * T * B
    ids = np.concatenate(batch.ids)
    np.testing.assert_array_equal(read_ids(ids)[0], [0] * M + [1] * M)
    w.learner.feedback(ids, {"priorities": np.arange(1.0, 2 * M + 1)})
    for index, worker in enumerate(w.workers):
        worker.step()
        weights = worker._replay._tree.weights
        mine = ids[index * M : (index + 1) * M]
        last = {int(read_ids(np.array(i))[2]): index * M + k + 1.0 for k, i in enumerate(mine)}
        for place, priority in last.items():
            assert weights[place] == priority


def test_feedback_of_several_batches_and_a_full_connection(world):
    w = world(wait=False)
    for _ in range(3):
        w.put(0, 0.0)
    w.workers[0].step()
    ids = np.concatenate([np.array(w.learner.get(1.0).ids)] * 3)[: 2 * M + 3]
    w.learner.feedback(ids, {"priorities": np.full(len(ids), 2.0)})
    w.workers[0].step()
    assert set(w.workers[0]._replay._tree.weights[np.unique(read_ids(ids)[2])]) == {2.0}
    assert w.workers[0]._replay.ignored == 0
    for _ in range(5):
        w.learner.feedback(ids[:M], {"priorities": np.ones(M)})
    plan = BatchPlan(order="fifo", groups=(0,), group_size=M, columns=M, num_rows=1, max_lag=None, judge=of_any_age)
    source = FromReplay(w.learner, WINDOWS, plan, M)
    assert source.counts() == {"refused": 0, "priorities_lost": M}  # four blocks are in transit; the fifth had no room


def test_free_running_insertions_wait_until_the_learner_has_taken_a_batch(world):
    """Actors would use up the env steps of a run while the learner compiles its update."""
    w = world(waiting=3 * M)  # its stream has three blocks
    worker, limiter = w.workers[0], w.workers[0]._limiter
    for _ in range(2):
        w.put(0, 0.0)
        worker.step()
    filled = limiter.inserted
    w.put(0, 0.0)
    for _ in range(5):
        worker.step()
    assert (limiter.inserted, limiter.drawn) == (filled, 3 * M)
    w.learner.release(w.learner.get(1.0))
    for _ in range(2):
        worker.step()
    assert limiter.inserted == filled + T * B
    again = make_limiter(24, None, 0.1, insert_size=T * B, draw_size=M, waiting=3 * M)
    again.restore(limiter.state)  # of a resumed run, whose learner compiles again
    again.drawn += M
    assert not again.may_insert(T * B)


def test_learner_counts_env_steps_of_before_until_all_replay_workers_have_reported(world):
    """A resumed run may be stopped again before replay is filled; its snapshot must not say 0."""
    w = world()
    plan = BatchPlan(order="fifo", groups=(0,), group_size=M, columns=M, num_rows=1)
    source = FromReplay(w.learner, WINDOWS, plan, M, begun=500)
    assert source.env_steps(9) == 500
    for index, inserted in ((0, 400), (1, 200)):
        w.learner._inserted[index] = inserted
    assert source.env_steps(9) == 600


def test_replay_worker_that_closes_during_feedback_does_not_end_the_learner(world, monkeypatch):
    w = world()
    for _ in range(2):
        w.put(0, 0.0)
    w.workers[0].step()
    ids = w.learner.get(1.0).ids
    w.learner.feedback(ids, {"priorities": np.ones(M)})
    producer, back = w.learner._producers[0], w.workers[0]._priorities
    reserve = producer.reserve

    def reserve_and_close(timeout_s):
        block = reserve(timeout_s)
        back.close()
        return block

    monkeypatch.setattr(producer, "reserve", reserve_and_close)
    w.learner.feedback(ids, {"priorities": np.ones(M)})
    assert w.learner.lost_feedback == M and not w.learner._producers


def test_replay_worker_without_a_learner_inserts_and_connects_again_once_no_thread_writes(world):
    """Connecting closes the old stream: a thread may be writing a batch into its memory."""
    w = world()
    worker, batches = w.workers[0], w.workers[0]._batches
    batches.is_lost, worker._drawing = True, 1
    for _ in range(2):
        w.put(0, 0.0)
        worker.step()
    assert worker._replay.size == 2 * T * B and (batches.polled, batches.renewed) == (0, 0)
    assert worker._draw_once(worker._phases) == 0
    worker._drawing = 0
    worker.step()
    assert batches.renewed == 1 and worker._reporter.warnings == ["reconnected to the restarted learner"]
    assert w.learner.pending() == 1, "and it draws again"


def test_batch_that_no_learner_took_ends_no_thread_and_is_not_counted(world, monkeypatch):
    w = world()
    worker = w.workers[0]
    monkeypatch.setattr(worker._batches, "commit", lambda block, group: block.abandon() or False)
    for _ in range(2):
        w.put(0, 0.0)
        worker._insert()
    assert worker._draw_once(worker._phases) == 1 and worker._drawing == 0
    assert "replay/samples_per_s" not in worker.report()[0]


def test_ratio_holds_rows_back_until_the_learner_samples(world):
    w = world(ratio=1.0)
    for _ in range(8):
        w.put(0, 0.0)
    worker = w.workers[0]
    for _ in range(20):
        worker.step()
    counters = worker.report()[0]
    assert (
        counters["replay/inserted"] == 60
    )  # min_size 24, then as much as three blocks of windows and the slack permit
    assert counters["replay/drawn"] == 3 * M
    for _ in range(3):
        w.learner.release(w.learner.get(0.0))
    for _ in range(20):
        worker.step()
    assert worker.report()[0]["replay/inserted"] == 84
    assert worker.report()[0]["replay/trajectories_inserted"] == 7


def test_exponent_of_importance_weights_rises_with_the_rows_inserted(world):
    w = world(min_size=T * B, beta=0.2, beta_end=1.0, total_env_steps=4 * T * B)
    worker = w.workers[0]
    for exponent in (0.4, 0.6, 0.8, 1.0, 1.0):
        w.put(0, 0.0)
        worker.step()  # inserts, then draws
        lease = w.learner.get(0.0)
        weights, (_, _, places) = worker._replay._tree.weights, read_ids(lease.ids)
        chances = weights[places]
        np.testing.assert_allclose(lease.trajectory.sampling, (chances / chances.min()) ** -exponent, rtol=1e-5)
        worker._replay.feedback(lease.ids, {"priorities": np.linspace(1.0, 9.0, M)})
        w.learner.release(lease)
    assert len(set(chances)) > 1


def test_threads_keep_the_learner_fed(world):
    w = world(threads=2, min_size=12)
    w.put(0, 3.0)
    until = time.monotonic() + 20
    taken = 0
    while taken < 30 and time.monotonic() < until:
        w.workers[0].step()
        if w.learner.pending():
            lease = w.learner.get(1.0)
            assert (lease.trajectory.observation == 3.0).all()
            w.learner.release(lease)
            taken += 1
    assert taken == 30


def filled(seed: int, rows: int) -> tuple[HostReplay, Limiter]:
    replay = HostReplay(dataclasses.replace(CONFIG, capacity=120), SPEC, seed=seed)
    limiter = Limiter(24, 2.0, 16.0)
    rng = np.random.default_rng(0)
    for sequence in range(rows):
        trajectory = map_tree(lambda leaf: rng.integers(0, 2, leaf.shape).astype(leaf.dtype), SPEC)
        replay.insert(0, (0, sequence), trajectory)
        limiter.inserted += T * B
    return replay, limiter


def test_snapshot_with_rows_continues_exactly(tmp_path):
    replay, limiter = filled(1, 14)
    replay.feedback(replay.draw(into()), {"priorities": np.linspace(0.5, 3.0, M)})
    limiter.drawn = 77
    save_replay(tmp_path, replay, limiter, rows=True)
    again, restored = filled(1, 0)
    load_replay(tmp_path, again, restored)
    assert restored == limiter
    assert again.size == replay.size and again.counters == replay.counters
    assert replay.counters["highest"] > 1.0  # the first priority of later windows
    again._rng = np.random.default_rng(5)
    replay._rng = np.random.default_rng(5)
    one, two = into(), into()
    np.testing.assert_array_equal(replay.draw(one), again.draw(two))
    np.testing.assert_array_equal(one.observation, two.observation)
    again.insert(0, (0, 0), map_tree(lambda leaf: leaf.zeros(), SPEC))  # a new incarnation: behind a gap
    assert again.lanes[0].written == replay.lanes[0].written + T + 1


def test_snapshot_without_rows_refills_and_keeps_the_surplus(tmp_path):
    replay, limiter = filled(1, 10)
    limiter.drawn = 150
    save_replay(tmp_path, replay, limiter, rows=False)
    again, restored = filled(1, 0)
    load_replay(tmp_path, again, restored)
    assert again.size == 0
    assert not restored.may_draw(1)
    restored.inserted += 24
    surplus = 2.0 * (limiter.inserted - 24) - limiter.drawn
    assert 2.0 * (restored.inserted - restored.free) - restored.drawn == surplus
    assert restored.may_draw(1)


def test_restarted_replay_worker_goes_on_counting_inserted_env_steps(tmp_path):
    """Without counters of its own, as before its first snapshot, and with older ones."""
    experiment = Experiment(
        DQNConfig(), EnvConfig("CartPole-v1"), num_envs=8, placement="served", rollout_length=16,
        replay=ReplayConfig(kind="host", min_size=256, updates_per_env_step=1 / 256), total_env_steps=10_000,
    )  # fmt: skip
    job = make_plan(experiment, str(tmp_path), tmp_path).job("replay-0")
    job = dataclasses.replace(job, incarnation=1)
    env_steps = 16 * experiment.group_size
    _, ledger = open_ledger(ledger_path(tmp_path, job.end("samples").leg), 0, None)
    ledger.finish("consumed", 5)
    limiter = build_replay(job, NullReporter())._limiter
    assert (limiter.inserted, limiter.until, limiter.drawn) == (5 * env_steps, 5 * env_steps + 256, 0)
    limiter.inserted, limiter.until, limiter.free, limiter.drawn = 3 * env_steps, 2 * env_steps, 2 * env_steps, 7
    save_replay(tmp_path / "replay" / "0", build_replay(job, NullReporter())._replay, limiter, rows=False)
    again = build_replay(job, NullReporter())._limiter
    assert (again.inserted, again.drawn) == (5 * env_steps, 7)
    assert again.inserted - again.free == limiter.inserted - (limiter.free + 256)  # lost rows do not count in the ratio


def into():
    return map_tree(lambda leaf: leaf.zeros(), WINDOWS)
