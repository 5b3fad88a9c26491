"""Logs of a run: they are cut when they have grown large, and read from their end, also while they grow and are cut."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

MOST_BYTES = 16 * 2**20
PART_BYTES = 1 << 16
CONTROLLER = "controller"  # whose log has all that was shown


def cut_log(fd: int = 1, most_bytes: int = MOST_BYTES) -> str | None:
    """Move a log that has grown too large to FILE.1, over the one before, and go on with an empty one.

    Args:
      fd: of the output, opened for appending. A terminal or a pipe is left alone.

    Returns:
      The path of the log that was cut; None: it is small enough, or no file. What other threads write meanwhile may be lost.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= most_bytes:
            return None
        path = os.readlink(f"/proc/self/fd/{fd}")
        shutil.copyfile(path, f"{path}.1")
        os.truncate(path, 0)
    except OSError:  # a full disk: the next beat tries again
        return None
    return path


def log_names(folder: Path) -> list[str]:
    """Return whose logs a run's folder has: the controller first, then the workers by name."""
    found = {path.name.removesuffix(".log") for path in (folder / "logs").glob("*.log")}
    return sorted(found, key=lambda name: (name != CONTROLLER, *_natural(name)))


def _natural(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, -1)


def log_path(folder: Path, name: str) -> Path:
    """Return where a log of a run lies."""
    return folder / "logs" / f"{name}.log"


class LogReader:
    """Reads a log from its last lines on, and what is added later: whole lines, across the cuts of `cut_log`.

    Args:
      path: of the log; it may not be there yet. lines: from the end, those of FILE.1 before it as well.
    """

    def __init__(self, path: Path, lines: int) -> None:
        self._path, self._before = path, Path(f"{path}.1")
        self._position = _end_of_lines(path)
        self._rest = b""
        last = _last_lines(path, self._position, lines)
        missing = lines - len(last)
        older = _last_lines(self._before, _size(self._before), missing) if missing > 0 else []
        self._first = [*older, *last]

    def new_lines(self) -> list[str]:
        """Return the lines that were added since the last call; at first the last ones that were there."""
        found, self._first = self._first, []
        size = _size(self._path)
        content = self._rest
        if size < self._position:  # it was cut; what was added before that lies in FILE.1
            content += _read(self._before, self._position, _size(self._before))
            self._position = 0
        content += _read(self._path, self._position, size)
        self._position = size
        *lines, self._rest = content.split(b"\n")
        return found + [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """Return the last line where it has no end yet."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


def _last_lines(path: Path, size: int, count: int) -> list[str]:
    """Return the last lines of the first `size` bytes of a file."""
    content, at = b"", size
    while at > 0 and content.count(b"\n") <= count:
        begin = max(0, at - PART_BYTES)
        content, at = _read(path, begin, at) + content, begin
    lines = content.decode(errors="replace").splitlines()
    return lines[-count:] if count else []


def _end_of_lines(path: Path) -> int:
    """Return where the last whole line of a file ends."""
    size = _size(path)
    part = _read(path, max(0, size - PART_BYTES), size)
    return size - len(part) + part.rfind(b"\n") + 1 if part.count(b"\n") else 0 if len(part) == size else size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, begin: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(max(0, end - begin))
    except OSError:
        return b""
