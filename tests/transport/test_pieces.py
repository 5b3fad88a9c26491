"""Frames in pieces: pieces are joined again, and clients without a key cannot make a peer keep a large frame."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsrl.errors import CodecError
from jsrl.services.runs.control import ControlClient, ControlServer
from jsrl.services.runs.control_bodies import Event
from jsrl.transport.base import ProducerId
from jsrl.transport.door.keys import make_keys
from jsrl.transport.table import (
    bind_inference,
    bind_params,
    bind_samples,
    connect_inference,
    connect_params,
    connect_samples,
)
from jsrl.transport.wire.message import PIECE_BYTES, cut, join
from tests.contracts.inference_contract import SPEC, Serving, check_answer
from tests.contracts.sample_contract import drain
from tests.contracts.sample_producer import fill, make_schema

TIMEOUT_S = 20.0
LOOPBACK = "tcp://127.0.0.1:0"
CLOSED_S = 8.0  # before a handshake that takes too long is aborted
LARGE = make_schema(3 * PIECE_BYTES)


@pytest.fixture(scope="module", name="keys")
def keys_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys") / "keys")


@pytest.mark.parametrize(
    "sizes", [(0,), (10, 0), (PIECE_BYTES - 1,), (PIECE_BYTES,), (1, 2 * PIECE_BYTES, 5, PIECE_BYTES + 1)]
)
def test_joined_pieces_equal_the_message(sizes: tuple[int, ...]) -> None:
    frames = [np.random.default_rng(n).bytes(n) for n in sizes]
    pieces = cut(frames)
    assert max(len(piece) for piece in pieces) <= PIECE_BYTES
    assert [bytes(frame) for frame in join(pieces, sum(sizes))] == frames


def test_too_much_and_too_little() -> None:
    pieces = cut([b"x", bytes(PIECE_BYTES)])
    with pytest.raises(CodecError, match="expected at most"):
        join(pieces, PIECE_BYTES)
    with pytest.raises(CodecError, match="no end"):
        join(pieces[:-1], 1 << 30)


def test_large_messages_on_every_transport(keys: Path) -> None:
    consumer = bind_samples(LOOPBACK, LARGE, keys=keys)
    producer = connect_samples(consumer.address, LARGE, ProducerId("actor-0", 0), 1, TIMEOUT_S, keys=keys)
    for number in range(4):
        block = producer.reserve(TIMEOUT_S)
        fill(block.trajectory, number)
        block.commit(0)
        drain(consumer, 1)
    producer.close()
    consumer.close()
    publisher = bind_params(LOOPBACK, keys=keys)
    values = [
        np.arange(PIECE_BYTES, dtype=np.int64),
        np.zeros((), np.float32),
        np.arange(PIECE_BYTES // 4, dtype=np.int32),
    ]
    publisher.publish(0, 1, values)
    subscriber = connect_params(publisher.address, keys=keys)
    subscriber.wait(0, 0, TIMEOUT_S)
    assert all(np.array_equal(a, b) for a, b in zip(subscriber.poll()[1], values, strict=True))
    subscriber.close()
    publisher.close()


def test_large_requests(keys: Path) -> None:
    from tests.contracts.inference_contract import make_request

    rows = 40_000
    serving = Serving(bind_inference(LOOPBACK, SPEC, keys=keys))
    client = connect_inference(serving.address, SPEC, ProducerId("actor-0", 0), {0: rows}, TIMEOUT_S, keys=keys)
    request = make_request(rows, 1, wants_core=True)
    assert request.is_first.nbytes < PIECE_BYTES < sum(leaf.nbytes for leaf in request.observation.values())
    client.send(0, request)
    check_answer(request, client.receive(TIMEOUT_S)[1])
    client.close()
    serving.close()


def test_large_report_on_the_control_connection(keys: Path) -> None:
    server = ControlServer(LOOPBACK, keys=keys)
    client = ControlClient(server.address, "actor-0", 0, keys=keys)
    text = ["x" * (2 * PIECE_BYTES)]
    client.send(Event, name="note", facts={"lines": text})
    heard: list[Any] = []
    while not any(isinstance(message, Event) for message in heard):
        heard += server.poll(5.0)
    assert next(message.facts["lines"] for message in heard if isinstance(message, Event)) == text
    client.close()
    server.close()


# -- before the handshake

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
ENDS: dict[str, Callable[[Path], Any]] = {
    "samples": lambda keys: bind_samples(LOOPBACK, make_schema(8 << 20), keys=keys),
    "inference": lambda keys: bind_inference(LOOPBACK, SPEC, keys=keys),
    "params": lambda keys: bind_params(LOOPBACK, keys=keys),
    "control": lambda keys: ControlServer(LOOPBACK, keys=keys),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("flags", [2, 6], ids=["frame", "command"])
def test_unauthenticated_large_frame_is_disconnected(keys: Path, end: str, flags: int) -> None:
    bound = ENDS[end](keys)
    with socket.create_connection(("127.0.0.1", int(bound.address.rpartition(":")[2])), CLOSED_S) as stranger:
        stranger.sendall(_GREETING + struct.pack(">BQ", flags, 4 << 20))
        heard = bytearray()
        while part := stranger.recv(4096):  # until it is closed; raises if that does not happen
            heard += part
    assert len(heard) <= 64 + 512, "its greeting, and perhaps the reason for the end"
    bound.close()
