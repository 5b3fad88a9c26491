"""A log that grows too large is rotated, and later output is kept."""

from __future__ import annotations

import os
from pathlib import Path

from jsrl.services.runs.logs import LogReader, cut_log, log_names


def test_large_log_is_rotated(tmp_path: Path) -> None:
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


def test_pipes_are_not_rotated() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x" * 100)
        assert cut_log(writer, most_bytes=10) is None
        assert os.read(reader, 200) == b"x" * 100
    finally:
        os.close(reader)
        os.close(writer)


def test_log_is_followed_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "actor-0.log"
    assert LogReader(path, 5).new_lines() == []
    path.parent.mkdir()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, b"one\ntwo\nthree\nfo")
        reader = LogReader(path, 2)
        assert reader.new_lines() == ["two", "three"] and reader.new_lines() == []
        os.write(fd, b"ur\nfive\nsi")
        assert reader.new_lines() == ["four", "five"]
        os.write(fd, b"x\nsev")
        assert cut_log(fd, most_bytes=1) == str(path)
        os.write(fd, b"en\n")
        assert reader.new_lines() == ["six", "seven"]
        os.write(fd, b"eight")
        assert reader.new_lines() == [] and reader.rest() == ["eight"]
    finally:
        os.close(fd)
    assert LogReader(path, 4).new_lines() == ["five", "six", "sev", "en"]  # in the format of the files
    assert LogReader(path, 0).new_lines() == []


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"
    path.write_text("".join(f"{'ä' * 500} {i}\n" for i in range(1000)))
    assert [line.split()[1] for line in LogReader(path, 300).new_lines()] == [str(i) for i in range(700, 1000)]


def test_workers_with_logs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("learner.log", "actor-10.log", "actor-2.log", "actor-2.log.1", "controller.log", "actor-2.stacks"):
        (tmp_path / "logs" / name).touch()
    assert log_names(tmp_path) == ["controller", "actor-2", "actor-10", "learner"]
