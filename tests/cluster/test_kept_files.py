"""Files of a worker: they are copied from its host to the run folder, and from there to its next host."""

from __future__ import annotations

import shlex
import shutil
import stat
from pathlib import Path

import pytest

from jsrl.cluster.kept_files import (
    AGAIN_S,
    AHEAD_BYTES,
    PART_BYTES,
    KeptFiles,
    keep_part,
    name_here,
    remove_half_sent,
)
from jsrl.cluster.messages import FilePart, Part
from jsrl.cluster.unsent import keep_snapshots

FOLDERS = ["snapshots/params"]


def put(root: Path, name: str, content: bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class FolderLink:
    """Two folders with a connection between them that can be cut, and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here, self.now_s = folder / "there", folder / "here", 0.0
        self.cut, self.sent, self.waiting = False, list[Part](), list[Part]()
        self.files = KeptFiles(self.there, self._send, lambda: self.now_s, held=folder / "held")

    def _send(self, part: Part) -> None:
        self.sent.append(part)
        if not self.cut:
            self.waiting.append(part)

    def carry(self) -> None:
        """Deliver everything that is in transit or can be sent."""
        self.files.advance()
        while self.waiting:
            parts, self.waiting = self.waiting, []
            for part in parts:
                size = keep_part(self.here, part)
                if size is not None:
                    self.files.confirm(part.name, size, part.digest)
            self.files.advance()

    def look(self) -> list[str]:
        """Look for changes and deliver them; return the files that were sent."""
        self.sent.clear()
        self.files.look(FOLDERS)
        self.carry()
        return [part.name for part in self.sent if part.last]


def test_changed_files_arrive_complete_and_tags_last(tmp_path: Path) -> None:
    ways = FolderLink(tmp_path)
    assert not ways.look()
    kept = {
        "snapshots/params/tags/best.json": b"7",
        "snapshots/params/7/manifest.json": b"{}",
        "snapshots/params/7/arrays/x": b"x" * (2 * PART_BYTES + 1),
        "snapshots/params/7/arrays/empty": b"",
    }
    for name, content in kept.items():
        put(ways.there, name, content)
    for other in ("snapshots/params/.partial-1/x", "snapshots/params/.lock", "snapshots/state/1/x", "keys/client.key"):
        put(ways.there, other, b"not of these")
    assert ways.look()[-2:] == list(kept)[1::-1]  # files that refer to others are sent after them
    assert contents(ways.here) == kept and ways.files.are_sent(FOLDERS) and not ways.look()
    put(ways.there, "snapshots/params/tags/best.json", b"8")
    shutil.rmtree(ways.there / "snapshots/params/7")
    assert ways.look()[0] == "snapshots/params/tags/best.json"
    assert contents(ways.here) == {"snapshots/params/tags/best.json": b"8"}
    assert not (ways.here / "snapshots/params/7").exists()  # an empty folder would count as a version
    put(ways.there, "snapshots/params/from_here", b"1")
    ways.files.note("snapshots/params/from_here")
    assert not ways.look()
    ways.files.forget()
    assert len(ways.look()) == 2


def test_newest_snapshot_that_did_not_reach_a_lost_controller_is_kept_with_the_commands_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    ways, state, run = FolderLink(tmp_path), "snapshots/params", "/runs/my experiment/far"
    sent, unsent = (1 << 40) + 8, (1 << 40) + 1_234  # versions: generation 1
    put(ways.there, f"{state}/{sent}/manifest.json", b"{}")
    ways.look()
    assert ways.files.has_arrived(state)
    put(ways.there, f"{state}/{unsent}/manifest.json", b"{}")
    put(ways.there, f"{state}/{unsent + 1}/arrays/x", b"its writer was killed")
    assert not ways.files.has_arrived(state)
    first, copy, resume = keep_snapshots(ways.there, [state, "snapshots/none"], run, "gpu-2")
    (place,) = (tmp_path / "my state" / "jsrl" / "unsent").iterdir()
    assert f"({state}: version 1,234) reached the run folder. It is kept in {place}." in first
    assert shlex.split(copy) == ["scp", "-r", f"gpu-2:{place}/snapshots", run]
    assert shlex.split(resume) == ["jsrl", "run", "--resume", run]
    assert (place / "resume.txt").read_text().splitlines() == [first, copy, resume]
    kept = contents(place / "snapshots")
    state = state.removeprefix("snapshots/")
    assert sorted(kept) == [f"{state}/{sent}/manifest.json", f"{state}/{unsent}/manifest.json"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o700 and not list(ways.there.glob("snapshots/*"))
    assert keep_snapshots(ways.there, ["snapshots/state"], run, "gpu-2") == []


def test_parts_lost_with_a_connection_are_resent(tmp_path: Path) -> None:
    ways = FolderLink(tmp_path)
    content = bytes(range(256)) * (AHEAD_BYTES // 128)  # twice the limit in transit
    put(ways.there, "snapshots/params/x", content)
    put(ways.there, "snapshots/params/y", b"y")
    ways.cut = True
    ways.look()
    assert sum(len(part.content) for part in ways.sent) == AHEAD_BYTES and not ways.files.are_sent(FOLDERS)
    ways.cut, ways.now_s = False, AGAIN_S / 2
    ways.carry()
    assert not ways.here.exists()  # it waits for parts that may still arrive
    ways.now_s = 2 * AGAIN_S
    ways.carry()
    assert contents(ways.here) == {"snapshots/params/x": content, "snapshots/params/y": b"y"}
    assert ways.files.are_sent(FOLDERS) and not ways.look()


def test_a_slow_network_carries_whole_snapshots_while_newer_ones_replace_them(tmp_path: Path) -> None:
    ways, tag, arrays = FolderLink(tmp_path), "snapshots/params/tags/latest.json", b"x" * (2 * AHEAD_BYTES)
    for version in range(1, 8):
        put(ways.there, f"snapshots/params/{version}/x", arrays)
        put(ways.there, f"snapshots/params/{version}/manifest.json", b"{}")
        put(ways.there, f"{tag}.draft", str(version).encode())
        (ways.there / f"{tag}.draft").rename(ways.there / tag)
        shutil.rmtree(ways.there / f"snapshots/params/{version - 1}", ignore_errors=True)
        ways.files.look(FOLDERS)
        ways.files.advance()
        for part in ways.waiting[:2]:  # two parts arrive in the time of one snapshot
            size = keep_part(ways.here, part)
            assert size is not None
            ways.files.confirm(part.name, size, part.digest)
        del ways.waiting[:2]
        if (ways.here / tag).exists():
            named = (ways.here / tag).read_text()
            assert (ways.here / f"snapshots/params/{named}/x").read_bytes() == arrays
            assert (ways.here / f"snapshots/params/{named}/manifest.json").exists()
    assert (ways.here / tag).exists() and not ways.files.are_sent(FOLDERS)
    ways.carry()
    assert contents(ways.here) == contents(ways.there) and ways.files.are_sent(FOLDERS)
    ways.files.forget()
    assert not (tmp_path / "held").exists()


def test_files_are_sent_if_the_disk_has_no_space_for_the_folder_of_links(tmp_path: Path) -> None:
    """Else the agent would end before its host's newest snapshot has been sent."""
    ways = FolderLink(tmp_path)
    (tmp_path / "held").touch()  # so that the folder cannot be made, as on a full disk
    put(ways.there, "snapshots/params/x", b"x")
    assert ways.look() == ["snapshots/params/x"] and contents(ways.here) == contents(ways.there)


def test_file_changed_during_transfer_is_refused(tmp_path: Path) -> None:
    ways = FolderLink(tmp_path)
    put(ways.there, "snapshots/params/x", b"1234")
    ways.files.look(FOLDERS)
    ways.files.advance()
    ways.waiting = [part._replace(content=b"1235") for part in ways.waiting]
    ways.carry()
    assert not contents(ways.here) and not ways.files.are_sent(["snapshots"])
    put(ways.there, "snapshots/params/x", b"123456")
    ways.now_s = 2 * AGAIN_S
    ways.carry()
    assert contents(ways.here) == {"snapshots/params/x": b"123456"} and not ways.look()


def test_partial_files_of_a_lost_host_are_removed(tmp_path: Path) -> None:
    parts = [
        Part("snapshots/params/6/arrays/x", 0, b"1", True),
        Part("snapshots/params/6/manifest.json", 0, b"{}", True),
        Part("snapshots/params/tags/latest.json", 0, b"6", True),
        Part("snapshots/params/7/arrays/x", 0, b"1", True),
        Part("snapshots/params/7/arrays/y", 0, b"1", False),
        Part("snapshots/params/tags/best.json", 0, b"6", False),
    ]
    assert all(keep_part(tmp_path, part) for part in parts)
    remove_half_sent(tmp_path, FOLDERS)
    assert not (tmp_path / "snapshots" / "params" / "7").exists()
    assert set(contents(tmp_path)) == {part.name for part in parts[:3]}


def test_part_out_of_sequence_is_refused(tmp_path: Path) -> None:
    assert keep_part(tmp_path, Part("replay/0/rows", 5, b"later", True)) is None
    assert keep_part(tmp_path, Part("replay/0/rows", 0, b"1234", False)) == 4
    assert keep_part(tmp_path, Part("replay/0/rows", 5, b"later", True)) is None
    assert keep_part(tmp_path, Part("replay/0/rows", 2, b"34", False)) is None  # a part that it has
    assert keep_part(tmp_path, Part("replay/0/rows", 4, b"5", True)) == 5
    assert contents(tmp_path) == {"replay/0/rows": b"12345"}


@pytest.mark.parametrize(
    "name", ["..", ".x", "../x", "a/../b", "/a/b", "a/.b", "a//b", "a/b/", "a/b\n", "a/..", "a/b\0"]
)
def test_names_that_escape_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="file"):
        FilePart(1, Part(name, 0, b"", True))


def test_logs_of_workers_that_failed_on_other_hosts_have_their_names() -> None:
    assert name_here("logs/actor-0.log", "../a") == "logs/actor-0@.._a.log"
    assert name_here("snapshots/logs/x", "a") == "snapshots/logs/x"
