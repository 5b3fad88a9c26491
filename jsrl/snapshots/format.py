"""The format of a snapshot on disk, and checks for damage: manifests, digests of arrays, digests of files.

    FOLDER/<version>/manifest.json     its content and the digests (Orbax has none on its data)
    FOLDER/<version>/arrays/           an Orbax checkpoint: a nested dict of host arrays
    FOLDER/tags/<tag>.json             a pointer: version, digest, wall time, meta
    FOLDER/.partial-*, .trash-*        being written, being deleted

A version folder appears by one rename, so readers never see a partial one.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import CodecError, SnapshotError
from jsrl.plain_files import open_plain
from jsrl.runs.files import json_ready, read_json
from jsrl.runs.limits import MIB, free_memory_bytes
from jsrl.transport.wire.schema import to_dtype

FORMAT = "jsrl-snapshot"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"  # of a version; it is written last
MAX_LEAF_ENTRIES = 1 << 40
MAX_DEPTH, MAX_DIMENSIONS = 64, 32
MAX_INFLATION = 1 << 15  # of zeros, which compress best
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")


def leaf_name(path: tuple[str, ...]) -> str:
    """Return the name of a leaf for messages, such as `params/weights/kernel`."""
    return "/".join(path)


def leaf_digest(array: np.ndarray) -> str:
    """Return the digest of an array's dtype, shape and bytes."""
    digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    if array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def describe_leaves(arrays: dict[tuple[str, ...], np.ndarray]) -> list[dict[str, Any]]:
    """Return the manifest's list of leaves: path, shape, dtype, digest."""
    return [
        {"path": list(path), "shape": list(array.shape), "dtype": str(array.dtype), "digest": leaf_digest(array)}
        for path, array in sorted(arrays.items())
    ]


def total_digest(leaves: list[dict[str, Any]]) -> str:
    """Return one digest for all leaves of a manifest."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in leaves:
        digest.update("\0".join([*leaf["path"], leaf["digest"], ""]).encode())
    return digest.hexdigest()


def file_digests(folder: Path, *, sync: bool) -> dict[str, dict[str, Any]]:
    """Return size and digest of every file under `folder`, by relative path; `sync` also makes each durable."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            content = file.read()
            if sync:
                os.fsync(file.fileno())
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        files[path.relative_to(folder).as_posix()] = {"size_bytes": len(content), "digest": digest}
    return files


def find_damage(folder: Path, files: dict[str, dict[str, Any]]) -> str | None:
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


def _file_damage(path: Path, written: dict[str, Any]) -> str | None:
    with open_plain(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != written["size_bytes"]:
            return f"has {size_bytes} bytes, {written['size_bytes']} were written"
        if hashlib.file_digest(file, _new_digest).hexdigest() != written["digest"]:
            return "has the right size but other bytes than were written"
    return None


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def read_tag(path: Path, kind: Any) -> Any:
    """Return the tag in a file as `kind`, a NamedTuple of version, digest, wall_time_s and meta.

    Raises:
      OSError: it cannot be read. ValueError, TypeError: it is not a tag.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("meta"), dict):
        raise ValueError("no object with meta")
    tag = kind(**found)
    if type(tag.version) is not int or not isinstance(tag.digest, str) or not isinstance(tag.wall_time_s, int | float):
        raise ValueError("a version, digest or time of another type")
    return tag


def check_size(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse arrays that do not fit into a snapshot's files, or into this host's free memory; reads no array.

    Raises:
      SnapshotError: the message gives the declared bytes.
    """
    declared = sum(math.prod(leaf["shape"]) * to_dtype(leaf["dtype"]).itemsize for leaf in manifest["leaves"])
    stored = sum(written["size_bytes"] for written in manifest["files"].values())
    free = free_memory_bytes()
    if declared > MAX_INFLATION * stored + MIB or declared > free:
        raise SnapshotError(
            f"snapshot {folder.name} declares arrays of {declared // MIB} MiB, in files of {stored // MIB} MiB; this host has "
            f"{free // MIB} MiB free. Either {folder / MANIFEST} was changed, or a larger host is needed."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a version folder.

    Raises:
      FileNotFoundError: the folder is gone (deleted by retention).
      SnapshotError: it is not a snapshot of jsrl, or has a newer format.
    """
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        if not folder.exists():
            raise
        raise SnapshotError(
            f"{folder} holds no manifest.json, so it was not written by jsrl (or the file was deleted). "
            "Point at a folder that SnapshotStore wrote; a plain Orbax checkpoint is read with orbax itself."
        ) from None
    except (ValueError, OSError) as error:
        raise SnapshotError(f"{path} is broken: not JSON ({error}). Use another version.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise SnapshotError(f'{path} is not a snapshot of jsrl: its format is not "{FORMAT}".')
    if manifest.get("format_version") != FORMAT_VERSION:
        raise SnapshotError(
            f"{path} has format version {manifest.get('format_version')}, this jsrl reads version {FORMAT_VERSION}. "
            "Use the jsrl version that wrote it."
        )
    try:
        _check_manifest(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, CodecError) as error:
        raise SnapshotError(
            f"snapshot {folder.name} is broken: {path} was changed ({type(error).__name__}: {error}). Use another version."
        ) from None
    return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise an error if a manifest lacks something that `SnapshotStore` reads; further entries are allowed."""
    if not isinstance(manifest["meta"], dict) or not isinstance(manifest["digest"], str):
        raise TypeError("meta or digest")
    for leaf in manifest["leaves"]:
        if not all(isinstance(part, str) for part in leaf["path"]) or not isinstance(leaf["digest"], str):
            raise TypeError("a leaf's path or digest")
        if not 0 < len(leaf["path"]) <= MAX_DEPTH or not isinstance(leaf["dtype"], str):
            raise ValueError(f"a path of {len(leaf['path'])} parts, or a dtype that is no name")
        if len(leaf["shape"]) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in leaf["shape"]):
            raise ValueError(f"the impossible shape {leaf['shape'][:MAX_DIMENSIONS]}")
        if math.prod(leaf["shape"]) > MAX_LEAF_ENTRIES:
            raise ValueError(f"the impossible shape {leaf['shape']}")
        to_dtype(leaf["dtype"])  # raises for what is no number
    for name, written in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"the file {name!r} outside the snapshot")
        if (
            not isinstance(written["size_bytes"], int)
            or written["size_bytes"] < 0
            or not isinstance(written["digest"], str)
        ):
            raise TypeError(f"size or digest of {name!r}")
    nested({tuple(leaf["path"]): None for leaf in manifest["leaves"]})  # a leaf that is also a branch: TypeError
    if total_digest(manifest["leaves"]) != manifest["digest"]:
        raise ValueError("the digest differs from the one written")


def version_damage(folder: Path) -> str | None:
    """Return what is wrong with a version folder, as text, or None when it is intact."""
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        return f"snapshot {folder.name} is gone."
    except SnapshotError as error:
        return str(error)
    damage = find_damage(folder / "arrays", manifest["files"])
    return None if damage is None else f"snapshot {folder.name} is broken: {damage}."


def remove_incomplete(folder: Path) -> None:
    """Remove the versions without a manifest in a folder of snapshots: another host sent, or removed, some of their files."""
    for version in folder.glob("[0-9]*"):
        if version.name.isdecimal() and version.is_dir() and not (version / MANIFEST).exists():
            shutil.rmtree(version, ignore_errors=True)


def check_leaves(folder: Path, manifest: dict[str, Any], arrays: dict[tuple[str, ...], np.ndarray]) -> None:
    """Compare the arrays with the digests in the manifest.

    Raises:
      SnapshotError: a leaf differs; the message names it, and the damaged file.
    """
    for leaf in manifest["leaves"]:
        path = tuple(leaf["path"])
        if path not in arrays or leaf_digest(arrays[path]) != leaf["digest"]:
            raise broken(folder, manifest, f"the digest of leaf {leaf_name(path)} differs from the one written")
    if total_digest(manifest["leaves"]) != manifest["digest"]:
        raise SnapshotError(f"snapshot {folder.name} is broken: {folder / MANIFEST} was changed.")


def broken(folder: Path, manifest: dict[str, Any], symptom: str) -> SnapshotError:
    """Return the error for a damaged snapshot; names the damaged file if one can be found."""
    damage = find_damage(folder / "arrays", manifest.get("files", {})) or f"no damaged file was found under {folder}"
    return SnapshotError(f"snapshot {folder.name} is broken: {damage} ({symptom}). Load another version or tag.")


def nested(arrays: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return a nested dict for leaves by path."""
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = array
    return tree


def flat(tree: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the leaves of a nested dict by path."""
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
