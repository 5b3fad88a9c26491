"""The peers that a worker finds under several names."""

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

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
from jsrl.workers import ends, peers
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.ends import InferenceRequests, SampleWriter, Servers
from jsrl.workers.peers import (
    CLOSED_S,
    ELSEWHERE_S,
    REFUSED_S,
    Connector,
    FailoverPeer,
    FollowingParams,
    Peer,
    first_present,
)
from tests.tiny_agent import TinyConfig

SERVERS = ["inference-1", "inference-0"]
SERVER = "inference.inference-0"


def test_another_server_answers_until_the_own_one_is_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "POLL_S", 0.0)
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
    monkeypatch.setattr(peers, "POLL_S", 0.0)
    now_s = [100.0]
    monkeypatch.setattr(peers.time, "monotonic", lambda: now_s[0])
    names = FileNames(tmp_path)
    far = Registration("inference-1", "tcp://far", 0, 7, "elsewhere")
    names.show([far])
    own = names.lookup("inference-1", 0.0)
    peer = FailoverPeer(names, SERVERS, own)
    assert peer.is_elsewhere
    peer.mark_suspect(own)
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
    connector, refusal = Connector(SimpleNamespace(), lambda *_: None), StreamClosed("no")
    for _ in range(2):
        connector.pause(refusal, 0.0)
        with pytest.raises(StreamClosed, match="no"):
            connector.pause(refusal, 0.0)
        connector.reset()


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
    monkeypatch.setattr(peers, "POLL_S", 0.0)
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


LOST = StreamClosed("it ended the session")


def served_job(tmp_path, **options):
    e = Experiment(TinyConfig(), EnvConfig("probe:continuous"), placement="served", num_actors=2, num_envs=2, **options)
    return make_plan(e, str(tmp_path), tmp_path).job("actor-0")


def test_request_after_one_for_an_unserved_policy_is_sent(tmp_path) -> None:
    requests = InferenceRequests(served_job(tmp_path))
    requests._client = client = RefusesFirst()
    with pytest.raises(UnknownPolicy):
        requests.ask(0, "a", 0.0)
    assert requests.ask(0, "b", 0.0) == "reply to b" and client.sent == ["a", "b"]


def test_actor_of_a_lost_remote_server_fails_over_or_asks_again(tmp_path, monkeypatch) -> None:
    job, tried = served_job(tmp_path, num_inference_servers=2), list[str]()
    streams = ActorStreams(job, Meter("actor"))
    job.names.show([Registration(SERVER, "tcp://far", 0, 7, "elsewhere")])

    def silent(address: str, *_: object, **__: object) -> None:
        tried.append(address)
        raise StreamTimeout("no answer")

    monkeypatch.setattr("jsrl.workers.ends.connect_inference", silent)
    streams._servers, streams._client = Servers(job, "inference", {0: 1}), Broken()
    assert streams.connect(0.0, LOST) is None and tried == ["tcp://far"]  # there is no other
    assert ELSEWHERE_S > 3 * LOST_S - 1
    job.names.register("inference.inference-1", "shm:b", 0)
    streams._client = Broken()
    assert streams.connect(0.0, LOST) is None and tried == ["tcp://far", "shm:b"]


def test_actor_whose_connection_to_a_living_server_broke_connects_again(tmp_path) -> None:
    """It was paused, or cut off, for longer than the silence after which a connection counts as broken."""
    job = served_job(tmp_path)
    consumer = bind_samples(f"ipc://{tmp_path}/samples", job.schemas.trajectory)
    server = bind_inference(f"ipc://{tmp_path}/{SERVER}", job.schemas.act)
    for name, address in (("samples.learner", consumer.address), (SERVER, server.address)):
        job.names.register(name, address)
    streams, ended = ActorStreams(job, Meter("actor")), threading.Event()

    def answer() -> None:
        while not ended.is_set():
            server.collect(8, 0.05)

    (answering := threading.Thread(target=answer)).start()
    first = streams.open({0: 1})
    first.client._link.watch.broken = True
    with pytest.raises(StreamClosed, match="the connection to the server broke"):
        first.client.receive(0.0)
    again = streams.connect(0.0, LOST)
    assert again is not None and again.client is not first.client and again.producer is first.producer
    assert not again.new_learner
    with pytest.raises(StreamTimeout):
        again.client.receive(0.0)
    ended.set()
    answering.join()
    for end in (streams, consumer, server):
        end.close()


def test_actor_does_not_wait_for_a_server_that_ends_while_it_connects_again(tmp_path, monkeypatch) -> None:
    """A server closes its stream before its process ends."""
    monkeypatch.setattr(peers, "CONNECT_S", 30.0)
    job = served_job(tmp_path)
    job.names.register(SERVER, f"shm:{tmp_path}/closed")
    servers = Servers(job, "inference", {0: 1})
    next_life = threading.Timer(0.3, job.names.register, [SERVER, f"shm:{tmp_path}/next", 1])
    next_life.start()
    started = time.monotonic()
    assert servers.connect(0.0) is None and time.monotonic() - started < 15.0
    next_life.join()


@pytest.mark.parametrize("host", ["", socket.gethostname()])
def test_worker_asks_a_silent_server_on_another_host_again_for_a_limited_time(tmp_path, monkeypatch, host: str) -> None:
    """About a server on its own host the controller decides."""
    monkeypatch.setattr(peers, "CONNECT_S", 0.02)
    monkeypatch.setattr(peers, "MAX_CONNECT_S", 0.02)
    monkeypatch.setattr(peers, "ELSEWHERE_S", 0.2)
    job = served_job(tmp_path)
    found = Registration(SERVER, f"shm:{tmp_path}/closed", 0, os.getpid(), host)
    monkeypatch.setattr(FileNames, "lookup", lambda *_: found)
    servers = Servers(job, "inference", {0: 1})
    told = "inference.inference-0 is registered on another host, but does not answer this worker: no process"
    with contextlib.nullcontext() if host else pytest.raises(StreamClosed, match=told):
        for _ in range(20 if host else 1000):
            assert servers.connect(0.0) is None


@pytest.mark.parametrize("served", [True, False])
def test_actor_starting_during_replacements_finds_new_servers(tmp_path, monkeypatch, served: bool) -> None:
    monkeypatch.setattr(peers, "CONNECT_TIMEOUT_S", 5.0)
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
            writer = ActorStreams(job, Meter("actor"))
            writer.open({0: 1})
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
    monkeypatch.setattr(peers, "CONNECT_TIMEOUT_S", 5.0)
    monkeypatch.setattr(peers, "POLL_S", 0.0)
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
            writer = ActorStreams(job, Meter("actor"))
            writer.open({0: 1})
            assert writer._servers.peer.known.incarnation == 1
        else:
            writer = SampleWriter(job, "samples", job.schemas.trajectory)
            writer.open()
            assert writer._readers[0].peer.known.incarnation == 1
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
    monkeypatch.setattr(Connector, "pause", lambda self, refusal, limit_s=REFUSED_S: waits.append(limit_s))
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


def test_attempts_to_connect_last_longer_until_a_distant_peer_can_answer(monkeypatch) -> None:
    """Five and a half round trips: one of TCP, three and a half of ZeroMQ and its encryption, one of the hello."""
    attempts = list[float]()
    monkeypatch.setattr(peers.time, "sleep", lambda _: None)
    found = Registration("samples.learner", "tcp://far", 1, 7, "")
    peer = Peer(SimpleNamespace(lookup=lambda *_: found), "samples.learner", dataclasses.replace(found, incarnation=0))

    def connect_over_round_trips_of_1_s(_: Registration, timeout_s: float, check: object) -> str:
        attempts.append(timeout_s)
        if timeout_s < 5.5:
            raise StreamTimeout("no answer yet")
        return "connected"

    connector = Connector(peer, connect_over_round_trips_of_1_s)
    assert [connector.connect(0.0) for _ in range(3)] == [None, None, "connected"]
    assert attempts == [2.0, 4.0, 8.0] and peer.known == found


class ClosedEnd:
    """The writing end of a stream whose reader has closed it."""

    def reserve(self, timeout_s: float) -> None:
        raise StreamClosed("the reader closed")


def test_time_without_a_peer_is_no_time_of_refusals(tmp_path, monkeypatch) -> None:
    """The next one may refuse at first, long after the one before was lost."""
    monkeypatch.setattr(ends, "CLOSED_S", 0.0)
    job = served_job(tmp_path)
    known, present = job.names.register("samples.learner", "shm:a"), [True]
    monkeypatch.setattr(Peer, "find", lambda *_: known if present[0] else None)
    writer = SampleWriter(job, "samples", job.schemas.trajectory)
    writer._readers = [Connector(Peer(job.names, "samples.learner", known), lambda *_: None)]
    writer._ends, writer.is_lost = [ClosedEnd()], True
    for present[0] in (True, False, True):
        assert writer.reserve(0.0) is None
    with pytest.raises(StreamClosed, match="the reader closed"):
        writer.reserve(0.0)


def test_actor_tells_a_new_learner_from_a_new_server(tmp_path, monkeypatch) -> None:
    """Behind workers between them, a learner is known by its generation alone, which may be read at any connection."""
    generations = iter([3, 3, 4, 4])
    streams = ActorStreams(served_job(tmp_path), Meter("actor"))
    monkeypatch.setattr(streams._writer, "read_generation", lambda: next(generations))
    ends = [streams._ends(Broken()) for _ in range(4)]
    assert [(end.generation, end.new_learner) for end in ends] == [(3, False), (3, False), (4, True), (4, False)]
    streams._writer.renewed += 1
    monkeypatch.setattr(streams._writer, "read_generation", lambda: 4)
    assert streams._ends(Broken()).new_learner
