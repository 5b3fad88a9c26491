"""`jsrl stop`: a signal on this host, a request file for other hosts, scancel for Slurm jobs; never an unrelated process."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jsrl.cli import main, stop
from jsrl.control.resume import claimed
from jsrl.control.status_writer import StatusWriter
from jsrl.linux import start_ticks
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import (
    REVOKED,
    RUNNING,
    STOP,
    ControllerStatus,
    WorkerSummary,
    is_asked_to_stop,
    revoked_hosts,
    write_status,
)

OWN = ProcessIdentity.own()
ELSEWHERE = dataclasses.replace(OWN, host="far", boot="another")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return RunFolder.create("runs", "ppo", "x", config={})


@pytest.fixture
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], ProcessIdentity]]:
    code = "import signal, time; signal.signal(15, lambda *_: exit(7)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()  # the handler is set
        yield process, dataclasses.replace(OWN, pid=process.pid, started=start_ticks(process.pid) or 0)
        process.kill()


def test_only_the_recorded_process_is_signalled(sleeper):
    process, identity = sleeper
    for stranger in (
        dataclasses.replace(identity, started=identity.started + 1),  # its process id was reused
        dataclasses.replace(identity, boot="another"),
        dataclasses.replace(identity, namespace="pid:[1]"),
        dataclasses.replace(identity, pid=2**22 + 1),
    ):
        assert not stranger.interrupt()
    assert process.poll() is None
    assert identity.interrupt() and process.wait(10) == 7 and not identity.interrupt()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_process_that_does_not_handle_signals_is_not_ended(folder: RunFolder, sleeper, capsys, ignored):
    """An idle notebook: SIGTERM would end the kernel, without a result or a snapshot."""
    process, identity = sleeper
    if ignored:  # the run is in a thread; what SIGTERM does here is another's affair
        identity = dataclasses.replace(identity, in_main_thread=False)
    else:
        process = subprocess.Popen(["sleep", "60"])
        identity = dataclasses.replace(identity, pid=process.pid, started=start_ticks(process.pid) or 0)
    with claimed(folder):
        (folder.path / RUNNING).write_bytes(msgspec.json.encode(identity))
        assert main.main(["stop", "x", "--wait", "0"]) == 0
    assert "is asked to end by a request in the run folder" in capsys.readouterr().out
    assert is_asked_to_stop(folder.path, identity) and process.poll() is None
    process.kill()
    process.wait()


def test_an_identity_says_whether_signals_reach_its_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(ProcessIdentity.own()))
    thread.start()
    thread.join()
    assert OWN.in_main_thread and not found[0].in_main_thread and found[0] == OWN


def test_local_run_gets_one_signal(folder: RunFolder, sleeper, capsys):
    process, identity = sleeper
    with claimed(folder):  # as the run itself would
        (folder.path / RUNNING).write_bytes(msgspec.json.encode(identity))
        assert main.main(["stop", "x", "--wait", "0"]) == 0
        assert f"ppo/x: asked process {identity} to stop" in capsys.readouterr().out
        assert process.wait(10) == 7 and is_asked_to_stop(folder.path, identity)
        assert main.main(["stop", "x", "--wait", "0.01"]) == 1  # a second signal would end it without a snapshot
        said = capsys.readouterr()
        assert "was asked to end before" in said.out and "ppo/x has not ended within 0.01 s: starting" in said.err


def test_a_run_that_had_not_begun_is_not_called_killed(folder: RunFolder, monkeypatch, capsys):
    monkeypatch.setattr(stop, "LOOK_S", 0.0)
    shutil.rmtree(folder.path)  # as a run that is stopped while it waits for hosts
    assert stop.wait(folder, 1.0, 1.0) == 0
    assert capsys.readouterr().out == "it ended before it had begun, and left no folder\n"


def test_a_run_that_is_over_cannot_be_stopped(folder: RunFolder, capsys):
    assert main.main(["stop", "x"]) == 2
    assert "ppo/x has already ended: killed: its process has ended" in capsys.readouterr().err
    (folder.path / "result.json").write_text(json.dumps({"ended": "total_env_steps"}))
    for words in (["stop", "x"], ["status", "x", "--follow"], ["stop", "x", "--host", "a"]):
        assert main.main(words) == 2
        assert "ppo/x has already ended: reached total_env_steps." in capsys.readouterr().err
    assert not (folder.path / STOP).exists()


def leave_elsewhere(folder: RunFolder, process: ProcessIdentity) -> None:
    (folder.path / RUNNING).write_bytes(msgspec.json.encode(process))
    write_status(folder.path, ControllerStatus(process, time.time()))


def test_run_on_another_host_gets_a_request_file(folder: RunFolder, capsys):
    leave_elsewhere(folder, ELSEWHERE)
    assert main.main(["stop", "x", "--wait", "0"]) == 0
    assert f"process {ELSEWHERE} is asked to end by a request" in capsys.readouterr().out
    assert is_asked_to_stop(folder.path, ELSEWHERE) and not is_asked_to_stop(folder.path, OWN)
    (folder.path / RUNNING).unlink()
    (folder.path / "result.json").write_text(json.dumps({"ended": "interrupted", "env_steps": 64}))
    assert main.main(["stop", "x"]) == 2  # it has followed the request


@pytest.mark.parametrize(("state", "over", "done", "asked"), [
    ("RUNNING|n1|None", False, "and Slurm job 12 by a signal", ["scancel --signal=USR1 --batch 12"]),
    ("PENDING||BeginTime", True, "job 12 was waiting and is cancelled",
     ["scancel 12", "scancel --me --name=jsrl:ppo:x:actors"]),
])  # fmt: skip
def test_slurm_job_is_signalled_or_cancelled_while_pending(
    folder: RunFolder, state, over, done, asked, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue = f'case "$*" in *%j) echo jsrl:ppo:x;; *) echo "{state}";; esac'
    for name, answer in (("squeue", queue), ("scancel", f'echo "scancel $*" >> {tmp_path}/log')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    leave_elsewhere(folder, dataclasses.replace(ELSEWHERE, job="12"))
    if over:  # it was requeued, and ended in order
        (folder.path / RUNNING).unlink()
        (folder.path / "result.json").write_text(json.dumps({"ended": "interrupted"}))
    assert main.main(["stop", "x", "--wait", "0"]) == 0
    assert done in capsys.readouterr().out
    assert (tmp_path / "log").read_text().splitlines() == asked


def test_a_run_whose_job_waits_in_the_queue_is_shown_and_cancelled(tmp_path: Path, monkeypatch, capsys):
    """It has no folder until it begins; its name is that of its job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue = 'case "$*" in *"-o %i|%j") printf "10|jsrl:sac:x\\n11|jsrl:ppo:x:actors\\n12|jsrl:ppo:x\\n";; '
    queue += '*"-j 12 -o %j") echo jsrl:ppo:x;; *"-j 12 "*) echo "PENDING||Resources";; esac'
    for name, answer in (("squeue", queue), ("scancel", f'echo "scancel $*" >> {tmp_path}/log')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    assert main.main(["status", "runs/ppo/x"]) == 0
    assert (
        capsys.readouterr().out
        == "runs/ppo/x: has not begun\n  Slurm job 12: PENDING (Resources)\n  jsrl stop runs/ppo/x\n"
    )
    assert main.main(["stop", "ppo/x"]) == 0
    assert capsys.readouterr().out == "ppo/x: Slurm job 12 was waiting and is cancelled\n"
    assert (tmp_path / "log").read_text().splitlines() == ["scancel 12", "scancel --me --name=jsrl:ppo:x:actors"]
    assert main.main(["status", "x"]) == 0 and "Slurm job 10" in capsys.readouterr().out
    assert main.main(["stop", "y"]) == main.main(["status", "y"]) == 2
    assert "there is no run y" in capsys.readouterr().err


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
