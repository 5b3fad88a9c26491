"""Workers that are killed, stopped or end by themselves: detected, named, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from jsrl.control import ending
from jsrl.control.hooks import LOG, STOP, LiveRun
from jsrl.control.run import run as run_experiment
from jsrl.errors import WorkerDied
from jsrl.experiment import DeadlineConfig, EvaluatorConfig
from tests.patience import stretched
from tests.system.joined import endless
from tests.system.launched import FOREVER, Launched

KINDS = {
    "actor-0": (),
    "inference-0": (),
    "learner": (),
    "evaluator": ("--evaluator.enabled",),
    "parameter-server": ("--transport", "zeromq"),
}
pytestmark = pytest.mark.slow


def of_kinds(daily: str | None) -> pytest.MarkDecorator:
    """One kind of worker daily and the others nightly: the controller handles them all in the same way."""
    nightly = pytest.mark.nightly
    return pytest.mark.parametrize("worker", [pytest.param(k, marks=() if k == daily else nightly) for k in KINDS])


def assert_died(run: Launched, worker: str, why: str) -> None:
    status, took_s = run.end(10.0)
    assert status == 1, run.text
    assert f"WorkerDied: {worker}" in run.text, run.text
    assert why in run.text, run.text
    print(f"{worker}: kill -> exit in {took_s:.2f} s")  # noqa: T201
    run.assert_nothing_left()


@of_kinds(None)  # daily: the learner, below, and a hosted actor, in test_actor_host
def test_worker_killed_during_the_run(launch, worker: str) -> None:
    run = launch(*FOREVER, *KINDS[worker])
    run.await_updates()
    run.workers()[worker].kill()
    assert_died(run, worker, "killed by signal 9 (SIGKILL)")


@of_kinds("inference-0")
def test_worker_killed_in_start_up(launch, worker: str) -> None:
    run = launch(*FOREVER, *KINDS[worker])
    run.await_worker(worker).kill()
    assert_died(run, worker, "killed by signal 9 (SIGKILL)")


@of_kinds("learner")
def test_stopped_worker_is_detected_by_missed_heartbeats(launch, worker: str) -> None:
    run = launch(*FOREVER, *KINDS[worker], "--deadlines.silence-s", "2")
    run.await_updates()
    run.workers()[worker].suspend()
    assert_died(run, worker, "sent no message for 2 s")


class StopLearner:
    """Stops the process of the learner and ends the run, so that the learner hears of the end only when it is continued."""

    def on_metrics(self, run: LiveRun, row: dict) -> str | None:
        """End the run after some updates; see jsrl.control.hooks."""
        if run.updates < 3:
            return None
        (learner,) = [child for child in psutil.Process().children(recursive=True) if "learner" in child.cmdline()]
        learner.suspend()
        return STOP


def test_learner_stopped_at_the_end_fails_the_run_at_the_deadline_of_its_snapshot(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ending, "QUIET_S", 0.5)
    experiment = endless(deadlines=DeadlineConfig(snapshot_s=2.0), evaluator=EvaluatorConfig())
    with pytest.raises(WorkerDied, match="learner did not leave in order within 2 s"):
        run_experiment(experiment, runs_dir=tmp_path, name="x", display="log-only", hooks=[StopLearner()])
    assert not [child for child in psutil.Process().children(recursive=True) if "jsrl.workers" in child.cmdline()]
    (log,) = tmp_path.glob(f"*/x/logs/{LOG}")
    assert log.read_text().count("waiting for learner to finish and leave, for at most 2 s") == 1


@pytest.mark.nightly
def test_worker_stopped_in_start_up_is_detected_by_the_deadline(launch) -> None:
    run = launch(*FOREVER, "--deadlines.ready-s", "6")
    run.await_worker("learner").suspend()
    assert_died(run, "learner", "was not ready within 6 s (deadlines.ready_s)")


def test_worker_that_exits_unexpectedly_ends_the_run(launch) -> None:
    run = launch(*FOREVER)
    run.await_updates()
    run.workers()["actor-0"].terminate()
    assert_died(run, "actor-0", "left without being asked to")


def test_workers_exit_when_the_controller_is_killed_and_the_next_start_cleans_up(launch) -> None:
    run = launch(*FOREVER)
    run.await_updates()
    (memory,) = run.memory_folders()
    os.kill(run.popen.pid, signal.SIGKILL)
    start = time.monotonic()
    run.popen.wait()
    while run.left_processes():
        assert time.monotonic() - start < stretched(10.0), run.left_processes()
        time.sleep(0.02)
    print(f"controller: kill -> workers gone in {time.monotonic() - start:.2f} s")  # noqa: T201
    # any run that starts cleans up: one of another test may have come first
    launch("--placement", "serial").expect(0, 60.0)
    assert not memory.exists()


def test_a_child_of_the_environment_does_not_outlive_the_run(launch) -> None:
    run = launch(*FOREVER, "--env.id", "worlds:HasChild")
    run.await_updates()
    run.workers()["learner"].kill()
    assert_died(run, "learner", "killed by signal 9 (SIGKILL)")
