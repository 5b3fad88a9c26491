"""How blocks and requests are sent between hosts: only the newest frame of each stack, and compressed if wanted.

A stack of frames repeats frames of earlier rows. Of a block the first row's stack is sent whole and of the others only the
newest frame; of a request only the newest frames, as both ends keep the stacks of the last one. A request whose stacks do
not follow the last one's is sent whole. A flag says where older frames are black: not every start of an episode clears the
stack (Atari after a lost life does not). The binding end decides, in its welcome. LZ4 comes before the encryption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import CodecError, MissingExtra
from jsrl.extras import install_command
from jsrl.transport.base import InferenceSpec
from jsrl.transport.ends.area import question_schema
from jsrl.transport.wire.schema import Leaf, flatten_schema, make_layout
from jsrl.types import ArraySpec, Trajectory, Tree


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


class Packer:
    """Packs and unpacks the blocks of a stream.

    Args:
      schema: of the stream. packing: what to leave out; `frames` counts only if the observation is one array of such stacks.
    """

    def __init__(self, schema: Tree, packing: Packing) -> None:
        self._schema, self._layout = schema, make_layout(flatten_schema(schema))
        self._has_stacks = isinstance(schema, Trajectory) and is_stack(schema.observation, packing.frames)
        self._compress = packing.compress
        self._thin = make_layout(_thin_block(self._layout.leaves) if self._has_stacks else ())
        self._at = next((i for i, leaf in enumerate(self._layout.leaves) if leaf.name == "observation"), -1)

    def pack(self, raw: np.ndarray) -> Packed:
        """Return what to send of a block [size_bytes]: `raw`, or new memory."""
        packed = Packed(raw)
        if self._has_stacks:
            packed = Packed(np.empty(self._thin.size_bytes, np.uint8), thin=True)
            first, newest, black, *others = self._thin.views(packed.data)
            whole = self._layout.views(raw)
            observation = whole.pop(self._at)
            first[...], newest[...] = observation[0], observation[1:, ..., -1]
            black[...] = _black(observation, self._layout.tree(self._schema, raw).is_first)
            for target, leaf in zip(others, whole, strict=True):
                target[...] = leaf
        return compressed(packed) if self._compress else packed

    def unpack(self, packed: Packed) -> np.ndarray:
        """Return the block [size_bytes] from received bytes."""
        thin = packed.thin and self._has_stacks
        raw = received_bytes("a sample", packed, (self._thin if thin else self._layout).size_bytes)
        return self._stacked(raw) if thin else raw

    def _stacked(self, packed: np.ndarray) -> np.ndarray:
        """Return a block with rebuilt stacks of observations."""
        raw = np.zeros(self._layout.size_bytes, np.uint8)
        first, newest, black, *others = self._thin.views(packed, writeable=False)
        whole = self._layout.views(raw)
        observation = whole.pop(self._at)
        for target, leaf in zip(whole, others, strict=True):
            target[...] = leaf
        observation[0] = first
        stack(observation, newest, black.astype(bool))
        return raw


def _black(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Return bool [T, B]: where rows 1 to T begin an episode and their older frames are black."""
    black = is_first[1:].astype(bool)
    older = observation[1:][black][..., :-1]
    black[black] = ~older.any(axis=tuple(range(1, older.ndim)))
    return black


def _thin_block(every: tuple[Leaf, ...]) -> list[Leaf]:
    """Return the leaves that are sent.

    The first row's stacks [B, ..., frames], newest frames [T, B, ...], where older ones are black [T, B], and all others.
    """
    observation = next(leaf for leaf in every if leaf.name == "observation")
    rows, *shape = observation.shape
    first = Leaf("first", tuple(shape), observation.dtype)
    newest = Leaf("newest", (rows - 1, *shape[:-1]), observation.dtype)
    black = Leaf("black", (rows - 1, shape[0]), "bool")
    return [first, newest, black, *(leaf for leaf in every if leaf is not observation)]


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
        self._thin = make_layout(_thin_request(self._whole.leaves) if self._has_stacks else ())
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


def _thin_request(every: tuple[Leaf, ...]) -> list[Leaf]:
    """Return the leaves that are sent: newest frames [B, ...], where older ones are black [B], and all others."""
    (_, shape, dtype), *others = every
    return [Leaf("newest", shape[:-1], dtype), Leaf("black", shape[:1], "bool"), *others]
