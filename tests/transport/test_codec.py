"""The codec round-trips its input, and raises only CodecError for broken bytes."""

import random
import struct
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jsrl.errors import CodecError
from jsrl.transport.wire import codec
from jsrl.transport.wire.codec import Limits, decode, encode
from jsrl.types import named_leaves

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *(">f4", ">i8", "S5", "U3", "datetime64[s]", "timedelta64[ms]", "bfloat16", "float8_e4m3fn"),
]


def as_wire(frames):
    return [bytes(frame) for frame in frames]


def assert_same(given_tree, found_tree):
    given_leaves, found_leaves = dict(named_leaves(given_tree)), dict(named_leaves(found_tree))
    assert given_leaves.keys() == found_leaves.keys()
    for name, array in given_leaves.items():
        found = found_leaves[name]
        assert (found.shape, found.dtype) == (array.shape, array.dtype), name
        assert found.tobytes() == array.tobytes(), name
        assert not found.flags.writeable, name


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_round_trip_of_every_dtype_and_shape(name, shape):
    from jsrl.transport.wire.schema import to_dtype

    dtype = to_dtype(name)
    size = int(np.prod(shape))
    array = np.arange(size * dtype.itemsize, dtype="uint8")
    array = array.view(dtype).reshape(shape) if dtype.kind not in "bU" else np.zeros(shape, dtype)
    assert_same({"x": array}, decode(as_wire(encode("test", {}, {"x": array}))).arrays)


def test_round_trip_of_non_contiguous_arrays():
    base = np.arange(60.0).reshape(3, 4, 5)
    tree = {"transposed": base.T, "strided": base[:, ::2, ::-1], "fortran": np.asfortranarray(base)}
    assert_same(tree, decode(as_wire(encode("test", {}, tree))).arrays)


def test_round_trip_of_nesting_fields_and_none():
    tree = {"b": (np.zeros(2), None, {"c": np.ones((1, 1), "int8")}), "a": ()}
    fields = {"text": "ü", "number": -(2**40), "float": 0.1, "bytes": b"\0", "list": [1, None, {"x": []}]}
    message = decode(as_wire(encode("kind", fields, tree)))
    assert (message.kind, message.fields) == ("kind", fields)
    assert message.arrays["a"] == () and message.arrays["b"][1] is None
    assert_same(tree, message.arrays)


def test_contiguous_arrays_are_not_copied():
    array = np.zeros(100_000, "float32")
    frame = encode("test", {}, array)[1]
    array[:] = 7
    assert np.frombuffer(frame, "float32")[50] == 7
    wire = bytes(frame)
    found = decode([*as_wire(encode("test", {}, array)[:1]), wire]).arrays
    assert found.__array_interface__["data"][0] == np.frombuffer(wire, "uint8").__array_interface__["data"][0]


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(2, [("a", "f4")]), np.array(["x", None])])
def test_arrays_that_are_not_plain_bytes_are_refused(array):
    with pytest.raises(CodecError, match="cannot be sent"):
        encode("test", {}, array)


def test_fields_that_are_not_plain_values_are_refused():
    with pytest.raises(CodecError, match="fields"):
        encode("test", {"x": object()})
    with pytest.raises(CodecError, match="strings"):
        encode("test", {}, {1: np.zeros(1)})


def header(*body, frames=1, version=codec.PROTOCOL_VERSION):
    packed = msgspec.msgpack.encode(body)
    return struct.pack("<4sHHI", b"JSRL", version, frames, zlib.crc32(packed)) + packed


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [header("k", {}, [], [], version=9)],
        [header("k", {}, [])],
        [header("k", {}, [], [], "more")],
        [header(3, {}, [], [])],
        [header("k", {}, [["float32", [2]]], 0)],
        [header("k", {}, [["object", [1]]], 0, frames=2), b"12345678"],
        [header("k", {}, [["O", [1]]], 0, frames=2), b"12345678"],
        [header("k", {}, [["f4,f4", [1]]], 0, frames=2), b"12345678"],
        [header("k", {}, [["nonsense", [1]]], 0, frames=2), b"1"],
        [header("k", {}, [["float32", [2**62, 2**62]]], 0, frames=2), b"1234"],
        [header("k", {}, [["uint8", [0, 2**63 - 1]]], 0, frames=2), b""],
        [header("k", {}, [["float32", [-1, -1]]], 0, frames=2), b"1234"],
        [header("k", {}, [["uint8", [1] * 40]], 0, frames=2), b"1"],
        [header("k", {}, [["float32", [1]]], 1, frames=2), b"1234"],
        [header("k", {}, [["float32", [1]]], [0, 0], frames=2), b"1234"],
        [header("k", {}, [["uint8", [1]], ["uint8", [1]]], [0, 0], frames=3), b"1", b"2"],
        [header("k", {}, [["float32", [1]]], [], frames=2), b"1234"],
        [header("k", {}, [["float32", [1]]], True, frames=2), b"1234"],
        [header("k", {}, [["float32", [1]]], "0", frames=2), b"1234"],
        [header("k", {}, [["float32", [1]]], 0, frames=3), b"1234"],
    ],
)
def test_broken_messages_are_codec_errors(frames):
    with pytest.raises(CodecError):
        decode(frames)


def test_limits_are_checked_before_anything_is_allocated():
    wire = as_wire(encode("test", {}, {"x": np.zeros(1000), "y": np.zeros(1000)}))
    for limits in (Limits(header_bytes=10), Limits(frames=2), Limits(message_bytes=15_000), Limits(depth=0)):
        with pytest.raises(CodecError):
            decode(wire, limits)
    deep = np.zeros(1)
    for _ in range(40):
        deep = (deep,)
    with pytest.raises(CodecError, match="deeper"):
        encode("test", {}, deep)
    body = b"\x94\xa1k\x80\x90" + b"\x91" * 100_000 + b"\x90"
    packed = struct.pack("<4sHHI", b"JSRL", codec.PROTOCOL_VERSION, 1, zlib.crc32(body)) + body
    with pytest.raises(CodecError):
        decode([packed])


arrays = hnp.arrays(
    dtype=st.sampled_from(["float32", "int64", "uint8", "bool", "float16", ">i4"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
TEXT = "aB0_/. \x00é☃𝄞"  # one to four bytes each
trees = st.recursive(
    arrays | st.none(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(TEXT, max_size=4), children, max_size=3),
    max_leaves=6,
)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(TEXT, max_size=8) | st.binary(max_size=8)


@given(tree=trees, fields=st.dictionaries(st.text(TEXT, max_size=6), plain, max_size=4))
@settings(max_examples=50)
def test_round_trip_of_any_tree(tree, fields):
    message = decode(as_wire(encode("any", fields, tree)))
    assert message.fields == fields
    assert_same(tree, message.arrays)


def altered(wire: list, rng: random.Random) -> list:
    """Return a message with a byte of its header changed, a frame truncated or removed, or one more frame."""
    wire, number = list(wire), rng.randrange(len(wire))
    frame, how = wire[number], rng.randrange(4)
    if how == 0:
        at = rng.randrange(len(wire[0]))
        wire[0] = wire[0][:at] + bytes([wire[0][at] ^ rng.randint(1, 255)]) + wire[0][at + 1 :]
    elif how == 1 and len(frame):
        wire[number] = frame[: rng.randrange(len(frame))]
    elif how == 2:
        wire.insert(number, rng.randbytes(rng.randint(0, 40)))
    else:
        del wire[number]
    return wire


@given(tree=trees, seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_altered_headers_and_truncated_frames_are_codec_errors(tree, seed):
    wire = as_wire(encode("any", {"sequence": 7, "name": "actor-0"}, tree))
    rng = random.Random(seed)
    for _ in range(20):
        broken = altered(wire, rng)
        with pytest.raises(CodecError):
            decode(broken)


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=100)
def test_any_bytes_are_codec_errors(frames):
    with pytest.raises(CodecError):
        decode(frames)


@given(body=st.binary(max_size=60), frames=st.lists(st.binary(max_size=16), max_size=3))
@settings(max_examples=150)
def test_any_body_with_a_valid_checksum_decodes_or_is_a_codec_error(body, frames):
    packed = struct.pack("<4sHHI", b"JSRL", codec.PROTOCOL_VERSION, len(frames) + 1, zlib.crc32(body)) + body
    try:
        decode([packed, *frames])
    except CodecError:
        pass
