"""How a group's request is sent between hosts: only the newest frame of each stack, and compressed if wanted.

Both ends keep the stacks of the last request, so the next one needs only the newest frames, and a flag where an episode
begins with black older ones. A request whose stacks do not follow the last one's is sent whole. The server decides, in its
welcome. LZ4 comes before the encryption.
"""

from __future__ import annotations

import numpy as np

from jsrl.errors import CodecError
from jsrl.transport.base import InferenceSpec
from jsrl.transport.ends.area import question_schema
from jsrl.transport.wire.packing import (
    Packed,
    Packing,
    compressed,
    find_black,
    is_stack,
    push,
    received_bytes,
)
from jsrl.transport.wire.schema import Leaf, flatten_schema, make_layout


class RequestPacker:
    """One end of one group's requests.

    Args:
      spec: of the stream. rows: of the group. packing: what to leave out; `frames` counts only if the observation is one
        array of such stacks.
    """

    def __init__(self, spec: InferenceSpec, rows: int, packing: Packing) -> None:
        self._whole = make_layout(flatten_schema(question_schema(spec, rows)))
        self._has_stacks = is_stack(spec.observation, packing.frames)
        self._compress = packing.compress
        self._thin = make_layout(_thinned(self._whole.leaves) if self._has_stacks else ())
        self._step: int | None = None  # of the last request
        self._last: np.ndarray | None = None  # its stacks, at the end that sends

    def pack(self, raw: np.ndarray, step: int) -> Packed:
        """Return what to send of a request [size_bytes]: `raw`, or new memory."""
        packed = Packed(raw)
        if self._has_stacks and (thin := self._thinner(raw, step)) is not None:
            packed = Packed(thin, thin=True)
        return compressed(packed) if self._compress else packed

    def _thinner(self, raw: np.ndarray, step: int) -> np.ndarray | None:
        """Return the request without old frames; None: its stacks do not follow those of the last one."""
        stacks, *others = self._whole.views(raw)
        last, follows = self._last, self._step is not None and step == self._step + 1
        black = find_black(last, stacks) if last is not None and follows else None
        self._step = step
        if last is None:
            self._last = stacks.copy()
        else:
            last[...] = stacks
        if black is None:
            return None
        packed = np.empty(self._thin.size_bytes, np.uint8)
        newest, flags, *targets = self._thin.views(packed)
        newest[...], flags[...] = stacks[..., -1], black
        for target, leaf in zip(targets, others, strict=True):
            target[...] = leaf
        return packed

    def unpack(self, packed: Packed, step: int, area: np.ndarray) -> None:
        """Write a received request into the group's area [size_bytes], which holds the last one.

        Raises:
          CodecError: it is none, or follows a request that did not come.
        """
        thin = packed.thin and self._has_stacks
        raw = received_bytes("a request", packed, (self._thin if thin else self._whole).size_bytes)
        if not thin:
            area[...] = raw
        elif self._step is None or step != self._step + 1:
            raise CodecError(f"request {step} needs the stacks of request {step - 1}; the last one was {self._step}.")
        else:
            newest, black, *others = self._thin.views(raw, writeable=False)
            stacks, *targets = self._whole.views(area)
            push(stacks, newest, black.astype(bool), stacks)
            for target, leaf in zip(targets, others, strict=True):
                target[...] = leaf
        self._step = step


def _thinned(every: tuple[Leaf, ...]) -> list[Leaf]:
    """Return the leaves that are sent: newest frames [B, ...], where older ones are black [B], and all others."""
    (_, shape, dtype), *others = every
    return [Leaf("newest", shape[:-1], dtype), Leaf("black", shape[:1], "bool"), *others]
