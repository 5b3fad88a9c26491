"""Frames in pieces: over TCP no connection may send a frame above 128 KiB, so that unauthorised peers cannot send large ones.

ZeroMQ stores an incoming frame even from a peer that has not shown a key yet, and has one limit for all frames of
a socket. So large frames are sent as several: pieces of exactly PIECE_BYTES, then a shorter (or empty) one, which ends
the frame. Before its handshake a connection can occupy one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jsrl.errors import CodecError

PIECE_BYTES = 1 << 17


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


def join(pieces: Sequence[Any], most_bytes: int) -> list[Any]:
    """Return the frames that `cut` made these pieces of; large ones are copied into new memory.

    Args:
      pieces: bytes or memoryviews. most_bytes: of the whole message.
    """
    views = [memoryview(piece) for piece in pieces]
    total_bytes = sum(view.nbytes for view in views)
    if total_bytes > most_bytes:
        raise CodecError(f"a message of {total_bytes} bytes in {len(views)} pieces, expected at most {most_bytes}.")
    frames: list[Any] = []
    parts: list[memoryview] = []
    for view in views:
        parts.append(view)
        if view.nbytes == PIECE_BYTES:
            continue
        frames.append(view if len(parts) == 1 else _whole(parts))
        parts = []
    if parts:
        raise CodecError(f"a message in {len(views)} pieces whose last frame has no end.")
    return frames


def _whole(parts: Sequence[memoryview]) -> memoryview:
    frame = np.empty(sum(part.nbytes for part in parts), np.uint8)
    start = 0
    for part in parts:
        frame[start : start + part.nbytes] = part
        start += part.nbytes
    return frame.data
