"""The state of a run from its folder: while its process lives, after that, and on another host."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from jsrl.control.resume import claimed
from jsrl.errors import ConfigError
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import (
    RESULT,
    RUNNING,
    SILENT_S,
    STATUS,
    UNREADABLE,
    ControllerStatus,
    held_by,
    read_state,
    write_status,
)
from jsrl.transport.shared import locks as file_locks
from jsrl.transport.shared.locks import is_held

OWN = ProcessIdentity.own()
ELSEWHERE = dataclasses.replace(OWN, host="far", boot="another")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "ppo", "x")


def leave(folder: RunFolder, process: ProcessIdentity, *, status: bool = True, age_s: float = 0.0) -> None:
    """Leave the files of a process that holds no lock visible to this host."""
    (folder.path / RUNNING).write_bytes(msgspec.json.encode(process))
    if status:
        write_status(folder.path, ControllerStatus(process, time.time()))
    for name in (RUNNING, STATUS):
        if (folder.path / name).exists():
            os.utime(folder.path / name, (time.time() - age_s,) * 2)


def test_run_is_claimed_once_even_if_its_last_process_leaves_meanwhile(folder: RunFolder, monkeypatch) -> None:
    running, lock, locks = folder.path / RUNNING, file_locks.try_lock, []

    def late(fd: int) -> bool:
        if not locks:
            running.unlink()  # the last process leaves between the opening of the file and its lock
        locks.append(fd)
        return lock(fd)

    monkeypatch.setattr(file_locks, "try_lock", late)
    with claimed(folder):
        assert len(locks) == 2 and is_held(running)
        with pytest.raises(ConfigError, match="is running"), claimed(folder):
            pass
    assert not running.exists()


def test_process_is_identified_despite_id_reuse():
    assert OWN.is_alive and ProcessIdentity.own() == OWN
    assert not dataclasses.replace(OWN, started=OWN.started + 1).is_alive
    assert not ELSEWHERE.is_alive and not ELSEWHERE.is_near
    assert not dataclasses.replace(OWN, namespace="pid:[1]").is_near


def test_a_run_that_this_host_runs(folder: RunFolder):
    write_status(folder.path, ControllerStatus(ELSEWHERE, 0.0))  # of an earlier session
    with claimed(folder):
        assert read_state(folder.path).name == "starting" and read_state(folder.path).status is None
        write_status(folder.path, ControllerStatus(OWN, time.time()))
        assert read_state(folder.path).name == "running"
        write_status(folder.path, ControllerStatus(OWN, time.time(), reason="interrupted"))
        state = read_state(folder.path)
        assert state.name == "ending" and state.is_running and state.process == OWN
        assert held_by(folder.path) == f"{os.getpid()} on {OWN.host}"
    assert read_state(folder.path).name == "killed"
    (folder.path / RESULT).write_text(json.dumps({"ended": "interrupted"}))
    assert read_state(folder.path).name == "ended" and not held_by(folder.path)


def test_a_process_of_this_host_that_left_no_result_was_killed(folder: RunFolder):
    leave(folder, OWN)
    state = read_state(folder.path)
    assert state.name == "killed" and state.process == OWN and state.status is not None


@pytest.mark.parametrize(("status", "age_s", "word"), [
    (True, 0.0, "running"), (True, SILENT_S + 5, "silent"), (False, 0.0, "starting"), (False, SILENT_S + 5, "silent"),
])  # fmt: skip
def test_process_on_another_host_is_judged_by_its_status_file(folder: RunFolder, status: bool, age_s: float, word: str):
    leave(folder, ELSEWHERE, status=status, age_s=age_s)
    state = read_state(folder.path)
    assert state.name == word and state.process == ELSEWHERE
    assert abs((state.age_s or 0.0) - age_s) < 5
    (folder.path / RESULT).write_text(json.dumps({"ended": "total_env_steps"}))
    assert read_state(folder.path).name == "ended"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "4711\n"])
def test_damaged_files_count_as_missing(folder: RunFolder, content: str):
    (folder.path / STATUS).write_text(content)
    assert read_state(folder.path).name == "killed"
    (folder.path / RESULT).write_text(content)
    state = read_state(folder.path)
    assert state.result["ended"] == UNREADABLE and str(folder.path / RESULT) in state.result["error"]


def test_a_folder_that_became_read_only_does_not_replace_the_outcome(folder: RunFolder, monkeypatch) -> None:
    def refused(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with claimed(folder):
        monkeypatch.setattr(Path, "unlink", refused)
    assert held_by(folder.path) == ""
