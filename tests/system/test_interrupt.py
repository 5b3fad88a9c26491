"""Ctrl-C and SIGTERM: a snapshot, a balanced ledger, exit status 130, nothing left; a second one ends at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jsrl.cli.run import main
from jsrl.control.controller import Controller
from jsrl.control.result import is_finished
from jsrl.control.supervision import Send
from jsrl.tools.report import report
from jsrl.workers.learner.worker import Learner
from tests.marks import nightly
from tests.system.launched import FOREVER, WORLD, Launched, assert_balanced

pytestmark = pytest.mark.slow


def assert_interrupted(run: Launched, within_s: float = 5.0) -> None:
    status, took_s = run.end(within_s)
    assert status == 130, run.text
    print(f"interrupt -> exit in {took_s:.2f} s")  # noqa: T201
    run.assert_nothing_left()
    result = run.result()
    assert result["ended"] == "interrupted"
    assert f"to continue: jsrl run --resume {run.folder}" in run.text
    assert_balanced(result)
    tag = json.loads((run.folder / "snapshots" / "state" / "tags" / "latest.json").read_text())
    assert tag["meta"]["updates"] == result["updates"] > 0


@pytest.mark.parametrize(
    ("placement", "number"),
    [
        ("served", signal.SIGINT),
        ("serial", signal.SIGTERM),
        *(
            nightly(placement, number)
            for placement, number in (("served", signal.SIGTERM), ("inline", signal.SIGINT), ("serial", signal.SIGINT))
        ),
    ],
)
def test_interrupt_ends_in_order(launch, placement: str, number: int) -> None:
    run = launch(*FOREVER, "--placement", placement)
    run.await_updates()
    os.killpg(run.popen.pid, number)  # the whole foreground group, like a terminal
    assert_interrupted(run)


def test_a_signal_to_all_processes_of_a_job_ends_in_order(launch) -> None:
    """As Slurm and Ray stop a job: workers leave without being asked by the controller."""
    run = launch(*FOREVER, "--placement", "served")
    run.await_updates()
    for process in [psutil.Process(run.popen.pid), *psutil.Process(run.popen.pid).children(recursive=True)]:
        process.send_signal(signal.SIGTERM)
    assert_interrupted(run)


@pytest.mark.parametrize("placement", ["served", nightly("serial")])
def test_interrupt_in_start_up(launch, placement: str) -> None:
    hanging = ("--env.id", "worlds:HangsInActor") if placement == "served" else ()
    run = launch(*FOREVER, "--placement", placement, *hanging)
    if placement == "served":
        run.await_worker("actor-0")
    else:
        run.until(lambda: list(run.runs_dir.glob("tiny/*/metrics.jsonl")), "the run folder")
    run.popen.send_signal(signal.SIGINT)
    status, _ = run.end(5.0)
    assert status == 130, run.text
    run.assert_nothing_left()


@pytest.mark.nightly
def test_second_interrupt_ends_at_once(launch) -> None:
    run = launch(*FOREVER)
    run.await_updates()
    run.workers()["learner"].suspend()  # so that the first one has to wait for its snapshot
    run.popen.send_signal(signal.SIGINT)
    time.sleep(3.0)
    assert run.popen.poll() is None
    run.popen.send_signal(signal.SIGINT)
    status, took_s = run.end(3.0)
    assert status == 130, run.text
    print(f"second interrupt -> exit in {took_s:.2f} s")  # noqa: T201
    run.assert_nothing_left()


NOTEBOOK = """
import sys, threading, _thread
sys.path.insert(0, {world!r})
sys.path.insert(0, {world!r} + "/extra_configs")
import tiny
from jsrl.control.run import run

def interrupt():
    import time, pathlib
    while not any(p.stat().st_size for p in pathlib.Path({runs!r}).glob("tiny/*/metrics.jsonl")):
        time.sleep(0.05)
    _thread.interrupt_main()

threading.Thread(target=interrupt).start()
result = run(tiny.config(), runs_dir={runs!r}, display="quiet", total_env_steps=10**9, placement={placement!r})
print("ENDED", result.ended, result.as_intended, result.updates > 0, sorted(result.params[0] if isinstance(
    result.params, tuple) else result.params)[:1])
"""


@pytest.mark.parametrize("placement", ["serial", nightly("served")])
def test_interrupted_notebook_call_returns_a_result(tmp_path: Path, placement: str) -> None:
    code = NOTEBOOK.format(world=str(WORLD), runs=str(tmp_path), placement=placement)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert "ENDED interrupted False True" in ended.stdout, ended.stdout + ended.stderr


THREAD = """
import sys, threading
sys.path.insert(0, {world!r})
sys.path.insert(0, {world!r} + "/extra_configs")
import tiny
from jsrl.control.run import run

results = []
def call():
    results.append(run(tiny.config(), runs_dir={runs!r}, display="quiet"))
thread = threading.Thread(target=call)
thread.start()
thread.join()
print("ENDED", results[0].ended)
"""


@pytest.mark.nightly
def test_run_works_in_a_thread(tmp_path: Path) -> None:
    code = THREAD.format(world=str(WORLD), runs=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert "ENDED total_env_steps" in ended.stdout, ended.stdout + ended.stderr


SHORT = ["ppo_cartpole", "--total-env-steps", "4096", "--stop-at-return", "none", "--display", "plain"]
FEW = ["--evaluator.episodes", "2", "--evaluator.final-episodes", "2"]


@pytest.mark.parametrize("placement", [pytest.param("inline", marks=pytest.mark.nightly), "serial"])
def test_an_end_at_once_before_the_final_snapshot_is_told(placement: str, monkeypatch, tmp_path: Path, capsys) -> None:
    """A second Ctrl-C after training, while the learner still has its params to save."""
    execute = Controller._execute

    def interrupted(controller: Controller, action: Any) -> None:
        if isinstance(action, Send) and (action.worker, action.command) == ("learner", "stop"):
            raise KeyboardInterrupt
        execute(controller, action)

    monkeypatch.setattr(Controller, "_execute", interrupted)
    monkeypatch.setattr(Learner, "close", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
    where = ["--placement", placement, "--runs-dir", str(tmp_path), "--run-name", "cut"]
    assert main([*SHORT, *FEW, *where]) == 1
    folder = tmp_path / "ppo_cartpole" / "cut"
    result = json.loads((folder / "result.json").read_text())
    assert result["ended"] == "total_env_steps" and result["unsaved"].startswith("learner: it was interrupted before")
    assert not is_finished(folder) and "the last params are lost" in capsys.readouterr().err


def test_an_interrupt_while_the_report_is_written_leaves_the_result(monkeypatch, tmp_path: Path, capsys) -> None:
    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "leave_report", interrupted)
    assert main([*SHORT, *FEW, "--placement", "serial", "--runs-dir", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "reached total_env_steps" in told.out and f"to write it: jsrl report {tmp_path}" in told.err
