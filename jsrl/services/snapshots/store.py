"""Snapshots: numbered durable copies of a tree of host arrays, written by Orbax in the background.

No template, device or experiment is needed to read them as numpy arrays, and several processes may
share a folder. A failed write (disk full, folder gone) is reported through `on_warning` and counted; earlier
snapshots stay loadable. `jsrl.services.snapshots.format` describes the files.

Orbax asks jax which process this is, so the first save or load starts jax's default backend: a process that must not
touch an accelerator needs JAX_PLATFORMS=cpu.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.errors import SnapshotError
from jsrl.services.runs.files import folder_lock, process_alive, read_json, sync_folder, write_json
from jsrl.services.snapshots import format as fmt
from jsrl.services.snapshots.orbax import (
    Arrays,
    check_template,
    fill_template,
    host_arrays,
    orbax_load,
    orbax_save,
    specs_of,
)
from jsrl.services.snapshots.queue import Job, WriteQueue
from jsrl.transport.wire.schema import to_dtype
from jsrl.types import ArraySpec, Tree

WRITE_TIMEOUT_S = 600.0
_READ_ATTEMPTS = 6
_LEAST_FREE_BYTES = 16 << 20
_FILES_BYTES = 1 << 18  # manifests, and the parts of blocks that files leave empty
_logger = logging.getLogger("jsrl.services.snapshots")


class Loaded(NamedTuple):
    """A loaded snapshot: the tree (numpy leaves), and the meta given to `save` (and to `tag`, when loaded by tag)."""

    tree: Tree
    meta: dict[str, Any]


class Snapshot(NamedTuple):
    """A loaded snapshot with all its facts: see Loaded; `digest` is that of the arrays."""

    version: int
    tree: Tree
    meta: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class Tag:
    """Target of a tag: version, digest of the arrays, wall time of the tagging (Unix seconds), meta."""

    version: int
    digest: str
    wall_time_s: float
    meta: dict[str, Any]


class SnapshotStore:
    """A folder of snapshots.

    Attributes:
      folder: of the snapshots. queue: this process's writes, with counts (written, failed, superseded).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        on_warning: Callable[[str], None] | None = None,
        on_written: Callable[[Job], None] = lambda job: None,
    ):
        """Use `folder`; it is created at the first save.

        Args:
          keep_last: newest versions kept besides the tagged ones, at least 3 (a reader may be in the oldest).
          on_warning: called, from the writing thread, with one line per failed write; default: logged.
          on_written: called, from the writing thread, with each job on disk (its version, tags and meta).
        """
        if keep_last < 3:
            raise SnapshotError(f"keep_last is {keep_last}; at least 3, because a reader may still be in the oldest.")
        self.folder = Path(folder).absolute()
        self._keep_last, self._made = keep_last, False
        self.queue = WriteQueue(self._write, on_warning or _logger.warning, str(self.folder), on_written)

    # -- writing ------------------------------------------------------------------------------------------------------

    def save(
        self,
        version: int,
        tree: Tree,
        *,
        meta: dict[str, Any] | None = None,
        tags: tuple[str, ...] = ("latest",),
        wait: bool = False,
    ) -> None:
        """Write a snapshot in the background and point `tags` at it; the arrays are copied before this returns.

        An existing version is replaced; with the same arrays only its meta is extended. A waiting save
        is superseded (and counted as such) by a newer one that takes over all its tags.

        Args:
          version: its number, >= 0. tree: dicts, tuples, NamedTuples of arrays (typed JAX keys as key_data).
          meta: JSON-like facts to keep with it. tags: names for it. wait: return when it is on disk.

        Raises:
          SnapshotError: `tree`, `meta` or a tag cannot be stored; with `wait`, the write failed.
        """
        if version < 0:
            raise SnapshotError(f"snapshot version {version} is negative; versions are >= 0.")
        for tag in tags:
            fmt.check_tag(tag)
        job = Job(int(version), host_arrays(tree), fmt.meta_json(meta), tuple(tags))
        self.queue.put(job)
        if wait:
            if not job.finished.wait(WRITE_TIMEOUT_S):
                raise SnapshotError(f"snapshot {version} was not written within {WRITE_TIMEOUT_S:g} s.")
            if job.error:
                raise SnapshotError(job.error)

    def wait(self, timeout_s: float = WRITE_TIMEOUT_S) -> bool:
        """Wait until everything is written; return whether that happened in time."""
        return self.queue.wait(timeout_s)

    def close(self) -> bool:
        """Finish all writes; call it before the interpreter ends. Return whether all were finished in time."""
        return self.wait()

    def tag(self, name: str, version: int, *, meta: dict[str, Any] | None = None) -> None:
        """Point tag `name` at an existing version, which retention then keeps.

        Raises:
          SnapshotError: there is no such version, or the folder cannot be written.
        """
        fmt.check_tag(name)
        facts = fmt.meta_json(meta)
        try:
            with folder_lock(self.folder):
                self._write_tag(name, version, fmt.read_manifest(self.folder / str(version)).digest, facts)
        except FileNotFoundError:
            raise self._missing(str(version)) from None
        except OSError as error:
            raise SnapshotError(f"tag {name} was not written in {self.folder}: {error}.") from error

    def _write(self, job: Job) -> None:
        if not self._made:  # only once: a run that was deleted is not written again
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made = True
        self._check_space(sum(array.nbytes for array in job.arrays.values()))
        partial = self.folder / f".partial-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        partial.mkdir()
        try:
            orbax_save(
                partial / "arrays", fmt.nested({path: array for path, array in job.arrays.items() if array.size})
            )
            manifest = fmt.Manifest(
                version=job.version,
                wall_time_s=time.time(),
                digest=fmt.arrays_digest(job.arrays),
                meta={},
                leaves=fmt.leaves_of(job.arrays),
                files=fmt.file_digests(partial / "arrays"),
            )
            self._write_manifest(partial, manifest, job.meta)
            with folder_lock(self.folder):
                self._commit(job, partial, manifest)
                self._prune()
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _check_space(self, size_bytes: int) -> None:
        """Refuse to write on a full disk: Orbax would print a hundred lines of tracebacks before it fails.

        Arrays are compressed, so of a large snapshot only the first part must fit.
        """
        needed_bytes, free_bytes = (
            min(size_bytes + _FILES_BYTES, _LEAST_FREE_BYTES),
            shutil.disk_usage(self.folder).free,
        )
        if free_bytes < needed_bytes:
            text = f"{os.strerror(errno.ENOSPC)}: {free_bytes:,} bytes are free, at least {needed_bytes:,} are needed"
            raise OSError(errno.ENOSPC, text)

    def _write_manifest(self, folder: Path, manifest: fmt.Manifest, meta: dict[str, Any]) -> None:
        write_json(folder / fmt.MANIFEST, msgspec.to_builtins(manifest.sealed(meta)))

    def _commit(self, job: Job, partial: Path, manifest: fmt.Manifest) -> None:
        target = self.folder / str(job.version)
        replaced = target.exists()
        kept = self._same_arrays(target, manifest.digest) if replaced else None
        if kept is not None:
            self._write_manifest(target, kept, kept.meta | job.meta)
        else:
            if replaced:
                self._discard(target)
            os.rename(partial, target)
            sync_folder(self.folder)
        for name, tag in self.tags().items() if replaced else ():
            if tag.version == job.version and name not in job.tags:
                self._write_tag(name, job.version, manifest.digest, tag.meta)
        for name in job.tags:
            self._write_tag(name, job.version, manifest.digest, job.meta)

    def _same_arrays(self, target: Path, digest: str) -> fmt.Manifest | None:
        """Return the manifest of a version on disk if it holds, undamaged, the arrays of this digest."""
        try:
            kept = fmt.read_manifest(target)
        except SnapshotError:
            return None
        intact = kept.digest == digest and not fmt.find_damage(target / "arrays", kept.files)
        return kept if intact else None

    def _write_tag(self, name: str, version: int, digest: str, meta: dict[str, Any]) -> None:
        folder = self.folder / "tags"
        folder.mkdir(exist_ok=True)
        pointer = {"version": version, "digest": digest, "wall_time_s": time.time(), "meta": meta}
        write_json(folder / f"{name}.json", pointer)

    def _prune(self) -> None:
        """Delete versions that are neither among the newest nor tagged, and temporary files of dead processes."""
        keep = {*self.versions()[-self._keep_last :], *(tag.version for tag in self.tags().values())}
        for version in self.versions():
            if version not in keep:
                self._discard(self.folder / str(version))
        for left in [*self.folder.glob(".partial-*"), *self.folder.glob(".trash-*")]:
            host, pid = fmt.maker_of(left)
            if host == socket.gethostname() and not process_alive(pid):
                shutil.rmtree(left, ignore_errors=True)

    def _discard(self, folder: Path) -> None:
        """Make a version invisible to readers at once, then delete its files."""
        trash = self.folder / f".trash-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        os.rename(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)

    # -- reading ------------------------------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """Return the versions on disk, oldest first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())
        return []

    def tags(self) -> dict[str, Tag]:
        found: dict[str, Tag] = {}
        for path in sorted((self.folder / "tags").glob("[!.]*.json")):
            try:
                found[path.stem] = msgspec.convert(read_json(path), Tag)
            except (FileNotFoundError, NotADirectoryError):
                continue  # untagged meanwhile
            except ValueError as error:
                raise SnapshotError(f"{path} is not a tag of jsrl ({error}). Delete it, or tag again.") from None
        return found

    def resolve(self, selector: str | int = "latest") -> int:
        """Return the version of a tag or number (`latest` without a tag: the newest on disk).

        Raises:
          SnapshotError: there is none; the message lists what exists.
        """
        return self._resolve(selector)[0]

    def load(self, selector: str | int = "latest", template: Tree = None) -> Loaded:
        snapshot = self.load_snapshot(selector, template)
        return Loaded(snapshot.tree, snapshot.meta)

    def meta(self, selector: str | int = "latest") -> dict[str, Any]:
        """Return a snapshot's meta without reading its arrays (no jax, no Orbax, a few milliseconds).

        Raises:
          SnapshotError: missing or not ours, as in `load_snapshot`.
        """
        return self._retry(selector, lambda folder, manifest: None)[2]

    def specs(self, selector: str | int = "latest") -> dict[str, ArraySpec]:
        """Return leaf name, such as `params/weights/kernel`, -> shape and dtype, without reading the arrays.

        Raises:
          SnapshotError: missing or not ours, as in `load_snapshot`.
        """
        found = self._retry(selector, lambda folder, manifest: specs_of(manifest))[1]
        return {fmt.leaf_name(path): spec for path, spec in found.items()}

    def load_snapshot(self, selector: str | int = "latest", template: Tree = None) -> Snapshot:
        """Read a snapshot and verify its digest.

        Args:
          selector: a tag (`latest`, `best`, ...) or a version.
          template: a tree of anything with shape and dtype (arrays, ArraySpec); the result has its structure, with
            numpy leaves. Without one, dicts, tuples and NamedTuples all come back as nested dicts of numpy arrays.

        Raises:
          SnapshotError: missing (the message lists what exists), broken (names the file), not ours, or other leaves,
            shapes or dtypes than the template's (names the leaf).
        """

        def read(folder: Path, manifest: fmt.Manifest) -> Tree:
            if template is not None:
                check_template(template, manifest, folder)
            arrays = self._read(folder, manifest)
            return fmt.nested(arrays) if template is None else fill_template(template, arrays, folder)

        return Snapshot(*self._retry(selector, read))

    def _retry(
        self, selector: str | int, read: Callable[[Path, fmt.Manifest], Tree]
    ) -> tuple[int, Tree, dict[str, Any], str]:
        """Return (version, result of `read`, meta, digest); tries again if another process's retention deleted it."""
        pause_s = 0.005
        for attempt in range(_READ_ATTEMPTS):
            version, tag = self._resolve(selector)
            folder = self.folder / str(version)
            try:
                manifest = fmt.read_manifest(folder)
                if tag is None or tag.digest == manifest.digest:
                    meta = manifest.meta | (tag.meta if tag is not None else {})
                    return version, read(folder, manifest), meta, manifest.digest
                if attempt == _READ_ATTEMPTS - 1:
                    raise SnapshotError(f"tag {selector} names other arrays than {folder} holds; tag a version again.")
            except FileNotFoundError:
                pass
            time.sleep(pause_s)
            pause_s *= 2
        raise self._missing(str(selector))

    def _resolve(self, selector: str | int) -> tuple[int, Tag | None]:
        if isinstance(selector, int | np.integer) or selector.isdecimal():
            if int(selector) not in self.versions():
                raise self._missing(str(selector))
            return int(selector), None
        tags = self.tags()
        if selector in tags and (tags[selector].version in self.versions() or selector != "latest"):
            return tags[selector].version, tags[selector]
        versions = self.versions()
        if selector == "latest" and versions:
            return versions[-1], None
        raise self._missing(selector)

    def _missing(self, selector: str) -> SnapshotError:
        versions, tags = self.versions(), self.tags()
        if not versions:
            return SnapshotError(f"there is no snapshot {selector}: {self.folder} holds none.")
        listed = ", ".join(map(str, versions[-10:])) + (
            f" and {len(versions) - 10} older" if len(versions) > 10 else ""
        )
        named = ", ".join(f"{name} -> {tag.version}" for name, tag in tags.items()) or "none"
        return SnapshotError(f"there is no snapshot {selector} in {self.folder}; versions: {listed}; tags: {named}.")

    def _read(self, folder: Path, manifest: fmt.Manifest) -> Arrays:
        """Read and verify the arrays; FileNotFoundError if the folder was deleted meanwhile."""
        fmt.check_size(folder, manifest)
        try:
            blank: Arrays = {leaf.path: np.empty(leaf.shape, to_dtype(leaf.dtype)) for leaf in manifest.leaves}
            wanted = {path: array for path, array in blank.items() if array.size}
            arrays = {**blank, **fmt.flat(orbax_load(folder / "arrays", fmt.nested(wanted)))}
            if fmt.arrays_digest(arrays) != manifest.digest:
                raise ValueError("other arrays than were written")
        except Exception as error:  # Orbax raises anything, down to bare Exception, for damaged files
            if fmt.read_manifest(folder).wall_time_s != manifest.wall_time_s:
                raise FileNotFoundError(folder) from error
            raise fmt.broken(folder, manifest, f"{type(error).__name__} while reading") from error
        return arrays
