"""Messages round-trip with their bodies; whatever else arrives is a CodecError."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsrl.errors import CodecError
from jsrl.transport.door.hello import Refused
from jsrl.transport.ends.packing import Packing
from jsrl.transport.network import call, latest, reliable
from jsrl.transport.wire.message import SMALL_BYTES, pack, unpack

HEADER_BYTES = 1 << 12
MESSAGES: list[Any] = [
    reliable.Sample(3, 1, 2, ("actor-0", 4, 5), True, False),
    reliable.Credit(3, 2, False),
    call.Request(0, -1, 7, True, False, False),
    call.Welcome(Packing(4, True)),
    latest.Want(0, -1),
    Refused("StreamClosed", "the consumer is closed."),
]
ANY = msgspec.msgpack.Decoder(reliable.Sample | reliable.Credit | call.Request | call.Welcome | latest.Want | Refused)


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, SMALL_BYTES + 1])
def test_messages_arrive_as_they_were_sent(message: Any, size: int) -> None:
    body = np.arange(size, dtype=np.uint64).view(np.uint8)[:size].copy()
    frames = [bytes(frame) for frame in pack(message, body)]
    assert len(frames) == (1 if size <= SMALL_BYTES else 2)
    found, received = unpack(frames, ANY, HEADER_BYTES)
    assert found == message and bytes(received) == body.tobytes()


def test_large_bodies_are_not_copied() -> None:
    body = np.zeros(SMALL_BYTES + 1, np.uint8)
    frames = pack(MESSAGES[0], body)
    body[:] = 7
    assert frames[1][50] == 7
    received = np.frombuffer(unpack(frames, ANY, HEADER_BYTES)[1], np.uint8)
    assert np.shares_memory(received, body)


def frame(*fields: Any) -> bytes:
    header = msgspec.msgpack.encode(fields)
    return struct.pack("<I", len(header)) + header


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [frame("credit", 1, 2, False)] * 3,
        [frame("credit", 1, 2, False) + b"x", b"body"],
        [frame("credit", 1, 2)],
        [frame("credit", 1, 2, False, 4)],
        [frame("credit", -1, 2, False)],
        [frame("credit", 1, 1 << 62, False)],
        [frame("credit", True, 2, False)],
        [frame("unknown", 1, 2, False)],
        [frame("request", 0, -2, 0, False, False, False)],
        [frame("want", 1024, -1)],
        [frame("welcome", {"frames": "many"})],
        [frame("refused", "StreamClosed", "x" * HEADER_BYTES)],
    ],
)
def test_broken_messages_are_codec_errors(frames: list[bytes]) -> None:
    with pytest.raises(CodecError):
        unpack(frames, ANY, HEADER_BYTES)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_altered_messages_are_read_or_are_codec_errors(seed: int) -> None:
    rng = random.Random(seed)
    (sent,) = pack(rng.choice(MESSAGES), b"body")
    altered = bytearray(sent)
    for _ in range(rng.randint(1, 4)):
        altered[rng.randrange(len(altered))] = rng.randrange(256)
    try:
        unpack([bytes(altered[: rng.randint(0, len(altered))])], ANY, HEADER_BYTES)
    except CodecError:
        pass


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_any_bytes_are_read_or_are_codec_errors(frames: list[bytes]) -> None:
    for given_frames in (frames, [struct.pack("<I", len(frames[0])) + frames[0]] if frames else []):
        try:
            unpack(given_frames, ANY, HEADER_BYTES)
        except CodecError:
            pass
