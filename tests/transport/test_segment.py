"""Shared-memory segments between real processes, locks and schemas."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from jsrl.errors import CodecError, ConfigError, SpecMismatch, StreamClosed
from jsrl.transport.shared import locks
from jsrl.transport.shared.locks import (
    ALIVE,
    is_held,
    living_folder,
    lock_file,
    make_folder,
    remove_unless_living,
    share_lock,
)
from jsrl.transport.shared.segment import Segment
from jsrl.transport.wire.schema import (
    Leaf,
    compare_schemas,
    flatten_schema,
    make_layout,
    schema_from_fields,
    schema_to_fields,
)
from jsrl.types import ArraySpec

SCHEMA = {"image": ArraySpec((3, 5), "uint8"), "empty": ArraySpec((0, 2), "float32"), "x": (ArraySpec((), "float64"),)}


def python(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_a_segment_is_private_aligned_and_shared(tmp_path):
    folder = make_folder(tmp_path / "run")
    layout = make_layout(flatten_schema(SCHEMA))
    assert layout.offsets == (0, 0, 64) and layout.size_bytes == 128
    segment = Segment.create(folder / "s", 4096)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700 and stat.S_IMODE(os.stat(folder / "s").st_mode) == 0o600
    tree = layout.tree(SCHEMA, segment.buffer, 64)
    assert not tree["image"].any()
    code = (
        "import sys; from jsrl.transport.shared.segment import Segment\n"
        "words = Segment.attach(sys.argv[1]).words(64, 9); words[0] = 258; words[8] = -1"
    )
    with python(code, folder / "s") as child:
        assert child.wait() == 0
    assert tree["image"].ravel()[:2].tolist() == [2, 1] and np.isnan(tree["x"][0])
    assert (folder / "s").exists()  # an attaching process that exits removes nothing
    frozen = layout.views(segment.buffer, 64, writeable=False)
    with pytest.raises(ValueError):
        frozen[1][:] = 1
    segment.unlink()
    segment.close()
    assert tree["image"].ravel()[0] == 2  # views outlive the close
    with pytest.raises(StreamClosed):
        layout.views(segment.buffer)
    with pytest.raises(StreamClosed, match="no segment"):
        Segment.attach(folder / "s")


def test_a_segment_needs_room_and_a_new_name(tmp_path):
    folder = make_folder(tmp_path / "run")
    Segment.create(folder / "s", 64).close()
    with pytest.raises(ConfigError, match="exists"):
        Segment.create(folder / "s", 64)
    with pytest.raises(ConfigError, match="bytes"):
        Segment.create(folder / "huge", 1 << 60)
    assert not (folder / "huge").exists()


def test_a_folder_that_others_can_read_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="0700"):
        make_folder(folder)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        make_folder(tmp_path / "file" / "below")
    (tmp_path / "link").symlink_to(make_folder(tmp_path / "run"))
    with pytest.raises(ConfigError):
        make_folder(tmp_path / "link")


def test_lock_is_shared_by_several_or_held_by_one(tmp_path):
    path = tmp_path / "running"
    assert not share_lock(path)  # there is no such file
    alone = lock_file(path)
    assert alone is not None and not share_lock(path)
    os.close(alone)
    assert share_lock(path) and share_lock(path) and is_held(path) and lock_file(path) is None


def test_schemas_differ_by_name():
    ours = flatten_schema(SCHEMA)
    assert schema_from_fields(schema_to_fields(ours)) == ours
    compare_schemas(ours, flatten_schema({**SCHEMA}), "a", "b")
    for other, words in (
        ({**SCHEMA, "image": ArraySpec((4, 5), "uint8")}, r"image: a has uint8\[3, 5\], b has uint8\[4, 5\]"),
        ({**SCHEMA, "x": (ArraySpec((), "float32"),)}, r"x/0: a has float64\[\], b has float32"),
        ({**SCHEMA, "more": ArraySpec((), "int8")}, "more: b has int8.*a has no such leaf"),
        ({"image": SCHEMA["image"]}, "empty: a has .*b has no such leaf"),
    ):
        with pytest.raises(SpecMismatch, match=words):
            compare_schemas(ours, flatten_schema(other), "a", "b")


@pytest.mark.parametrize(
    "fields", [None, 3, [["x", [1]]], [["x", [-1], "int8"]], [["x", [2**40, 2], "int8"]], [["x", [1] * 33, "int8"]]]
)
def test_broken_schemas_are_codec_errors(fields):
    with pytest.raises(CodecError):
        schema_from_fields(fields)


def test_object_arrays_have_no_schema():
    with pytest.raises(CodecError, match="cannot be sent"):
        flatten_schema(np.array([object()]))
    assert flatten_schema(np.zeros(2, ">f4")) == (Leaf("", (2,), ">f4"),)


@pytest.mark.parametrize("moment", ["before its file", "before its lock"])
def test_folder_that_another_process_removes_while_it_is_made_is_made_again(tmp_path, monkeypatch, moment):
    """Every start of a run removes the folders of killed runs."""
    path, early = tmp_path / "run", [True]
    make, lock = locks.make_folder, locks.try_lock

    def interfere(result):
        if early and early.pop():
            remove_unless_living(path)
        return result

    if moment == "before its file":
        monkeypatch.setattr(locks, "make_folder", lambda folder: interfere(make(folder)))
    else:
        monkeypatch.setattr(locks, "try_lock", lambda fd: lock(interfere(fd)))
    with living_folder(path) as folder:
        assert not early and is_held(folder / ALIVE)
        remove_unless_living(folder)
        assert is_held(folder / ALIVE)
    assert not path.exists()


def test_folder_of_a_killed_process_is_removed(tmp_path):
    code = "import sys, time; from pathlib import Path; from jsrl.transport.shared.locks import living_folder\n"
    code += "with living_folder(Path(sys.argv[1])):\n  print('made', flush=True); time.sleep(60)"
    with python(code, tmp_path / "run") as owner:
        assert owner.stdout.readline() == "made\n"
        remove_unless_living(tmp_path / "run")
        assert (tmp_path / "run").exists()
        owner.kill()
    remove_unless_living(tmp_path / "run")
    (tmp_path / "half").mkdir()  # whose process was killed while it removed the folder
    remove_unless_living(tmp_path / "half")
    assert list(tmp_path.iterdir()) == []
