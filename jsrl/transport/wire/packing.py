"""What is left out of messages between hosts: old frames of stacks, and what LZ4 saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import CodecError, MissingExtra
from jsrl.extras import install_command
from jsrl.types import ArraySpec, Tree


@dataclass(frozen=True)
class Packing:
    """What to leave out of messages.

    Attributes:
      frames: number of frames stacked on an observation's last axis, see EnvSpec.frames; None: send all.
      compress: with LZ4, if that makes it smaller.
    """

    frames: int | None = None
    compress: bool = False

    def __bool__(self) -> bool:
        return self.frames is not None or self.compress


PLAIN = Packing()


class Packed(NamedTuple):
    """Bytes to send. thin: only the newest frames of stacks are in them; compressed: with LZ4."""

    data: np.ndarray
    thin: bool = False
    compressed: bool = False


def is_stack(observation: Tree, frames: int | None) -> bool:
    """Return whether an observation (ArraySpec leaves) is one array of stacks of this many frames."""
    return isinstance(observation, ArraySpec) and frames is not None and frames > 1 and observation.shape[-1] == frames


def stack(observation: np.ndarray, newest: np.ndarray, black: np.ndarray) -> None:
    """Fill rows 1 to T of `observation` [T+1, B, ..., frames] from row 0 and the newest frames [T, B, ...].

    Older frames are black where `black` (bool [T, B], of rows 1 to T) is set.
    """
    for t in range(1, len(observation)):
        push(observation[t - 1], newest[t - 1], black[t - 1], observation[t])


def push(before: np.ndarray, newest: np.ndarray, black: np.ndarray, out: np.ndarray) -> None:
    """Write the stacks [B, ..., frames] that follow `before` into `out`, which may be `before`.

    Args:
      newest: frames [B, ...]. black: bool [B], whose older frames are black.
    """
    words, last = _words(out), _words(before)
    if words is not None and last is not None:
        np.right_shift(last, 8, out=words)
        words[black] = 0
    else:
        out[..., :-1] = before[..., 1:]
        out[black, ..., :-1] = 0
    out[..., -1] = newest


def find_black(before: np.ndarray, stacks: np.ndarray) -> np.ndarray | None:
    """Return bool [B]: whose older frames in `stacks` [B, ..., frames] are black, while all others follow `before`.

    None: some do neither.
    """
    words, last = _words(stacks), _words(before)
    if words is not None and last is not None:
        older, expected = words << 8, last & ~words.dtype.type(0xFF)
    else:
        older, expected = stacks[..., :-1], before[..., 1:]
    axes = tuple(range(1, older.ndim))
    black: np.ndarray = (older != expected).any(axis=axes)
    return None if black.any() and older[black].any() else black


def _words(stacks: np.ndarray) -> np.ndarray | None:
    """Return each stack of a pixel as one number, which is much faster than its bytes; None: its size is no number's."""
    frames = stacks.shape[-1]
    return stacks.view(f"<u{frames}")[..., 0] if stacks.dtype == np.uint8 and frames in (2, 4, 8) else None


def compressed(packed: Packed) -> Packed:
    """Return bytes compressed with LZ4, if that makes them fewer."""
    smaller = np.frombuffer(lz4_block().compress(packed.data, store_size=False), np.uint8)
    return packed._replace(data=smaller, compressed=True) if smaller.nbytes < packed.data.nbytes else packed


def received_bytes(what: str, packed: Packed, size_bytes: int) -> np.ndarray:
    """Return the `size_bytes` bytes of a received message, decompressed; `what` it is, for errors."""
    raw = packed.data
    if packed.compressed:
        try:
            raw = np.frombuffer(lz4_block().decompress(raw, uncompressed_size=size_bytes), np.uint8)
        except (ValueError, lz4_block().LZ4BlockError) as error:
            raise CodecError(f"{what} that LZ4 cannot read: {error}.") from error
    if raw.nbytes != size_bytes:
        raise CodecError(f"{what} of {raw.nbytes} bytes, expected {size_bytes}.")
    return raw


def lz4_block() -> Any:
    try:
        import lz4.block
    except ImportError:
        raise MissingExtra(f"--compress needs the package lz4, not installed here: {install_command('lz4')}") from None
    return lz4.block
