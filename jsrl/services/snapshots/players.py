"""Frozen players: params of a policy that never change again, under a name, such as `initial` or `frozen-3`.

    FOLDER/<version>-<digest>.npz     the leaves, as in a params stream
    FOLDER/<name>.json                version and digest of the name

Requests name a frozen player by its version; the digest in the file's name shows whether it is unchanged. Imports no jax.
"""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import SnapshotError
from jsrl.plain_files import read_plain
from jsrl.services.runs.files import read_json, write_atomic, write_json
from jsrl.services.snapshots.format import check_tag
from jsrl.transport.wire.schema import to_dtype
from jsrl.types import Array

PLAYERS_FOLDER = "players"
WANTED = "wanted"  # folder of the requests of SentPlayers
MOST_BYTES = 4 << 30  # largest file of one player
SENT_S = 120.0  # longest wait for a player's file from another host
_LOOK_S = 0.02


class PlayerStore:
    """The frozen players of one policy, in a folder that several processes may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def freeze(self, name: str, version: int, values: Sequence[Array]) -> None:
        """Save params under a name. An existing name gets the new params; the old ones stay on disk.

        Args:
          name: for directors and users. version: of the params. values: their leaves, in order.
        """
        check_tag(name)
        content = _packed(values)
        digest = _digest(content)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [path for path in self._files(version) if path.stem != f"{version}-{digest}"]
            if others:
                raise SnapshotError(
                    f"version {version} was frozen with other params ({others[0]}); a frozen player never changes. "
                    "Freeze a later version."
                )
            write_atomic(self.folder / f"{version}-{digest}.npz", content)
            write_json(self.folder / f"{name}.json", {"version": version, "digest": digest})
        except OSError as error:
            raise SnapshotError(f"player {name} could not be frozen in {self.folder}: {error}.") from error

    def load(self, version: int) -> list[np.ndarray]:
        """Return the leaves of a frozen version."""
        path = self.file(version)
        if path is None:
            raise SnapshotError(
                f"there is no player of version {version} in {self.folder}; put the file back, or start a new run. "
                f"There are: {self._listed()}."
            )
        try:
            content = read_plain(path, MOST_BYTES)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"the frozen player {path} cannot be read: {error}.") from error
        if path.stem != f"{version}-{_digest(content)}":
            raise SnapshotError(
                f"the frozen player {path} has changed since it was frozen; put the file back as it was, or start a "
                "new run."
            )
        return _unpacked(content)

    def check(self) -> None:
        """Check that every named player is there and unchanged."""
        for version in sorted(set(self.names().values())):
            self.load(version)

    def names(self) -> dict[str, int]:
        """Return name -> version of all players."""
        return {path.stem: self._pointer(path)["version"] for path in sorted(self.folder.glob("[!.]*.json"))}

    def version(self, name: str) -> int:
        path = self.folder / f"{name}.json"
        if not path.exists():
            raise SnapshotError(f"no player is called {name} in {self.folder}. There are: {self._listed()}.")
        return int(self._pointer(path)["version"])

    def _pointer(self, path: Path) -> dict[str, Any]:
        try:
            found = read_json(path)
            if type(found["version"]) is int:
                return found
            problem = "no version in it"
        except (OSError, ValueError, TypeError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise SnapshotError(f"{path} does not say which version its player has ({problem}).")

    def file(self, version: int) -> Path | None:
        return next(iter(self._files(version)), None)

    def _files(self, version: int) -> list[Path]:
        return sorted(self.folder.glob(f"{int(version)}-*.npz"))

    def _listed(self) -> str:
        return ", ".join(f"{name} ({version})" for name, version in self.names().items()) or "none"


class SentPlayers(PlayerStore):
    """The frozen players of a run whose folder this host does not see: a file is sent on request.

    A request is a file in the folder WANTED, named by the version; the host's agent passes it on.
    """

    def load(self, version: int) -> list[np.ndarray]:
        """Return the leaves of a frozen version, waiting for its file; see PlayerStore."""
        asked, until_s = self.folder / WANTED / str(int(version)), time.monotonic() + SENT_S
        while self.file(version) is None and time.monotonic() < until_s:
            asked.parent.mkdir(parents=True, exist_ok=True)
            asked.touch()
            time.sleep(_LOOK_S)
        try:
            return super().load(version)
        finally:
            asked.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _packed(values: Sequence[Array]) -> bytes:
    """Return the leaves as one file: equal leaves give equal bytes (numpy's `savez` would write the time of day)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, value in enumerate(values):
            leaf, array = io.BytesIO(), np.ascontiguousarray(value).reshape(np.shape(value))
            np.lib.format.write_array(leaf, array, allow_pickle=False)
            dtype = f".{array.dtype.name}" if array.dtype.kind == "V" else ""  # numpy's files have no bfloat16
            archive.writestr(zipfile.ZipInfo(f"{number}{dtype}.npy"), leaf.getvalue())
    return file.getvalue()


def _unpacked(content: bytes) -> list[np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        names = sorted(archive.files, key=lambda name: int(name.partition(".")[0]))
        dtypes = [name.partition(".")[2] for name in names]
        return [archive[n].view(to_dtype(d)) if d else archive[n] for n, d in zip(names, dtypes, strict=True)]
