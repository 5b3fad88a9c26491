"""`jsrl logs`: of the controller, of a worker, of a running run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from jsrl.cli import logs, main
from jsrl.control.resume import claimed
from jsrl.control.status_writer import StatusWriter
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import WorkerSummary


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("runs", "ppo", "x", config={})
    (folder.logs / "controller.log").write_text("begun\nat work\n")
    (folder.logs / "actor-0.log").write_text("stepping")
    return folder


def test_prints_the_end_of_a_log(folder: RunFolder, capsys):
    assert main.main(["logs", "x", "--lines", "1"]) == 0
    assert capsys.readouterr().out == "at work\n"
    assert main.main(["logs", "ppo/x", "actor-0", "--follow"]) == 0  # the run has ended
    assert capsys.readouterr().out == "stepping\n"


def test_an_empty_log_is_called_empty(folder: RunFolder, capsys):
    (folder.logs / "learner.log").touch()
    assert main.main(["logs", "x", "learner"]) == 0
    assert capsys.readouterr().out == "The log of learner is empty.\n"


def test_unknown_log_names_are_refused(folder: RunFolder, capsys):
    with claimed(folder):
        workers = (WorkerSummary("actor-1", "actor", "ready", host="far"),)
        StatusWriter(folder.path).update(DisplayState("ppo/x"), lambda: workers, "")
        for worker, sentence in (
            ("actor-1", "actor-1 runs on host far, where its log is; logs here: controller, actor-0."),
            ("critic", "ppo/x has no log of 'critic'; it has: controller, actor-0."),
        ):
            assert main.main(["logs", "x", worker]) == 2
            assert capsys.readouterr().err == f"ConfigError: {sentence}\n"
    assert main.main(["logs", "x", "actor-1"]) == 2
    assert "actor-1 ran on host far, which keeps no logs after the run; logs here:" in capsys.readouterr().err


def test_newest_log_of_a_worker_that_failed_on_other_hosts_is_found(folder: RunFolder, capsys):
    for host, at_s in (("near", 2.0), ("far", 1.0)):
        path = folder.logs / f"actor-1@{host}.log"
        path.write_text(f"failed on {host}")
        os.utime(path, (at_s, at_s))
    for worker, host in (("actor-1", "near"), ("actor-1@far", "far")):
        assert main.main(["logs", "x", worker]) == 0
        assert capsys.readouterr().out == f"failed on {host}\n"


def test_a_run_is_followed_to_its_end(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "LOOK_S", 0.01)
    monkeypatch.setattr(logs, "ASK_S", 0.0)
    shown: list[str] = []
    path = logs.path_of(folder, "controller")
    with claimed(folder):
        thread = threading.Thread(target=logs.follow, args=(folder.path, logs.LogReader(path, 1), shown.extend))
        thread.start()
        with path.open("a") as file:
            file.write("more\nthe ")
        while "more" not in shown:
            thread.join(0.01)
        assert thread.is_alive()
        with path.open("a") as file:
            file.write("end")
    thread.join(20)
    assert not thread.is_alive() and shown == ["at work", "more", "the end"]
