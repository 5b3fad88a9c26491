"""Batches: which trajectories go where, what is dropped and why, and that every one is accounted for."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from jsrl.agents.base import UpdateOutput
from jsrl.parallel import split_devices
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import ProducerId
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec, make_version, map_tree
from jsrl.workers.attached.prefetched import Prefetched
from jsrl.workers.learner.batching import Batcher, BatchPlan, versions_trained_on

T, SIZE = 3, 4
ENV = EnvSpec({"image": ArraySpec((2, 3), "uint8"), "line": ArraySpec((2,), "float32")}, Discrete(3))
SPEC = make_trajectory_spec(ENV, {"value": ArraySpec((), "float32")}, (ArraySpec((5,), "float32"),), num_rows=T,
                            num_envs=SIZE, weighted=True)  # fmt: skip
numbers = itertools.count()


def filled(seed: int, version: int = 0, spec: Trajectory = SPEC) -> Trajectory:
    """Return a trajectory with all elements drawn from `seed`, of one version."""
    rng = np.random.default_rng(seed)
    tree = map_tree(lambda leaf: rng.integers(0, 2, leaf.shape).astype(leaf.dtype) + leaf.zeros(), spec)
    tree = map_tree(lambda x: (rng.random(x.shape) * 200).astype(x.dtype), tree)
    versions = np.full(spec.version.shape, version)
    versions[-1] = 0  # the bootstrap row has none
    return tree._replace(version=versions)


class Stream:
    """A consumer with a batcher, and producers that fill it."""

    def __init__(self, groups: int = 2, producers: int = 1, blocks: int = 16, **plan) -> None:
        name = f"local:batching-{next(numbers)}"
        self.consumer = bind_samples(name, SPEC, blocks_per_producer=blocks)
        self.producers = [
            connect_samples(self.consumer.address, SPEC, ProducerId(f"actor-{i}", 0), groups, 1.0)
            for i in range(producers)
        ]
        values = {
            "order": "by_group",
            "groups": tuple(range(groups)),
            "group_size": SIZE,
            "columns": groups * SIZE,
            "num_rows": T,
            "env_steps": T * groups * SIZE,
        }
        self.plan = BatchPlan(**{**values, **plan})
        self.batcher = Batcher(self.consumer, SPEC, self.plan)

    def put(self, group: int, seed: int, version: int = 0, producer: int = 0) -> Trajectory:
        trajectory = filled(seed, version)
        self.producers[producer].put(trajectory, group, 1.0)
        return trajectory

    def fill(self, tries: int = 8):
        """Pump until there is a batch, or nothing more arrives."""
        for _ in range(tries):
            batch = self.batcher.next(0.0)
            if batch is not None:
                return batch
        return None

    @property
    def ledger(self):
        assert self.consumer.ledger.balanced
        return self.consumer.ledger


def joined(trajectories: list[Trajectory], devices: int = 1) -> Trajectory:
    """Return the expected batch of these trajectories side by side."""
    columns = [t._replace(core=(), sampling=()) for t in trajectories]
    body = map_tree(lambda *x: np.concatenate(x, 1), columns[0], *columns[1:])
    columns = [(t.core, t.sampling) for t in trajectories]
    core, sampling = map_tree(lambda *x: np.concatenate(x, 0), columns[0], *columns[1:])
    return split_devices(body._replace(core=core, sampling=sampling), devices)


def same(a: Trajectory, b: Trajectory) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_by_group_puts_every_group_in_its_columns():
    stream = Stream(groups=3)
    third, first, second = stream.put(2, 1), stream.put(0, 2), stream.put(1, 3)
    batch = stream.fill()
    same(batch.trajectory, joined([first, second, third]))
    assert batch.lags == [0, 0, 0]
    assert stream.ledger.consumed == 3
    assert stream.ledger.in_flight == 0


def test_every_leaf_is_there_and_the_bootstrap_row_too():
    stream = Stream(groups=1)
    given = stream.put(0, 5)
    batch = stream.fill()
    assert batch.trajectory.observation["image"].shape == (1, T + 1, SIZE, 2, 3)
    assert batch.trajectory.core[0].shape == (1, SIZE, 5)
    np.testing.assert_array_equal(batch.trajectory.observation["line"][0, T], given.observation["line"][T])


@pytest.mark.parametrize(
    ("groups", "devices"), [(2, 1), (2, 2), (2, 4), (2, 8), (3, 2), (3, 4), (3, 6), (5, 2), (1, 4)]
)
def test_devices_get_the_columns_of_split_devices(groups, devices):
    """Groups of 4 columns: whole ones, parts of one, and groups that span devices."""
    stream = Stream(groups=groups, devices=devices)
    given = [stream.put(group, group) for group in range(groups)]
    batch = stream.fill()
    assert batch.trajectory.is_first.shape[:3] == (devices, T + 1, groups * SIZE // devices)
    same(batch.trajectory, joined(given, devices))
    same(map_tree(np.zeros_like, batch.trajectory), stream.batcher.example())


def test_a_second_trajectory_of_a_group_waits_for_the_next_batch():
    """Asynchronous actors: group 0 is two ahead of group 1; nothing is lost, and each group keeps its order."""
    stream = Stream(groups=2, max_lag=None)
    ahead = [stream.put(0, seed) for seed in (1, 2, 3)]
    behind = [stream.put(1, 11)]
    first = stream.fill()
    same(first.trajectory, joined([ahead[0], behind[0]]))
    behind += [stream.put(1, 12), stream.put(1, 13)]
    second, third = stream.fill(), stream.fill()
    same(second.trajectory, joined([ahead[1], behind[1]]))
    same(third.trajectory, joined([ahead[2], behind[2]]))
    assert stream.ledger.consumed == 6


def test_fifo_takes_the_first_arrivals():
    stream = Stream(groups=4, columns=2 * SIZE, order="fifo", max_lag=None)
    given = [stream.put(group, seed) for seed, group in enumerate((2, 2, 0, 3))]
    same(stream.fill().trajectory, joined(given[:2]))
    same(stream.fill().trajectory, joined(given[2:]))
    assert stream.fill() is None


def test_lag_is_the_age_of_the_oldest_row_at_the_update():
    stream = Stream(groups=2, max_lag=None, start_updates=10)
    mixed = filled(1)
    mixed.version[:-1] = make_version(0, 9)
    mixed.version[1, 2] = make_version(0, 7)  # one row of one environment
    stream.producers[0].put(mixed, 0, 1.0)
    stream.put(1, 2, make_version(0, 10))
    assert stream.fill().lags == [3, 0]
    stream.put(0, 3, make_version(0, 10))
    stream.put(1, 4, make_version(0, 11))
    assert stream.fill().lags == [1, 0]  # the second batch is used when 11 updates are made


def test_lag_stale_and_rolled_back_look_at_trained_rows_only():
    """A row is not trained on where no agent acts, or where the next row starts an episode."""
    rows = filled(1, make_version(1, 5))
    rows.acts[...], rows.is_first[...] = 1, False
    rows.acts[0, 1], rows.version[0, 1] = 0, make_version(1, 1)
    rows.is_first[2, 0], rows.version[1, 0] = True, make_version(0, 7)
    versions = versions_trained_on(rows)
    assert set(versions.tolist()) == {make_version(1, 5)} and versions.size == T * SIZE - 2
    stream = Stream(groups=1, max_lag=0, start_updates=5, generation=1)
    stream.producers[0].put(rows, 0, 1.0)
    assert stream.fill().lags == [0]
    frozen = np.full_like(rows.version, make_version(0, 1))  # of another player, whose rows wait
    acts = np.stack([rows.acts, np.zeros_like(rows.acts)], axis=-1)
    seats = rows._replace(acts=acts, version=np.stack([rows.version, frozen], axis=-1))
    assert (versions_trained_on(seats) == versions).all()
    nobody = rows._replace(acts=np.zeros_like(rows.acts))
    assert versions_trained_on(nobody).size == T * SIZE


def test_too_old_trajectories_are_dropped_and_columns_stay_free():
    stream = Stream(groups=2, max_lag=1, start_updates=5)
    stream.put(0, 1, make_version(0, 3))  # lag 2
    stream.put(1, 2, make_version(0, 5))
    assert stream.fill() is None
    assert stream.ledger.dropped == {"stale": 1}
    saved = stream.put(0, 3, make_version(0, 4))
    batch = stream.fill()
    assert batch.lags == [0, 1]
    np.testing.assert_array_equal(batch.trajectory.reward[0, :, :SIZE], saved.reward)


def test_with_reuse_the_last_use_of_a_batch_must_be_within_the_lag():
    stream = Stream(groups=1, max_lag=2, reuse=3, order="fifo")
    stream.put(0, 1, 0)  # used by updates 0, 1, 2: at most 2 behind
    assert stream.fill().lags == [0]
    stream.put(0, 2, make_version(0, 2))  # updates 3, 4, 5: would be 3 behind
    assert stream.fill() is None
    assert stream.ledger.dropped == {"stale": 1}
    stream.put(0, 3, make_version(0, 3))
    assert stream.fill().lags == [0]


def test_rows_of_an_earlier_generation_past_the_snapshot_are_rolled_back():
    """Resumed at 5 updates in generation 1: updates 6 and 7 of generation 0 were undone; rows of update 5 are usable."""
    stream = Stream(groups=2, max_lag=None, start_updates=5, generation=1)
    stream.put(0, 1, make_version(0, 7))
    mixed = filled(2, make_version(1, 5))
    mixed.version[0, 0] = make_version(0, 6)  # a single row
    stream.producers[0].put(mixed, 1, 1.0)
    assert stream.fill() is None
    assert stream.ledger.dropped == {"rolled_back": 2}
    stream.put(0, 3, make_version(0, 5))
    stream.put(1, 4, make_version(1, 5))
    assert stream.fill().lags == [0, 0]


def test_no_free_buffer_takes_nothing_from_the_stream():
    """Back-pressure: with all buffers lent the blocks stay committed, and are read again when one is returned."""
    stream = Stream(groups=1, buffers=2, max_lag=None)
    given = [stream.put(0, seed) for seed in range(3)]
    batches = [stream.fill(), stream.fill()]
    assert stream.fill() is None
    assert stream.consumer.pending() == 1
    same(batches[0].trajectory, joined([given[0]]))  # unchanged by later trajectories
    stream.batcher.used(batches[0], UpdateOutput({}))
    third = stream.fill()
    assert third.trajectory is batches[0].trajectory
    same(third.trajectory, joined([given[2]]))
    same(batches[1].trajectory, joined([given[1]]))


def test_blocks_are_released_once_copied():
    """Two blocks are enough for any number of trajectories, although no batch was ever returned."""
    stream = Stream(groups=4, blocks=2, columns=16, max_lag=None)
    for group in range(4):
        stream.put(group, group)
        stream.batcher.next(0.0)
    assert stream.ledger.consumed == 4


def test_unused_trajectories_are_dropped_as_closed_and_the_ledger_balances():
    stream = Stream(groups=2, max_lag=None)
    for seed in range(4):
        stream.put(0, seed)
    assert stream.fill() is None
    assert stream.ledger.in_flight == 3  # one was copied, three wait for the other group
    stream.batcher.close()
    stream.consumer.close()
    assert stream.ledger.dropped == {"closed": 3}
    assert (stream.ledger.received, stream.ledger.consumed, stream.ledger.in_flight) == (4, 1, 0)


def test_prefetching_gives_the_same_batches_in_the_same_order():
    stream = Stream(groups=2, max_lag=None)
    source = Prefetched(stream.batcher, Phases())
    source.begin()
    try:
        for round_number in range(6):
            given = [stream.put(group, 10 * round_number + group) for group in range(2)]
            batch = source.next(5.0)
            assert batch.number == round_number
            same(batch.trajectory, joined(given))
            assert source.used(batch, UpdateOutput({})) == 2 * T * SIZE
    finally:
        source.close()
    assert stream.ledger.consumed == 12


def test_prefetching_stops_at_the_number_of_buffers():
    stream = Stream(groups=1, max_lag=None, buffers=3)
    source = Prefetched(stream.batcher, Phases())
    source.begin()
    given = [stream.put(0, seed) for seed in range(8)]
    try:
        lent = [source.next(5.0) for _ in range(3)]
        assert source.next(0.3) is None
        assert stream.consumer.pending() == 5
        for batch, trajectory in zip(lent, given, strict=False):
            same(batch.trajectory, joined([trajectory]))
    finally:
        source.close()


def test_an_error_of_the_prefetching_thread_is_raised_where_batches_are_taken():
    stream = Stream(groups=1)
    source = Prefetched(stream.batcher, Phases())
    source.begin()
    stream.consumer.close()  # the thread's next get ends in StreamClosed
    deadline = time.monotonic() + 5.0
    with pytest.raises(Exception, match="closed"):
        while time.monotonic() < deadline:
            source.next(0.05)
    source.close()
