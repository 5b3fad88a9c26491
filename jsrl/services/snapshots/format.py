"""The format of a snapshot on disk, and checks for damage: manifests, digests of arrays, digests of files.

    FOLDER/<version>/manifest.json     its content and the digests (Orbax has none on its data)
    FOLDER/<version>/arrays/           an Orbax checkpoint: a nested dict of host arrays
    FOLDER/tags/<tag>.json             a pointer: version, digest, wall time, meta
    FOLDER/.partial-*, .trash-*        being written, being deleted

A version folder appears by one rename, so readers never see a partial one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from jsrl.errors import CodecError, SnapshotError
from jsrl.plain_files import open_plain
from jsrl.services.runs.files import json_ready, read_json
from jsrl.services.runs.limits import MIB, free_memory_bytes
from jsrl.transport.wire.schema import to_dtype

FORMAT = "jsrl-snapshot-2"
MANIFEST = "manifest.json"  # of a version; it is written last
MAX_DEPTH, MAX_DIMENSIONS = 64, 32
MAX_INFLATION = 1 << 15  # of zeros, which compress best
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")


def leaf_name(path: tuple[str, ...]) -> str:
    """Return the name of a leaf for messages, such as `params/weights/kernel`."""
    return "/".join(path)


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of a snapshot: the keys that lead to it, and what it holds."""

    path: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_DEPTH)]
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    dtype: str

    def __post_init__(self) -> None:
        to_dtype(self.dtype)  # raises for what is no number

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * to_dtype(self.dtype).itemsize


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was written."""

    size_bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    """The content of a snapshot.

    Attributes:
      digest: of the arrays. files: below the folder `arrays`, by relative path. seal: digest of all other fields.
    """

    version: int
    wall_time_s: float
    digest: str
    meta: dict[str, Any]
    leaves: tuple[Leaf, ...]
    files: dict[str, Written]
    seal: str = ""

    def sealed(self, meta: dict[str, Any]) -> Manifest:
        changed = msgspec.structs.replace(self, meta=meta, seal="")
        text = json.dumps(msgspec.to_builtins(changed), sort_keys=True)
        return msgspec.structs.replace(changed, seal=hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def leaves_of(arrays: dict[tuple[str, ...], np.ndarray]) -> tuple[Leaf, ...]:
    return tuple(Leaf(path, array.shape, str(array.dtype)) for path, array in sorted(arrays.items()))


def arrays_digest(arrays: dict[tuple[str, ...], np.ndarray]) -> str:
    """Return one digest of the paths, dtypes, shapes and bytes of all arrays."""
    digest = _new_digest()
    for path, array in sorted(arrays.items()):
        digest.update("\0".join([*path, f"{array.dtype}{array.shape}", ""]).encode())
        if array.size:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def file_digests(folder: Path) -> dict[str, Written]:
    """Return size and digest of every file under `folder`, by relative path, and make each durable."""
    files: dict[str, Written] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            content = file.read()
            os.fsync(file.fileno())
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        files[path.relative_to(folder).as_posix()] = Written(len(content), digest)
    return files


def find_damage(folder: Path, files: dict[str, Written]) -> str | None:
    """Return which file under `folder` is missing or altered, or None when all are intact."""
    for name, written in files.items():
        path = folder / name
        try:
            damage = _file_damage(path, written)
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        except ValueError as error:
            return str(error)
        if damage is not None:
            return f"{path} {damage}"
    return None


def _file_damage(path: Path, written: Written) -> str | None:
    with open_plain(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != written.size_bytes:
            return f"has {size_bytes} bytes, {written.size_bytes} were written"
        if hashlib.file_digest(file, _new_digest).hexdigest() != written.digest:
            return "has the right size but other bytes than were written"
    return None


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def check_size(folder: Path, manifest: Manifest) -> None:
    """Refuse arrays that do not fit into a snapshot's files, or into this host's free memory; reads no array."""
    declared = sum(leaf.size_bytes for leaf in manifest.leaves)
    stored = sum(written.size_bytes for written in manifest.files.values())
    free = free_memory_bytes()
    if declared > MAX_INFLATION * stored + MIB or declared > free:
        raise SnapshotError(
            f"snapshot {folder.name} declares arrays of {declared // MIB} MiB, in files of {stored // MIB} MiB; this host has "
            f"{free // MIB} MiB free. Either {folder / MANIFEST} was changed, or a larger host is needed."
        )


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a version folder.

    Raises:
      FileNotFoundError: the folder is gone (deleted by retention).
      SnapshotError: it is not a snapshot of this jsrl, or was changed.
    """
    path = folder / MANIFEST
    try:
        found = read_json(path)
    except FileNotFoundError:
        if not folder.exists():
            raise
        raise SnapshotError(
            f"{folder} holds no manifest.json, so it was not written by jsrl (or the file was deleted). "
            "Point at a folder that SnapshotStore wrote; a plain Orbax checkpoint is read with orbax itself."
        ) from None
    except (ValueError, OSError) as error:
        raise SnapshotError(f"{path} is broken: not JSON ({error}). Use another version.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SnapshotError(f'{path} is not a snapshot of this jsrl: its format is not "{FORMAT}".')
    try:
        manifest = msgspec.convert(found, Manifest)
        if manifest.sealed(manifest.meta) != manifest:
            raise ValueError("its digest differs from the one written")
    except (ValueError, CodecError) as error:
        raise SnapshotError(
            f"snapshot {folder.name} is broken: {path} was changed ({error}). Use another version."
        ) from None
    return manifest


def version_damage(folder: Path) -> str | None:
    """Return what is wrong with a version folder, as text, or None when it is intact."""
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        return f"snapshot {folder.name} is gone."
    except SnapshotError as error:
        return str(error)
    damage = find_damage(folder / "arrays", manifest.files)
    return None if damage is None else f"snapshot {folder.name} is broken: {damage}."


def remove_incomplete(folder: Path) -> None:
    """Remove the versions without a manifest in a folder of snapshots: another host sent, or removed, some of their files."""
    for version in folder.glob("[0-9]*"):
        if version.name.isdecimal() and version.is_dir() and not (version / MANIFEST).exists():
            shutil.rmtree(version, ignore_errors=True)


def broken(folder: Path, manifest: Manifest, symptom: str) -> SnapshotError:
    """Return the error for a damaged snapshot; names the damaged file if one can be found."""
    damage = find_damage(folder / "arrays", manifest.files) or f"no damaged file was found under {folder}"
    return SnapshotError(f"snapshot {folder.name} is broken: {damage} ({symptom}). Load another version or tag.")


def nested(arrays: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = array
    return tree


def flat(tree: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {path: leaf for key, branch in tree.items() for path, leaf in flat(branch, (*prefix, key)).items()}


def check_tag(name: str) -> None:
    """Raise SnapshotError unless `name` is a valid tag (not mistakable for a version)."""
    if not _TAG.fullmatch(name):
        raise SnapshotError(f"{name!r} cannot be a tag: letters, digits, and . _ : - only, not beginning with a digit.")


def meta_json(meta: dict[str, Any] | None) -> dict[str, Any]:
    """Return `meta` as plain JSON values; SnapshotError when it cannot be."""
    try:
        return json_ready(meta or {})
    except TypeError as error:
        raise SnapshotError(
            f"the snapshot's meta cannot be stored: {error}. Give numbers, texts, lists, dicts."
        ) from None


def maker_of(folder: Path) -> tuple[str, int]:
    """Return (host, process id) of the process that made a `.partial-*` or `.trash-*` folder."""
    host, pid, _ = folder.name.split("-", 1)[1].rsplit("-", 2)
    return host, int(pid)
