"""Ledgers of real streams, from the pages of both ends: deaths of either end are accounted for, miscounts are detected."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.errors import StreamClosed
from jsrl.transport.base import ProducerId, SampleConsumer
from jsrl.transport.ledger import legs
from jsrl.transport.ledger.leg_page import LegPage, pages_in
from jsrl.transport.ledger.legs import SAMPLES, close_legs, ledger_path, leg_folder, read_leg, read_legs
from jsrl.transport.ledger.page import PersistedLedger, open_ledger
from jsrl.transport.ledger.reconcile import LegLedger
from jsrl.transport.table import bind_samples, connect_samples
from tests.contracts.sample_producer import fill, make_schema
from tests.marks import nightly

SCHEMA, TIMEOUT_S = make_schema(), 20.0
TRANSPORTS = ["local", "shm", "ipc"]
ACROSS = ["shm", "ipc"]

_PRODUCER = """
import json, sys, time
from pathlib import Path
from jsrl.transport.base import ProducerId
from jsrl.transport.table import connect_samples
from tests.contracts.sample_producer import fill, make_schema
options = json.loads(sys.argv[1])
leg = Path(options["leg"]) if options["leg"] else None
producer = connect_samples(options["address"], make_schema(), ProducerId("actor-9", 0), 1, 20.0, leg=leg)
for number in range(options["count"]):
    block = producer.reserve(20.0)
    fill(block.trajectory, number)
    block.commit(0)
print("committed", flush=True)
sys.stdin.readline()
producer.close()
print("closed", flush=True)
time.sleep(600)
"""
_CONSUMER = """
import json, sys, time
from pathlib import Path
from jsrl.transport.ledger.legs import SAMPLES, leg_folder, ledger_path
from jsrl.transport.ledger.page import open_ledger
from jsrl.transport.table import bind_samples
from tests.contracts.sample_producer import make_schema
options = json.loads(sys.argv[1])
run = Path(options["run"])
leg = leg_folder(run, SAMPLES)
_, ledger = open_ledger(ledger_path(run, SAMPLES), 0, None, leg=leg, rolls_back=False)
consumer = bind_samples(options["address"], make_schema(), ledger=ledger, leg=leg, blocks_per_producer=8)
print(consumer.address, flush=True)
for number in range(options["count"]):
    lease = consumer.get(20.0)
    if number < options["released"]:
        consumer.release(lease)
print("taken", flush=True)
time.sleep(600)
"""

_BUSY_PRODUCER = """
import json, sys
from pathlib import Path
from jsrl.transport.base import ProducerId
from jsrl.transport.table import connect_samples
from tests.contracts.sample_producer import make_schema
options = json.loads(sys.argv[1])
who = ProducerId("actor-0", options["incarnation"])
producer = connect_samples(options["address"], make_schema(), who, 1, 20.0, leg=Path(options["leg"]))
print("connected", flush=True)
while True:
    producer.reserve(600.0).commit(0)
"""
_BUSY_CONSUMER = _CONSUMER.replace(
    'print("taken", flush=True)\ntime.sleep(600)',
    """
print("taken", flush=True)
while True:
    lease = consumer.get(600.0)
    consumer.release(lease, "stale" if lease.entry.sequence % 7 == 0 else "consumed")
""",
)


class Other:
    """Another process of the test."""

    def __init__(self, script: str, **options: Any) -> None:
        root = Path(__file__).parents[2]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root,
        )  # fmt: skip

    def line(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED)  # until then its threads go on

    def kill(self) -> None:
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def others() -> Iterator[list[Other]]:
    started: list[Other] = []
    yield started
    for other in started:
        other.close()


def address_of(transport: str, run: Path) -> str:
    return {"local": f"local:{run.parent.name}", "shm": f"shm:{run.parent}/memory/s", "ipc": f"ipc://{run.parent}/s"}[
        transport
    ]


def bind(run: Path, address: str) -> SampleConsumer:
    """Bind the next incarnation of a run's consumer, whose outcomes remain."""
    leg = leg_folder(run, SAMPLES)
    _, ledger = open_ledger(ledger_path(run, SAMPLES), 0, None, leg=leg, rolls_back=False)
    return bind_samples(address, SCHEMA, ledger=ledger, leg=leg, blocks_per_producer=8)


def put(producer: Any, count: int) -> None:
    for number in range(count):
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, number)
        block.commit(0)


def take(consumer: SampleConsumer, count: int, outcome: str = "consumed") -> None:
    for _ in range(count):
        consumer.release(consumer.get(TIMEOUT_S), outcome)


def ledger_of(run: Path) -> LegLedger:
    found = read_leg(run)
    assert found is not None
    return found


def play(run: Path, transport: str) -> tuple[LegLedger, LegLedger]:
    """Let a producer write seven trajectories, of which the consumer takes four; return the ledger then and at the end."""
    consumer = bind(run, address_of(transport, run))
    leg = leg_folder(run, SAMPLES)
    producer = connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 1, TIMEOUT_S, leg=leg)
    put(producer, 7)
    take(consumer, 3)
    take(consumer, 1, "stale")
    while consumer.pending() < 3:
        time.sleep(0.005)
    midway = ledger_of(run)
    producer.mark_lost("the test is over")
    consumer.close()
    producer.close()
    return midway, ledger_of(run)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_stream_closed_in_order_balances(transport: str, tmp_path: Path) -> None:
    midway, found = play(tmp_path / "run", transport)
    assert midway == LegLedger(7, 3, {"stale": 1}, in_flight=3)
    assert found == LegLedger(7, 3, {"stale": 1, "closed": 3}) and found.balanced
    assert read_legs(tmp_path / "run") == {SAMPLES: found}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("side", ["commit", "receive", "finish"])
def test_miscount_on_either_side_is_detected_on_every_transport(
    transport: str, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = PersistedLedger if side == "finish" else LegPage
    right, calls = getattr(kind, side), []

    def wrong(self: Any, *arguments: Any) -> None:
        calls.append(side)
        right(self, *arguments)
        if len(calls) == 2:
            right(self, *arguments)

    monkeypatch.setattr(kind, side, wrong)
    midway, found = play(tmp_path / "run", transport)
    assert not midway.balanced  # over ZeroMQ, it may still be in transit
    assert not found.holds and not found.balanced and "NOT BALANCED" in str(found)


@pytest.mark.parametrize("transport", ACROSS)
def test_killed_producer_is_counted_from_its_page(transport: str, tmp_path: Path, others: list[Other]) -> None:
    run = tmp_path / "run"
    consumer = bind(run, address_of(transport, run))
    producer = Other(_PRODUCER, address=consumer.address, leg=str(leg_folder(run, SAMPLES)), count=5)
    others.append(producer)
    assert producer.line() == "committed"
    take(consumer, 2)
    while consumer.pending() < 3:
        time.sleep(0.005)
    producer.kill()
    consumer.fence(ProducerId("actor-9", 0))
    take(consumer, 1)
    assert ledger_of(run) == LegLedger(5, 3, {}, in_flight=2)
    consumer.close()
    found = ledger_of(run)
    assert found == LegLedger(5, 3, {"closed": 2}) and found.balanced


@pytest.mark.slow
@pytest.mark.parametrize("transport", ACROSS)
@pytest.mark.parametrize("producer_lives", [True, False])
def test_killed_consumer_leaves_no_unknown_trajectory(
    transport: str, producer_lives: bool, tmp_path: Path, others: list[Other]
) -> None:
    run = tmp_path / "run"
    leg = leg_folder(run, SAMPLES)
    consumer = Other(_CONSUMER, run=str(run), address=address_of(transport, run), count=4, released=3)
    others.append(consumer)
    address = consumer.line()
    producer = connect_samples(address, SCHEMA, ProducerId("actor-0", 0), 1, TIMEOUT_S, leg=leg)
    put(producer, 4)
    assert consumer.line() == "taken"
    consumer.pause()
    put(producer, 2)  # no consumer will take these
    consumer.kill()  # one leased, never released
    if producer_lives:
        producer.mark_lost("its consumer was replaced")
        producer.close()
    close_legs(run)
    found = ledger_of(run)
    known = producer_lives or transport == "shm"
    assert found.holds and found.balanced == known
    lost = {"lost": 2} if known else {}
    unknown = {} if known else {"actor-0.0": 2}
    assert found == LegLedger(6, 3, lost, in_flight=1, unknown=0 if known else 2, lost_at=unknown)
    again = bind(run, address_of(transport, run))  # trajectories in the dead one's queue are lost too
    after = ledger_of(run)
    assert (after.in_flight, after.dropped["lost"], after.produced) == (0, lost.get("lost", 0) + 1, 6)
    again.close()
    if not producer_lives:
        producer.mark_lost("the test is over")
        producer.close()


def test_new_consumer_counts_what_the_old_one_did_not_read(tmp_path: Path, others: list[Other]) -> None:
    run = tmp_path / "run"
    leg = leg_folder(run, SAMPLES)
    consumer = Other(_CONSUMER, run=str(run), address=address_of("shm", run), count=0, released=0)
    others.append(consumer)
    address = consumer.line()
    producer = Other(_PRODUCER, address=address, leg=str(leg), count=3)
    others.append(producer)
    assert producer.line() == "committed"
    consumer.kill()
    producer.kill()
    again = bind(run, address)
    found = ledger_of(run)
    assert found.balanced and found.produced == 3
    again.close()
    assert ledger_of(run).produced == 3 and ledger_of(run).balanced


def kill(consumer: Any) -> None:
    """Do what the end of its process does."""
    consumer._closed = True
    consumer._connections.wake()
    consumer._thread.join()
    for peer in consumer._peers.values():
        peer.connection.close()
    consumer._connections._listener.close()


def test_producer_of_a_dead_consumer_commits_nothing_that_the_next_one_does_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leg, consumer = leg_folder(run, SAMPLES), bind(run, address_of("shm", run))
    producer = connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 1, TIMEOUT_S, leg=leg)
    put(producer, 3)
    take(consumer, 1)
    assert consumer.pending() == 2
    block = producer.reserve(TIMEOUT_S)
    kill(consumer)
    again = bind(run, consumer.address)
    with pytest.raises(StreamClosed):
        block.commit(0)
    assert ledger_of(run) == LegLedger(3, 1, {"lost": 2}) and ledger_of(run).balanced  # even if it is killed now
    producer.close()
    assert ledger_of(run).balanced
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", nightly("ipc")])
def test_kills_at_any_moment_keep_the_counts_correct(transport: str, tmp_path: Path, others: list[Other]) -> None:
    run, rng = tmp_path / "run", random.Random(7)
    produced = 0
    for life in range(16):
        consumer = Other(_BUSY_CONSUMER, run=str(run), address=address_of(transport, run), count=0, released=0)
        others.append(consumer)
        address = consumer.line()
        assert consumer.line() == "taken"
        options = {"address": address, "leg": str(leg_folder(run, SAMPLES)), "incarnation": life}
        producer = Other(_BUSY_PRODUCER, **options)
        others.append(producer)
        assert producer.line() == "connected"
        time.sleep(rng.uniform(0.01, 0.05))
        for victim in rng.sample([consumer, producer], 2):
            victim.kill()
        close_legs(run)
        found = ledger_of(run)
        assert found.holds and found.produced > produced, str(found)
        assert found.balanced or transport == "ipc", str(found)
        produced = found.produced


def test_remote_producer_is_counted_once_it_left_in_order(tmp_path: Path, others: list[Other]) -> None:
    run = tmp_path / "run"
    consumer = bind(run, address_of("ipc", run))
    producer = Other(_PRODUCER, address=consumer.address, leg="", count=5)
    others.append(producer)
    assert producer.line() == "committed"
    take(consumer, 5)
    before = ledger_of(run)
    assert before.holds and not before.balanced and before.uncounted == 8
    producer.go_on()
    while not ledger_of(run).balanced:
        consumer.pending()
        time.sleep(0.005)
    assert ledger_of(run) == LegLedger(5, 5)
    consumer.close()


def test_missing_or_broken_page_is_detected(tmp_path: Path) -> None:
    play(tmp_path / "run", "local")
    (page,) = pages_in(leg_folder(tmp_path / "run", SAMPLES))
    content = page.read_bytes()
    page.unlink()
    missing = ledger_of(tmp_path / "run")
    assert missing.holds and not missing.balanced and missing.uncounted == 7
    page.write_bytes(content[:100])
    broken = ledger_of(tmp_path / "run")
    assert not broken.holds and f"{page} is not a page of a connection" in str(broken)
    close_legs(tmp_path / "run")
    assert page.read_bytes() == content[:100]


def test_pages_that_always_change_are_read_for_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand actors commit more often than their pages can be read."""
    clock = [0.0]

    def read(*_: object) -> tuple[None, list[float]]:
        clock[0] += 0.2
        return None, [clock[0]]

    monkeypatch.setattr(legs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(legs, "_read", read)
    read_leg(tmp_path)
    assert clock[0] < 1.5


def test_ledger_without_its_page_starts_from_the_snapshot_counts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    play(run, "local")
    ledger_path(run, SAMPLES).unlink()
    saved = {"consumed": 3, "dropped": {"stale": 1}, "trained": 2, "generation": 0}
    open_ledger(ledger_path(run, SAMPLES), 0, saved, leg=leg_folder(run, SAMPLES))
    assert ledger_of(run) == LegLedger(4, 2, {"stale": 1, "rolled_back": 1}) and ledger_of(run).balanced
    assert not list(pages_in(leg_folder(run, SAMPLES)))


def test_a_run_without_a_consumer_has_no_ledger(tmp_path: Path) -> None:
    assert read_legs(tmp_path) == {} and read_leg(tmp_path) is None
    close_legs(tmp_path)
