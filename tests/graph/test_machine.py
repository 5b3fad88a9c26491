"""The cache of compiled programs: incomplete ones are removed, so that the next start keeps a complete one."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from jsrl.graph.machine import CHECKED, WRITTEN_S, remove_broken

WHOLE = zlib.compress(os.urandom(5_000))


def program(folder: Path, name: str, content: bytes, age_s: float) -> Path:
    path = folder / f"{name}-cache"
    path.write_bytes(content)
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))
    return path


def checked(folder: Path) -> set[str]:
    """Check as a new process does; return the names of the programs that are left."""
    remove_broken.cache_clear()
    remove_broken(folder)
    return {path.name.removesuffix("-cache") for path in folder.glob("*-cache")}


def test_incomplete_programs_are_removed(tmp_path: Path) -> None:
    program(tmp_path, "whole", WHOLE, 60)
    program(tmp_path, "cut", WHOLE[:2_000], 60)
    program(tmp_path, "empty", b"", 60)
    program(tmp_path, "zstandard", b"\x28\xb5\x2f\xfd", 60)
    program(tmp_path, "being written", WHOLE[:2_000], 0)
    assert checked(tmp_path) == {"whole", "zstandard", "being written"}
    for path in (tmp_path / CHECKED, tmp_path / "being written-cache"):  # some time later
        before_s = path.stat().st_mtime - 2 * WRITTEN_S
        os.utime(path, (before_s, before_s))
    assert checked(tmp_path) == {"whole", "zstandard"}


def test_programs_are_checked_once(tmp_path: Path) -> None:
    assert checked(tmp_path) == set()
    program(tmp_path, "older than the last check", WHOLE[:2_000], 3_600)
    assert checked(tmp_path) == {"older than the last check"}
