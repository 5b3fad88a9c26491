"""Shared memory: plain files under /dev/shm, mode 0600 in a 0700 folder of the run, mapped with mmap.

`multiprocessing.shared_memory` is not used: on Python 3.11 an attaching process that exits unlinks the block for all.
Here the process that made a segment unlinks it. A process that still maps it keeps its memory, which is harmless.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
import threading
from pathlib import Path

from jsrl.errors import ConfigError, StreamClosed
from jsrl.linux import descriptor_path

_fence_lock = threading.Lock()


def memory_fence() -> None:
    """Order the shared-memory reads and writes before this call before those after it, on every architecture."""
    for _ in range(2):  # release, then acquire, of one lock
        with _fence_lock:
            pass


class Segment:
    """One mapped file; make it with `create`, `unnamed`, `attach`, `of` or `in_process`."""

    def __init__(self, path: Path, fd: int, size_bytes: int, memory: mmap.mmap | None = None):
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd
        self._map: mmap.mmap | None = memory or mmap.mmap(fd, size_bytes)

    @classmethod
    def create(cls, path: str | Path, size_bytes: int) -> Segment:
        """Make a segment of zeros; its memory is allocated now, so that a write never fails later."""
        path = Path(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"the segment {path} cannot be made: {error.strerror}.") from error
        try:
            return cls._allocated(path, fd, size_bytes)
        except ConfigError:
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def unnamed(cls, folder: Path, size_bytes: int) -> Segment:
        """Make a segment without a name in a folder; others get its descriptor over a connection."""
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return cls._allocated(folder, os.dup(file.fileno()), size_bytes)

    @classmethod
    def _allocated(cls, path: Path, fd: int, size_bytes: int) -> Segment:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return cls(path, fd, size_bytes)
        except OSError as error:
            os.close(fd)
            room = os.statvfs(path.parent)
            free_bytes = room.f_bavail * room.f_frsize
            advice = "use fewer blocks or shorter trajectories, enlarge /dev/shm, or choose the ZeroMQ transport"
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                advice = str(error.strerror)
            raise ConfigError(
                f"the segment {path} needs {size_bytes} bytes, {free_bytes} bytes are free: {advice}."
            ) from error

    @classmethod
    def attach(cls, path: str | Path) -> Segment:
        """Map an existing segment.

        Raises:
          StreamClosed: it does not exist (its owner has not made it yet, or is gone).
          ConfigError: the file is not a segment of this user.
        """
        path = Path(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StreamClosed(f"no segment at {path}: its owner has not made it yet, or has left.") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not found.st_size:
            os.close(fd)
            raise ConfigError(f"{path} is not a segment of this user; choose another run folder.")
        return cls(path, fd, found.st_size)

    @classmethod
    def of(cls, fd: int) -> Segment:
        """Map the segment with this descriptor, which it closes with itself."""
        return cls(Path(descriptor_path(fd)), fd, os.fstat(fd).st_size)

    @classmethod
    def in_process(cls, size_bytes: int) -> Segment:
        """Make a segment of this process alone; `shared` gives its other end."""
        return cls(Path("local"), -1, size_bytes)

    def shared(self) -> Segment:
        """Return another end of the same memory, in this process."""
        return Segment(self.path, -1, self.size_bytes, self.buffer)

    def fileno(self) -> int:
        return self._fd

    @property
    def buffer(self) -> mmap.mmap:
        if self._map is None:
            raise StreamClosed(f"the segment {self.path} is closed here.")
        return self._map

    def words(self, offset: int, count: int) -> memoryview:
        """Return `count` int64 words at `offset`; each is read and written atomically."""
        return memoryview(self.buffer)[offset : offset + 8 * count].cast("q")

    def close(self) -> None:
        """Close this end. Memory stays mapped until the last array that shows it is gone."""
        if self._map is not None:
            self._map = None  # not `close()`: numpy arrays hold no export of the mapping and would dangle
            if self._fd >= 0:
                os.close(self._fd)

    def unlink(self) -> None:
        """Remove the file; open ends keep working without it."""
        self.path.unlink(missing_ok=True)
