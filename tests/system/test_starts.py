"""Slow starts: silence, the time limit and an interrupt while workers are built."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.launched import FOREVER, WORLD, Launched

pytestmark = pytest.mark.slow


def stopped_in_its_start(run: Launched) -> None:
    """Let the learner die once and stop its replacement before it is ready."""
    old = run.workers()["learner"]
    old.kill()
    run.await_another("learner", old.pid).suspend()


def test_constructor_holding_the_gil_is_not_silent_and_not_timed(launch) -> None:
    """Two environments that take 3 s each are built one after the other; the limit is 3 s from the first update."""
    world = ("--env.id", "worlds:HoldsTheGilInActor", "--num-envs", "2")
    run = launch(*FOREVER, *world, "--deadlines.silence-s", "2", "--max-minutes", "0.05")
    text = run.expect(0, 60.0)
    assert "sent no message" not in text
    assert run.result()["ended"] == "max_minutes" and run.result()["updates"] > 0
    assert run.result()["wall_s"] > 9.0


@pytest.mark.nightly  # daily below: an interrupt ends the run
def test_learner_still_compiling_at_the_end_is_not_a_failure(launch) -> None:
    run = launch(*FOREVER, "--max-minutes", "0.25", "--restart", "1", "--snapshots.period-s", "0.2")
    run.await_updates()  # the clock of --max-minutes starts with the first update known to the controller
    run.until(lambda: list(run.runs_dir.glob("tiny/*/snapshots/state/tags/latest.json")), "a snapshot")
    stopped_in_its_start(run)
    text = run.expect(0, 60.0)
    assert "learner was stopped during its start" in text and "while stopping" not in text
    assert run.result()["ended"] == "max_minutes"


def test_interrupt_while_a_learner_compiles_is_not_a_failure(launch) -> None:
    run = launch(*FOREVER, "--restart", "1")
    run.await_updates()
    stopped_in_its_start(run)
    run.popen.send_signal(signal.SIGINT)
    text = run.expect(130, 20.0)
    assert "learner was stopped during its start" in text and "while stopping" not in text


DROPPED = """
import os, signal, sys
sys.path.insert(0, {world!r})
import drive
from jsrl.cli import run

class Dropping:
    def __del__(self):  # Python prints a KeyboardInterrupt that is raised here, and goes on
        os.kill(os.getpid(), signal.SIGINT)

parse = run.cli.parse
def parse_late(*arguments):
    Dropping()
    return parse(*arguments)
run.cli.parse = parse_late
sys.exit(run.main(["tiny", "--runs-dir", {runs!r}, "--placement", "serial", "--total-env-steps", "1000000000"]))
"""


def test_interrupt_dropped_by_python_before_the_run_still_ends_it(tmp_path: Path) -> None:
    code = DROPPED.format(world=str(WORLD), runs=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert "Exception ignored" in ended.stderr and ended.returncode == 130, ended.stderr
