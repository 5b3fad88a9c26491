"""No staging buffer, block or request is overwritten while JAX may still read it.

JAX on CPU computes asynchronously and reads aligned numpy arrays in place. So each proof has two arms on the same
slow computation: one that releases memory too early, where the corruption shows (the test can fail), and the code
of the workers, where it does not.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.errors import StreamError
from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import Phases
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import ProducerId, Request
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.transport.wire.schema import aligned_zeros
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec, map_tree
from jsrl.workers.acting import Engine, GroupSlots
from jsrl.workers.attached.prefetched import Prefetched
from jsrl.workers.base import NullReporter
from jsrl.workers.learner.batching import Batch, Batcher, BatchPlan
from jsrl.workers.learner.outlet import Outlet
from jsrl.workers.learner.updaters import OwnUpdate
from jsrl.workers.learner.worker import Learner, LearnerSettings
from tests.marks import nightly, slow

T, B, WIDTH = 7, 8, 64
READS = 2_000_000  # of one update, one after another: tens of milliseconds, long enough for a refill during them
ENV = EnvSpec(ArraySpec((WIDTH,), "float32"), Discrete(2))
SPEC = make_trajectory_spec(ENV, (), (), num_rows=T, num_envs=B)
numbers = itertools.count()


def smallest_and_largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Read elements one after another, so that the memory is read throughout the call.

    XLA on CPU runs cheap computations in the caller's thread, judged by the number of instructions: hence the unrolled body.
    """
    flat = x.reshape(-1)

    def body(i, seen):
        low, high, busy = seen
        for k in range(40):
            value = flat[(i * 7919 + k * 104_729) % flat.size]
            low, high, busy = jnp.minimum(low, value), jnp.maximum(high, value), jnp.sin(busy + value)
        return low, high, busy

    begin = (jnp.float32(np.inf), jnp.float32(-np.inf), jnp.float32(1.0))
    low, high, busy = jax.lax.fori_loop(0, READS // 40, body, begin)
    return low, high + 0.0 * busy


def update(state: AgentState, trajectory: Trajectory, key: jax.Array, *, axis_name: str | None = None):
    seen = smallest_and_largest(trajectory.observation)
    params = ActParams({"seen": jnp.stack(seen)})
    return state._replace(params=params, updates=state.updates + 1), UpdateOutput({"loss": seen[0]})


def init(key: jax.Array) -> AgentState:
    return AgentState(ActParams({"seen": jnp.zeros(2)}), (), (), (), jnp.int32(0))


def act(params, key, observation, is_first, core, *, greedy=False):
    low, high = smallest_and_largest(observation)
    rows = observation.shape[0]
    return ActOutput(jnp.zeros(rows, jnp.int32), jnp.zeros(rows), jnp.stack([low, high] * rows).reshape(rows, 2)), core


AGENT = Agent(init, lambda rows: (), act, update)


def constant(value: float) -> Trajectory:
    """Return a trajectory filled with one number."""
    return map_tree(lambda leaf: np.full(leaf.shape, value if leaf.dtype == "float32" else 0, leaf.dtype), SPEC)


class AlignedBatcher(Batcher):
    """Staging buffers at multiples of 64 bytes, which JAX reads in place (numpy's own are aligned only sometimes)."""

    def _allocate(self, spec: Trajectory) -> Trajectory:
        def aligned(x: np.ndarray) -> np.ndarray:
            return aligned_zeros(x.nbytes).view(x.dtype).reshape(x.shape)

        return map_tree(aligned, super()._allocate(spec))


class Feed:
    """A stream whose n-th trajectory is filled with n; a thread puts them as fast as there is room."""

    def __init__(self, transport: str, folder) -> None:
        address = f"local:reuse-{next(numbers)}" if transport == "local" else f"shm:{folder}/samples"
        self.consumer = bind_samples(address, SPEC, blocks_per_producer=2)
        self._producer = connect_samples(self.consumer.address, SPEC, ProducerId("actor-0", 0), 1, 5.0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()

    def start(self) -> Feed:
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0.0
        while not self._stop.is_set():
            try:
                self._producer.put(constant(number), 0, 0.05)
            except StreamError:
                continue
            number += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()
        self.consumer.close()


class Published:
    """A params transport that stores everything."""

    address = "nowhere"

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        self.seen.append((float(values[0][0]), float(values[0][1])))

    def close(self) -> None:
        pass


class EarlyRelease(OwnUpdate):
    """The wrong order: the buffer is released while the computation that reads it runs."""

    def give_back(self, batcher: Batcher) -> None:
        """Replace the `batcher` method that is called after an update."""
        self._used, batcher.used = batcher.used, lambda batch, output: batcher.plan.env_steps

    def __call__(self, state, batch, number):
        result = super().__call__(state, batch, number)
        self._used(Batch(batch, [], 0), None)
        return result


def evidence(feed: Feed, folder, *, buffers: int, reuse: int = 1, aligned: bool = True, early: bool = False):
    """Run a learner with prefetching over a feed; return the (smallest, largest) number in each update."""
    plan = BatchPlan("fifo", (0,), B, B, T, max_lag=None, buffers=buffers, reuse=reuse, env_steps=T * B)
    batcher = (AlignedBatcher if aligned else Batcher)(feed.consumer, SPEC, plan)
    updater = (EarlyRelease if early else OwnUpdate)(AGENT, jax.local_devices()[:1], jax.random.key(0), donate=False)
    if early:
        updater.give_back(batcher)
    source = Prefetched(batcher, Phases())
    published, store = Published(), SnapshotStore(folder / "state")
    updates = 400 if early else 8  # on a busy machine, few updates are still computing when their buffer is refilled
    settings = LearnerSettings(updates // reuse * T * B, calls_per_batch=reuse, poll_s=5.0)
    begin = lambda: updater.make(jax.random.key(0))  # noqa: E731
    outlet = Outlet(lambda: published, store, NullReporter(), Meter("learner"))
    learner = Learner(updater, begin, lambda: source, outlet, settings, NullReporter())
    learner.setup()
    feed.start()
    while not learner.finished and not (early and any(low != high for low, high in published.seen[1:])):
        assert learner.step()
    source.close()
    store.close()
    return published.seen[1:]  # the first params come before any update


@pytest.fixture(name="feed", params=["local", "shared-memory"])
def feed_fixture(request, tmp_path):
    feed = Feed(request.param, tmp_path)
    yield feed
    feed.close()


@pytest.mark.slow
def test_early_released_buffer_changes(feed, tmp_path):
    """The control: with one buffer, refilled while the update reads it, updates read numbers of two batches."""
    seen = evidence(feed, tmp_path, buffers=1, early=True)
    assert any(low != high for low, high in seen), f"no corruption in {seen}; this control cannot detect it"


@pytest.mark.slow
@pytest.mark.parametrize(("buffers", "reuse"), [(1, 1), nightly(3, 1), (3, 2)])
def test_learner_releases_a_buffer_only_after_its_updates(feed, tmp_path, buffers, reuse):
    seen = evidence(feed, tmp_path, buffers=buffers, reuse=reuse)
    assert seen == [(float(n // reuse), float(n // reuse)) for n in range(8)]


@pytest.mark.parametrize("feed", ["local", slow("shared-memory")], indirect=True)
def test_numpy_allocated_buffers_behave_alike(feed, tmp_path):
    assert evidence(feed, tmp_path, buffers=3, aligned=False) == [(float(n), float(n)) for n in range(8)]


# -- blocks of the sample stream --------------------------------------------------------------------------------------


class WatchedConsumer:
    """A consumer that overwrites a block at its release, as the next trajectory would."""

    def __init__(self, consumer) -> None:
        self._consumer, self.address = consumer, consumer.address
        self.released: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self._consumer, name)

    def release(self, lease, outcome: str = "consumed") -> None:
        for leaf in leaves(lease.trajectory):
            writable = np.frombuffer((ctypes.c_char * leaf.nbytes).from_address(leaf.ctypes.data), np.uint8)
            writable[:] = 0x7F
        self.released.append(outcome)
        self._consumer.release(lease, outcome)


@pytest.mark.parametrize("order", ["by_group", "fifo"])
@pytest.mark.parametrize("transport", ["local", "shared-memory"])
def test_block_is_released_only_after_its_copy(transport, order, tmp_path):
    """Every released block is overwritten at once; no batch shows it, nor a trajectory that waits for the next batch."""
    address = f"local:reuse-{next(numbers)}" if transport == "local" else f"shm:{tmp_path}/samples"
    consumer = WatchedConsumer(bind_samples(address, SPEC, blocks_per_producer=8))
    producer = connect_samples(consumer.address, SPEC, ProducerId("actor-0", 0), 2, 5.0)
    batcher = Batcher(consumer, SPEC, BatchPlan(order, (0, 1), B, 2 * B, T, max_lag=None, buffers=4))
    for number, group in enumerate((0, 0, 1, 1)):
        producer.put(constant(number + 1), group, 1.0)
    batches = []
    for _ in range(8):
        batch = batcher.next(0.0)
        if batch is not None:
            batches.append(batch)
    found = sorted(float(x) for batch in batches for x in np.unique(batch.trajectory.observation))
    assert found == [1.0, 2.0, 3.0, 4.0]
    assert consumer.released == ["consumed"] * 4
    producer.close()
    consumer.close()


# -- requests of the inference stream ---------------------------------------------------------------------------------


def make_engine() -> tuple[Engine, GroupSlots]:
    engine = Engine(AGENT, ENV, num_slots=B, sizes=[B, 2 * B], seed=0)
    engine.set_params(1, [np.zeros(2, np.float32)])
    engine.warm_up()
    return engine, engine.serve(0, B)


def aligned_request(value: float) -> Request:
    observation = aligned_zeros(4 * B * WIDTH).view(np.float32).reshape(B, WIDTH)
    observation[:] = value
    return Request(observation, np.zeros(B, bool))


@pytest.mark.slow
def test_request_overwritten_during_the_call_changes():
    """The control: the compiled call returns before it has read everything."""
    engine, served = make_engine()
    request = aligned_request(1.0)
    ids = np.zeros(2, np.uint32)
    table, key = engine._table, engine._key
    output, _, _ = engine._act(engine._params, table, served.index, key, ids, request.observation, request.is_first)
    time.sleep(0.005)
    request.observation[:] = 2.0
    low, high = np.asarray(output.extras)[0]
    assert (low, high) != (1.0, 1.0), "no corruption; this control cannot detect it"


@pytest.mark.parametrize("merged", [False, slow(True)])
def test_act_returns_after_the_request_was_read(merged):
    """A server replies after `act`, and only then may the client write the next request."""
    engine, served = make_engine()
    for number in range(4):
        request = aligned_request(float(number))
        reply = engine.act_merged([(served, request)])[0] if merged else engine.act(served, request)
        request.observation[:] = -7.0
        for target in engine._padded.values():
            target[0][:] = -7.0  # the padded buffers of merged batches too
        np.testing.assert_array_equal(reply.extras[:, 0], float(number))
        np.testing.assert_array_equal(reply.extras[:, 1], float(number))
