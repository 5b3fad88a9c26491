import functools
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from jsrl.errors import SnapshotError
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec, map_tree, named_leaves


class Moments(NamedTuple):
    mean: Any
    count: Any


def make_tree(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "params": {"Dense_0": {"kernel": rng.normal(size=(5, 3)).astype(np.float32), "bias": np.zeros(3, np.float32)}},
        "moments": Moments(mean=rng.normal(size=4), count=np.asarray(7, np.int64)),
        "optimizer": (Moments(np.arange(3, dtype=np.uint32), np.asarray(True)), (), None),
        "nothing": np.zeros((0, 4), np.float32),
        "mlp/~/linear": np.arange(6, dtype=np.uint8)[::2],
    }


def assert_same(left: Any, right: Any) -> None:
    left, right = list(named_leaves(left)), list(named_leaves(right))
    assert [name for name, _ in left] == [name for name, _ in right]
    for (name, a), (_, b) in zip(left, right, strict=True):
        assert isinstance(a, np.ndarray), name
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.fixture
def store(tmp_path):
    warnings: list[str] = []
    store = SnapshotStore(tmp_path / "snapshots", on_warning=warnings.append)
    store.warnings = warnings
    yield store
    assert store.close()


def data_files(store: SnapshotStore, version: int) -> list[Path]:
    return [p for p in (store.folder / str(version) / "arrays").rglob("*") if p.is_file() and p.parent.name == "d"]


def test_round_trip_with_template_keeps_structure(store):
    tree = make_tree()
    store.save(3, tree, meta={"env_steps": np.int64(12), "gamma": 0.5, "names": ("a", "b")}, wait=True)
    loaded, meta = store.load(template=map_tree(lambda leaf: ArraySpec(leaf.shape, str(leaf.dtype)), tree))
    assert isinstance(loaded["moments"], Moments)
    assert loaded["optimizer"][1:] == ((), None)
    assert_same(loaded, tree)
    assert meta == {"env_steps": 12, "gamma": 0.5, "names": ["a", "b"]}


@pytest.mark.slow
def test_a_process_without_jax_reads_bfloat16(store):
    store.save(3, {"a": np.full(3, 1.5, ml_dtypes.bfloat16)}, wait=True)
    code = (
        "import sys; from jsrl.services.snapshots.store import SnapshotStore; store = SnapshotStore(sys.argv[1])\n"
        "assert store.meta(3) == {} and 'jax' not in sys.modules; print(store.load(3).tree['a'].astype(float).tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(store.folder)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[1.5, 1.5, 1.5]", ran.stderr


def test_loads_nested_dicts_without_a_template(store):
    tree = make_tree()
    store.save(3, tree, wait=True)
    loaded, _ = store.load(3)
    assert isinstance(loaded["moments"], dict)
    np.testing.assert_array_equal(loaded["optimizer"]["0"]["mean"], tree["optimizer"][0].mean)
    assert loaded["nothing"].shape == (0, 4)
    assert type(loaded["params"]["Dense_0"]["kernel"]) is np.ndarray


def test_agent_state_of_jax_arrays_and_key_bits(store):
    import jax
    import jax.numpy as jnp
    import optax

    from jsrl.agents.base import ActParams, AgentState

    weights = {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.zeros(3)}
    key = jax.random.key_data(jax.random.key(4))
    state = AgentState(ActParams(weights), (), optax.adam(1e-3).init(weights), {"key": key}, jnp.asarray(9, jnp.int32))
    store.save(9, state, wait=True)
    loaded, _ = store.load("latest", template=state)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert_same(loaded, jax.tree.map(np.asarray, state))
    restored_key = jax.random.wrap_key_data(loaded.extra["key"])
    assert jax.random.bits(restored_key) == jax.random.bits(jax.random.key(4))


def test_save_copies_so_the_caller_may_reuse_its_buffers(store):
    array = np.zeros(200_000, np.float32)
    for version in range(3):
        array[:] = version
        store.save(version, {"a": array}, tags=(f"v{version}",))
        array[:] = -1
    assert store.wait(30)
    for version in range(3):
        loaded, _ = store.load(version)
        assert (loaded["a"] == version).all()


@pytest.mark.slow
def test_new_process_reads_a_snapshot(store):
    tree = make_tree()
    store.save(1, tree, meta={"note": "hello"}, wait=True)
    program = (
        "import sys; from jsrl.services.snapshots.store import SnapshotStore; assert 'jax' not in sys.modules\n"
        "tree, meta = SnapshotStore(sys.argv[1]).load('latest')\n"
        "print(repr(float(tree['params']['Dense_0']['kernel'].sum())), meta['note'])"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(store.folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.split() == [repr(float(tree["params"]["Dense_0"]["kernel"].sum())), "hello"]


def test_tags_and_retention(store):
    for version in range(8):
        store.save(version, {"a": np.asarray(version)}, wait=True)
        if version == 2:
            store.tag("best", 2, meta={"return_mean": 475.0})
    assert store.versions() == [2, 5, 6, 7]
    assert store.tags()["best"].version == 2
    assert store.tags()["best"].meta == {"return_mean": 475.0}
    assert store.load("best")[0]["a"] == 2
    assert store.load("latest")[0]["a"] == 7
    assert store.load("6")[0]["a"] == 6
    store.tag("best", 7)
    store.save(8, {"a": np.asarray(8)}, wait=True)
    assert store.versions() == [6, 7, 8]
    assert not list(store.folder.glob(".[pt]*"))


def test_missing_snapshot_lists_the_existing_ones(store):
    with pytest.raises(SnapshotError, match="holds none"):
        store.load()
    store.save(5, {"a": np.ones(2)}, wait=True)
    with pytest.raises(SnapshotError, match=r"no snapshot best .*versions: 5; tags: latest -> 5"):
        store.load("best")
    with pytest.raises(SnapshotError, match=r"no snapshot 6 .*versions: 5"):
        store.load(6)
    with pytest.raises(SnapshotError, match="no snapshot 77"):
        store.tag("best", 77)


def test_latest_without_its_tag_file_is_the_newest(store):
    store.save(5, {"a": np.ones(2)}, wait=True)
    store.save(6, {"a": np.ones(2)}, tags=(), wait=True)
    (store.folder / "tags" / "latest.json").unlink()
    assert store.resolve("latest") == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t["params"]["Dense_0"].update(kernel=np.zeros((5, 4), np.float32)),
            "params/Dense_0/kernel.*5, 3.*5, 4",
        ),
        (lambda t: t["params"]["Dense_0"].update(bias=np.zeros(3)), "params/Dense_0/bias.*float32.*float64"),
        (lambda t: t["params"]["Dense_0"].pop("bias"), "holds a leaf params/Dense_0/bias that the template lacks"),
        (lambda t: t["params"].update(Dense_1={"kernel": np.ones(1)}), "has no leaf params/Dense_1/kernel"),
    ],
)
def test_mismatched_template_names_the_leaf(store, change, words):
    store.save(1, make_tree(), wait=True)
    template = make_tree()
    change(template)
    with pytest.raises(SnapshotError, match=words):
        store.load(1, template)


def test_every_flipped_byte_of_the_data_is_found(store):
    tree = {"a": np.random.default_rng(0).normal(size=4000).astype(np.float32), "b": np.arange(10)}
    store.save(1, tree, wait=True)
    largest = max(data_files(store, 1), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    for position in np.linspace(0, len(content) - 1, 12).astype(int):
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        largest.write_bytes(flipped)
        try:
            loaded, _ = store.load(1)
        except SnapshotError as error:
            assert str(largest) in str(error)
            assert "broken" in str(error)
        else:
            assert_same(loaded, tree)  # a byte that nothing depends on
    largest.write_bytes(content)
    assert_same(store.load(1)[0], tree)


def test_truncated_and_missing_files_are_named(store):
    store.save(1, {"a": np.arange(5000.0)}, wait=True)
    store.save(2, {"a": np.arange(5000.0) + 1}, wait=True)
    largest = max(data_files(store, 2), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    with pytest.raises(SnapshotError, match=f"{largest.name} has 100 bytes"):
        store.load()
    largest.unlink()
    with pytest.raises(SnapshotError, match=f"{largest.name} is missing"):
        store.load()
    assert store.load(1)[0]["a"][0] == 0


def test_foreign_files_and_newer_formats_are_refused(store):
    (store.folder / "4").mkdir(parents=True)
    with pytest.raises(SnapshotError, match="not written by jsrl"):
        store.load(4)
    (store.folder / "4" / "manifest.json").write_text('{"format": "jsrl-snapshot-99"}')
    with pytest.raises(SnapshotError, match="is not a snapshot of this jsrl"):
        store.load(4)
    (store.folder / "4" / "manifest.json").write_text("{")
    with pytest.raises(SnapshotError, match=r"manifest\.json is broken"):
        store.load(4)


def test_a_failed_write_warns_and_the_last_good_snapshot_loads(store, monkeypatch):
    store.save(1, {"a": np.ones(2)}, wait=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jsrl.services.snapshots.store.orbax_save", full)
    store.save(2, {"a": np.ones(2)})
    assert store.wait(10)
    assert (store.queue.written, store.queue.failed) == (1, 1)
    assert len(store.warnings) == 1
    assert "snapshot 2 was not written" in store.warnings[0]
    assert "No space left" in store.warnings[0]
    with pytest.raises(SnapshotError, match="No space left"):
        store.save(3, {"a": np.ones(2)}, wait=True)
    monkeypatch.undo()
    assert store.load()[0]["a"].shape == (2,)
    assert store.versions() == [1]
    assert not list(store.folder.glob(".partial-*"))
    store.save(4, {"a": np.ones(2)}, wait=True)
    assert store.versions() == [1, 4]


def test_full_disk_is_found_before_orbax_writes(tmp_path, monkeypatch):
    """Orbax prints tracebacks of its threads when a disk is full."""
    store = SnapshotStore(tmp_path / "s", on_warning=[].append)
    store.save(1, {"a": np.ones(2)}, wait=True)
    full = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    written = []
    monkeypatch.setattr("jsrl.services.snapshots.store.orbax_save", lambda folder, tree: written.append(folder))
    with pytest.raises(SnapshotError, match="No space left on device: 100,000 bytes are free, at least 1,062,144 are"):
        store.save(2, {"a": np.ones(100_000)}, wait=True)
    assert store.versions() == [1] and not written


@pytest.mark.slow
def test_real_write_error_from_the_system(tmp_path):
    """A file size limit replaces a full disk: the system refuses a write in the middle of Orbax's own writing."""
    program = """
import resource, signal, sys
import numpy as np
from jsrl.services.snapshots.store import SnapshotStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
warnings = []
store = SnapshotStore(sys.argv[1], on_warning=warnings.append)
rng = np.random.default_rng(0)
store.save(1, {"a": np.ones(10)}, wait=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
store.save(2, {"a": rng.normal(size=1_000_000)})
assert store.wait(60)
assert store.queue.failed == 1 and "snapshot 2 was not written" in warnings[0], warnings
assert store.load()[0]["a"].sum() == 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save(3, {"a": np.ones(3)}, wait=True)
assert store.versions() == [1, 3], store.versions()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_unwritable_folder_warns(tmp_path):
    (tmp_path / "file").write_text("in the way")
    warnings: list[str] = []
    store = SnapshotStore(tmp_path / "file" / "snapshots", on_warning=warnings.append)
    store.save(1, {"a": np.ones(1)})
    assert store.wait(10)
    assert "file/snapshots" in warnings[0]
    with pytest.raises(SnapshotError, match="holds none"):
        store.load()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": {"b": "text"}}, "leaf a/b has dtype <U4"),
        (np.ones(3), "wrap the bare array"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "same name"),
        ({"a": np.ones(1, ">f4")}, r"leaf a has another byte order .* \.astype\('float32'\)"),
        (functools.reduce(lambda tree, _: {"a": tree}, range(65), np.ones(1)), "65 levels deep"),
    ],
)
def test_unstorable_leaves_are_refused_at_once(store, tree, words):
    with pytest.raises(SnapshotError, match=words):
        store.save(1, tree)


def test_typed_keys_bad_tags_and_bad_meta_are_refused(store):
    import jax

    with pytest.raises(SnapshotError, match=r"leaf key .*key_data"):
        store.save(1, {"key": jax.random.key(0)})
    with pytest.raises(SnapshotError, match="cannot be a tag"):
        store.save(1, {"a": np.ones(1)}, tags=("../evil",))
    with pytest.raises(SnapshotError, match="cannot be a tag"):
        store.tag("12", 1)
    with pytest.raises(SnapshotError, match="object has no JSON form"):
        store.save(1, {"a": np.ones(1)}, meta={"x": object()})
    with pytest.raises(SnapshotError, match="at least 3"):
        SnapshotStore(store.folder, keep_last=2)


def test_queued_saves_are_superseded(store):
    gate, begun = threading.Event(), threading.Event()
    write = store.queue._write
    store.queue._write = lambda job: (begun.set(), gate.wait(10), write(job))
    store.save(0, {"a": np.asarray(0)})
    assert begun.wait(10)
    for version in range(1, 20):
        store.save(version, {"a": np.asarray(version)})
    store.save(20, {"a": np.asarray(20)}, tags=("final",))
    gate.set()
    assert store.wait(30)
    assert store.versions() == [0, 19, 20]
    assert store.queue.superseded == 18
    assert store.load("latest")[0]["a"] == 19
    assert store.load("final")[0]["a"] == 20


def test_an_existing_version_is_replaced_and_its_tags_follow(store):
    store.save(1, {"a": np.asarray(1)}, tags=("latest", "best"), wait=True)
    store.save(1, {"a": np.asarray(2), "b": np.ones(2)}, wait=True)
    assert store.load("best")[0]["a"] == 2
    assert store.load("latest")[0]["a"] == 2


def test_saving_the_same_arrays_again_merges_meta_and_repairs_damage(store):
    arrays = {"a": np.arange(5000.0)}
    store.save(1, arrays, meta={"updates": 7}, wait=True)
    before = {path.name for path in data_files(store, 1)}
    store.save(1, arrays, meta={"return_mean": 9.0}, tags=("best",), wait=True)
    assert {path.name for path in data_files(store, 1)} == before
    assert store.meta(1) == store.meta("best") == {"updates": 7, "return_mean": 9.0}
    assert store.tags()["latest"].meta == {"updates": 7}
    data_files(store, 1)[0].write_bytes(b"")
    store.save(1, arrays, wait=True)
    assert store.load("best").tree["a"][-1] == 4999


def test_meta_of_a_tag_takes_precedence_and_is_read_without_jax(store):
    store.save(4, {"a": np.ones(1)}, meta={"updates": 4, "note": "from save"}, wait=True)
    store.tag("best", 4, meta={"note": "from tag"})
    assert store.load("best").meta == {"updates": 4, "note": "from tag"}
    program = (
        "import sys; from jsrl.services.snapshots.store import SnapshotStore\n"
        "print(SnapshotStore(sys.argv[1]).meta('best')['note']); assert not {'jax', 'orbax'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, str(store.folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout == "from tag\n"
    with pytest.raises(SnapshotError, match="no snapshot other"):
        store.meta("other")


def test_leftovers_of_dead_processes_are_removed(store):
    import socket

    store.folder.mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".partial-{socket.gethostname()}-{dead.pid}-1", ".partial-other-host-1-1"):
        (store.folder / name).mkdir()
    store.save(1, {"a": np.ones(1)}, wait=True)
    assert [path.name for path in store.folder.glob(".partial-*")] == [".partial-other-host-1-1"]


@pytest.mark.slow
def test_readers_race_with_a_writer_and_its_retention(store):
    """A reader in another process loads continuously; it must never see a mixture, a gap or an error."""
    program = """
import sys, time
from jsrl.services.snapshots.store import SnapshotStore
store = SnapshotStore(sys.argv[1])
loads, last, stop = 0, -1, time.monotonic() + 120
while time.monotonic() < stop:
    snapshot = store.load_snapshot("latest")
    a = snapshot.tree["a"]
    assert (a == snapshot.version).all() and snapshot.meta["version"] == snapshot.version, (a, snapshot.version)
    assert snapshot.version >= last
    last, loads = snapshot.version, loads + 1
    if loads == 1: print("ready", flush=True)
    if snapshot.meta["last"]: break
print(loads)
"""
    store.save(0, {"a": np.zeros(20_000)}, meta={"version": 0, "last": False}, wait=True)
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(store.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert reader.stdout.readline() == "ready\n"
    started = time.monotonic()
    version = 0
    while time.monotonic() - started < 2.5:
        version += 1
        store.save(version, {"a": np.full(20_000, float(version))}, meta={"version": version, "last": False}, wait=True)
    store.save(
        version + 1, {"a": np.full(20_000, version + 1.0)}, meta={"version": version + 1, "last": True}, wait=True
    )
    out, err = reader.communicate(timeout=240)
    assert reader.returncode == 0, err[-2000:]
    assert int(out) > 3
    assert version > 3


@pytest.mark.slow
def test_two_processes_write_one_folder(store):
    program = """
import sys
import numpy as np
from jsrl.services.snapshots.store import SnapshotStore

warnings = []
store = SnapshotStore(sys.argv[1], on_warning=warnings.append)
for version in range(1001, 1020, 2):
    store.save(version, {"a": np.full(10, version)}, tags=("odd",), wait=True)
assert not warnings, warnings
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(store.folder)], env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    for version in range(1000, 1200, 2):
        store.save(version, {"a": np.full(10, version)}, tags=("even",), wait=True)
        if other.poll() is not None:
            break
    assert other.wait(60) == 0
    assert store.warnings == []
    assert (store.load("odd")[0]["a"] == 1019).all()
    assert (store.load("even")[0]["a"] == version).all()


def test_a_write_that_the_end_of_the_process_stops_is_no_warning():
    """Of a run that a second Ctrl-C ended; then jax's threads are gone, and a write fails."""
    program = """
import sys, threading
from jsrl.services.snapshots.queue import Job, WriteQueue

def write(job):
    if job.version:
        threading.main_thread().join()
    raise RuntimeError("cannot schedule new futures after shutdown")

queue = WriteQueue(write, print, "x", print)
queue.put(Job(0, [], {}, ()))
queue.wait(10.0)
queue.put(Job(1, [], {}, ()))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.count("was not written") == 1 and "snapshot 0" in ran.stdout and not ran.stderr
