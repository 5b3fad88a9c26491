"""Logs of a run: cut when they are large, and read from their end, even while they grow and are cut."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from jsrl.linux import descriptor_path
from jsrl.plain_files import open_plain
from jsrl.services.runs.values import MAX_LOG_BYTES, log_name

PART_BYTES = 1 << 16
CONTROLLER = "controller"  # its log has everything that was displayed
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")  # begins a message in it


def cut_log(fd: int = 1, most_bytes: int = MAX_LOG_BYTES) -> str | None:
    """Move a log that has grown too large to FILE.1, replacing the one before, and continue with an empty one.

    Args:
      fd: of the output, opened for appending. A terminal or a pipe is left alone.

    Returns:
      The path of the log that was cut; None: it is small enough, or no file. Concurrent output of other threads may be lost.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= most_bytes:
            return None
        path = os.readlink(descriptor_path(fd))
        shutil.copyfile(path, f"{path}.1")
        os.truncate(path, 0)
    except OSError:  # a full disk: the next beat tries again
        return None
    return path


def log_names(folder: Path) -> list[str]:
    """Return the names of the logs in a run's folder: the controller first, then the workers by name."""
    found = {path.name.removesuffix(".log") for path in (folder / "logs").glob("*.log")}
    return sorted(found, key=lambda name: (name != CONTROLLER, *_natural(name)))


def _natural(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, -1)


def log_path(folder: Path, name: str) -> Path:
    return folder / log_name(name)


def messages_in(lines: Iterable[str]) -> Iterator[str]:
    """Yield the messages in lines of a controller's log, without their times; a message may have several lines."""
    message = list[str]()
    for line in lines:
        if (stamp := STAMP.match(line)) and message:
            yield "\n".join(message)
            message = []
        message.append(line[stamp.end() :] if stamp else line)
    if message:
        yield "\n".join(message)


class LogReader:
    """Reads the last lines of a log, then new ones: whole lines, across the cuts of `cut_log`.

    Args:
      path: of the log; it may not exist yet. lines: number from the end, those of FILE.1 included.
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
        """Return the lines added since the last call; the first call returns the last lines of the log."""
        found, self._first = self._first, []
        size = _size(self._path)
        content = self._rest
        if size < self._position:  # it was cut; what was added before is in FILE.1
            content += _read(self._before, self._position, _size(self._before))
            self._position = 0
        content += _read(self._path, self._position, size)
        self._position = size
        *lines, self._rest = content.split(b"\n")
        return found + [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """Return the last line if it has no end yet."""
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
    """Return the position of the end of a file's last whole line."""
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
        with open_plain(path) as file:
            file.seek(begin)
            return file.read(max(0, end - begin))
    except (OSError, ValueError):
        return b""
