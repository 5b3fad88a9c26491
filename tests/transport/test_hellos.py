"""Invalid hellos: refused before any memory is reserved for them, without effect on other clients."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from jsrl.errors import CodecError, ConfigError, JsrlError, StreamClosed
from jsrl.transport.base import ProducerId
from jsrl.transport.door import hello
from jsrl.transport.door.hello import (
    Door,
    HelloMessage,
    JoinRules,
    Refused,
    raise_refusal,
)
from jsrl.transport.network import call
from jsrl.transport.shared.connections import connect_socket
from jsrl.transport.shared.segment import Segment
from jsrl.transport.table import bind_inference, bind_samples, connect_inference, connect_samples
from jsrl.transport.wire.message import pack, unpack
from jsrl.transport.wire.schema import encode_schema, flatten_schema
from jsrl.types import zeros
from tests.contracts.inference_contract import SPEC
from tests.contracts.sample_contract import SCHEMA, drain

TIMEOUT_S = 20.0
ACTORS = JoinRules(frozenset({"actor-0", "actor-1"}), num_groups=4, rows=8)
HUGE = 1 << 31
HELLOS = msgspec.msgpack.Decoder(HelloMessage)
REFUSALS = msgspec.msgpack.Decoder(Refused)


def connecting(server: Any, connect: Callable[[], Any]) -> Any:
    """Return the result or exception of `connect` while the server was stepped."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(connect())
        except JsrlError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        server.collect(8, 0.01)
    return found[0]


def address(transport: str, folder: Path) -> str:
    return {"local": f"local:{folder.name}", "shm": f"shm:{folder}/run/s", "ipc": f"ipc://{folder}/s"}[transport]


def refuse_work(patch: pytest.MonkeyPatch) -> None:
    """Let the test fail where memory is reserved or a schema compared for a client from now on."""

    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("a hello was worked on before it was checked")

    patch.setattr(Segment, "unnamed", work)
    patch.setattr(call, "_Client", work)
    for name in ("compare_schemas", "decode_schema"):
        patch.setattr(hello, name, work)


def test_hello_lost_with_its_connection_is_sent_again(tmp_path: Path) -> None:
    first: Any = bind_inference(f"ipc://{tmp_path}/i", SPEC)
    with ThreadPoolExecutor(1) as pool:
        where = (first.address, SPEC, ProducerId("actor-0", 0), {0: 1}, 10.0)
        client = pool.submit(connect_inference, *where)
        assert first._link.socket.poll(10_000)  # the hello is there
        first._link.close(0)
        second = bind_inference(first.address, SPEC)
        while not client.done():
            second.collect(1, 0.05)
        client.result().close()
    second.close()


@pytest.mark.parametrize("transport", ["local", "shm", "ipc"])
@pytest.mark.parametrize(
    ("producer", "groups", "expected"),
    [
        (ProducerId("actor-0", 0), dict.fromkeys(range(2000), 1), "2000 groups, expected 1 to 4"),
        (ProducerId("actor-0", 0), {4: 1}, "group 4 with 1 rows, expected group 0 to 3"),
        (ProducerId("actor-0", 0), {0: 9}, "group 0 with 9 rows, expected group 0 to 3 with 1 to 8 rows"),
        (ProducerId("actor-2", 0), {0: 1}, "actor-2 cannot join: this stream is for actor-0, actor-1"),
        (ProducerId("actor-0", HUGE + 1), {0: 1}, f"incarnation {HUGE + 1}, expected an integer from 0 to {HUGE}"),
    ],
)
def test_inference(transport: str, producer, groups, expected: str, tmp_path: Path, monkeypatch) -> None:
    server = bind_inference(address(transport, tmp_path), SPEC, join_rules=ACTORS)
    refuse_work(monkeypatch)
    if producer.incarnation > HUGE:  # the connecting end refuses that too
        monkeypatch.setattr("jsrl.transport.table.check_producer", lambda _: None)
    where = (server.address, SPEC, producer, groups, TIMEOUT_S)
    error = connecting(server, lambda: connect_inference(*where))
    assert type(error) is (StreamClosed if "cannot join" in expected else ConfigError) and re.search(
        expected, str(error)
    ), error
    monkeypatch.undo()
    client = connecting(server, lambda: connect_inference(server.address, SPEC, ProducerId("actor-0", 0), {3: 8}, 20.0))
    client.close()
    server.close()


@pytest.mark.parametrize("transport", ["local", "shm", "ipc"])
@pytest.mark.parametrize(
    ("producer", "groups", "expected"),
    [
        (ProducerId("actor-0", 0), 5, "5 groups, expected 1 to 4"),
        (ProducerId("actor-2", 0), 1, "actor-2 cannot join: this stream is for actor-0, actor-1"),
    ],
)
def test_samples(transport: str, producer, groups, expected: str, tmp_path: Path, monkeypatch) -> None:
    consumer = bind_samples(address(transport, tmp_path), SCHEMA, join_rules=ACTORS)
    refuse_work(monkeypatch)
    with pytest.raises(JsrlError, match=expected):
        connect_samples(consumer.address, SCHEMA, producer, groups, TIMEOUT_S)
    monkeypatch.undo()
    good = connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", HUGE), 4, TIMEOUT_S)
    good.put(zeros(SCHEMA), 3, TIMEOUT_S)
    drain(consumer, 1, check=False)
    good.close()
    consumer.close()


def test_oversized_hello_is_not_decoded(tmp_path: Path) -> None:
    consumer = bind_samples(address("ipc", tmp_path), SCHEMA, join_rules=ACTORS)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(consumer.address)
        schema = msgspec.Raw(msgspec.msgpack.encode([["x", [1], "f4"]] * 50_000))
        stranger.send_multipart(pack(HelloMessage("actor-0", 0, [(0, 1)], schema)))
        assert not stranger.poll(300), "the connection was closed, or the hello refused unread"
    connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 4, TIMEOUT_S).close()
    consumer.close()


def test_oversized_hello_within_a_host_is_not_decoded(tmp_path: Path) -> None:
    consumer = bind_samples(address("shm", tmp_path), SCHEMA, join_rules=ACTORS)
    with connect_socket(tmp_path / "run" / "s", TIMEOUT_S, lambda: None) as stranger:
        schema = msgspec.Raw(msgspec.msgpack.encode([["x", [1], "f4"]] * 10_000))
        stranger.send(b"".join(pack(HelloMessage("actor-0", 0, [(0, 1)], schema))))
        with pytest.raises(CodecError, match="expected at most"):
            raise_refusal(unpack([stranger.recv(1 << 16)], REFUSALS, 1 << 16)[0])
    connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 4, TIMEOUT_S).close()
    consumer.close()


def test_incarnations_only_rise_and_a_client_that_left_may_return() -> None:
    first, second = ProducerId("actor-0", 3), ProducerId("actor-0", 4)
    admission = Door("the consumer", (), ACTORS)
    admission.admit(first)
    with pytest.raises(StreamClosed, match="incarnation 3, has joined before: start the worker again with a higher"):
        admission.admit(first)
    admission.leave(first)
    admission.admit(first)
    admission.admit(second)
    admission.leave(first)  # it left late, and stays replaced
    with pytest.raises(StreamClosed, match="incarnation 3, was replaced by incarnation 4"):
        admission.check_incarnation(first)
    admission.leave(second)
    admission.fence(second)
    admission.fence(first)
    with pytest.raises(StreamClosed, match="incarnation 4, has joined before"):
        admission.admit(second)
    admission.check_incarnation(ProducerId("actor-0", 5))


@pytest.mark.parametrize("given", [None, "ab", 3, [[1]], [[1, 2, 3]], [["a", 1]], [[True, 1]], [[0, 1], [0, 2]], [5]])
def test_malformed_groups_are_refused(given: Any) -> None:
    schema = flatten_schema(SCHEMA)
    with pytest.raises(CodecError):
        message, _ = unpack(
            pack(HelloMessage("actor-0", 0, given, msgspec.Raw(encode_schema(schema)))), HELLOS, 1 << 20
        )
        Door("the consumer", schema, ACTORS).read(message)


def test_hello_fields_are_checked_before_the_schema(tmp_path: Path) -> None:
    """A hello of an unauthorised client costs nothing, with any schema."""
    consumer: Any = bind_samples(f"ipc://{tmp_path}/s", SCHEMA, join_rules=ACTORS)
    with pytest.raises(StreamClosed, match="stranger cannot join"):
        consumer.door.read(HelloMessage("stranger", 0, [(0, 1)], msgspec.Raw(b"no schema")))
    assert os.listdir(tmp_path) == ["s"]
    consumer.close()
