"""Malicious files: a FIFO in place of each, small files that declare large arrays. Typed errors, without delay."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jsrl.errors import CodecError, ConfigError, RecordingError, SnapshotError, StreamClosed
from jsrl.plain_files import open_plain, read_npy_header, read_plain
from jsrl.replay.host.files import COUNTERS, ROWS, load_replay, save_replay
from jsrl.services.recordings import recordings
from jsrl.services.recordings.recordings import (
    MANIFEST,
    Source,
    begin_recording,
    make_manifest,
    open_recording,
    read_chunk,
    write_chunk,
)
from jsrl.services.runs.files import read_json
from jsrl.services.runs.names import FileNames
from jsrl.services.snapshots.format import Manifest, version_damage
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.door.keys import load_client_keys, make_keys
from jsrl.transport.ledger.page import read_page
from jsrl.types import leaves, named_leaves, zeros
from jsrl.workers.attached.journal import Journal
from tests.contracts.sample_contract import SCHEMA
from tests.workers.test_replay_worker import filled

NAMES = [name for name, _ in named_leaves(SCHEMA)]


def promptly(do: Callable[[], Any]) -> BaseException | None:
    """Return the exception of `do`, and fail if it hangs."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            do()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert raised, "it hangs"
    return raised[0]


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path):
    store = SnapshotStore(tmp_path / "snapshots")
    store.save(1, {"weights": np.arange(5000.0)}, wait=True)
    yield store
    assert store.close()


@pytest.fixture(name="recording")
def recording_fixture(tmp_path: Path) -> Path:
    folder = tmp_path / "recording"
    begin_recording(folder, make_manifest({}, {}, SCHEMA, source=Source("here", 0, "learning"), versions={}))
    write_chunk(folder / "actor-0-000000.npz", NAMES, [(0, n, zeros(SCHEMA)) for n in range(3)])
    return folder


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    for path in (fifo(tmp_path / "pipe"), tmp_path, Path("/dev/zero")):
        error = promptly(lambda path=path: open_plain(path))
        assert isinstance(error, ValueError) and "not a regular file" in str(error)
    (tmp_path / "file").write_bytes(b"12345")
    assert read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_plain(tmp_path / "file", 4)


def test_a_fifo_in_place_of_a_small_file(tmp_path: Path, store) -> None:
    pipe = fifo(tmp_path / "pipe")
    assert isinstance(promptly(lambda: read_json(pipe)), ValueError)
    assert isinstance(promptly(lambda: read_page(pipe)), SnapshotError)
    assert isinstance(promptly(lambda: Journal(pipe)), SnapshotError)
    keys = make_keys(tmp_path / "keys")
    fifo(keys / "client.key")
    assert isinstance(promptly(lambda: load_client_keys(keys)), ConfigError)
    names = FileNames(tmp_path / "names")
    names.register("samples", "ipc:///s")
    fifo(tmp_path / "names" / "samples.json")
    assert isinstance(promptly(lambda: names.lookup("samples", 0.0)), StreamClosed)
    fifo(store.folder / "tags" / "latest.json")
    assert isinstance(promptly(store.tags), SnapshotError)


@pytest.mark.parametrize("change", [{"pid": "1"}, {"host": None}, {"more": 1}, {"address": 7}])
def test_name_files_with_invalid_fields(tmp_path: Path, change: dict[str, Any]) -> None:
    names = FileNames(tmp_path)
    names.register("samples", "ipc:///s")
    path = tmp_path / "samples.json"
    if "more" in change:
        path.write_text("[1, 2]")
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StreamClosed, match="not a registration"):
        names.lookup("samples", 0.0)


# -- snapshots


def change_leaf(store: SnapshotStore, **changes: Any) -> None:
    path = store.folder / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["leaves"][0].update(changes)
    with contextlib.suppress(ValueError, CodecError):  # one that is refused for its types needs no seal
        read = msgspec.convert(manifest, Manifest)
        manifest = msgspec.to_builtins(read.sealed(read.meta))
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("shape", [[1 << 38], [1 << 20, 1 << 18]])
def test_a_manifest_that_declares_more_than_its_files_can_hold(store, shape: list[int]) -> None:
    change_leaf(store, shape=shape)
    with pytest.raises(SnapshotError, match="declares arrays of 2097152 MiB, in files of 0 MiB"):
        store.load("latest")


def test_a_manifest_that_declares_other_arrays_than_the_template(store, monkeypatch: pytest.MonkeyPatch) -> None:
    change_leaf(store, shape=[60_000_000])
    monkeypatch.setattr(store, "_read", lambda *_: pytest.fail("arrays were made before they were compared"))
    with pytest.raises(SnapshotError, match=r"leaf weights .* is .*60000000.*, expected float64 \(5000,\)"):
        store.load("latest", {"weights": np.zeros(5000)})


@pytest.mark.parametrize(
    "changes",
    [
        {"path": []},
        {"path": ["a"] * 65},
        {"path": 5},
        {"shape": [1.5]},
        {"shape": [True]},
        {"shape": [1] * 33},
        {"shape": "5"},
        {"dtype": 3},
        {"dtype": "object"},
        {"dtype": "no such"},
    ],
)
def test_manifests_with_invalid_leaves(store, changes: dict[str, Any]) -> None:
    change_leaf(store, **changes)
    with pytest.raises(SnapshotError, match="broken"):
        store.load("latest")


def test_a_leaf_that_is_also_a_branch(store) -> None:
    path = store.folder / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["leaves"].append(manifest["leaves"][0] | {"path": ["weights", "kernel"]})
    path.write_text(json.dumps(manifest))
    with pytest.raises(SnapshotError, match="broken"):
        store.load("latest")


@pytest.mark.parametrize("what", ["fifo", "link"])
def test_something_else_in_place_of_a_file_of_arrays(store, what: str) -> None:
    data = next(path for path in (store.folder / "1" / "arrays").rglob("*") if path.is_file())
    if what == "fifo":
        fifo(data)
    else:
        data.unlink()
        data.symlink_to("/dev/zero")
    damage: list[str | None] = []
    assert promptly(lambda: damage.append(version_damage(store.folder / "1"))) is None
    assert "not a regular file" in str(damage[0])


def test_a_fifo_in_place_of_the_manifest(store) -> None:
    fifo(store.folder / "1" / "manifest.json")
    assert isinstance(promptly(lambda: store.load("latest")), SnapshotError)


# -- recordings


def test_recording_is_read(recording: Path) -> None:
    opened = open_recording(recording)
    arrays = read_chunk(opened, opened.chunks[0], NAMES)
    assert [array.shape for array in arrays] == [(3, *leaf.shape) for leaf in leaves(SCHEMA)]


def test_a_small_compressed_file_does_not_become_a_large_array(recording: Path) -> None:
    bomb = recording / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file, file.open("entry/sequence.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (4 << 20,)})
        member.write(bytes(32 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(RecordingError, match=r"bomb\.npz: entry/sequence is compressed"):
        open_recording(recording)


@pytest.mark.parametrize("leaf", ["entry/sequence", "reward"])
@pytest.mark.parametrize("descr", ["<f8", "|O"])
def test_array_that_declares_more_than_its_file(recording: Path, leaf: str, descr: str) -> None:
    path = next(recording.glob("*.npz"))
    with np.load(path) as file:
        arrays = dict(file)
    arrays.pop(leaf)
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as file, file.open(f"{leaf}.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": (1 << 38,)})
    with pytest.raises(RecordingError, match="broken"):
        opened = open_recording(recording)
        read_chunk(opened, opened.chunks[0], NAMES)


def test_fifos_in_recordings(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo(recording / "pipe.npz")
    assert isinstance(promptly(lambda: open_recording(recording)), RecordingError)
    fifo(recording / MANIFEST)
    assert isinstance(promptly(lambda: open_recording(recording)), RecordingError)
    assert recordings.FORMAT == 2


# -- replay


@pytest.fixture(name="rows")
def rows_fixture(tmp_path: Path) -> Path:
    save_replay(tmp_path / "replay", *filled(1, 14), rows=True)
    return tmp_path / "replay"


def refused(folder: Path) -> str:
    again, limiter = filled(1, 0)
    error = promptly(lambda: load_replay(folder, again, limiter))
    assert isinstance(error, SnapshotError), error
    return str(error)


def test_altered_rows_are_detected(rows: Path) -> None:
    path = next((rows / ROWS).glob("rows.*.npy"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert "bytes, but" in refused(rows)
    path.write_bytes(b"nothing")
    assert "cannot be read" in refused(rows)
    fifo(path)
    assert "not a regular file" in refused(rows)
    path.unlink()
    assert "No such file" in refused(rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda counters: counters.pop("limiter"),
        lambda counters: counters.update(lanes=[]),
        lambda counters: counters.update(lanes=[{"written": -1}]),
        lambda counters: counters["lanes"][0].update(written="many"),
        lambda counters: counters["lanes"][0].update(other=1),
        lambda counters: counters.update(replay=None),
        lambda counters: counters["limiter"].update(drawn=None),
    ],
)
def test_invalid_counters_are_refused(rows: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = rows / ROWS / COUNTERS
    counters = json.loads(path.read_text())
    change(counters)
    path.write_text(json.dumps(counters))
    assert "cannot be read" in refused(rows)
    fifo(path)
    assert "not a regular file" in refused(rows)


def test_a_header_is_only_taken_where_its_file_has_as_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10))
    with open_plain(path) as file:
        assert read_npy_header(file, path.stat().st_size) == ((10,), np.dtype(np.int64))
    with open_plain(path) as file, pytest.raises(ValueError, match="of 208 bytes, but 209 are there"):
        read_npy_header(file, path.stat().st_size + 1)
