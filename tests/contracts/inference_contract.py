"""Contract of every inference transport. `Transport` says how to bind and connect; import the tests from a
module that provides a `transport` fixture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from jsrl.errors import ConfigError, SpecMismatch, StreamClosed, StreamError, StreamTimeout, UnknownPolicy
from jsrl.transport.base import InferenceClient, InferenceServer, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.table import bind_inference, connect_inference
from jsrl.types import ArraySpec, leaves, map_tree
from tests.patience import stretched

TIMEOUT_S = 20.0
SPEC = InferenceSpec(
    observation={"image": ArraySpec((2, 3), "uint8"), "speed": ArraySpec((), "float32")},
    action=ArraySpec((), "int32"),
    log_prob=ArraySpec((), "float32"),
    extras={"value": ArraySpec((), "float32")},
    core=(ArraySpec((4,), "float32"), ArraySpec((4,), "float32")),
)


class Transport(NamedTuple):
    """One transport: `new_address()` returns an unused address to bind."""

    new_address: Callable[[], str]


def make_request(rows: int, seed: int, **fields: object) -> Request:
    rng = np.random.default_rng(seed)
    observation = {
        "image": rng.integers(0, 255, (rows, 2, 3), dtype=np.uint8),
        "speed": rng.normal(size=rows).astype(np.float32),
    }
    return Request(observation, rng.random(rows) < 0.5, **fields)


def answer_to(request: Request, version: int = 7) -> Reply:
    """Return a reply that depends on every array of the request."""
    total = request.observation["image"].astype(np.int64).sum((1, 2)) + request.is_first
    speed = np.array(request.observation["speed"])
    core = tuple(np.repeat(speed[:, None] * k, 4, 1).astype(np.float32) for k in (2, 3))
    return Reply(total.astype(np.int32), speed, {"value": speed * 2}, version, core, request.policy)


def check_answer(request: Request, reply: Reply) -> None:
    expected = answer_to(request)
    for got, wanted in zip(leaves(reply[:3]), leaves(expected[:3]), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    if request.wants_core:
        assert len(leaves(reply.core)) == 2
        for got, wanted in zip(leaves(reply.core), leaves(expected.core), strict=True):
            np.testing.assert_array_equal(got, wanted)
    else:
        assert leaves(reply.core) == []


class Serving:
    """A server that answers in a thread until closed."""

    def __init__(self, server: InferenceServer, hold: bool = False):
        self.server = server
        self.address = server.address
        self.gone: list[ProducerId] = []
        self.errors: list[BaseException] = []
        self.batches: list[int] = []
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                found = self.server.collect(64, 0.02)
            except SpecMismatch as error:
                self.errors.append(error)
                continue
            self.gone += self.server.departed()
            if found:
                self.batches.append(len(found))
            for one in found:
                self.server.reply(one, answer_to(one.request))
        self.server.close()

    def close(self) -> None:
        self._stop.set()
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()

    def wait_gone(self, client: ProducerId) -> None:
        wait_until(lambda: client in self.gone, f"{client} departed, gone: {self.gone}")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S} s for: {what}"
        time.sleep(0.005)


@pytest.fixture
def serving(transport: Transport):
    serving = Serving(bind_inference(transport.new_address(), SPEC))
    yield serving
    serving.close()


def connect(
    address: str,
    name: str = "actor-0",
    incarnation: int = 0,
    groups: dict[int, int] | None = None,
    spec: InferenceSpec = SPEC,
):
    return connect_inference(address, spec, ProducerId(name, incarnation), groups or {0: 5}, TIMEOUT_S)


def collect_some(server: InferenceServer, count: int, max_rows: int = 1000):
    """Collect until `count` requests arrived."""
    found = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} requests arrived"
        found += server.collect(max_rows, 0.5)
    return found


def connect_while(server: InferenceServer, *args, **kwargs) -> InferenceClient:
    """Connect from a thread while this one collects (no request may have been sent yet)."""
    outcome: list = []

    def target() -> None:
        try:
            outcome.append(connect(server.address, *args, **kwargs))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while thread.is_alive():
        assert server.collect(1, 0.01) == []
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def test_replies_belong_to_requests(serving: Serving) -> None:
    client = connect(serving.address, groups={3: 5, 8: 2})
    for step in range(20):
        asked = {
            3: make_request(5, step, step=step),
            8: make_request(2, 99 + step, step=step, wants_core=step % 4 == 0),
        }
        for group, request in asked.items():
            client.send(group, request)
        for _ in range(2):
            group, reply = client.receive(TIMEOUT_S)
            check_answer(asked.pop(group), reply)
            assert reply.version.dtype == np.int64 and (reply.version == [7] * len(reply.action)).all()
        assert asked == {}
    client.close()


def test_fields_are_transmitted(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server, groups={2: 3})
    sent = make_request(3, 0, min_updates=41, step=1 << 33, wants_core=True, policy=5)
    client.send(2, sent)
    (found,) = collect_some(server, 1)
    assert found.client == ProducerId("actor-0", 0) and found.group == 2
    assert found.request[2:5] == sent[2:5] and type(found.request.wants_core) is bool
    assert found.request.policy.dtype == np.int32 and found.request.policy.tolist() == [5, 5, 5]
    for got, wanted in zip(leaves(found.request[:2]), leaves(sent[:2]), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)
    version = (3 << 40) | 17
    server.reply(found, answer_to(found.request, version))
    group, reply = client.receive(TIMEOUT_S)
    assert (group, reply.version.tolist(), reply.policy.tolist()) == (2, [version] * 3, [5] * 3)
    client.close()
    server.close()


def test_policy_and_version_are_transmitted_per_row(transport: Transport) -> None:
    """Also after requests and replies with one number for all rows, and before such."""
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server, groups={2: 3})
    cases = [(0, 7), ([4, 0, 9], [1, (5 << 40) | 2, 3]), (0, 7), (4, [8, 8, 9]), (4, 7), ([0, 0, 0], 0)]
    for step, (policy, version) in enumerate(cases):
        asked = policy if isinstance(policy, int) else np.array(policy, np.int32)
        client.send(2, make_request(3, step, policy=asked))
        (found,) = collect_some(server, 1)
        assert found.request.policy.tolist() == np.broadcast_to(policy, 3).tolist()
        told = version if isinstance(version, int) else np.array(version)
        server.reply(found, answer_to(found.request)._replace(version=told))
        _, reply = client.receive(TIMEOUT_S)
        assert reply.version.tolist() == np.broadcast_to(version, 3).tolist()
        assert reply.policy.tolist() == np.broadcast_to(policy, 3).tolist()
    for wrong in (np.zeros(2, np.int32), np.zeros(3, np.int64)):
        with pytest.raises(SpecMismatch, match="policy"):
            client.send(2, make_request(3, 0, policy=wrong))
    with pytest.raises(StreamError, match="policy -1"):
        client.send(2, make_request(3, 0, policy=-1))
    client.close()
    server.close()


def test_unserved_policy_is_refused_by_name_and_the_stream_continues(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server, groups={2: 3, 4: 3})
    client.send(2, make_request(3, 0, policy=5))
    (found,) = collect_some(server, 1)
    server.refuse(found, {0: "main", 3: "exploiter"})
    with pytest.raises(UnknownPolicy, match=r"group 2 asked .* for policy 5; it serves 0 \(main\), 3 \(exploiter\)"):
        client.receive(TIMEOUT_S)
    with pytest.raises(StreamError, match="answered already"):
        server.reply(found, answer_to(found.request))
    for group, policy in ((2, 3), (4, 0)):
        client.send(group, make_request(3, group, policy=policy))
        (found,) = collect_some(server, 1)
        server.reply(found, answer_to(found.request))
        assert client.receive(TIMEOUT_S)[0] == group
    client.close()
    wait_until(lambda: server.departed() == [ProducerId("actor-0", 0)], "the client left")
    server.refuse(found, {0: "main"})  # is dropped
    server.close()


def test_requested_versions_arrive_and_problems_are_reported(transport: Transport) -> None:
    spec = SPEC._replace(log_prob=ArraySpec((2,), "float32"))
    server = bind_inference(transport.new_address(), spec)
    client = connect_while(server, groups={2: 3}, spec=spec)
    rows = np.arange(6, dtype=np.int64).reshape(3, 2) + (7 << 40)
    for version in (-1, rows, -1, 5, -2, rows):
        client.send(2, make_request(3, 0, version=version))
        (found,) = collect_some(server, 1)
        np.testing.assert_array_equal(found.request.version, np.broadcast_to(version, (3, 2)))
        server.refuse(found, {0: "main"}, "player 5 is gone")
        with pytest.raises(UnknownPolicy, match="player 5 is gone"):
            client.receive(TIMEOUT_S)
    with pytest.raises(SpecMismatch, match="version"):
        client.send(2, make_request(3, 0, version=rows[:, 0]))
    client.close()
    server.close()


def test_request_arrays_may_be_reused_at_once(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    request = make_request(5, 0)
    kept = map_tree(np.copy, request.observation)
    client.send(0, request)
    request.observation["image"][...] = 0
    request.observation["speed"][...] = 0
    (found,) = collect_some(server, 1)
    np.testing.assert_array_equal(found.request.observation["image"], kept["image"])
    np.testing.assert_array_equal(found.request.observation["speed"], kept["speed"])
    client.close()
    server.close()


def test_reply_arrays_are_copied(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    request = make_request(5, 0)
    client.send(0, request)
    (found,) = collect_some(server, 1)
    reply = answer_to(found.request)
    server.reply(found, reply)
    reply.action[...] = -1
    _, got = client.receive(TIMEOUT_S)
    check_answer(request, got)
    client.close()
    server.close()


def test_collect_takes_whole_groups_up_to_max_rows(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server, groups={0: 4, 1: 4, 2: 4})
    for group in range(3):
        client.send(group, make_request(4, group))
    time.sleep(0.3)
    first = server.collect(8, TIMEOUT_S)  # which two groups fill
    assert [one.group for one in first] == [0, 1]
    assert [one.group for one in server.collect(1, TIMEOUT_S)] == [2]
    assert server.collect(1, 0.05) == []
    client.close()
    server.close()


def test_collect_gives_one_group_larger_than_max_rows(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server, groups={0: 6})
    client.send(0, make_request(6, 0))
    (found,) = collect_some(server, 1, max_rows=2)
    assert found.request.is_first.shape == (6,)
    client.close()
    server.close()


def test_collect_respects_its_timeout(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    waited = []
    for _ in range(3):  # a busy machine may be late once
        started = time.monotonic()
        assert server.collect(10, 0.3) == []
        waited.append(time.monotonic() - started)
    assert min(waited) >= 0.29
    assert min(waited) < stretched(0.5)  # and not twice as late
    server.close()


def test_receive_times_out(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    client.send(0, make_request(5, 0))
    with pytest.raises(StreamTimeout, match=r"0\.05 s"):
        client.receive(0.05)
    with pytest.raises(StreamTimeout):
        client.receive(0.0)
    (found,) = collect_some(server, 1)
    server.reply(found, answer_to(found.request))
    assert client.receive(TIMEOUT_S)[0] == 0  # a time-out loses nothing
    client.close()
    server.close()


def test_one_request_in_flight_per_group(serving: Serving) -> None:
    client = connect(serving.address)
    client.send(0, make_request(5, 0))
    with pytest.raises(StreamError, match="already waits"):
        client.send(0, make_request(5, 1))
    client.receive(TIMEOUT_S)
    client.send(0, make_request(5, 1))
    client.receive(TIMEOUT_S)
    with pytest.raises(ConfigError, match="group 4"):
        client.send(4, make_request(5, 1))
    client.close()


@pytest.mark.parametrize(
    ("change", "leaf"),
    [
        (lambda o: {**o, "speed": o["speed"].astype(np.float64)}, "observation/speed"),
        (lambda o: {**o, "speed": o["speed"][:1]}, "observation/speed"),
        (lambda o: {**o, "image": o["image"][:, :1]}, "observation/image"),
        (lambda o: {"image": o["image"]}, "observation/speed"),
        (lambda o: {**o, "sound": o["speed"]}, "observation/sound"),
    ],
)
def test_wrong_request_names_the_leaf(serving: Serving, change, leaf: str) -> None:
    client = connect(serving.address)
    request = make_request(5, 0)
    with pytest.raises(SpecMismatch, match=leaf):
        client.send(0, request._replace(observation=change(request.observation)))
    client.send(0, request)  # the stream stays usable
    check_answer(request, client.receive(TIMEOUT_S)[1])
    with pytest.raises(SpecMismatch, match="is_first"):
        client.send(0, request._replace(is_first=np.zeros(4, bool)))
    client.close()


def test_wrong_reply_names_the_leaf(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    client.send(0, make_request(5, 0, wants_core=True))
    (found,) = collect_some(server, 1)
    good = answer_to(found.request)
    with pytest.raises(SpecMismatch, match="extras/value"):
        server.reply(found, good._replace(extras={"value": np.zeros((5, 1), np.float32)}))
    with pytest.raises(SpecMismatch, match="action"):
        server.reply(found, good._replace(action=good.action.astype(np.int64)))
    with pytest.raises(SpecMismatch, match="core"):
        server.reply(found, good._replace(core=()))
    server.reply(found, good)
    check_answer(make_request(5, 0, wants_core=True), client.receive(TIMEOUT_S)[1])
    with pytest.raises(StreamError, match="answered already"):
        server.reply(found, good)
    client.close()
    server.close()


def test_other_schema_is_refused_on_both_sides(serving: Serving) -> None:
    other = SPEC._replace(action=ArraySpec((2,), "float32"))
    with pytest.raises(SpecMismatch, match="action"):
        connect_inference(serving.address, other, ProducerId("actor-9", 0), {0: 2}, TIMEOUT_S)
    wait_until(lambda: bool(serving.errors), "the server's SpecMismatch")
    assert "action" in str(serving.errors[0]) and "actor-9" in str(serving.errors[0])
    client = connect(serving.address)  # and the server continues
    client.send(0, make_request(5, 3))
    check_answer(make_request(5, 3), client.receive(TIMEOUT_S)[1])
    client.close()


def test_connect_without_a_server_times_out(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    address = server.address
    server.close()
    started = time.monotonic()
    with pytest.raises(StreamTimeout):
        connect_inference(address, SPEC, ProducerId("actor-0", 0), {0: 1}, 0.2)
    assert time.monotonic() - started < 5


def test_server_close_reaches_waiting_clients(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    client.send(0, make_request(5, 0))
    collect_some(server, 1)
    server.close()
    server.close()
    started = time.monotonic()
    with pytest.raises(StreamClosed):
        client.receive(TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S / 4
    with pytest.raises(StreamClosed):
        client.send(0, make_request(5, 0))
    with pytest.raises(StreamClosed):
        server.collect(1, 0.1)
    client.close()
    client.close()


def test_leaving_clients_are_reported_once(serving: Serving) -> None:
    first, second = connect(serving.address, "actor-0", 4), connect(serving.address, "actor-1", 0)
    first.send(0, make_request(5, 0))
    first.receive(TIMEOUT_S)
    first.close()
    serving.wait_gone(ProducerId("actor-0", 4))
    second.send(0, make_request(5, 1))
    check_answer(make_request(5, 1), second.receive(TIMEOUT_S)[1])
    assert serving.gone == [ProducerId("actor-0", 4)]
    second.close()
    serving.wait_gone(ProducerId("actor-1", 0))
    assert len(serving.gone) == 2
    again = connect(serving.address, "actor-1", 0)  # the same incarnation, as after a broken connection
    again.send(0, make_request(5, 2))
    check_answer(make_request(5, 2), again.receive(TIMEOUT_S)[1])
    again.close()


def test_higher_incarnation_fences_the_older(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    older = connect_while(server, "actor-0", 0, {0: 5})
    older.send(0, make_request(5, 0))
    (stale,) = collect_some(server, 1)
    newer = connect_while(server, "actor-0", 1, {0: 5})
    assert server.departed() == [ProducerId("actor-0", 0)]
    server.reply(stale, answer_to(stale.request))  # is dropped
    newer.send(0, make_request(5, 1))
    (fresh,) = collect_some(server, 1)
    assert fresh.client == ProducerId("actor-0", 1)
    server.reply(fresh, answer_to(fresh.request))
    check_answer(make_request(5, 1), newer.receive(TIMEOUT_S)[1])
    with pytest.raises(StreamClosed, match="incarnation"):
        older.receive(TIMEOUT_S)
    with pytest.raises(StreamClosed, match="incarnation"):
        connect_while(server, "actor-0", 0, {0: 5})
    newer.close()
    older.close()
    wait_until(lambda: server.departed() == [ProducerId("actor-0", 1)], "the newer one left")
    server.close()


def test_request_from_before_a_client_came_back_is_not_answered(transport: Transport) -> None:
    """It lost another stream, and connects again under the same incarnation."""
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    client.send(0, make_request(5, 0))
    (stale,) = collect_some(server, 1)
    client.close()
    wait_until(lambda: server.departed() == [ProducerId("actor-0", 0)], "it left")
    client = connect_while(server)
    client.send(0, make_request(5, 1))
    (fresh,) = collect_some(server, 1)
    server.reply(stale, answer_to(stale.request))  # is dropped
    server.reply(fresh, answer_to(fresh.request))
    check_answer(make_request(5, 1), client.receive(TIMEOUT_S)[1])
    client.close()
    server.close()


def test_uncollected_requests_of_a_replaced_client_are_forgotten(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    older = connect_while(server, "actor-0", 0, {0: 5})
    bystander = connect_while(server, "actor-1", 0, {0: 5, 1: 5})
    bystander.send(0, make_request(5, 7))
    bystander.send(1, make_request(5, 8))
    older.send(0, make_request(5, 0))
    time.sleep(0.2)
    taken = server.collect(1, TIMEOUT_S)  # leaves two requests queued inside the server
    connecting = threading.Thread(target=lambda: newer.append(connect(server.address, "actor-0", 1)), daemon=True)
    newer: list[InferenceClient] = []
    connecting.start()
    while connecting.is_alive():
        server.departed()  # accepts hellos without taking requests
        time.sleep(0.005)
    later = collect_some(server, 2 - len([one for one in taken if one.client.name == "actor-1"]))
    assert {one.client.name for one in later} == {"actor-1"}
    taken += later
    assert [(one.client.name, one.group) for one in taken if one.client.name == "actor-1"] == [
        ("actor-1", 0),
        ("actor-1", 1),
    ]
    assert server.collect(100, 0.05) == []
    for client in (older, bystander, *newer):
        client.close()
    server.close()


def test_restarted_server_at_the_same_address(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    client = connect_while(server)
    address = server.address
    server.close()
    with pytest.raises(StreamClosed):
        client.receive(TIMEOUT_S)
    client.close()
    again = Serving(bind_inference(address, SPEC))
    assert again.address == address
    client = connect(address, "actor-0", 0)
    client.send(0, make_request(5, 0))
    check_answer(make_request(5, 0), client.receive(TIMEOUT_S)[1])
    client.close()
    again.close()


def test_address_taken(serving: Serving) -> None:
    with pytest.raises(ConfigError, match=r"bound|in use"):
        bind_inference(serving.address, SPEC)


def test_many_clients_are_drained_together(transport: Transport) -> None:
    server = bind_inference(transport.new_address(), SPEC)
    clients = [connect_while(server, f"actor-{n}", 0, {0: 2, 1: 2}) for n in range(6)]
    for n, client in enumerate(clients):
        client.send(0, make_request(2, n))
        client.send(1, make_request(2, 100 + n))
    time.sleep(0.3)
    found = server.collect(1000, TIMEOUT_S)
    assert len(found) == 12
    for one in found:
        server.reply(one, answer_to(one.request))
    for n, client in enumerate(clients):
        got = dict(client.receive(TIMEOUT_S) for _ in range(2))
        check_answer(make_request(2, n), got[0])
        check_answer(make_request(2, 100 + n), got[1])
        client.close()
    server.close()
