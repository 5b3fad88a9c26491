"""Recordings: they hold the committed trajectories, nothing waits for the disk, and they are read back as windows."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from jsrl.errors import RecordingError, SpecMismatch
from jsrl.services.metrics.metrics import Meter
from jsrl.services.recordings import recordings
from jsrl.services.recordings.recordings import (
    Source,
    begin_recording,
    check_trains,
    make_manifest,
    open_recording,
    read_manifest,
)
from jsrl.transport.base import Entry, ProducerId
from jsrl.types import (
    ArraySpec,
    Discrete,
    EnvSpec,
    Trajectory,
    leaves,
    make_trajectory_spec,
    map_tree,
    named_leaves,
    with_columns,
)
from jsrl.workers.attached import recording
from jsrl.workers.attached.recorded import RecordedConsumer
from jsrl.workers.attached.recording import RecordingWriter
from tests.marks import nightly, slow

T, B = 6, 3
ENV, OPTIONS = {"fields": {"name": "test"}}, {"id": "test", "kwargs": {}}
OBSERVATION = {"image": ArraySpec((2, 2), "uint8"), "place": ArraySpec((), "float32")}


def make_spec(rows: int = T, envs: int = B, observation=None, extras=(), core=()) -> Trajectory:
    env = EnvSpec(OBSERVATION if observation is None else observation, Discrete(4))
    return make_trajectory_spec(env, extras, core, num_rows=rows, num_envs=envs)


SPEC = make_spec(extras={"value": ArraySpec((), "float32")}, core=ArraySpec((5,), "float32"))


def numbered(number: int, spec: Trajectory = SPEC) -> Trajectory:
    """A trajectory whose `place` encodes trajectory, row and column; other leaves are noise."""
    rng = np.random.default_rng(number)
    made = map_tree(lambda leaf: rng.integers(0, 2, leaf.shape).astype(leaf.dtype), spec)
    rows, columns = np.indices(spec.is_first.shape)
    place = (number * 10_000 + rows * 100 + columns).astype(np.float32)
    return made._replace(observation=made.observation | {"place": place}, action=(place % 97).astype(np.int32))


def manifest_of(source: Source, spec: Trajectory = SPEC, env=ENV, options=OPTIONS):
    return make_manifest(env, options, spec, source=source, versions={"jsrl": "0"})


def writer_to(folder, **options) -> RecordingWriter:
    warned = options.pop("warned", [])
    begin_recording(folder, manifest_of(Source("a test/one", 0, "learning")))
    values = {"meter": Meter("actor"), "warn": warned.append, "limit_bytes": 2**30, "wait": True}
    return RecordingWriter(folder, "actor-0", SPEC, **(values | options))


def record(folder, number: int, *, first: int = 0, **options) -> RecordingWriter:
    writer = writer_to(folder, **options)
    for i in range(first, first + number):
        source = numbered(i)
        writer.before_commit(source)
        for leaf in leaves(source):
            leaf[...] = 0  # after the commit, the memory belongs to the consumer
        writer.after_commit(Entry(ProducerId("actor-0", 0), i % 2, i))
    writer.close()
    return writer


def test_files_hold_the_committed_trajectories(tmp_path):
    assert record(tmp_path, 7, chunk_bytes=1).recorded == 7  # one file each
    found = open_recording(tmp_path)
    assert [chunk.count for chunk in found.chunks] == [1] * 7
    assert found.env_steps == 7 * T * B
    assert not list(tmp_path.glob(".*.draft"))  # no partial files
    assert found.manifest.versions == {"jsrl": "0"}
    with np.load(found.chunks[3].path, allow_pickle=False) as file:  # numpy alone reads it
        expected = numbered(3)
        for name, leaf in named_leaves(expected):
            np.testing.assert_array_equal(file[name][0], leaf)
        assert (file["entry/group"][0], file["entry/sequence"][0]) == (1, 3)


def test_slow_disk_drops_trajectories_without_delay(tmp_path, monkeypatch):
    slow, warned = threading.Event(), []

    def write_chunk(path, names, taken):
        slow.wait(20)
        return recordings.write_chunk(path, names, taken)

    monkeypatch.setattr(recording, "write_chunk", write_chunk)
    writer = writer_to(tmp_path, wait=False, chunk_bytes=1, warned=warned)
    for i in range(20):
        writer.before_commit(numbered(i))
        writer.after_commit(Entry(ProducerId("actor-0", 0), 0, i))
    assert writer.dropped == 20 - recording.MIN_BUFFERS
    assert len(warned) == 1 and "does not keep up" in warned[0]
    slow.set()
    writer.close()
    assert sum(chunk.count for chunk in open_recording(tmp_path).chunks) == writer.recorded == recording.MIN_BUFFERS
    assert f"{writer.dropped} not recorded" in writer.summary


def test_full_disk_ends_the_recording_but_not_the_run(tmp_path, monkeypatch):
    warned = []

    def write_chunk(path, names, taken):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "write_chunk", write_chunk)
    writer = record(tmp_path, 9, chunk_bytes=1, warned=warned)
    assert writer.dropped == 9
    assert "No space left" in "".join(warned)
    with pytest.raises(RecordingError, match="holds no trajectories yet"):
        open_recording(tmp_path)


def test_a_recording_keeps_to_its_limit(tmp_path):
    warned = []
    writer = record(tmp_path, 40, chunk_bytes=1, limit_bytes=20_000, warned=warned)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.npz"))
    assert 20_000 <= size < 20_000 + 2 * size / len(list(tmp_path.glob("*.npz")))
    assert 0 < writer.dropped < 40
    assert "record_limit_mb" in "".join(warned)


def test_equal_runs_share_a_folder_and_others_do_not(tmp_path):
    record(tmp_path, 2)
    record(tmp_path, 3, first=2)
    assert sum(chunk.count for chunk in open_recording(tmp_path).chunks) == 5
    source = Source("other/one", 0, "learning")
    for other, told in {
        "leaf observation/image": manifest_of(source, make_spec(rows=T + 1)),
        "'name': 'b'.* another folder": manifest_of(source, env={"fields": {"name": "b"}}),
        r"'kwargs': \{\}\}, this one has \{'kwargs': \{'gravity': 2\}\}": manifest_of(
            source, options=OPTIONS | {"kwargs": {"gravity": 2}}
        ),
    }.items():
        with pytest.raises(SpecMismatch, match=other):
            begin_recording(tmp_path, told)


def test_every_source_is_in_the_manifest_and_none_records_the_same_episodes_twice(tmp_path):
    sources = [
        Source("ppo/one", 0, "learning"),
        Source("ppo/two", 1, "learning"),
        Source("ppo/one@best", 1, "greedy"),
        Source("ppo/one@best", 1, "sampled"),
        Source("ppo/two@best", 1, "greedy"),
        Source("sac/one", 0, "learning"),
    ]
    for source in (*sources, sources[0]):  # a resumed run goes on
        begin_recording(tmp_path, manifest_of(source))
    assert read_manifest(tmp_path).sources == tuple(sources)
    for again in (Source("ppo/three", 0, "learning"), sources[2]):
        with pytest.raises(RecordingError, match=f"{again.name} would begin with the same ones; give another --seed"):
            begin_recording(tmp_path, manifest_of(again))


def test_foreign_folder_is_not_changed(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RecordingError, match="a separate folder"):
        writer_to(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    record(tmp_path, 3, chunk_bytes=1)
    broken = sorted(tmp_path.glob("*.npz"))[1]
    content = broken.read_bytes()
    broken.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(RecordingError, match=f"{broken.name} is broken or truncated"):
        open_recording(tmp_path)


def test_an_altered_byte_is_found(tmp_path):
    record(tmp_path, 1)
    path = next(tmp_path.glob("*.npz"))
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 150] ^= 255
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="broken"):
        found = open_recording(tmp_path)
        for name in ("observation/image",):
            recordings.read_chunk(found, found.chunks[0], [name])


def rewritten(folder, save=np.savez, **changes) -> recordings.Recording:
    """Return a recording of two trajectories in which functions (array -> array) have changed some of the arrays."""
    record(folder, 2)
    (path,) = folder.glob("*.npz")
    arrays = dict(np.load(path))
    arrays |= {"acts": np.ones_like(arrays["acts"]), "is_first": np.zeros_like(arrays["is_first"])}
    save(path, **(arrays | {name: change(arrays[name]) for name, change in changes.items()}))
    return open_recording(folder)


def test_a_file_of_another_form_is_not_called_broken(tmp_path):
    for name, dtype in (("a", np.float64), ("b", np.float16)):
        found = rewritten(tmp_path / name, reward=lambda rewards, dtype=dtype: rewards.astype(dtype))
        words = rf"npz: reward is {dtype.__name__}\[2, 7, 3\], but recording.json says float32\[2, 7, 3\]\."
        with pytest.raises(RecordingError, match=words):
            recordings.read_chunk(found, found.chunks[0], ["reward"])
    with pytest.raises(
        RecordingError, match=r"npz: .* is compressed; write the files of a recording with numpy.savez\."
    ):
        rewritten(tmp_path / "c", save=np.savez_compressed)


def test_no_trajectories_are_refused(tmp_path):
    with pytest.raises(RecordingError, match="holds no trajectories yet"):
        rewritten(tmp_path, **{"entry/sequence": lambda numbers: numbers[:0]})


def test_data_of_which_no_row_trains_is_refused(tmp_path):
    check_trains(rewritten(tmp_path / "good"))
    first = rewritten(
        tmp_path / "first", is_first=np.ones_like
    )  # episodes of one step, without their last observations
    waiting = rewritten(tmp_path / "waiting", acts=np.zeros_like)
    for found in (first, waiting):
        with pytest.raises(RecordingError, match=rf"no row of {found.folder} trains"):
            check_trains(found)

    def one(firsts):
        firsts[...] = True
        firsts[1, 2, 0] = False
        return firsts

    check_trains(rewritten(tmp_path / "one", is_first=one))


def test_nan_is_named_with_file_and_row(tmp_path):
    def spoilt(rewards):
        rewards[1, 1, 0] = np.nan
        return rewards

    found, names = rewritten(tmp_path / "a", reward=spoilt), ["reward", "is_first", "acts"]
    (path,) = found.folder.glob("*.npz")
    with pytest.raises(RecordingError, match=rf"{path.name}: reward is NaN in row 1 of environment 0 of trajectory 1 "):
        recordings.read_chunk(found, found.chunks[0], names)

    def last(firsts):
        firsts[1, 2, 0] = True
        return firsts

    found = rewritten(tmp_path / "b", reward=spoilt, is_first=last)  # the reward of a row that trains nothing
    assert np.isnan(recordings.read_chunk(found, found.chunks[0], names)[0][1, 1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "format None"), ('{"format": 1}', "format 1, expected 2"),
     ('{"format": 2, "env": {}}', "not a manifest"),
     ('{"format": 2, "env": {}, "options": {}, "schema": [], "rows": 3, "envs": 2, "sources": [], "versions": {}}',
      "is_first is None")],
)  # fmt: skip
def test_a_foreign_manifest_is_refused(tmp_path, text, message):
    (tmp_path / "recording.json").write_text(text)
    with pytest.raises(RecordingError, match=message):
        open_recording(tmp_path)


def test_missing_recording_explains_how_to_make_one(tmp_path):
    with pytest.raises(RecordingError, match="--record"):
        open_recording(tmp_path / "nothing")


# -- reading ----------------------------------------------------------------------------------------------------------


def consumer_of(folder, *, rows: int = 2, columns: int = 4, start: int = 0, **options) -> RecordedConsumer:
    spec = with_columns(make_spec(rows=rows, envs=1), columns)
    return RecordedConsumer(open_recording(folder), spec, seed=1, start=start, **options)


def first_places(consumer: RecordedConsumer, number: int) -> list[float]:
    """Take leases; check that each window has consecutive rows of one column; return where windows start."""
    places = []
    for _ in range(number):
        lease = consumer.get(1.0)
        place = lease.trajectory.observation["place"]
        steps = np.arange(place.shape[0])[:, None] * 100
        np.testing.assert_array_equal(place, place[0] + steps)
        np.testing.assert_array_equal(lease.trajectory.action, place % 97)
        places += place[0].tolist()
        consumer.release(lease)
    return places


@pytest.mark.parametrize("pool_bytes", [1, 2**20])
def test_an_epoch_gives_every_window_once(tmp_path, pool_bytes):
    record(tmp_path, 8, chunk_bytes=1)
    consumer = consumer_of(tmp_path, pool_bytes=pool_bytes)
    windows = 8 * B * (T // 2)
    expected = sorted(n * 10_000 + row * 100 + b for n in range(8) for row in (0, 2, 4) for b in range(B))
    one, two = first_places(consumer, windows // 4), first_places(consumer, windows // 4)
    assert sorted(one) == sorted(two) == expected
    assert one not in (two, expected)
    assert consumer.ledger.consumed == windows // 2 and consumer.ledger.balanced


def test_windows_cover_the_last_row_when_not_divisible(tmp_path):
    record(tmp_path, 1)
    consumer = consumer_of(tmp_path, rows=4, columns=2 * B)
    assert {int(place) // 100 % 100 for place in first_places(consumer, 1)} == {0, 2}


@pytest.mark.parametrize(
    ("start", "pool_bytes"),
    [
        (1, 1),
        (18, 1),
        (40, 2**20),
        slow(1, 2**20),
        slow(17, 1),
        slow(18, 2**20),
        nightly(17, 2**20),
        nightly(40, 1),
    ],
)
def test_later_session_continues_the_recording(tmp_path, pool_bytes, start):
    record(tmp_path, 8, chunk_bytes=1)
    whole = first_places(consumer_of(tmp_path, pool_bytes=pool_bytes, columns=5), start + 20)
    later = first_places(consumer_of(tmp_path, pool_bytes=pool_bytes, columns=5, start=start), 20)
    assert later == whole[start * 5 :]


def test_differing_leaves_are_named(tmp_path):
    record(tmp_path, 1)
    found = open_recording(tmp_path)
    wrong = make_spec(observation=OBSERVATION | {"place": ArraySpec((3,), "float32")})
    with pytest.raises(SpecMismatch, match=r"leaf observation/place: the experiment needs float32\[3\]"):
        RecordedConsumer(found, wrong, seed=0)
    with pytest.raises(SpecMismatch, match=r"leaf extras/advantage.*no such leaf"):
        RecordedConsumer(found, make_spec(extras={"advantage": ArraySpec((), "float32")}), seed=0)
    with pytest.raises(RecordingError, match="trajectories of 6 rows, but rollout_length is 7"):
        RecordedConsumer(found, make_spec(rows=7), seed=0)
    assert RecordedConsumer(found, make_spec(extras={"value": ArraySpec((), "float32")}), seed=0).pending() == 1


def test_a_manifest_is_plain_json(tmp_path):
    record(tmp_path, 1)
    found = json.loads((tmp_path / "recording.json").read_text())
    assert found["sources"] == [{"name": "a test/one", "seed": 0, "actions": "learning"}]
    assert ["reward", [T + 1, B], "float32"] in found["schema"]
