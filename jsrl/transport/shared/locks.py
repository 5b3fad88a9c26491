"""Locks of files, which show that a process is alive, and folders of shared memory that are removed with their process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from jsrl.errors import ConfigError

ALIVE = "alive"  # file in a folder whose lock shows that the owner is alive
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


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
