"""Reading untrusted files: only regular ones, of bounded size, with arrays no larger than their file."""

from __future__ import annotations

import io
import math
import os
import stat
from pathlib import Path
from typing import IO

import numpy as np

MOST_BYTES = 256 << 20  # largest file that is read as a whole


def open_plain(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; never blocks, as opening a FIFO would.

    Raises:
      OSError: it cannot be opened. ValueError: it is a FIFO, a folder, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
      OSError: it cannot be read. ValueError: it is no regular file, or has more than `most_bytes`.
    """
    with open_plain(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = file.read(min(size_bytes, most_bytes) + 1)  # memory for all that it is asked for is reserved
    if len(content) > most_bytes:
        raise ValueError(f"{path} has more than {most_bytes} bytes")
    return content


def read_npy_header(file: IO[bytes], size_bytes: int) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of an array in numpy's file format; reads the header of a file of `size_bytes` bytes.

    Raises:
      ValueError: it is not such a file, holds objects, or declares another size than it has.
    """
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array of format {version}, expected {list(readers)}")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"an array of dtype {dtype} and shape {shape}")
    declared_bytes = file.tell() + math.prod(shape) * dtype.itemsize
    if declared_bytes != size_bytes:
        raise ValueError(f"an array {dtype}{list(shape)} of {declared_bytes} bytes, but {size_bytes} are there")
    return shape, dtype
