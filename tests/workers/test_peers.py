"""The peers that a worker finds under several names."""

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from jsrl.cluster.messages import LOST_S
from jsrl.envs.config import EnvConfig
from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.experiment import Experiment
from jsrl.graph.plan import make_plan
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.values import Registration
from jsrl.transport.table import bind_inference, bind_samples
from jsrl.workers import following, peers
from jsrl.workers.actor import streams as actor_streams
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.asking import InferenceRequests
from jsrl.workers.ends import names_of_peers
from jsrl.workers.following import SampleWriter
from jsrl.workers.peers import (
    CLOSED_S,
    ELSEWHERE_S,
    REFUSED_S,
    BriefRetry,
    FailoverPeer,
    FollowingParams,
    Peer,
    first_present,
)
from tests.tiny_agent import TinyConfig

SERVERS = ["inference-1", "inference-0"]
SERVER = "inference.inference-0"


def test_another_server_answers_until_the_own_one_is_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    names = FileNames(tmp_path)
    assert first_present(names, SERVERS) is None
    names.register("inference-0", "shm:a")
    other = first_present(names, SERVERS)
    assert other is not None and other.name == "inference-0"
    peer = FailoverPeer(names, SERVERS, other)
    peer.check()
    assert peer.is_away
    own = names.register("inference-1", "shm:b")
    with pytest.raises(StreamClosed, match="inference-1 is back; inference-0 was its substitute"):
        peer.check()
    assert first_present(names, SERVERS) == own
    peer.known = own
    peer.check()
    assert not peer.is_away


def test_other_servers_answer_while_a_host_may_be_lost(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    now_s = [100.0]
    monkeypatch.setattr(peers.time, "monotonic", lambda: now_s[0])
    names = FileNames(tmp_path)
    far = Registration("inference-1", "tcp://far", 0, 7, "elsewhere")
    names.show([far])
    own = names.lookup("inference-1", 0.0)
    peer = FailoverPeer(names, SERVERS, own)
    assert peer.is_elsewhere
    peer.mark_suspect()
    assert peer.find(0.0) == own  # there is no other
    peer.known = other = names.register("inference-0", "shm:a")
    assert not peer.is_elsewhere
    assert peer.find(0.0) == other
    peer.check()
    names.show([dataclasses.replace(far, incarnation=1)])
    assert peer.find(0.0) != other  # its replacement is not suspected
    names.show([far])
    now_s[0] += 31.0
    with pytest.raises(StreamClosed, match="inference-1 is back"):
        peer.check()


def test_refusals_of_a_living_peer_are_borne_for_a_while() -> None:
    patience, refusal = BriefRetry(), StreamClosed("no")
    for _ in range(2):
        patience.pause(refusal, 0.0)
        with pytest.raises(StreamClosed, match="no"):
            patience.pause(refusal, 0.0)
        patience.end()


class ParamsAt:
    """A subscriber that only knows where it is connected."""

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False

    def poll(self, policy: int) -> tuple[int, list]:
        return 1, [self.address]

    def close(self) -> None:
        self.closed = True


def test_params_are_fetched_where_the_publisher_is_shown_next(tmp_path, monkeypatch) -> None:
    """Its incarnation may be the same: a host shows a relay once it has one."""
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    names, ends = FileNames(tmp_path), list[ParamsAt]()
    shown = Registration("params", "tcp://far", 0, 7, "elsewhere")
    names.show([shown])
    params = FollowingParams(
        Peer(names, "params", names.lookup("params", 0.0)), lambda address: ends.append(ParamsAt(address)) or ends[-1]
    )
    assert params.poll() == (1, ["tcp://far"]) and len(ends) == 1
    names.show([dataclasses.replace(shown, address="ipc://relay")])
    assert params.poll() == (1, ["ipc://relay"]) and [end.closed for end in ends] == [True, False]


class Broken:
    """A client whose server does not answer, as when its host is lost."""

    def receive(self, timeout_s: float) -> None:
        raise StreamClosed("the connection to the server broke.")

    def close(self) -> None: ...


class RefusesFirst:
    """A client whose first request is for a policy that is not served."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, group: int, request: str) -> None:
        self.sent.append(request)

    def receive(self, timeout_s: float) -> tuple[int, str]:
        if len(self.sent) == 1:
            raise UnknownPolicy("it serves others")
        return 0, f"reply to {self.sent[-1]}"


def test_request_after_one_for_an_unserved_policy_is_sent(tmp_path) -> None:
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    requests = InferenceRequests(make_plan(e, str(tmp_path), tmp_path).job("actor-0"))
    requests._client = client = RefusesFirst()
    with pytest.raises(UnknownPolicy):
        requests.ask(0, "a", 0.0)
    assert requests.ask(0, "b", 0.0) == "reply to b" and client.sent == ["a", "b"]


def test_actor_of_a_lost_remote_server_fails_over_or_asks_again(tmp_path) -> None:
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    e = dataclasses.replace(e, num_inference_servers=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    streams = ActorStreams(job, Meter("actor"))
    job.names.show([Registration("inference.inference-0", "tcp://far", 0, 7, "elsewhere")])
    candidates = names_of_peers(job.end("inference"))
    server = FailoverPeer(job.names, candidates, job.find(candidates[0]))
    streams._server, streams._peers, streams._client = server, [server], Broken()
    assert streams.look(0.0) is True and streams._present[0].name == "inference.inference-0"  # there is no other
    assert ELSEWHERE_S > 3 * LOST_S - 1
    job.names.register("inference.inference-1", "shm:b", 0)
    assert streams.look(0.0) is True and streams._present[0].name == "inference.inference-1"


def test_actor_whose_connection_to_a_living_server_broke_connects_again(tmp_path) -> None:
    """It was paused, or cut off, for longer than the silence after which a connection counts as broken."""
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    consumer = bind_samples(f"ipc://{tmp_path}/samples", job.schemas.trajectory)
    server = bind_inference(f"ipc://{tmp_path}/{SERVER}", job.schemas.act)
    for name, address in (("samples.learner", consumer.address), (SERVER, server.address)):
        job.names.register(name, address)
    streams, ended = ActorStreams(job, Meter("actor")), threading.Event()

    def answer() -> None:
        while not ended.is_set():
            server.collect(8, 0.05)

    (answering := threading.Thread(target=answer)).start()
    client, writer = streams.open({0: 1})
    assert streams.look(0.0) is False
    client._link.watch.broken = True
    with pytest.raises(StreamClosed, match="the connection to the server broke"):
        client.receive(0.0)
    assert streams.look(0.0) is True
    client, writer = streams.renew()
    assert streams.look(0.0) is False
    ended.set()
    answering.join()
    for end in (client, writer, consumer, server):
        end.close()


def test_actor_does_not_wait_for_a_server_that_ends_while_it_connects_again(tmp_path, monkeypatch) -> None:
    """A server closes its stream before its process ends."""
    monkeypatch.setattr(peers, "CONNECT_S", 30.0)
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    job.names.register(SERVER, f"shm:{tmp_path}/closed")
    streams = ActorStreams(job, Meter("actor"))
    server = FailoverPeer(job.names, [SERVER], job.find(SERVER))
    streams._server, streams._peers, streams._client, streams._group_sizes = server, [server], Broken(), {0: 1}
    assert streams.look(0.0) is True
    job.names.register(SERVER, f"shm:{tmp_path}/next", 1)
    started = time.monotonic()
    assert streams.renew() is None and time.monotonic() - started < 15.0


@pytest.mark.parametrize("host", ["", socket.gethostname()])
def test_actor_asks_a_silent_server_on_another_host_again_for_a_limited_time(tmp_path, monkeypatch, host: str) -> None:
    """About a server on its own host the controller decides."""
    monkeypatch.setattr(peers, "CONNECT_S", 0.02)
    monkeypatch.setattr(peers, "MOST_CONNECT_S", 0.02)
    monkeypatch.setattr(peers, "ELSEWHERE_S", 0.2)
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    found = Registration(SERVER, f"shm:{tmp_path}/closed", 0, os.getpid(), host)
    monkeypatch.setattr(FileNames, "lookup", lambda *_: found)
    streams, server = ActorStreams(job, Meter("actor")), FailoverPeer(job.names, [SERVER], found)
    streams._server, streams._peers, streams._client, streams._group_sizes = server, [server], Broken(), {0: 1}
    with contextlib.nullcontext() if host else pytest.raises(StreamClosed, match="cannot be made again: no process"):
        for _ in range(20 if host else 1000):
            assert streams.look(0.0) is True and streams.renew() is None


@pytest.mark.parametrize("served", [True, False])
def test_actor_starting_during_replacements_finds_new_servers(tmp_path, monkeypatch, served: bool) -> None:
    for module in (following, actor_streams):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 5.0)
    placement = "served" if served else "inline"
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement=placement, num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    gone = [Registration(name, f"ipc://{tmp_path}/gone", 0, 7, "") for name in ("samples.learner", SERVER)]
    job.names.show(gone)
    consumer = bind_samples(f"ipc://{tmp_path}/samples", job.schemas.trajectory)
    server = bind_inference(f"ipc://{tmp_path}/{SERVER}", job.schemas.act)
    addresses = (consumer.address, server.address)
    next_lives = [
        dataclasses.replace(entry, address=address, incarnation=1)
        for entry, address in zip(gone, addresses, strict=True)
    ]
    late = threading.Timer(0.3, job.names.show, [next_lives])
    late.start()
    opened = threading.Event()

    def answer() -> None:
        while not opened.is_set():
            server.collect(8, 0.05)

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        if served:
            streams = ActorStreams(job, Meter("actor"))
            client, writer = streams.open({0: 1})
            assert streams.look(0.0) is False
            client.close()
        else:
            writer = SampleWriter(job, "samples", job.schemas.trajectory)
            writer.open()
        writer.close()
    finally:
        opened.set()
        answering.join()
        late.join()
        consumer.close()
        server.close()


@pytest.mark.parametrize("served", [True, False])
def test_actor_of_a_peer_that_dies_before_it_answers_finds_the_next_one(tmp_path, monkeypatch, served: bool) -> None:
    """In shared memory the next one has the same address."""
    for module in (following, actor_streams):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 5.0)
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    consumer = bind_samples(f"shm:{tmp_path}/memory/samples", job.schemas.trajectory)
    dies = SERVER if served else "samples.learner"
    address = f"shm:{tmp_path}/memory/next"
    lives, ends = {name: 0 for name in (SERVER, "samples.learner")}, contextlib.ExitStack()

    def lookup(_: object, name: str, timeout_s: float) -> Registration:
        if name not in lives:
            raise StreamTimeout(name)
        if name == "samples.learner" and served:
            return Registration(name, consumer.address, 0, 7, "here")
        lives[name] += 1
        if name == dies and lives[name] == 2:
            raise StreamTimeout("it has died")
        if name == dies and lives[name] == 3:
            ends.enter_context(next_life())
        return Registration(name, address, int(lives[name] > 2), 7, "here")

    @contextlib.contextmanager
    def next_life() -> Iterator[None]:
        if not served:
            with contextlib.closing(bind_samples(address, job.schemas.trajectory)):
                yield
            return
        server, ended = bind_inference(address, job.schemas.act), threading.Event()

        def answer() -> None:
            while not ended.is_set():
                server.collect(8, 0.05)

        (answering := threading.Thread(target=answer)).start()
        yield
        ended.set()
        answering.join()
        server.close()

    monkeypatch.setattr(FileNames, "lookup", lookup)
    with ends:
        if served:
            streams = ActorStreams(job, Meter("actor"))
            client, writer = streams.open({0: 1})
            assert streams._server.known.incarnation == 1
            client.close()
        else:
            writer = SampleWriter(job, "samples", job.schemas.trajectory)
            writer.open()
            assert writer._writer.peers[0].known.incarnation == 1
        writer.close()
    consumer.close()


@pytest.mark.parametrize("host", [socket.gethostname(), ""])
def test_writer_of_a_reader_that_just_closed_its_stream_waits_for_the_next_one(tmp_path, monkeypatch, host) -> None:
    """Its process may end much later."""
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="inline", num_actors=2, num_envs=2)
    job = make_plan(e, str(tmp_path), tmp_path).job("actor-0")
    closed = bind_samples(f"ipc://{tmp_path}/0", job.schemas.trajectory)
    reader = Registration("samples.learner", closed.address, 0, os.getpid(), host)
    waits = []
    monkeypatch.setattr(following.BriefRetry, "pause", lambda self, refusal, limit_s=REFUSED_S: waits.append(limit_s))
    monkeypatch.setattr(job.names.__class__, "lookup", lambda *_: reader)
    writer = SampleWriter(job, "samples", job.schemas.trajectory)
    writer.open()
    closed.close()
    while (block := writer.reserve(0.1)) is not None:  # the news is on its way
        block.abandon()
    assert writer.reserve(0.1) is None  # the reader's process has not ended yet
    assert waits and set(waits) == {CLOSED_S} and writer.renewed == 0
    next_life = bind_samples(f"ipc://{tmp_path}/1", job.schemas.trajectory)
    reader = dataclasses.replace(reader, address=next_life.address, incarnation=1)
    assert writer.reserve(1.0) is None and writer.renewed == 1 and writer.reserve(1.0) is not None
    writer.close()
    next_life.close()


def served_job(tmp_path):
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2)
    return make_plan(e, str(tmp_path), tmp_path).job("actor-0")


@pytest.mark.parametrize("host", ["", "here"])
def test_silent_peer_on_another_host_ends_a_worker_with_its_name(tmp_path, monkeypatch, host: str) -> None:
    """About a peer on its own host the controller decides."""
    job = served_job(tmp_path)
    monkeypatch.setattr(peers, "CONNECT_S", 0.0)
    monkeypatch.setattr(peers, "ELSEWHERE_S", 0.0)
    found = Registration("samples.learner", f"shm:{tmp_path}/closed", 1, os.getpid(), host)
    monkeypatch.setattr(FileNames, "lookup", lambda *_: found)
    before = dataclasses.replace(found, incarnation=0)
    requests, writer = InferenceRequests(job), SampleWriter(job, "samples", job.schemas.trajectory)
    requests._peer = FailoverPeer(job.names, [SERVER], before)
    writer._writer.peers, writer._writer._ends = [Peer(job.names, "samples.learner", before)], [None]
    writer._lost = StreamClosed("the reader is gone")
    told = "samples.learner is registered on another host, but does not answer"
    for ask in (lambda: requests.ask(0, "a", 0.0), lambda: writer.reserve(0.0)):
        with contextlib.nullcontext() if host else pytest.raises(StreamClosed, match=told):
            for _ in range(3):
                assert ask() is None


def test_attempts_to_connect_last_longer_until_a_distant_peer_can_answer(tmp_path, monkeypatch) -> None:
    """Five and a half round trips: one of TCP, three and a half of ZeroMQ and its encryption, one of the hello."""
    job, attempts = served_job(tmp_path), list[float]()
    monkeypatch.setattr(peers.time, "sleep", lambda _: None)
    found = Registration("samples.learner", "tcp://far", 1, 7, "")
    monkeypatch.setattr(FileNames, "lookup", lambda *_: found)

    def connect_over_round_trips_of_1_s(*args: object, **_: object) -> Broken:
        attempts.append(args[4])
        if args[4] < 5.5:
            raise StreamTimeout("no answer yet")
        return Broken()

    for end in ("following.connect_writer", "asking.connect_inference", "actor.streams.connect_inference"):
        monkeypatch.setattr(f"jsrl.workers.{end}", connect_over_round_trips_of_1_s)
    monkeypatch.setattr(following.Writer, "read_epoch", lambda _: 0)
    before = dataclasses.replace(found, incarnation=0)
    requests, writer = InferenceRequests(job), SampleWriter(job, "samples", job.schemas.trajectory)
    requests._peer = FailoverPeer(job.names, [SERVER], before)
    writer._writer.peers, writer._writer._ends = [Peer(job.names, "samples.learner", before)], [None]
    writer._lost = StreamClosed("the reader is gone")
    streams, server = ActorStreams(job, Meter("actor")), FailoverPeer(job.names, [SERVER], before)
    streams._server, streams._peers, streams._client, streams._group_sizes = server, [server], Broken(), {0: 1}
    streams._present = [found]
    for connect in (lambda: requests.ask(0, "a", 0.0), lambda: writer.reserve(0.0), streams.renew):
        attempts.clear()
        for _ in range(3):
            connect()
        assert attempts == [2.0, 4.0, 8.0]


def test_time_without_a_peer_is_no_time_of_refusals(tmp_path, monkeypatch) -> None:
    """The next one may refuse at first, long after the one before was lost."""
    job, lost = served_job(tmp_path), StreamClosed("the reader closed")
    for module in (following, actor_streams):
        monkeypatch.setattr(module, "CLOSED_S", 0.0)
    job.names.register("samples.learner", "shm:a")
    learner = Peer(job.names, "samples.learner", job.names.lookup("samples.learner", 0.0))
    writer, streams = SampleWriter(job, "samples", job.schemas.trajectory), ActorStreams(job, Meter("actor"))
    writer._writer.peers, writer._writer._ends, streams._peers, writer._lost = [learner], [None], [learner], lost
    present = [True]
    monkeypatch.setattr(Peer, "find", lambda *_: learner.known if present[0] else None)
    for present[0] in (True, False, True):
        assert writer.reserve(0.0) is None
        if streams.look(0.0) is not None:
            streams.wait(lost)
    with pytest.raises(StreamClosed):
        writer.reserve(0.0)
    with pytest.raises(StreamClosed):
        streams.wait(lost)
