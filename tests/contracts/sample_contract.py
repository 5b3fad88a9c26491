"""Contract of every sample transport; import the tests from a module that provides a `transport` fixture.

Producers of transports between processes run as separate processes; those of the in-process transport are threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jsrl.errors import CodecError, ConfigError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import Entry, Origin, ProducerId, SampleConsumer, SampleProducer
from jsrl.transport.ends.samples import reserve_all
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, leaves, named_leaves, zeros
from tests.contracts.sample_producer import checksum, fill, make_schema, produce

TIMEOUT_S = 20.0
SCHEMA = make_schema()
ACTOR = ProducerId("actor-0", 0)


class Transport(NamedTuple):
    """One transport: `new_address()` returns an unused address to bind; `keys` are those of its producers."""

    new_address: Callable[[], str]
    between_processes: bool
    keys: str | None = None


class RunningProducer:
    """A producer that runs during the test: `report()` waits for its JSON line, `kill()` is kill -9."""

    def __init__(self, between_processes: bool, options: dict[str, Any]):
        self._process = self._thread = None
        if between_processes:
            script = Path(__file__).with_name("sample_producer.py")
            command = [sys.executable, str(script), json.dumps(options)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        else:
            self._report: dict[str, Any] = {}
            self._thread = threading.Thread(target=self._run, args=(options,))
            self._thread.start()

    def _run(self, options: dict[str, Any]) -> None:
        try:
            producer_id = ProducerId(options["name"], options["incarnation"])
            producer = connect_samples(options["address"], make_schema(), producer_id, options["groups"], TIMEOUT_S)
            self._report = {"committed": produce(producer, options["groups"], options["count"])}
            producer.close()
        except Exception as error:
            self._report = {"error": type(error).__name__, "text": str(error)}

    def report(self) -> dict[str, Any]:
        if self._process is not None:
            return json.loads(self._process.stdout.readline())
        self._thread.join(60)
        return self._report

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
        else:
            self._thread.join(60)


@contextmanager
def producing(transport: Transport, address: str, **options: Any) -> Iterator[RunningProducer]:
    defaults = {"name": "actor-0", "incarnation": 0, "groups": 2, "count": 5}
    running = RunningProducer(
        transport.between_processes, {"address": address, "keys": transport.keys, **defaults, **options}
    )
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def consumer(transport: Transport) -> Iterator[SampleConsumer]:
    bound = bind_samples(transport.new_address(), SCHEMA)
    yield bound
    bound.close()


_connected: list[SampleProducer] = []


@pytest.fixture(autouse=True)
def leave_no_producer() -> Iterator[None]:
    yield
    while _connected:
        _connected.pop().close()


def connect(
    consumer: SampleConsumer, producer: ProducerId = ACTOR, groups: int = 2, schema: Any = SCHEMA
) -> SampleProducer:
    _connected.append(connect_samples(consumer.address, schema, producer, groups, TIMEOUT_S))
    return _connected[-1]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


def drain(consumer: SampleConsumer, count: int, check: bool = True) -> list[Entry]:
    entries = []
    for _ in range(count):
        lease = consumer.get(TIMEOUT_S)
        if check:
            assert lease.trajectory.extras["checksum"][0, 0] == checksum(lease.trajectory)
        entries.append(lease.entry)
        consumer.release(lease)
        wait_for(lambda: consumer.ledger.balanced)  # another thread may be between two counter updates
    return entries


def assert_in_order(entries: list[Entry], counts: dict[tuple[ProducerId, int], int]) -> None:
    seen: dict[tuple[ProducerId, int], list[int]] = {}
    for entry in entries:
        seen.setdefault((entry.producer, entry.group), []).append(entry.sequence)
    assert seen == {key: list(range(count)) for key, count in counts.items()}


def test_trajectories_arrive_as_they_were_written(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    for number in range(9):  # more than there are blocks
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, number)
        copies = {name: array.copy() for name, array in named_leaves(block.trajectory)}
        entry = block.commit(number % 2)
        assert entry == Entry(ACTOR, number % 2, number // 2)
        lease = consumer.get(TIMEOUT_S)
        assert lease.entry == entry
        for name, array in named_leaves(lease.trajectory):
            np.testing.assert_array_equal(array.view(f"u{array.itemsize}"), copies[name].view(f"u{array.itemsize}"))
            assert array.dtype == copies[name].dtype and array.flags.aligned
            with pytest.raises(ValueError):
                array[...] = 0
        assert consumer.ledger.in_flight == 1 and consumer.ledger.balanced
        consumer.release(lease)
    assert (consumer.ledger.received, consumer.ledger.consumed, consumer.ledger.in_flight) == (9, 9, 0)


def test_origin_and_sender_of_a_trajectory_are_passed_on(consumer: SampleConsumer) -> None:
    producer = connect(consumer, ProducerId("between", 4))
    maker = Origin(ProducerId("a" * 64, 1 << 31), 1 << 40)
    given = [None, maker, Origin(ACTOR, 0), Origin(ProducerId("between", 4), 3)]
    for origin in given:
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, 1)
        entry = block.commit(1, origin)
        lease = consumer.get(TIMEOUT_S)
        assert lease.entry == entry
        consumer.release(lease)
        leg = Origin(entry.producer, entry.sequence)
        assert leg == (ProducerId("between", 4), given.index(origin))
        assert lease.entry.origin == (origin or leg)


def test_put_copies_and_checks(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    trajectory = zeros(SCHEMA)
    fill(trajectory, 3)
    assert producer.put(trajectory, 1, TIMEOUT_S) == Entry(ACTOR, 1, 0)
    trajectory.reward[:] = 0
    drain(consumer, 1)
    with pytest.raises(SpecMismatch, match="reward"):
        producer.put(trajectory._replace(reward=np.zeros((4, 3), "float32")), 0, TIMEOUT_S)
    with pytest.raises(SpecMismatch, match="action"):
        producer.put(trajectory._replace(action=trajectory.action.astype("int64")), 0, TIMEOUT_S)
    with pytest.raises(ConfigError, match="group 2"):
        producer.put(trajectory, 2, TIMEOUT_S)


def test_blocks_begin_as_zeros_and_several_are_open_at_once(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    blocks = [producer.reserve(TIMEOUT_S) for _ in range(4)]
    assert not any(array.any() for block in blocks for array in leaves(block.trajectory))
    for number, block in enumerate(blocks):
        fill(block.trajectory, number)
    blocks[3].commit(1)
    blocks[0].commit(0)
    blocks[2].abandon()
    blocks[1].commit(1)
    assert [lease.trajectory.version[0, 0] for lease in [consumer.get(TIMEOUT_S) for _ in range(3)]] == [3, 0, 1]
    assert consumer.ledger.received == 3
    producer.reserve(TIMEOUT_S).abandon()
    with pytest.raises(StreamError, match="committed or abandoned"):
        blocks[0].commit(0)
    with pytest.raises(StreamError, match="committed or abandoned"):
        blocks[2].abandon()


def test_stalled_consumer_blocks_producers(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    for number in range(4):
        producer.put(zeros(SCHEMA), number % 2, TIMEOUT_S)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(StreamTimeout, match="back-pressure"):
            producer.reserve(0.2)
        assert 0.15 < time.monotonic() - started < 5
    wait_for(lambda: consumer.pending() == 4)
    leases = [consumer.get(TIMEOUT_S) for _ in range(3)]
    with pytest.raises(StreamTimeout):
        producer.reserve(0.1)  # leased is not released
    consumer.release(leases[1])
    producer.reserve(TIMEOUT_S)
    with pytest.raises(StreamTimeout):
        producer.reserve(0.1)
    assert consumer.ledger.received == 4 and consumer.ledger.balanced


def test_room_made_while_a_producer_waits_wakes_it(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    for _ in range(4):
        producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    lease = consumer.get(TIMEOUT_S)
    timer = threading.Timer(0.2, consumer.release, [lease])
    timer.start()
    producer.reserve(TIMEOUT_S).commit(0)
    timer.join()


def test_the_consumer_chooses_the_number_of_blocks(transport: Transport) -> None:
    consumer = bind_samples(transport.new_address(), SCHEMA, blocks_per_producer=1)
    producer = connect(consumer, groups=8)
    for number in range(5):
        producer.put(zeros(SCHEMA), number, TIMEOUT_S)
        with pytest.raises(StreamTimeout):
            producer.reserve(0.05)
        drain(consumer, 1, check=False)
    consumer.close()
    with pytest.raises(ConfigError, match="blocks_per_producer"):
        bind_samples(transport.new_address(), SCHEMA, blocks_per_producer=-1)


def test_waits_time_out(transport: Transport, consumer: SampleConsumer) -> None:
    started = time.monotonic()
    with pytest.raises(StreamTimeout):
        consumer.get(0.2)
    with pytest.raises(StreamTimeout):
        consumer.get(0.0)
    nobody = "tcp://127.0.0.1:9" if consumer.address.startswith("tcp") else transport.new_address()
    with pytest.raises(StreamTimeout):
        connect_samples(nobody, SCHEMA, ACTOR, 1, 0.2)
    assert time.monotonic() - started < 5
    assert consumer.pending() == 0


def test_producers_may_connect_first(transport: Transport) -> None:
    address = transport.new_address()
    if address.startswith("tcp"):
        bound = bind_samples(address, SCHEMA)
        address = bound.address
        bound.close()
    with producing(transport, address, count=1) as running:
        time.sleep(0.3)
        consumer = bind_samples(address, SCHEMA)
        drain(consumer, 2)
        assert running.report()["committed"] == 2
        consumer.close()


def test_leaving_loses_no_committed_trajectory(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    for number in range(4):
        producer.put(zeros(SCHEMA), number % 2, TIMEOUT_S)
    producer.close()
    producer.close()
    with pytest.raises(StreamClosed):
        producer.reserve(0.1)
    assert_in_order(drain(consumer, 4, check=False), {(ACTOR, 0): 2, (ACTOR, 1): 2})
    connect(consumer, ProducerId("actor-0", 1)).close()


def test_closing_drops_what_is_in_flight(transport: Transport) -> None:
    consumer = bind_samples(transport.new_address(), SCHEMA)
    producer = connect(consumer)
    open_block = producer.reserve(TIMEOUT_S)
    for _ in range(3):
        producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    wait_for(lambda: consumer.pending() == 3)
    lease = consumer.get(TIMEOUT_S)
    kept = lease.trajectory.reward
    consumer.close()
    consumer.close()
    assert (kept == 0).all()  # views of a closed stream keep old values and never crash
    consumer.release(lease)
    assert consumer.ledger.dropped == {"closed": 3} and consumer.ledger.balanced and not consumer.ledger.in_flight
    with pytest.raises(StreamClosed):
        consumer.get(0.1)

    def commit_fails() -> bool:
        try:
            producer.reserve(0.05)
        except StreamClosed:
            return True
        except StreamTimeout:
            pass
        return False

    wait_for(commit_fails)
    with pytest.raises(StreamClosed):
        open_block.commit(0)
    producer.close()


def test_waiting_producer_is_woken_by_close(transport: Transport) -> None:
    consumer = bind_samples(transport.new_address(), SCHEMA)
    with producing(transport, consumer.address, count=1000) as running:
        wait_for(lambda: consumer.pending() == 4)
        consumer.close()
        started = time.monotonic()
        assert running.report()["error"] == "StreamClosed"
        assert time.monotonic() - started < 5
    assert consumer.ledger.dropped == {"closed": 4}


def test_other_schemas_are_refused_on_both_sides(consumer: SampleConsumer) -> None:
    other = SCHEMA._replace(reward=ArraySpec((4, 7), "float32"))
    for number, schema in enumerate((other, SCHEMA._replace(extras=()))):
        leaf = ("reward", "extras/checksum")[number]
        with pytest.raises(SpecMismatch, match=leaf):
            connect(consumer, ProducerId("odd", number), schema=schema)
        with pytest.raises(SpecMismatch, match=f"(?s){leaf}.*odd"):
            consumer.get(TIMEOUT_S)
        with pytest.raises(StreamTimeout):
            consumer.get(0.0)
    connect(consumer).close()


def test_incarnation_is_admitted_once_and_only_rises(consumer: SampleConsumer) -> None:
    first = connect(consumer, ProducerId("actor-0", 3))
    fill((block := first.reserve(TIMEOUT_S)).trajectory, 1)
    block.commit(0)
    late = first.reserve(TIMEOUT_S)
    for incarnation in (3, 2):
        with pytest.raises(StreamClosed, match="actor-0"):
            connect(consumer, ProducerId("actor-0", incarnation))
    wait_for(lambda: consumer.ledger.received == 1)
    second = connect(consumer, ProducerId("actor-0", 4))
    other = connect(consumer, ProducerId("actor-1", 0))
    time.sleep(0.1)
    with pytest.raises(StreamClosed):
        late.commit(0)
    fill((block := second.reserve(TIMEOUT_S)).trajectory, 2)
    block.commit(0)
    wait_for(lambda: consumer.ledger.received == 2)
    fill((block := other.reserve(TIMEOUT_S)).trajectory, 3)
    block.commit(1)
    wait_for(lambda: consumer.ledger.received == 3)
    found = drain(consumer, 3)
    assert [(e.producer.name, e.producer.incarnation, e.sequence) for e in found] == [
        ("actor-0", 3, 0),
        ("actor-0", 4, 0),
        ("actor-1", 0, 0),
    ]


def test_fencing_delivers_only_committed_trajectories(consumer: SampleConsumer) -> None:
    producer = connect(consumer)
    for number in range(2):
        fill((block := producer.reserve(TIMEOUT_S)).trajectory, number)
        block.commit(0)
    late = producer.reserve(TIMEOUT_S)
    wait_for(lambda: consumer.ledger.received == 2)
    held = consumer.get(TIMEOUT_S)
    consumer.fence(ACTOR)
    consumer.fence(ACTOR)
    consumer.fence(ProducerId("never-seen", 5))
    time.sleep(0.1)
    fill(late.trajectory, 9)  # a late writer has no effect
    with pytest.raises(StreamClosed):
        late.commit(0)
    assert held.trajectory.extras["checksum"][0, 0] == checksum(held.trajectory)
    consumer.release(held, "too_old")
    drain(consumer, 1)
    with pytest.raises(StreamTimeout):
        consumer.get(0.1)
    for refused in (ACTOR, ProducerId("never-seen", 5)):
        with pytest.raises(StreamClosed):
            connect(consumer, refused)
    assert consumer.ledger.received == 2 and consumer.ledger.dropped == {"too_old": 1} and consumer.ledger.balanced


def test_every_lease_is_released_once(consumer: SampleConsumer) -> None:
    connect(consumer).put(zeros(SCHEMA), 0, TIMEOUT_S)
    lease = consumer.get(TIMEOUT_S)
    consumer.release(lease)
    with pytest.raises(StreamError, match="exactly once"):
        consumer.release(lease)
    assert consumer.ledger.consumed == 1 and consumer.ledger.balanced


@pytest.mark.parametrize("producer", [ProducerId("../etc", 0), ProducerId("", 0), ProducerId("a" * 99, 0)])
def test_impossible_names_are_refused(consumer: SampleConsumer, producer: ProducerId) -> None:
    with pytest.raises(ConfigError, match="name"):
        connect(consumer, producer)
    with pytest.raises(ConfigError, match="num_groups"):
        connect(consumer, groups=0)
    with pytest.raises((ConfigError, CodecError)):
        connect(consumer, schema={"x": ArraySpec((1,), "object")})


def test_an_address_has_one_consumer(consumer: SampleConsumer) -> None:
    with pytest.raises(ConfigError):
        bind_samples(consumer.address, SCHEMA)


def test_broadcast_trajectory_reaches_every_remaining_reader(transport: Transport, consumer: SampleConsumer) -> None:
    other = bind_samples(transport.new_address(), SCHEMA)
    ends = [connect(consumer), connect(other)]
    for number in range(3):
        fill((block := reserve_all(ends, TIMEOUT_S)).trajectory, number)
        assert block.commit(1, Origin(ACTOR, number)).sequence == number
    reserve_all(ends, TIMEOUT_S).abandon()
    assert [entry.origin.sequence for entry in drain(consumer, 3)] == [0, 1, 2]
    with pytest.raises(StreamTimeout):  # the other one has room for one more
        for number in range(3, 9):
            fill((block := reserve_all(ends, 0.2)).trajectory, number)
            block.commit(0, Origin(ACTOR, number))
    drain(consumer, 1)
    assert not consumer.pending() and len(drain(other, 4)) == 4
    fill((block := reserve_all(ends, TIMEOUT_S)).trajectory, 9)
    other.close()

    def close_is_raised() -> bool:
        try:
            ends[1].reserve(0.05).abandon()
        except StreamClosed:
            return True
        return False

    wait_for(close_is_raised)
    block.commit(1, Origin(ACTOR, 9))
    assert [entry.origin.sequence for entry in drain(consumer, 1)] == [9]
    with pytest.raises(StreamClosed):
        reserve_all(ends, TIMEOUT_S)
    assert consumer.ledger.received == consumer.ledger.consumed == 5 and other.ledger.received == 4


def stream_from_two(transport: Transport, consumer: SampleConsumer, groups: int, count: int) -> None:
    with (
        producing(transport, consumer.address, name="a", groups=groups, count=count) as a,
        producing(transport, consumer.address, name="b", groups=groups, count=count) as b,
    ):
        entries = drain(consumer, 2 * groups * count)
        reports = [a.report(), b.report()]
    assert [report.get("committed") for report in reports] == [groups * count] * 2, reports
    counts = {(ProducerId(name, 0), group): count for name in "ab" for group in range(groups)}
    assert_in_order(entries, counts)
    assert consumer.ledger.received == consumer.ledger.consumed == 2 * groups * count
    assert consumer.ledger.balanced and consumer.pending() == 0
    if transport.between_processes:
        assert "jax" not in reports[0]["modules"]


def test_two_producers_arrive_once_and_in_order(transport: Transport, consumer: SampleConsumer) -> None:
    stream_from_two(transport, consumer, groups=3, count=60)


@pytest.mark.slow
def test_two_producers_of_many_trajectories(transport: Transport, consumer: SampleConsumer) -> None:
    stream_from_two(transport, consumer, groups=3, count=2000)


def test_killed_producer_leaves_no_partial_trajectory(transport: Transport, consumer: SampleConsumer) -> None:
    if not transport.between_processes:
        pytest.skip("threads of one process die together")
    with producing(transport, consumer.address, count=3, then="hang") as running:
        entries = drain(consumer, 4)
        assert running.report()["committed"] == 6
        wait_for(lambda: consumer.ledger.received == 6)  # a ZeroMQ commit is in transit until it has arrived
        running.kill()
        consumer.fence(ACTOR)
    with producing(transport, consumer.address, incarnation=1, count=4) as running:
        entries += drain(consumer, 2 + 8)
        assert running.report()["committed"] == 8
    again = ProducerId("actor-0", 1)
    assert_in_order(entries, {(ACTOR, 0): 3, (ACTOR, 1): 3, (again, 0): 4, (again, 1): 4})
    with pytest.raises(StreamTimeout):
        consumer.get(0.3)
    assert consumer.ledger.received == consumer.ledger.consumed == 14


def test_a_producer_killed_while_it_streams(transport: Transport, consumer: SampleConsumer) -> None:
    if not transport.between_processes:
        pytest.skip("threads of one process die together")
    entries: list[Entry] = []
    for life in range(2):
        with producing(transport, consumer.address, incarnation=life, count=100_000) as running:
            entries += drain(consumer, 150)
            running.kill()
        consumer.fence(ProducerId("actor-0", life))
        entries += drain(consumer, consumer.pending())
    counts: dict[tuple[ProducerId, int], int] = {}
    for entry in entries:
        key = (entry.producer, entry.group)
        counts[key] = counts.get(key, 0) + 1
    assert_in_order(entries, counts)
    assert consumer.ledger.balanced and not consumer.ledger.in_flight and len(entries) == consumer.ledger.consumed
