"""What is left out of messages between hosts: old frames of stacks, and what LZ4 saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jsrl.errors import CodecError

THIN, LZ4 = "newest", "lz4"  # fields of a message


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
        """Return whether anything is packed."""
        return self.frames is not None or self.compress

    @property
    def fields(self) -> dict[str, Any]:
        """Return the packing as fields of a welcome."""
        return {"frames": self.frames, "compress": self.compress}


PLAIN = Packing()


def read_packing(fields: object) -> Packing:
    """Return the packing in a welcome; no `fields`: none.

    Raises:
      CodecError: it is invalid.
    """
    if fields is None:
        return PLAIN
    try:
        return msgspec.convert(fields, Packing)
    except msgspec.ValidationError as error:
        raise CodecError(f"a welcome that asks for the packing {str(fields)[:80]}: {error}.") from error


def stack(observation: np.ndarray, newest: np.ndarray, black: np.ndarray) -> None:
    """Fill rows 1 to T of `observation` [T+1, B, ..., frames] from row 0 and the newest frames [T, B, ...].

    Older frames are black where `black` (bool [T, B], of rows 1 to T) is set.
    """
    frames, last = observation.shape[-1], observation[..., -1]
    if observation.dtype == np.uint8 and frames in (2, 4, 8):  # a stack is one number: much faster than its bytes
        words = observation.view(f"<u{frames}")[..., 0]
        for t in range(1, len(words)):
            np.right_shift(words[t - 1], 8, out=words[t])
            words[t, black[t - 1]] = 0
            last[t] = newest[t - 1]
        return
    for t in range(1, len(observation)):
        observation[t, ..., :-1] = observation[t - 1, ..., 1:]
        observation[t, black[t - 1], ..., :-1] = 0
        last[t] = newest[t - 1]


def lz4() -> Any:
    """Return the module lz4.block; it is an optional package."""
    import lz4.block

    return lz4.block
