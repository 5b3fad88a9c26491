"""The schema of a stream: the leaves of a tree, their memory layout, and messages about differences."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.errors import CodecError, ConfigError, SpecMismatch
from jsrl.types import ArraySpec, Tree, named_leaves, unflatten

ALIGNMENT_BYTES = 64  # a cache line; JAX on CPU needs it to read a buffer without a copy
MAX_DIMENSIONS = 32
MAX_ARRAY_BYTES = 1 << 40
_PLAIN_KINDS = "biufcSUmM"


class Leaf(NamedTuple):
    """One array of a tree: its path, shape and dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@functools.lru_cache(256)
def to_dtype(name: str) -> np.dtype:
    """Return the numpy dtype of a name such as `float32`, `<f4` or `bfloat16` (ml_dtypes, where installed).

    Raises:
      CodecError: the name is unknown, or its values are not plain bytes (objects, structures).
    """
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        dtype = _extended_dtype(name, error)
    if dtype.kind in _PLAIN_KINDS or _is_extended(dtype):
        return dtype
    raise CodecError(f"dtype {name!r} cannot be sent: only numbers, booleans, fixed-size strings and times can be.")


def dtype_name(dtype: np.dtype) -> str:
    """Return a name that `to_dtype` turns back into `dtype`, byte order included."""
    if dtype.kind in _PLAIN_KINDS:
        return dtype.name if dtype.isnative and dtype.kind in "biufc" else dtype.str
    if _is_extended(dtype):
        return dtype.name
    raise CodecError(
        f"an array of dtype {dtype} cannot be sent: only numbers, booleans, fixed-size strings and times can be. "
        "Convert it to a numeric array first."
    )


def _is_extended(dtype: np.dtype) -> bool:
    return dtype.type.__module__ == "ml_dtypes" and dtype.names is None


def _extended_dtype(name: str, cause: Exception) -> np.dtype:
    if isinstance(name, str) and name.startswith(("bfloat", "float8", "float6", "float4", "int4", "int2", "uint")):
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise CodecError(f"dtype {name!r} needs the package ml_dtypes, which is not installed here.") from cause
        scalar = getattr(ml_dtypes, name, None)
        if isinstance(scalar, type):
            return np.dtype(scalar)
    raise CodecError(f"unknown dtype {name!r}.") from cause


def flatten_schema(schema: Tree) -> tuple[Leaf, ...]:
    """Return the leaves of a schema (ArraySpec leaves) or of a tree of arrays, in the order of `named_leaves`."""
    found = []
    for name, leaf in named_leaves(schema):
        if not (isinstance(leaf, ArraySpec) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))):
            raise ConfigError(f"schema leaf {name or '(root)'} is {type(leaf).__name__}, expected ArraySpec or array.")
        dtype = to_dtype(leaf.dtype) if isinstance(leaf.dtype, str) else np.dtype(leaf.dtype)
        found.append(Leaf(name, tuple(int(n) for n in leaf.shape), dtype_name(dtype)))
    return tuple(found)


def describe_difference(ours: Sequence[Leaf], theirs: Sequence[Leaf], our_name: str, their_name: str) -> str | None:
    """Return a sentence that names the first leaf in which two schemas differ, or None if they agree."""
    by_name = {leaf.name: leaf for leaf in theirs}
    for leaf in ours:
        other = by_name.pop(leaf.name, None)
        where = leaf.name or "(root)"
        if other is None:
            return f"leaf {where}: {our_name} has {leaf}, {their_name} has no such leaf"
        if other != leaf:
            return f"leaf {where}: {our_name} has {leaf}, {their_name} has {other}"
    if by_name:
        extra = next(iter(by_name.values()))
        return f"leaf {extra.name or '(root)'}: {their_name} has {extra}, {our_name} has no such leaf"
    if [leaf.name for leaf in ours] != [leaf.name for leaf in theirs]:
        return f"the same leaves in another order: {our_name} {list(ours)}, {their_name} {list(theirs)}"
    return None


def compare_schemas(ours: Sequence[Leaf], theirs: Sequence[Leaf], our_name: str, their_name: str) -> None:
    difference = describe_difference(ours, theirs, our_name, their_name)
    if difference is not None:
        raise SpecMismatch(
            f"{difference}. Both ends must be started from the same experiment (same environment options, "
            "rollout length and number of environments)."
        )


def check_tree(tree: Tree, leaves: Sequence[Leaf]) -> list[np.ndarray]:
    """Return the leaves of `tree` as numpy arrays after checking them against a schema.

    Raises:
      SpecMismatch: a leaf is missing, unknown, or of another shape or dtype.
    """
    arrays = [(name, np.asarray(leaf)) for name, leaf in named_leaves(tree)]
    if len(arrays) == len(leaves):
        for (name, array), leaf in zip(arrays, leaves, strict=True):
            if name != leaf.name or array.shape != leaf.shape or array.dtype != to_dtype(leaf.dtype):
                break
        else:
            return [array for _, array in arrays]
    given = [Leaf(name, array.shape, str(array.dtype)) for name, array in arrays]
    raise SpecMismatch(f"{describe_difference(leaves, given, 'the stream', 'the given tree') or 'leaves differ'}.")


def schema_to_fields(leaves: Sequence[Leaf]) -> list[list[Any]]:
    """Return a schema as plain lists, for msgpack or JSON."""
    return [[leaf.name, list(leaf.shape), leaf.dtype] for leaf in leaves]


def schema_from_fields(fields: Any) -> tuple[Leaf, ...]:
    """Return the schema that `schema_to_fields` wrote."""
    try:
        rows = msgspec.convert(fields, list[tuple[str, list[int], str]])
    except msgspec.ValidationError as error:
        raise CodecError(f"not a schema: {error}.") from error
    found = []
    for name, shape, dtype in rows:
        if len(shape) > MAX_DIMENSIONS or any(n < 0 for n in shape):
            raise CodecError(f"schema leaf {name!r} has the impossible shape {shape[:MAX_DIMENSIONS]}.")
        if math.prod(shape) * max(to_dtype(dtype).itemsize, 1) > MAX_ARRAY_BYTES:
            raise CodecError(f"schema leaf {name!r} {shape} is larger than {MAX_ARRAY_BYTES} bytes.")
        found.append(Leaf(name, tuple(shape), dtype))
    return tuple(found)


def encode_schema(leaves: Sequence[Leaf]) -> bytes:
    return msgspec.msgpack.encode(schema_to_fields(leaves))


def decode_schema(encoded: Any) -> tuple[Leaf, ...]:
    """Return the schema that `encode_schema` wrote."""
    return schema_from_fields(msgspec.msgpack.decode(encoded))


@dataclass(frozen=True)
class Layout:
    """Positions of the leaves of one tree in a flat buffer: 64-byte aligned, one after the other.

    Attributes:
      leaves: the schema. offsets: bytes from the start of the tree to each leaf.
      size_bytes: the whole, a multiple of 64.
    """

    leaves: tuple[Leaf, ...]
    offsets: tuple[int, ...]
    size_bytes: int

    def views(self, buffer: Any, offset: int = 0, *, writeable: bool = True) -> list[np.ndarray]:
        """Return an array per leaf, all reading the same memory.

        Args:
          buffer: anything with the buffer protocol, at least `offset + size_bytes` long.
          offset: start of this tree in the buffer.
          writeable: False gives read-only views.
        """
        arrays = []
        for shape, dtype, start in self._plan:
            array = np.zeros(shape, dtype) if start is None else np.ndarray(shape, dtype, buffer, offset + start)
            if not writeable:
                array.flags.writeable = False
            arrays.append(array)
        return arrays

    @functools.cached_property
    def _plan(self) -> list[tuple[tuple[int, ...], np.dtype, int | None]]:
        """Return (shape, dtype, offset) of every leaf; no offset if it is empty."""
        plan = []
        for leaf, start in zip(self.leaves, self.offsets, strict=True):
            dtype = to_dtype(leaf.dtype)
            plan.append((leaf.shape, dtype, start if math.prod(leaf.shape) * dtype.itemsize else None))
        return plan

    def tree(self, schema: Tree, buffer: Any, offset: int = 0, *, writeable: bool = True) -> Tree:
        """Return the views as a tree shaped like `schema`."""
        return unflatten(schema, self.views(buffer, offset, writeable=writeable))


def make_layout(leaves: Sequence[Leaf]) -> Layout:
    offsets, end = [], 0
    for leaf in leaves:
        offsets.append(end)
        end += align(math.prod(leaf.shape) * to_dtype(leaf.dtype).itemsize)
    return Layout(tuple(leaves), tuple(offsets), end)


def align(size_bytes: int, to: int = ALIGNMENT_BYTES) -> int:
    return -(-size_bytes // to) * to


def aligned_zeros(size_bytes: int) -> np.ndarray:
    """Return `size_bytes` zero bytes that start at a multiple of 64."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]
