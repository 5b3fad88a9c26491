"""Shared memory: plain files under /dev/shm, mode 0600 in a 0700 folder of the run, mapped with mmap.

`multiprocessing.shared_memory` is not used: on Python 3.11 an attaching process that exits unlinks the block for all.
Here the process that made a segment unlinks it. A process that still maps it keeps its memory, which is harmless.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import ConfigError, StreamClosed
from jsrl.transport.wire.schema import Layout

ALIVE = "alive"  # file in a folder whose lock shows that the owner is alive
_fence_lock = threading.Lock()
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


def memory_fence() -> None:
    """Order the shared-memory reads and writes before this call before those after it, on every architecture."""
    for _ in range(2):  # release, then acquire, of one lock
        with _fence_lock:
            pass


def make_folder(folder: str | Path) -> Path:
    """Return the run folder; creates it with mode 0700 if it does not exist."""
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"the folder {folder} for shared memory cannot be made: {error.strerror}.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{folder} must be a folder of this user with mode 0700, found mode {stat.S_IMODE(found.st_mode):04o} of "
            f"user {found.st_uid}; choose another folder or run `chmod 700`."
        )
    return folder


class Segment:
    """One mapped file; make it with `create` or `attach`."""

    def __init__(self, path: Path, fd: int, size_bytes: int):
        self.path = path
        self.size_bytes = size_bytes
        self._fd = fd
        self._map: mmap.mmap | None = mmap.mmap(fd, size_bytes)

    @classmethod
    def create(cls, path: str | Path, size_bytes: int) -> Segment:
        """Make a segment of zeros; its memory is allocated now, so that a write never fails later."""
        path = Path(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"the segment {path} cannot be made: {error.strerror}.") from error
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return cls(path, fd, size_bytes)
        except OSError as error:
            os.close(fd)
            path.unlink(missing_ok=True)
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

    @property
    def buffer(self) -> mmap.mmap:
        if self._map is None:
            raise StreamClosed(f"the segment {self.path} is closed here.")
        return self._map

    def words(self, offset: int, count: int) -> memoryview:
        """Return `count` int64 words at `offset`; each is read and written atomically."""
        return memoryview(self.buffer)[offset : offset + 8 * count].cast("q")

    def views(self, layout: Layout, offset: int = 0, *, writeable: bool = True) -> list[np.ndarray]:
        return layout.views(self.buffer, offset, writeable=writeable)

    def tree(self, layout: Layout, schema: Any, offset: int = 0, *, writeable: bool = True) -> Any:
        """Return the arrays of a layout at `offset`, as a tree shaped like `schema`."""
        return layout.tree(schema, self.buffer, offset, writeable=writeable)

    def lock(self) -> bool:
        """Hold the file's lock until this end closes or this process dies; return whether it was free.

        Shows that a process is alive: one process holds the lock, another checks it with `locked`.
        """
        return try_lock(self._fd)

    def locked(self) -> bool:
        """Return whether another end (of this or any process) holds the file's lock."""
        return is_locked(self._fd)

    def close(self) -> None:
        """Close this end. Memory stays mapped until the last array that shows it is gone."""
        if self._map is not None:
            self._map = None  # not `close()`: numpy arrays hold no export of the mapping and would dangle
            os.close(self._fd)

    def unlink(self) -> None:
        """Remove the file; open ends keep working without it."""
        self.path.unlink(missing_ok=True)


def try_lock(fd: int) -> bool:
    """Take the lock of an open file without waiting; return whether it was free (or already held by this `fd`)."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_file(path: Path) -> int | None:
    """Open a file, made if needed, and take its lock; return the descriptor that holds it (None: another holds it).

    A holder may remove the file just before it lets go: then the file is made again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_free = try_lock(fd)
        if is_free and os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
        if not is_free:
            return None


def share_lock(path: Path) -> bool:
    """Take the lock of a file together with others that share it, until this process ends; return whether that worked.

    It does not while a process holds the lock alone, nor if there is no such file.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK))
    except OSError:
        return False
    return True


def is_locked(fd: int) -> bool:
    """Return whether another open file, of this or any process, holds the lock; does not take it."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def living_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, and remove it afterwards; the lock of its file `alive` shows that this process is alive."""
    folder, fd = _made_and_locked(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _made_and_locked(path: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock; another process may remove it before it is locked."""
    while True:
        folder = make_folder(path)
        with contextlib.suppress(FileNotFoundError):
            if (fd := lock_file(folder / ALIVE)) is not None:
                return folder, fd


def is_living(folder: Path) -> bool:
    """Return whether the process of a `living_folder` is alive, in any container; without its file `alive` it is not.

    Raises:
      OSError: it is not a folder, or belongs to another user.
    """
    try:
        return is_held(folder / ALIVE)
    except FileNotFoundError:
        return False


def remove_unless_living(folder: Path) -> None:
    """Remove a folder of `living_folder` whose process was killed; see is_living."""
    fd = None if is_living(folder) else lock_file(folder / ALIVE)
    if fd is None:  # else it is held meanwhile: a process that makes the folder now makes it again
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)
