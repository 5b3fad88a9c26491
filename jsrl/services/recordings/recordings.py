"""Recordings: trajectories on disk, in files that numpy can read. No pickle.

    FOLDER/recording.json            its facts: environment, schema of one trajectory, versions, sources
    FOLDER/WRITER-LIFE-000007.npz    N trajectories: an array [N, T+1, B, ...] for each leaf of the schema, named by its
                                     path (`observation/image`; `core/0` is [N, B, ...]), and `entry/group`,
                                     `entry/sequence` [N]

Rewards are raw. Actions are as agents store them: before clipping, scaling and tanh (`jsrl.types.Continuous`). A file appears
complete or not at all. Within a group, trajectories with consecutive sequence numbers join: row T of one is row 0 of the next.
An episode that is open in the last one has no end. Runs may share a folder, if their environments and schemas agree.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from jsrl.errors import CodecError, RecordingError, SpecMismatch
from jsrl.plain_files import open_plain, read_npy_header
from jsrl.services.runs.files import folder_lock, read_json, write_atomic, write_json
from jsrl.transport.wire.schema import (
    Leaf,
    describe_difference,
    flatten_schema,
    schema_from_fields,
    schema_to_fields,
    to_dtype,
)
from jsrl.types import ACTING, Trajectory, leaves

MANIFEST, FORMAT = "recording.json", 2
GROUP, SEQUENCE = "entry/group", "entry/sequence"
_BROKEN = (  # errors from reading a broken file
    zipfile.BadZipFile,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class Source:
    """Who recorded: EXPERIMENT/RUN or a policy EXPERIMENT/RUN@TAG; seed; actions: learning, sampled, greedy or written."""

    name: str
    seed: int
    actions: str

    def repeats(self, other: Source) -> bool:
        """Return whether it begins with the episodes that another one recorded; a resumed run does not."""
        if (self.seed, self.actions) != (other.seed, other.actions):
            return False
        if self.actions != "learning":
            return self.name == other.name
        return self.name != other.name and self.name.partition("/")[0] == other.name.partition("/")[0]


@dataclass(frozen=True)
class Manifest:
    """The facts of a recording.

    Attributes:
      env: the environment's spec as JSON. options: those of its EnvConfig that change what is recorded, as JSON.
      schema: leaves of one trajectory, from `schema_to_fields`. rows, envs: T and B of each trajectory.
      sources: all who recorded into the folder. versions: of packages.
    """

    env: dict[str, Any]
    options: dict[str, Any]
    schema: list[Any]
    rows: int
    envs: int
    sources: tuple[Source, ...]
    versions: dict[str, str]
    format: int = FORMAT

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return schema_from_fields(self.schema)


@dataclass(frozen=True)
class Chunk:
    """One file of a recording, and its number of trajectories."""

    path: Path
    count: int


@dataclass(frozen=True)
class Recording:
    """A folder of recorded trajectories, opened for reading."""

    folder: Path
    manifest: Manifest
    chunks: tuple[Chunk, ...]

    @property
    def env_steps(self) -> int:
        """Return the env steps (rows) in it."""
        return sum(chunk.count for chunk in self.chunks) * self.manifest.rows * self.manifest.envs

    @property
    def trajectory_bytes(self) -> int:
        """Return the bytes of one trajectory."""
        return sum(math.prod(leaf.shape) * to_dtype(leaf.dtype).itemsize for leaf in self.manifest.leaves)


def make_manifest(
    env: dict[str, Any], options: dict[str, Any], trajectory: Trajectory, *, source: Source, versions: dict[str, str]
) -> Manifest:
    rows, envs = trajectory.is_first.shape
    schema = schema_to_fields(flatten_schema(trajectory))
    return Manifest(env, options, schema, rows - 1, envs, (source,), versions)


def begin_recording(folder: Path, manifest: Manifest) -> None:
    """Prepare the folder for trajectories of this kind, from one source; a run that is in it goes on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise RecordingError(f"{folder} has files but no {MANIFEST}: give --record a separate folder.")
        with folder_lock(folder):
            if (folder / MANIFEST).exists():
                there = read_manifest(folder)
                _check_alike(folder, there, manifest)
                manifest = replace(there, sources=tuple(dict.fromkeys((*there.sources, *manifest.sources))))
            write_json(folder / MANIFEST, asdict(manifest))
    except OSError as error:  # a TimeoutError too
        raise RecordingError(f"{folder} cannot be recorded to: {error}. Choose another folder.") from error


def _check_alike(folder: Path, there: Manifest, manifest: Manifest) -> None:
    difference = describe_difference(there.leaves, manifest.leaves, str(folder), "this run")
    if difference is not None:
        raise SpecMismatch(f"{difference}. A recording holds trajectories of one kind; record into another folder.")
    for before, now in ((there.env, manifest.env), (there.options, manifest.options)):
        if unlike := {name: before.get(name) for name in before | now if before.get(name) != now.get(name)}:
            wanted = {name: now.get(name) for name in unlike}
            raise SpecMismatch(
                f"{folder} was recorded from an environment with {unlike}, this one has {wanted}; record into another folder."
            )
    for other, source in itertools.product(there.sources, manifest.sources):
        if source.repeats(other):
            raise RecordingError(
                f"{folder} holds the episodes of {other.name} with seed {other.seed}, and {source.name} would begin with the "
                "same ones; give another --seed, or another folder."
            )


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        found = read_json(path)
    except FileNotFoundError as error:
        if inside := sorted(place.parent.name for place in folder.glob(f"*/{MANIFEST}")):
            raise RecordingError(
                f"{folder} holds several recordings: {', '.join(inside)}; name one, such as {folder / inside[0]}."
            ) from error
        raise RecordingError(
            f"{folder} holds no recording (no {MANIFEST}); write one with `jsrl run NAME --record {folder}` or "
            f"`jsrl record RUN@best --to {folder}`."
        ) from error
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path} cannot be read: {error}.") from error
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise RecordingError(
            f"{path} has format {version!r}, expected {FORMAT}: it was written by another version of jsrl."
        )
    try:
        manifest = msgspec.convert(found, Manifest)
        assert_shapes(manifest)
    except (msgspec.ValidationError, CodecError, ValueError) as error:
        raise RecordingError(f"{path} is not a manifest of a recording: {error}.") from error
    return manifest


def assert_shapes(manifest: Manifest) -> None:
    shapes = {leaf.name: leaf.shape for leaf in manifest.leaves}
    if shapes.get("is_first") != (manifest.rows + 1, manifest.envs) or manifest.rows < 1 or manifest.envs < 1:
        raise ValueError(f"is_first is {shapes.get('is_first')}, rows {manifest.rows}, envs {manifest.envs}")


def open_recording(folder: Path) -> Recording:
    """Return a recording; opens every file, but reads no rows yet."""
    manifest = read_manifest(folder)
    chunks = tuple(_look(path) for path in sorted(folder.glob("*.npz")) if not path.name.startswith("."))
    if not any(chunk.count for chunk in chunks):
        raise RecordingError(
            f"{folder} holds no trajectories yet (no *.npz beside {MANIFEST}); a run writes a file every minute, every 16 MiB "
            "and when it ends."
        )
    return Recording(folder, manifest, chunks)


def _look(path: Path) -> Chunk:
    try:
        with open_plain(path) as raw, zipfile.ZipFile(raw) as file:
            return Chunk(path, _member_shape(file, raw, SEQUENCE)[0][0])
    except _BROKEN as error:
        raise _broken(path, error) from error


def _member_shape(file: zipfile.ZipFile, raw: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of an array in a file, after checking that the file has the declared number of bytes.

    Raises:
      ValueError: it has not. _Unlike: the array is compressed, so that a small file could become a large array.
    """
    info = file.getinfo(f"{name}.npy")
    size_bytes = os.fstat(raw.fileno()).st_size
    if info.compress_type != zipfile.ZIP_STORED:
        raise _Unlike(f"{name} is compressed; write the files of a recording with numpy.savez")
    if not info.compress_size == info.file_size <= size_bytes:
        raise ValueError(f"{name} is larger than its file: {info.file_size} of {size_bytes} bytes")
    with file.open(info) as member:
        return read_npy_header(member, info.file_size)


class _Unlike(ValueError):
    """A file is whole, but not one of this recording."""


def _broken(path: Path, error: BaseException) -> RecordingError:
    if isinstance(error, _Unlike):
        return RecordingError(f"{path}: {error}.")
    return RecordingError(
        f"{path} is broken or truncated ({type(error).__name__}: {error}); move it away and the rest can be read."
    )


def write_chunk(path: Path, names: Sequence[str], taken: Sequence[tuple[int, int, Trajectory]]) -> int:
    """Write trajectories as one file, which appears complete or not at all; return its bytes.

    Args:
      path: of the file. names: of the leaves. taken: (group, sequence, trajectory) of each.
    """
    columns = [leaves(trajectory) for _, _, trajectory in taken]
    arrays = {name: np.stack([column[i] for column in columns]) for i, name in enumerate(names)}
    arrays[GROUP] = np.array([group for group, _, _ in taken], np.int64)
    arrays[SEQUENCE] = np.array([sequence for _, sequence, _ in taken], np.int64)
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # no objects: a schema has none
    write_atomic(path, content.getvalue())
    return content.tell()


def read_chunk(recording: Recording, chunk: Chunk, names: Sequence[str]) -> list[np.ndarray]:
    """Return the named leaves of a file, [N, T+1, B, ...] (`core` [N, B, ...]); every byte is checked (CRC-32)."""
    schema = {leaf.name: leaf for leaf in recording.manifest.leaves}
    try:
        with open_plain(chunk.path) as raw, zipfile.ZipFile(raw) as file:
            arrays = [_read_member(file, raw, chunk.count, schema[name]) for name in names]
    except _BROKEN as error:
        raise _broken(chunk.path, error) from error
    _refuse_nan(chunk.path, dict(zip(names, arrays, strict=True)))
    return arrays


def _read_member(file: zipfile.ZipFile, raw: IO[bytes], count: int, leaf: Leaf) -> np.ndarray:
    shape, found = _member_shape(file, raw, leaf.name)
    dtype = to_dtype(leaf.dtype)
    fits = found == dtype or (found.kind == "V" and found.itemsize == dtype.itemsize)  # numpy's files have no bfloat16
    if shape != (count, *leaf.shape) or not fits:
        expected = f"{leaf.dtype}{[count, *leaf.shape]}"
        raise _Unlike(f"{leaf.name} is {found}{list(shape)}, but {MANIFEST} says {expected}")
    with file.open(f"{leaf.name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False).view(dtype)


def trained_rows(acts: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Return which rows [N, T, B] of files train a policy: the agent acts, and the next row does not begin an episode."""
    acting = (acts[:, :-1] == ACTING).reshape(*is_first[:, :-1].shape, -1).any(-1)
    return acting & ~is_first[:, 1:]


def check_trains(recording: Recording) -> None:
    if not any(trained_rows(*read_chunk(recording, chunk, ("acts", "is_first"))).any() for chunk in recording.chunks):
        raise RecordingError(
            f"no row of {recording.folder} trains: in each, the agent does not act (acts is not {ACTING}) or the next row is "
            "is_first, which makes it the last observation of an episode. An episode of one step has two rows: its first, "
            "with action and reward, and its last observation."
        )


def _refuse_nan(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse NaN in observations, and in actions and rewards of rows that train; name file and row."""
    if not {"acts", "is_first"} <= arrays.keys():
        return
    trains = trained_rows(arrays["acts"], arrays["is_first"])
    for name, array in arrays.items():
        part = name.partition("/")[0]
        if array.dtype.kind != "f" or part not in ("observation", "action", "reward"):
            continue
        bad = np.isnan(array).reshape(*arrays["is_first"].shape, -1).any(-1)
        if part != "observation":
            bad = bad[:, :-1] & trains
        if bad.any():
            trajectory, row, env = np.argwhere(bad)[0]
            raise RecordingError(
                f"{path}: {name} is NaN in row {row} of environment {env} of trajectory {trajectory} (entry [{trajectory}, "
                f"{row}, {env}] of the array), and in {int(bad.sum()) - 1} other rows; remove these trajectories."
            )
