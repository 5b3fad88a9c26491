"""Files that a worker keeps: they reach the run folder from its host, and its next host from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsrl.launch.hosts.kept import PART_BYTES, KeptFiles, Part, keep_part
from jsrl.launch.hosts.messages import Kept

FOLDERS = ["snapshots/params"]


def put(root: Path, name: str, content: bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_changes_in_the_folders_arrives_whole_and_tags_last(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    files = KeptFiles(there)
    assert not list(files.parts(FOLDERS))
    kept = {
        "snapshots/params/tags/best.json": b"7",
        "snapshots/params/7/manifest.json": b"{}",
        "snapshots/params/7/arrays/x": b"x" * (2 * PART_BYTES + 1),
        "snapshots/params/7/arrays/empty": b"",
    }
    for name, content in kept.items():
        put(there, name, content)
    for other in ("snapshots/params/.partial-1/x", "snapshots/params/.lock", "snapshots/state/1/x", "keys/client.key"):
        put(there, other, b"not of these")
    parts = list(files.parts(FOLDERS))
    assert [part.name for part in parts if part.last][-2:] == list(kept)[
        1::-1
    ]  # what points to others comes after them
    assert [keep_part(here, part) for part in parts].count(True) == len(kept) and contents(here) == kept
    assert not list(files.parts(FOLDERS))
    put(there, "snapshots/params/tags/best.json", b"8")
    (there / "snapshots/params/7/arrays/empty").unlink()
    for part in files.parts(FOLDERS):
        keep_part(here, part)
    assert contents(here) == {k: v for k, v in kept.items() if "empty" not in k} | {next(iter(kept)): b"8"}
    back = KeptFiles(here)
    for part in files.parts(FOLDERS):
        assert keep_part(here, part) is False
    back.note("snapshots/params/tags/best.json")
    assert "snapshots/params/tags/best.json" not in {part.name for part in back.parts(FOLDERS)}


def test_a_part_that_does_not_follow_makes_no_file(tmp_path: Path) -> None:
    assert not keep_part(tmp_path, Part("replay/0/rows", 5, b"later", True))
    assert not keep_part(tmp_path, Part("replay/0/rows", 0, b"1234", False))
    assert not keep_part(tmp_path, Part("replay/0/rows", 5, b"later", True))
    assert keep_part(tmp_path, Part("replay/0/rows", 4, b"5", True))
    assert contents(tmp_path) == {"replay/0/rows": b"12345"}


@pytest.mark.parametrize("name", ["x", "../x", "a/../b", "/a/b", "a/.b", "a//b", "a/b/", "a/b\n", "a/..", "a/b\0"])
def test_a_name_that_could_be_a_path_to_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="file"):
        Kept(1, name, 0, b"", True)
