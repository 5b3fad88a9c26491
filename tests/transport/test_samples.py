"""The sample streams: one contract on every transport, and the special cases of each."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zmq

from jsrl.errors import ConfigError, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import ProducerId
from jsrl.transport.door.hello import hello_frames, hello_of_producer
from jsrl.transport.door.keys import make_keys
from jsrl.transport.network import reliable, sockets
from jsrl.transport.shared import samples as shared
from jsrl.transport.shared.connections import connect_socket
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.transport.wire.message import pack
from jsrl.transport.wire.schema import flatten_schema, make_layout
from jsrl.types import ArraySpec, zeros
from tests.contracts import sample_contract
from tests.contracts.sample_contract import *  # noqa: F403
from tests.contracts.sample_contract import ACTOR, SCHEMA, TIMEOUT_S, Transport, connect, drain, producing, wait_for
from tests.marks import nightly, slow
from tests.transport.addresses import new_addresses, tag_of

HELLO = hello_frames(hello_of_producer(ACTOR, 1, flatten_schema(SCHEMA)))
SMALL = {"x": ArraySpec((1,), "int8")}
_numbers = itertools.count()
_CONSUMER = """
import sys, time
from jsrl.transport.shared import samples as shared
from jsrl.transport.shared.connections import connect_socket
from jsrl.transport.table import bind_samples
sys.path.insert(0, sys.argv[2])
from tests.contracts.sample_producer import make_schema
consumer = bind_samples(sys.argv[1], make_schema())
print(consumer.address, flush=True)
consumer.get(30)
time.sleep(600)
"""


@pytest.fixture(params=["local", "shm", "ipc", slow("tcp")])
def transport(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transport:
    if request.param != "tcp":
        return make_transport(request.param, tmp_path)
    keys = str(make_keys(tmp_path / "keys"))
    monkeypatch.setattr(sample_contract, "bind_samples", functools.partial(bind_samples, keys=keys))
    monkeypatch.setattr(sample_contract, "connect_samples", functools.partial(connect_samples, keys=keys))
    return make_transport("tcp", tmp_path)._replace(keys=keys)


NOT_IPC = pytest.mark.parametrize("transport", ["local", "shm", slow("ipc"), slow("tcp")], indirect=True)
for costly in (
    test_two_producers_arrive_once_and_in_order,  # noqa: F405
    test_killed_producer_leaves_no_partial_trajectory,  # noqa: F405
    test_a_producer_killed_while_it_streams,  # noqa: F405
):
    NOT_IPC(costly)
TWO = [nightly("local"), "shm", nightly("ipc"), nightly("tcp")]
pytest.mark.parametrize("transport", TWO, indirect=True)(test_two_producers_of_many_trajectories)  # noqa: F405


def make_transport(scheme: str, tmp_path: Path) -> Transport:
    return Transport(new_addresses(scheme, tmp_path), scheme != "local")


@pytest.mark.parametrize(
    "address",
    ["carrier:pigeon", "shm:relative/name", "shm:/name", "local:a/b", "local:", "ipc://" + "x" * 200, "tcp://x"],
)
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        bind_samples(address, SCHEMA)
    with pytest.raises(ConfigError):
        connect_samples(address, SCHEMA, ACTOR, 1, 0.1)


def test_tcp_needs_keys(tmp_path: Path) -> None:
    for address in ("tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://127.0.0.1:0", "tcp://localhost:0"):
        with pytest.raises(ConfigError, match="other users and hosts"):
            bind_samples(address, SCHEMA)
    keys = make_keys(tmp_path / "keys")
    consumer = bind_samples("tcp://0.0.0.0:0", SCHEMA, keys=keys)
    connect_samples(consumer.address, SCHEMA, ACTOR, 1, TIMEOUT_S, keys=keys).close()
    consumer.close()


@pytest.mark.parametrize("scheme", ["shm", "ipc"])
def test_dead_consumer_is_detected_and_replaced(scheme: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _CONSUMER, make_transport(scheme, tmp_path).new_address(), root]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    producer = connect_samples(address, SCHEMA, ACTOR, 1, TIMEOUT_S)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    block = producer.reserve(TIMEOUT_S)
    process.kill()
    process.wait()
    process.stdout.close()
    with pytest.raises(StreamError):
        for _ in range(3):
            producer.reserve(1.0)
    consumer = bind_samples(address, SCHEMA)
    with pytest.raises(StreamError):
        for _ in range(3):
            producer.reserve(2.0)
    if scheme != "shm":
        with pytest.raises(StreamClosed):  # the new consumer reports that it does not know this incarnation
            producer.reserve(0.0)
    del block
    producer.close()
    again = connect_samples(address, SCHEMA, ACTOR, 1, TIMEOUT_S)
    again.put(zeros(SCHEMA), 0, TIMEOUT_S)
    drain(consumer, 1, check=False)
    again.close()
    consumer.close()


# -- shared memory


def test_shared_files_are_private_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    consumer = bind_samples(f"shm:{folder}/s", SCHEMA)
    producer = connect(consumer)
    lives = connect(consumer, ProducerId("other", 0))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]  # the socket
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    producer.close()
    assert consumer.pending() == 1  # the committed block stays readable
    drain(consumer, 1, check=False)
    consumer.close()
    assert list(folder.iterdir()) == []
    lives.close()


def test_dead_producer_is_detected(tmp_path: Path) -> None:
    transport = make_transport("shm", tmp_path)
    consumer = bind_samples(transport.new_address(), SCHEMA)
    with producing(transport, consumer.address, count=2, then="hang") as running:
        drain(consumer, 3)
        running.report()
        wait_for(lambda: consumer.pending() == 1)
        assert ACTOR in consumer._peers
        running.kill()
    wait_for(lambda: consumer.pending() == 1 and not consumer._peers)
    drain(consumer, 1)
    consumer.close()


def test_producer_that_gave_up_before_its_welcome_may_ask_again(tmp_path: Path) -> None:
    """Making the memory of many producers takes longer than each of them waits."""
    consumer = bind_samples(f"shm:{tmp_path}/run/s", SCHEMA, leg=tmp_path / "leg")
    for moment in ("before it is welcome", "after that"):
        with connect_socket(tmp_path / "run" / "s", TIMEOUT_S, lambda: None) as early:
            early.send(HELLO[0])
            if moment == "after that":
                wait_for(lambda: consumer.pending() == 0 and bool(consumer._peers))
    wait_for(lambda: consumer.pending() == 0 and not consumer._peers)  # and the memory is freed
    producer = connect(consumer, groups=1)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    drain(consumer, 1, check=False)
    with pytest.raises(StreamClosed, match="joined before"):
        connect(consumer, groups=1)
    assert len(list((tmp_path / "leg").iterdir())) == 1  # it is counted as one connection
    consumer.close()


def test_fenced_producer_writes_to_an_orphaned_ring(tmp_path: Path) -> None:
    transport = make_transport("shm", tmp_path)
    consumer = bind_samples(transport.new_address(), SCHEMA)
    with producing(transport, consumer.address, count=10**6) as running:
        drain(consumer, 5)
        os.kill(running._process.pid, signal.SIGSTOP)
        consumer.fence(ACTOR)
        produced = consumer.ledger.received
        with producing(transport, consumer.address, incarnation=1, count=5) as second:
            os.kill(running._process.pid, signal.SIGCONT)
            entries = drain(consumer, produced - 5 + 10)
            assert second.report()["committed"] == 10
        assert running.report()["error"] == "StreamClosed"
    assert sum(entry.producer.incarnation == 1 for entry in entries) == 10
    assert consumer.ledger.received == produced + 10 and consumer.ledger.balanced
    consumer.close()


@pytest.mark.parametrize("scheme", ["local", "shm"])
def test_committed_trajectory_is_there_without_waiting(scheme: str, tmp_path: Path) -> None:
    consumer = bind_samples(make_transport(scheme, tmp_path).new_address(), SCHEMA)
    producers = [connect(consumer, ProducerId(f"actor-{number}", 0)) for number in range(2)]
    for number in range(8):
        producers[number % 2].put(zeros(SCHEMA), 0, TIMEOUT_S)
        lease = consumer.get(0.0)
        assert lease.entry.producer == producers[number % 2].producer
        consumer.release(lease)
    consumer.close()


def test_garbage_of_a_producer_ends_its_connection(tmp_path: Path) -> None:
    consumer = bind_samples(f"shm:{tmp_path}/run/s", SCHEMA)
    for life, garbage in enumerate((b"not a message of ours", pack(shared.Commit(77, 0, 0, None))[0])):
        producer = connect(consumer, ProducerId("actor-0", life))
        producer._connection.send(garbage)
        with pytest.raises(StreamError, match="actor-0 sent no commit"):
            consumer.get(TIMEOUT_S)
        with pytest.raises(StreamClosed):
            producer.reserve(0.1)
    consumer.close()


def test_commit_is_received_from_a_producer_that_died_with_unread_messages(tmp_path: Path) -> None:
    consumer = bind_samples(f"shm:{tmp_path}/run/s", SCHEMA)
    producer = connect(consumer)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    block = producer.reserve(TIMEOUT_S)
    consumer.release(consumer.get(TIMEOUT_S))
    with consumer._lock:
        block.commit(0)
        producer._connection.close()  # as the end of its process does
    drain(consumer, 1, check=False)
    consumer.close()


@pytest.mark.parametrize("scheme", ["local", "shm"])
def test_hundreds_of_commits_and_freed_blocks_wait_for_a_busy_peer(scheme: str, tmp_path: Path) -> None:
    """A connection holds fewer: the producer waits, and the consumer sends what is free later."""
    number = 6000
    consumer = bind_samples(make_transport(scheme, tmp_path).new_address(), SMALL, blocks_per_producer=number)
    producer = connect(consumer, groups=1, schema=SMALL)
    with consumer._lock, ThreadPoolExecutor(1) as pool:
        made = pool.submit(lambda: [producer.put(zeros(SMALL), 0, TIMEOUT_S) for _ in range(number)])
        time.sleep(0.3)
        assert not made.done()
        consumer._lock.release()
        while not made.done():
            consumer.pending()
        consumer._lock.acquire()
    drain(consumer, number, check=False)
    for _ in range(number):
        producer.put(zeros(SMALL), 0, TIMEOUT_S)
        consumer.pending()
    assert consumer.pending() == number
    producer.close()
    consumer.close()


# -- ZeroMQ


class CuttingProxy:
    """Forwards TCP bytes, and cuts every connection after `cut_bytes` from the producer."""

    def __init__(self, target: str, cut_bytes: int):
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._cut_bytes = cut_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            back = threading.Thread(target=self._pass, args=(far, near, 1 << 62), daemon=True)
            back.start()
            self._pass(near, far, self._cut_bytes)
            for end in (near, far):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            back.join(10)
            near.close()
            far.close()
            self.cuts += 1

    def _pass(self, source: socket.socket, sink: socket.socket, left: int) -> None:
        try:
            while left > 0 and (chunk := source.recv(min(left, 65536))):
                sink.sendall(chunk)
                left -= len(chunk)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_broken_connections_lose_and_repeat_nothing(tmp_path: Path) -> None:
    transport = make_transport("tcp", tmp_path)._replace(keys=str(make_keys(tmp_path / "keys")))
    consumer = bind_samples(transport.new_address(), SCHEMA, keys=transport.keys)
    proxy = CuttingProxy(consumer.address, cut_bytes=150_000)
    with producing(transport, proxy.address, groups=2, count=40) as running:
        entries = drain(consumer, 80)
        assert running.report().get("committed") == 80
    assert proxy.cuts >= 3
    assert sorted((entry.group, entry.sequence) for entry in entries) == [(g, s) for g in (0, 1) for s in range(40)]
    assert consumer.ledger.received == 80 and consumer.ledger.balanced
    consumer.close()
    proxy.close()


class StallingProxy(CuttingProxy):
    """Forwards bytes while `flowing` is set; bytes that arrived meanwhile follow later, if the connection still exists."""

    def __init__(self, target: str):
        self.flowing = threading.Event()
        self.flowing.set()
        super().__init__(target, 1 << 62)

    def _pass(self, source: socket.socket, sink: socket.socket, left: int) -> None:
        try:
            while chunk := source.recv(65536):
                self.flowing.wait()
                sink.sendall(chunk)
        except OSError:
            pass


@pytest.mark.nightly
def test_partition_beyond_the_silence_limit_loses_and_repeats_nothing(tmp_path: Path, monkeypatch) -> None:
    """The consumer drops the connection; trajectories in transit are sent again on the next one."""
    monkeypatch.setitem(sockets.configure.__kwdefaults__, "silence_ms", 3000)
    transport = make_transport("tcp", tmp_path)._replace(keys=str(make_keys(tmp_path / "keys")))
    consumer = bind_samples(transport.new_address(), SCHEMA, keys=transport.keys)
    proxy = StallingProxy(consumer.address)
    with producing(transport, proxy.address, groups=2, count=400) as running:
        entries = drain(consumer, 20)
        proxy.flowing.clear()
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + 7.0:
            try:
                lease = consumer.get(0.5)
            except StreamTimeout:
                continue
            entries.append(lease.entry)
            consumer.release(lease)
        made_meanwhile = len(entries) - 20
        proxy.flowing.set()
        healed_s = time.monotonic()
        entries += drain(consumer, 1)
        assert time.monotonic() - healed_s < 5.0
        entries += drain(consumer, 800 - len(entries))
        assert running.report().get("committed") == 800
    assert made_meanwhile < 100  # credits blocked the producer
    assert proxy.cuts >= 1
    assert sorted((entry.group, entry.sequence) for entry in entries) == [(g, s) for g in (0, 1) for s in range(400)]
    assert consumer.ledger.received == 800 and consumer.ledger.balanced
    consumer.close()
    proxy.close()


def test_idle_producer_sleeps(tmp_path: Path) -> None:
    """Its thread wakes up only while the consumer has not received all: a host may have thousands of idle producers."""
    consumer = bind_samples(f"ipc://{tmp_path}/samples", SCHEMA)
    producer = connect_samples(consumer.address, SCHEMA, ACTOR, 1, TIMEOUT_S)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    thread = producer._thread
    consumer.release(consumer.get(TIMEOUT_S))
    time.sleep(1.2)  # by now it has learned that nothing is on the way
    before = wakeups(thread)
    time.sleep(1.2)
    assert wakeups(thread) == before
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    wait_for(lambda: wakeups(thread) > before)
    producer.close()
    consumer.close()


def wakeups(thread: threading.Thread) -> int:
    """Return how often a thread of this process has waited for something."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_block_that_zeromq_gives_back_late_is_found_soon(tmp_path: Path, monkeypatch) -> None:
    """The consumer's answer may come before ZeroMQ has let go of the bytes, and nothing may follow it."""
    monkeypatch.setattr(reliable, "_SYNC_S", 60.0)
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA, blocks_per_producer=1)
    producer = connect(consumer, groups=1)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    drain(consumer, 1, check=False)
    wait_for(lambda: (producer._receive(0.1), producer._released == 1)[1])
    answers = itertools.chain([False] * 3, itertools.repeat(True))
    monkeypatch.setattr(reliable._Block, "is_free", lambda _: next(answers))
    started = time.monotonic()
    producer.reserve(60.0).abandon()
    assert time.monotonic() - started < 30.0
    monkeypatch.undo()
    producer.close()
    consumer.close()


def test_commit_over_a_connection_that_is_gone_for_good_is_an_error(tmp_path: Path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    producer = connect(consumer)
    block = producer.reserve(TIMEOUT_S)
    producer._link.socket.disconnect(producer.address)  # as after the key of its host was revoked
    committing = ThreadPoolExecutor(1).submit(block.commit, 0)
    with pytest.raises(StreamClosed, match="it was not accepted again"):
        committing.result(TIMEOUT_S)
    producer.close()
    consumer.close()


def test_producer_whose_connection_is_gone_for_good_can_close_though_a_block_is_wanted_again(tmp_path: Path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    producer = connect(consumer)
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    producer._link.socket.disconnect(producer.address)
    producer._handle(reliable.Credit(0, 0, True))  # as `close` may read it
    with pytest.raises(StreamClosed, match="it was not accepted again"):
        producer.reserve(TIMEOUT_S)
    producer.close()
    consumer.close()


def test_a_block_is_not_reused_while_zeromq_reads_it(tmp_path: Path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    producer = connect(consumer, groups=1)
    first = producer.reserve(TIMEOUT_S)
    address = first.trajectory.reward.ctypes.data
    first.commit(0)
    drain(consumer, 1, check=False)

    class Busy:
        done = False

    number = producer._on_the_way[0]
    producer._blocks[number].trackers.append(Busy)
    second = producer.reserve(TIMEOUT_S)
    assert second.trajectory.reward.ctypes.data != address
    with pytest.raises(StreamError):
        producer.reserve(0.1)  # there is credit, but ZeroMQ still holds the only other block
    Busy.done = True
    assert producer.reserve(TIMEOUT_S).trajectory.reward.ctypes.data == address
    producer.close()
    consumer.close()


def test_garbage_on_the_wire_is_ignored(tmp_path: Path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    producer = connect(consumer, groups=1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(consumer.address)
        for frames in ([b""], [b"junk", b"x" * 100], [b"JSRL" + bytes(40)], [b"a"] * 10):
            stranger.send_multipart(frames)
            assert stranger.poll(5000)
            assert b"refused" in stranger.recv_multipart()[0]
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{tmp_path}/s")
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    producer.put(zeros(SCHEMA), 0, TIMEOUT_S)
    drain(consumer, 1, check=False)
    producer._link.socket.send_multipart([b"not a message of ours"])
    with pytest.raises(StreamError):
        consumer.get(TIMEOUT_S)
    with pytest.raises(StreamClosed):
        for _ in range(50):
            producer.reserve(0.2).abandon()
            time.sleep(0.1)
    producer.close()
    consumer.close()


def test_producer_that_sends_more_than_its_blocks_is_fenced(tmp_path: Path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA, blocks_per_producer=2)
    block = np.zeros(make_layout(flatten_schema(SCHEMA)).size_bytes, np.uint8)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(consumer.address)
        socket.send_multipart(HELLO)
        for index in range(3):
            socket.send_multipart(pack(reliable.Sample(index, 0, index, None, False, False), block))
        with pytest.raises(StreamError, match=r"at most 2 ahead of 0. It was fenced"):
            for _ in range(3):
                consumer.get(5.0)
    assert consumer.ledger.received == 2
    consumer.close()


def test_large_trajectories_are_received_without_a_copy(tmp_path: Path) -> None:
    from tests.contracts.sample_producer import checksum, fill, make_schema

    schema = make_schema(300_000)
    consumer = bind_samples(f"ipc://{tmp_path}/s", schema)
    producer = connect(consumer, schema=schema)
    for number in range(8):
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, number)
        block.commit(0)
        lease = consumer.get(TIMEOUT_S)
        assert lease.trajectory.extras["checksum"][0, 0] == checksum(lease.trajectory)
        assert np.shares_memory(lease.trajectory.observation["image"], lease.trajectory.reward) is False
        consumer.release(lease)
    producer.close()
    consumer.close()


def test_unadmitted_client_cannot_fill_consumer_memory(tmp_path: Path) -> None:
    """An unadmitted client sends as fast as it can to a busy consumer: soon it is blocked."""
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.SNDHWM, 10)
    stranger.connect(consumer.address)
    sent = 0
    with consumer._lock:  # nothing is read meanwhile, as while the learner's process computes
        while stranger.poll(1000, zmq.POLLOUT) and sent < 20_000:
            stranger.send(bytes(4096))
            sent += 1
    assert 10 < sent < 20_000
    context.destroy(linger=0)
    consumer.close()


def test_hundreds_of_late_messages_of_a_replaced_producer_are_refused(tmp_path: Path) -> None:
    """As a host sends them that was stopped, or cut off, while its workers were replaced."""
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    raw = np.zeros(make_layout(flatten_schema(SCHEMA)).size_bytes, np.uint8)
    with zmq.Context() as context, context.socket(zmq.DEALER) as old:
        old.setsockopt(zmq.LINGER, 0)
        old.connect(consumer.address)
        old.send_multipart(HELLO)
        assert tag_of(old.recv_multipart()) == "welcome"
        new = connect(consumer, ProducerId(ACTOR.name, 1))
        for index in range(900):  # fewer than may wait in a connection
            old.send_multipart(pack(reliable.Sample(index, 0, index, None, False, False), raw))
        kinds = [tag_of(old.recv_multipart()) for _ in range(901)]  # one when it was replaced
        assert kinds == ["refused"] * 901
    new.put(zeros(SCHEMA), 0, TIMEOUT_S)
    (entry,) = drain(consumer, 1, check=False)
    assert entry.producer.incarnation == 1 and consumer.ledger.received == 1 and consumer.ledger.balanced
    new.close()
    consumer.close()


def test_fencing_at_a_closed_end_writes_nowhere(tmp_path: Path) -> None:
    """The numbers of its descriptors may belong to other files by then."""
    consumer = bind_samples(f"ipc://{tmp_path}/s", SCHEMA)
    consumer.close()
    files = [(tmp_path / f"file-{number}").open("w+b") for number in range(32)]
    consumer.fence(ACTOR)
    for file in files:
        assert file.seek(0, os.SEEK_END) == 0
        file.close()
