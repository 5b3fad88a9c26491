"""Messages of a stream: a header of typed fields (msgpack), then a body of bytes. No pickle, ever.

    frame 0   size of the header (4 bytes), the header, and a small body
    frame 1   a larger body, not copied

Each protocol lists its messages as classes. Types and ranges of their fields are checked when a message is decoded, and not
again.

Over TCP no connection may send a frame above 128 KiB: ZeroMQ stores an incoming frame even from a peer that has not shown
a key yet, and has one limit for all frames of a socket. So large frames are sent in pieces of exactly PIECE_BYTES, then a
shorter (or empty) one, which ends the frame. Before its handshake a connection can occupy one piece.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from jsrl.errors import CodecError

PIECE_BYTES = 1 << 17
SMALL_BYTES = 1 << 16  # up to this size, copying a body is cheaper than a frame of its own
_SIZE = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of all messages; a subclass sets its `tag`."""


def pack(message: Message, body: Any = b"") -> list[Any]:
    """Return the frames of a message; `body`: bytes, or an array of uint8."""
    header = _encoder.encode(message)
    start = _SIZE.pack(len(header)) + header
    return [b"".join((start, body))] if len(body) <= SMALL_BYTES else [start, body]


def unpack(frames: Sequence[Any], decoder: Any, header_bytes: int) -> tuple[Any, memoryview]:
    """Return (message, body) of received frames; the body is a view.

    Args:
      decoder: msgspec decoder of the messages that may come. header_bytes: of the largest header; a larger one is not decoded.

    Raises:
      CodecError: it is no such message.
    """
    first = memoryview(frames[0]) if 1 <= len(frames) <= 2 else memoryview(b"")
    if first.nbytes < _SIZE.size:
        raise CodecError(f"a message of {len(frames)} frames, the first of {first.nbytes} bytes: truncated.")
    (size,) = _SIZE.unpack_from(first)
    end = _SIZE.size + size
    if size > header_bytes or end > first.nbytes or (len(frames) == 2 and end < first.nbytes):
        raise CodecError(f"a message with a header of {size} bytes in {first.nbytes}, expected at most {header_bytes}.")
    try:
        message = decoder.decode(first[_SIZE.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(
            f"a message that cannot be read ({error}); do both ends run the same version of jsrl?"
        ) from None
    return message, memoryview(frames[1]) if len(frames) == 2 else first[end:]


def cut(frames: Sequence[Any]) -> list[Any]:
    """Return the frames of a message with large ones cut into pieces; they share their memory."""
    pieces: list[Any] = []
    for frame in frames:
        view = memoryview(frame)
        if view.nbytes < PIECE_BYTES:
            pieces.append(frame)
            continue
        pieces += [view[start : start + PIECE_BYTES] for start in range(0, view.nbytes + 1, PIECE_BYTES)]
    return pieces


def join(pieces: Sequence[Any], max_bytes: int) -> list[Any]:
    """Return the frames that `cut` made these pieces of; large ones are copied into new memory.

    Args:
      pieces: bytes or memoryviews. max_bytes: of the whole message.
    """
    views = [memoryview(piece) for piece in pieces]
    total_bytes = sum(view.nbytes for view in views)
    if total_bytes > max_bytes:
        raise CodecError(f"a message of {total_bytes} bytes in {len(views)} pieces, expected at most {max_bytes}.")
    frames: list[Any] = []
    parts: list[memoryview] = []
    for view in views:
        parts.append(view)
        if view.nbytes == PIECE_BYTES:
            continue
        frames.append(view if len(parts) == 1 else memoryview(b"".join(parts)))
        parts = []
    if parts:
        raise CodecError(f"a message in {len(views)} pieces whose last frame has no end.")
    return frames
