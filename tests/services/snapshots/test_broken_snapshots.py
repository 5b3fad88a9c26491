"""A broken snapshot directory: refused by name, nothing in it is executed, and a resume uses the newest good one."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from jsrl.control.resume import newest_good, next_start_point
from jsrl.control.start_points import find_start_points
from jsrl.errors import ConfigError, SnapshotError
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.format import version_damage
from jsrl.services.snapshots.store import SnapshotStore

ELSEWHERE = '{"version": 9, "digest": "", "wall_time_s": 0, "meta": {}}'


class Evil:
    """Creates a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self):
        return (open, (self._mark, "w"))


def tree(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "state": {"weights": rng.normal(size=(64, 8)).astype(np.float32), "count": np.int32(seed), "none": np.zeros(0)}
    }


@pytest.fixture(name="written", scope="module")
def written_fixture(tmp_path_factory) -> Path:
    """A run folder with the snapshots 1, 2 and 3, of which 3 is the latest."""
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "exact", "one")
    store = SnapshotStore(folder.snapshots / "state")
    for number in (1, 2, 3):
        store.save(number, tree(number), meta={"updates": number, "generation": 0}, tags=("latest", "final"), wait=True)
    return folder.path


@pytest.fixture(name="run")
def run_fixture(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "exact" / "one")
    return tmp_path / "exact" / "one"


def files_of(run: Path) -> list[Path]:
    folder = run / "snapshots" / "state"
    return sorted(path for path in (folder / "3").rglob("*") if path.is_file())


def damages(path: Path, mark: Path) -> dict[str, bytes | None]:
    content = path.read_bytes()
    found = {
        "missing": None,
        "empty": b"",
        "half": content[: len(content) // 2],
        "longer": content + b"\0",
        "garbage": np.random.default_rng(0).bytes(len(content)),
        "a pickle": pickle.dumps(Evil(mark)),
    }
    if path.name == "manifest.json":
        manifest = json.loads(content)
        found |= {f"without {name}": as_json({k: v for k, v in manifest.items() if k != name}) for name in manifest}
        found |= {
            f"{name} = 3": as_json(manifest | {name: 3}) for name in ("meta", "leaves", "files", "digest", "format")
        }
        leaf = manifest["leaves"][-1]
        for name, value in {"shape": [1 << 50], "dtype": "O", "path": [1], "digest": "0"}.items():
            found[f"leaf {name}"] = as_json(manifest | {"leaves": [*manifest["leaves"][:-1], leaf | {name: value}]})
        found["a file outside"] = as_json(manifest | {"files": {"../../x": {"size_bytes": 1, "digest": ""}}})
        found["a list"] = b"[]"
        found["nested"] = b"[" * 100_000
    return {name: value for name, value in found.items() if value != content}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def test_each_broken_file_is_named_and_the_newest_good_snapshot_is_used(run: Path, tmp_path: Path) -> None:
    mark, tried = tmp_path / "executed", 0
    store = SnapshotStore(run / "snapshots" / "state")
    for path in files_of(run):
        content = path.read_bytes()
        for name, broken in damages(path, mark).items():
            path.unlink(missing_ok=True)
            if broken is not None:
                path.write_bytes(broken)
            damage = version_damage(store.folder / "3")
            assert damage is not None and path.name in damage, (path.name, name, damage)
            version, told = newest_good(store)
            assert version == 2 and told == [damage], (path.name, name)
            tried += 1
        path.write_bytes(content)
        assert newest_good(store) == (3, [])
    assert tried > 40 and not mark.exists()


def test_broken_snapshot_raises_our_error_or_loads_completely(run: Path, tmp_path: Path) -> None:
    """For readers that load it without a check before, such as an evaluator."""
    mark, refused = tmp_path / "executed", 0
    store = SnapshotStore(run / "snapshots" / "state")
    for path in files_of(run):
        content = path.read_bytes()
        some = {"empty", "garbage", "a pickle", "a list", "leaf shape", "leaf dtype", "files = 3", "nested"}
        for name, broken in damages(path, mark).items():
            if name not in some or broken is None:
                continue
            path.write_bytes(broken)
            try:
                loaded = store.load("latest").tree["state"]
            except SnapshotError as error:
                assert "3" in str(error)
                refused += 1
            else:
                np.testing.assert_array_equal(loaded["weights"], tree(3)["state"]["weights"])
        path.write_bytes(content)
    assert refused >= 8 and not mark.exists()


def test_resume_reports_the_broken_snapshot_and_where_it_continues(run: Path) -> None:
    store = run / "snapshots" / "state"
    (store / "3" / "manifest.json").write_text("{")
    origin, told = next_start_point(RunFolder(run))
    assert (origin.updates, origin.generation, origin.restore) == (2, 1, f"{store}@2")
    assert "manifest.json is broken" in told[0] and "snapshot 2" in told[1]
    for number in (1, 2):
        shutil.rmtree(store / str(number) / "arrays")
    with pytest.raises(ConfigError, match=r"(?s)cannot be resumed.*snapshot 2 is broken.*snapshot 1 is broken"):
        next_start_point(RunFolder(run))


def test_resume_of_a_run_that_ended_before_its_first_snapshot_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"holds none\. It ended before its first snapshot; start it again as a new run\."
    ):
        next_start_point(RunFolder.create(tmp_path, "x", "a"))


def test_resume_removes_snapshots_that_another_host_sent_in_part(run: Path) -> None:
    part = run / "snapshots" / "second" / "state" / "5" / "arrays"
    part.mkdir(parents=True)
    (run / "snapshots" / "state" / "3" / "manifest.json").unlink()
    find_start_points(RunFolder(run), None, run)
    assert not part.parent.exists()
    assert SnapshotStore(run / "snapshots" / "state").versions() == [1, 2]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 3}', ELSEWHERE])
def test_broken_tag_is_reported_and_the_newest_snapshot_is_used(run: Path, content: str) -> None:
    (run / "snapshots" / "state" / "tags" / "latest.json").write_text(content)
    assert newest_good(SnapshotStore(run / "snapshots" / "state"))[0] == 3
