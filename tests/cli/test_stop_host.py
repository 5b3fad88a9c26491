"""`jsrl stop --host`: writes the names of hosts that the controller removes; only for a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsrl.cli import main
from jsrl.control.resume import claimed
from jsrl.control.status_writer import StatusWriter
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import REVOKED, WorkerSummary, revoked_hosts


def test_names_of_revoked_hosts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("runs", "ppo", "x", config={})
    with claimed(folder):
        workers = (WorkerSummary("actor-1", "actor", "ready", host="a"),)
        StatusWriter(folder.path).update(DisplayState("ppo/x"), lambda: workers, "")
        assert main.main(["stop", "x", "--host", "a"]) == 0
        assert "no worker is on a host" not in capsys.readouterr().out
        assert [main.main(["stop", "x", "--host", host]) for host in ("b", "a", "b")] == [0, 0, 0]
    told = capsys.readouterr().out
    assert "ppo/x: host b is removed within seconds" in told
    assert "no worker is on a host of this name now; hosts with workers: a" in told
    assert revoked_hosts(folder.path) == {"a", "b"}
    assert main.main(["stop", "x", "--host", "c"]) == 2 and "ppo/x has already ended" in capsys.readouterr().err
    (folder.path / REVOKED).write_text(json.dumps({"a": 1}))
    assert revoked_hosts(folder.path) == set()
