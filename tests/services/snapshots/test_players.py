"""Frozen players never change, and a changed file is refused."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from jsrl.errors import SnapshotError
from jsrl.services.snapshots import players
from jsrl.services.snapshots.players import PlayerStore, SentPlayers
from jsrl.types import make_version

VALUES = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(3.5), np.zeros((0, 2), np.int32)]


@pytest.fixture
def store(tmp_path):
    return PlayerStore(tmp_path / "players")


def test_frozen_player_loads_by_version(store):
    version = make_version(1, 20)
    store.freeze("initial", 0, VALUES)
    store.freeze("frozen-1", version, [value + 1 for value in VALUES])
    assert store.names() == {"frozen-1": version, "initial": 0} and store.version("frozen-1") == version
    store.check()
    for loaded, value in zip(store.load(version), VALUES, strict=True):
        assert loaded.dtype == value.dtype and loaded.shape == np.shape(value)
        np.testing.assert_array_equal(loaded, value + 1)


def test_bfloat16_params_keep_their_dtype(store):
    values = [np.full((2, 3), n, ml_dtypes.bfloat16) if n % 2 else np.float32([n]) for n in range(12)]
    store.freeze("initial", 0, values)
    for loaded, value in zip(store.load(0), values, strict=True):
        assert loaded.dtype == value.dtype
        np.testing.assert_array_equal(loaded, value)


def test_the_same_params_may_be_frozen_twice(store):
    store.freeze("a", 5, VALUES)
    store.freeze("a", 5, VALUES)
    store.freeze("b", 5, VALUES)
    assert store.names() == {"a": 5, "b": 5} and len(list(store.folder.glob("*.npz"))) == 1


def test_name_moves_and_its_old_version_stays(store):
    store.freeze("a", 5, VALUES)
    store.freeze("a", 6, [value + 1 for value in VALUES])
    assert store.version("a") == 6
    np.testing.assert_array_equal(store.load(5)[0], VALUES[0])


def test_a_version_is_not_frozen_with_other_params(store):
    store.freeze("a", 5, VALUES)
    with pytest.raises(SnapshotError, match="version 5 was frozen with other params"):
        store.freeze("b", 5, [value + 1 for value in VALUES])
    np.testing.assert_array_equal(store.load(5)[0], VALUES[0])


@pytest.mark.parametrize("damage", ["changed", "truncated", "gone", "folder"])
def test_a_changed_or_missing_file_is_refused(store, damage):
    store.freeze("a", 5, VALUES)
    (path,) = store.folder.glob("*.npz")
    content = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(SnapshotError, match="start a new run" if damage != "folder" else "not a regular file"):
        store.check()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": "x"}', '{"version": true}', "[" * 10_000])
def test_a_broken_name_is_refused(store, content):
    store.freeze("a", 5, VALUES)
    (store.folder / "a.json").write_text(content)
    with pytest.raises(SnapshotError, match=r"a\.json"):
        store.names()


def test_unknown_name_or_version_lists_the_existing_ones(store):
    store.freeze("a", 5, VALUES)
    with pytest.raises(SnapshotError, match=r"called b .* a \(5\)"):
        store.version("b")
    with pytest.raises(SnapshotError, match=r"version 7 .* a \(5\)"):
        store.load(7)


@pytest.mark.parametrize("name", ["", "../a", "5", "a/b", "a b"])
def test_a_name_that_cannot_be_a_file_is_refused(store, name):
    with pytest.raises(SnapshotError, match="cannot be a tag"):
        store.freeze(name, 5, VALUES)


def test_players_are_read_without_jax():
    code = "import sys, jsrl.services.snapshots.players; assert 'jax' not in sys.modules and 'orbax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_player_on_another_host_is_fetched_and_checked(store, tmp_path, monkeypatch):
    store.freeze("a", 5, VALUES)
    here = SentPlayers(tmp_path / "here")
    asked = here.folder / players.WANTED / "5"

    def send(seconds: float) -> None:
        assert asked.exists()
        (path,) = store.folder.glob("*.npz")
        (here.folder / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(players.time, "sleep", send)
    np.testing.assert_array_equal(here.load(5)[0], VALUES[0])
    assert not asked.exists()
    monkeypatch.setattr(players, "SENT_S", 0.0)
    with pytest.raises(SnapshotError, match="there is no player of version 6 in"):
        here.load(6)
    (path,) = here.folder.glob("*.npz")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match="has changed since it was frozen"):
        here.load(5)
