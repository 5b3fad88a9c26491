"""Small files that several processes share: atomic replacement, JSON that is always valid, a lock per folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jsrl.errors import ConfigError
from jsrl.fields import options_of
from jsrl.linux import stat
from jsrl.plain_files import read_plain


@contextlib.contextmanager
def file_lock(path: Path, timeout_s: float = math.inf) -> Iterator[None]:
    """Hold a file's advisory lock, which the kernel frees when its holder dies; the file is made if it is missing.

    On a file system without locks it holds nothing.

    Raises:
      TimeoutError: another process held it for `timeout_s`.
      OSError: the lock file cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    break
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process held {path} for more than {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        yield
    finally:
        os.close(descriptor)


LOCK_TIMEOUT_S = 10.0


def json_ready(value: Any) -> Any:
    """Return `value` as plain JSON values: numpy scalars and arrays become numbers and lists, NaN null, inf a string.

    Raises:
      TypeError: something in it has no JSON form; the message names its type.
    """
    if isinstance(value, dict):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_ready(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return json_ready(value.tolist())
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no JSON form (value {value!r})")


def plain_options(config: Any) -> dict[str, Any]:
    """Return the options of a config, name -> value as JSON, or as text."""
    options = {}
    for option in options_of(config).values():
        try:
            options[option.name] = json_ready(option.default)
        except TypeError:
            options[option.name] = str(option.default)
    return options


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `content` so that a reader sees either the old bytes or the new ones, never a mixture.

    Args:
      path: the file to replace. content: its new bytes.
      durable: wait until it is on disk (so that a crash of the machine loses nothing).
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    write_atomic(path, (json.dumps(json_ready(value), indent=2) + "\n").encode(), durable=durable)


def read_json(path: Path) -> Any:
    """Return the JSON value in `path` (OSError when it cannot be read, ValueError when it is no regular file or not JSON)."""
    try:
        return json.loads(read_plain(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path, kind: Any) -> dict[str, Any]:
    """Return the JSON object in a file of a run; its fields have the types that `kind`, a TypedDict, gives them."""
    try:
        value = read_json(path)
        msgspec.convert(value, kind)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    return value


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def process_alive(pid: int) -> bool:
    """Return whether a process of this host has this id and has not ended (a zombie has ended)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = stat(pid)
    return not fields or fields[0] not in "ZX"


def folder_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the folder's advisory lock (`.lock`), as `file_lock`; without locks atomic replacement still works."""
    return file_lock(folder / ".lock", LOCK_TIMEOUT_S)
