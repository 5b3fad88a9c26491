"""Files that a worker keeps in the run folder, such as snapshot `best`: copied between hosts for a worker on another host.

Its agent sends their changes, and the controller writes them to the run folder. Before an incarnation of the worker starts on
another host, that host gets the files of the run folder. The parts of a file are sent in order; it appears once it is
complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PART_BYTES = 1 << 20
REMOVED = -1  # instead of a byte position: the file was removed
_DRAFT = ".draft"


class Part(NamedTuple):
    """A part of a file, from byte `at`; `last` is the last part. name: below the run folder."""

    name: str
    at: int
    part: bytes
    last: bool


class KeptFiles:
    """The files in subfolders of a run folder, as far as the other side has them.

    Args:
      root: the run folder, or the agent's folder for it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, tuple[int, int]] = {}

    def parts(self, folders: Iterable[str]) -> Iterator[Part]:
        """Yield the parts of files that changed since they were sent, and removed files; they count as sent.

        Files that name other files come after these: manifests, then tags.
        """
        found = {name: stat for folder in folders for name, stat in self._files(folder)}
        for name in sorted(found, key=lambda name: ("/tags/" in name, name.endswith(".json"), name)):
            if self._known.get(name) != found[name]:
                yield from self.file(name)
                self._known[name] = found[name]
        for name in set(self._known) - set(found):
            if name.startswith(tuple(f"{folder}/" for folder in folders)):
                del self._known[name]
                yield Part(name, REMOVED, b"", True)

    def _files(self, folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield name and state of the files in a folder, except those being written."""
        base = self._root / folder
        for place, folders, files in os.walk(base):
            if Path(place) == base:
                folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                path = Path(place, name)
                if name.startswith(".") or name.endswith(_DRAFT):
                    continue
                try:
                    stat = path.stat()
                except FileNotFoundError:  # just replaced
                    continue
                yield str(path.relative_to(self._root)), (stat.st_size, stat.st_mtime_ns)

    def file(self, name: str) -> Iterator[Part]:
        """Yield the parts of a file; none if it does not exist."""
        with contextlib.suppress(FileNotFoundError), (self._root / name).open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            while True:
                part = file.read(PART_BYTES)
                yield Part(name, at, part, at + len(part) >= size)
                at += len(part)
                if at >= size or not part:
                    return

    def note(self, name: str) -> None:
        """Note that a file came from the other side."""
        stat = (self._root / name).stat()
        self._known[name] = stat.st_size, stat.st_mtime_ns

    def forget(self) -> None:
        """Mark all files as not sent."""
        self._known.clear()


def keep_part(root: Path, part: Part) -> bool:
    """Write a part of a file below a folder; a part out of order is dropped. Return whether the file is complete now.

    Raises:
      OSError: it cannot be written.
    """
    path = root / part.name
    draft = path.with_name(path.name + _DRAFT)
    if part.at == REMOVED:
        path.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if part.at and (not draft.exists() or draft.stat().st_size != part.at):
        return False
    with draft.open("ab" if part.at else "wb") as file:
        file.write(part.part)
    if part.last:
        draft.rename(path)
    return part.last
