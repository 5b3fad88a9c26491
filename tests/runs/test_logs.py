"""A log that grows too large is cut, and what is written afterwards is kept."""

from __future__ import annotations

import os
from pathlib import Path

from jsrl.runs.logs import cut_log


def test_a_large_log_is_moved_aside_and_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "actor-0.log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, b"x" * 1000)
        assert cut_log(fd, most_bytes=1000) is None
        os.write(fd, b"y")
        assert cut_log(fd, most_bytes=1000) == str(path)
        os.write(fd, b"later")
        assert path.read_bytes() == b"later"
        assert (tmp_path / "actor-0.log.1").read_bytes() == b"x" * 1000 + b"y"
    finally:
        os.close(fd)


def test_a_pipe_is_left_alone() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x" * 100)
        assert cut_log(writer, most_bytes=10) is None
        assert os.read(reader, 200) == b"x" * 100
    finally:
        os.close(reader)
        os.close(writer)
