"""Messages as frames: one header of fixed fields (msgpack), then the raw bytes of every array. No pickle, ever.

    frame 0   magic "JSRL", protocol version, frame count, CRC-32 of the rest, then msgpack of
              [kind, fields, [[dtype, shape], ...], structure]
    frame i   the C-contiguous bytes of array i - 1

`structure` nests dicts, sequences and None around array numbers. Named tuples arrive as tuples; a reader who
knows the schema restores them with `jsrl.types.unflatten`. Counts, sizes and nesting are checked before anything is
allocated.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.errors import CodecError
from jsrl.transport.wire.schema import MAX_ARRAY_BYTES, MAX_DIMENSIONS, dtype_name, to_dtype
from jsrl.types import Tree

PROTOCOL_VERSION = 2
_MAGIC = b"JSRL"
_PREFIX = struct.Struct("<4sHHI")  # magic, protocol version, frame count, CRC-32


@dataclass(frozen=True)
class Limits:
    """A reader's limits; a larger message is a CodecError before anything is allocated."""

    header_bytes: int = 1 << 20
    frames: int = 4096
    message_bytes: int = 1 << 34
    depth: int = 32


DEFAULT_LIMITS = Limits()


class Message(NamedTuple):
    """A decoded message: its kind, its fields (plain values), and its arrays (read-only views of the frames)."""

    kind: str
    fields: dict[str, Any]
    arrays: Tree = ()


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: str
    fields: dict[str, Any]
    arrays: list[tuple[str, list[int]]]
    structure: Any


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def encode(kind: str, fields: dict[str, Any] | None = None, arrays: Tree = ()) -> list[Any]:
    """Return the frames of a message; array frames share the arrays' memory where those are C-contiguous.

    Args:
      kind: of the message.
      fields: plain values (numbers, strings, bytes, lists, dicts, None).
      arrays: a tree of arrays.
    """
    found: list[np.ndarray] = []
    structure = _structure(arrays, found, DEFAULT_LIMITS.depth)
    if len(found) >= DEFAULT_LIMITS.frames:
        raise CodecError(
            f"{kind}: {len(found)} arrays in one message, at most {DEFAULT_LIMITS.frames - 1} can be sent."
        )
    specs = [(dtype_name(array.dtype), list(array.shape)) for array in found]
    try:
        body = _encoder.encode(_Header(kind, fields or {}, specs, structure))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"{kind}: the fields cannot be written as msgpack: {error}.") from error
    if len(body) + _PREFIX.size > DEFAULT_LIMITS.header_bytes:
        raise CodecError(
            f"{kind}: a header of {len(body)} bytes, at most {DEFAULT_LIMITS.header_bytes} can be sent; "
            "send large values as arrays."
        )
    prefix = _PREFIX.pack(_MAGIC, PROTOCOL_VERSION, len(found) + 1, zlib.crc32(body))
    return [prefix + body, *(as_bytes(array) for array in found)]


def as_bytes(array: np.ndarray) -> memoryview:
    """Return the C-order bytes of an array, without a copy if it is C-contiguous."""
    flat: Any = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    return memoryview(flat)


def _structure(tree: Tree, found: list[np.ndarray], depth: int) -> Any:
    if depth < 0:
        raise CodecError(f"a tree of arrays nested deeper than {DEFAULT_LIMITS.depth} cannot be sent.")
    if tree is None:
        return None
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise CodecError(f"the keys of a tree of arrays must be strings, found {list(tree)[:8]}.")
        return {key: _structure(tree[key], found, depth - 1) for key in tree}
    if isinstance(tree, list | tuple):
        return [_structure(child, found, depth - 1) for child in tree]
    found.append(np.asarray(tree))
    return len(found) - 1


def decode(frames: Sequence[Any], limits: Limits = DEFAULT_LIMITS) -> Message:
    """Return the message in `frames` (bytes, memoryviews or zmq Frames); its arrays are read-only views of them.

    Raises:
      CodecError: the frames are truncated, altered, of another protocol version, or larger than `limits`.
    """
    if not 1 <= len(frames) <= limits.frames:
        raise CodecError(f"a message of {len(frames)} frames, expected 1 to {limits.frames}.")
    views = [_view(frame) for frame in frames]
    total_bytes = sum(view.nbytes for view in views)
    if views[0].nbytes > limits.header_bytes or total_bytes > limits.message_bytes:
        raise CodecError(
            f"a message of {total_bytes} bytes with a header of {views[0].nbytes}, expected at most "
            f"{limits.message_bytes} and {limits.header_bytes}."
        )
    header = _decode_header(views[0], len(frames))
    if len(header.arrays) != len(frames) - 1:
        raise CodecError(f"{header.kind}: {len(header.arrays)} arrays declared, {len(frames) - 1} frames came.")
    arrays = [_array(header, number, view) for number, view in enumerate(views[1:])]
    tree = _rebuild(header.structure, arrays, limits.depth)
    if _count(header.structure) != len(arrays):
        raise CodecError(f"{header.kind}: the structure does not name each of the {len(arrays)} arrays once.")
    return Message(header.kind, header.fields, tree)


def _view(frame: Any) -> memoryview:
    try:
        return memoryview(frame).cast("B")
    except TypeError as error:
        raise CodecError(f"a frame must be bytes, found {type(frame).__name__}.") from error


def _decode_header(view: memoryview, num_frames: int) -> _Header:
    if view.nbytes < _PREFIX.size:
        raise CodecError(f"a header of {view.nbytes} bytes, expected at least {_PREFIX.size}: truncated.")
    magic, version, declared_frames, checksum = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise CodecError(f"the first bytes are {magic!r}, expected {_MAGIC!r}: not a message of jsrl.")
    if version != PROTOCOL_VERSION:
        raise CodecError(
            f"protocol version {version}, expected {PROTOCOL_VERSION}: both ends must run the same version of jsrl."
        )
    if declared_frames != num_frames:
        raise CodecError(f"{declared_frames} frames declared, {num_frames} came: truncated.")
    body = view[_PREFIX.size :]
    if zlib.crc32(body) != checksum:
        raise CodecError("the header's checksum differs: the message was altered on the way.")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CodecError(f"the header is not msgpack of the expected fields: {error}.") from error


def _array(header: _Header, number: int, view: memoryview) -> np.ndarray:
    name, shape = header.arrays[number]
    dtype = to_dtype(name)
    if len(shape) > MAX_DIMENSIONS or any(not 0 <= n <= MAX_ARRAY_BYTES for n in shape):
        raise CodecError(f"{header.kind}: array {number} has the impossible shape {shape[:MAX_DIMENSIONS]}.")
    expected_bytes = math.prod(shape) * dtype.itemsize
    if expected_bytes != view.nbytes:
        raise CodecError(
            f"{header.kind}: array {number}, {name} {shape}, takes {expected_bytes} bytes, its frame has {view.nbytes}."
        )
    try:
        array = np.ndarray(shape, dtype, view) if expected_bytes else np.zeros(shape, dtype)
    except (ValueError, MemoryError) as error:
        raise CodecError(f"{header.kind}: array {number} cannot have the shape {shape}: {error}.") from error
    array.flags.writeable = False
    return array


def _rebuild(structure: Any, arrays: list[np.ndarray], depth: int) -> Tree:
    if depth < 0:
        raise CodecError("the arrays are nested deeper than the limit.")
    if structure is None:
        return None
    if isinstance(structure, int) and not isinstance(structure, bool):
        if not 0 <= structure < len(arrays):
            raise CodecError(f"the structure names array {structure} of {len(arrays)}.")
        return arrays[structure]
    if isinstance(structure, list):
        return tuple(_rebuild(child, arrays, depth - 1) for child in structure)
    if isinstance(structure, dict) and all(isinstance(key, str) for key in structure):
        return {key: _rebuild(child, arrays, depth - 1) for key, child in structure.items()}
    raise CodecError(f"the structure holds a {type(structure).__name__}, expected dicts, lists and array numbers.")


def _count(structure: Any) -> int:
    numbers: list[int] = []
    stack = [structure]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        elif node is not None:
            numbers.append(node)
    return len(numbers) if len(set(numbers)) == len(numbers) else -1
