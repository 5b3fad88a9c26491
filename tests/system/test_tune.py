"""The tuner on the real system: a new process for every trial, a command at the end, and Ctrl-C keeps the best so far."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

WORLD = Path(__file__).parent / "world"


class Tuning:
    """`python drive_tune.py tiny ...` in its own session; temporary folders are in `folder`."""

    def __init__(self, folder: Path, *words: str, script: str = "drive_tune.py") -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        self._output = folder / "output.txt"
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder / "tmp"),
        }
        command = [sys.executable, str(WORLD / script), "tiny", *words]
        with self._output.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def trials(self) -> int:
        return len(re.findall(r"env steps/s", self.text))

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def end(self, timeout_s: float) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout_s} s:\n{self.text}") from None


@pytest.fixture
def tuning(tmp_path):
    """Start a tuning; its remaining processes are ended afterwards."""
    begun: list[Tuning] = []

    def begin(*words: str, script: str = "drive_tune.py") -> Tuning:
        begun.append(Tuning(tmp_path / f"tuning-{len(begun)}", *words, script=script))
        return begun[-1]

    yield begin
    for one in begun:
        for process in one.descendants():
            process.kill()
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tune_prints_the_command_of_the_fastest_settings(tuning):
    one = tuning("--tune-minutes", "0.15", "--num-inference-servers", "1")
    assert one.end(400) == 0, one.text
    assert one.trials >= 2, one.text  # the default, and again in the result
    assert not list((one.folder / "tmp").iterdir())
    assert not (one.folder / "runs").exists()
    words = shlex.split(one.text.split("`")[1])
    assert words[:5] == ["jsrl", "run", "tiny", "--num-inference-servers", "1"], one.text
    plan = [sys.executable, str(WORLD / "drive.py"), *words[2:], "--plan"]
    assert subprocess.run(plan, capture_output=True, check=True, cwd=one.folder).stdout


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ctrl_c_keeps_the_best_so_far(tuning):
    one = tuning("--tune-minutes", "30")
    deadline = time.monotonic() + 200
    while one.trials < 1:
        assert one.popen.poll() is None, one.text
        assert time.monotonic() < deadline, one.text
        time.sleep(0.1)
    time.sleep(1.0)  # in the middle of the next trial
    workers = one.descendants()
    assert workers
    one.popen.send_signal(signal.SIGINT)
    assert one.end(60) == 130, one.text
    assert "the default" in one.text and "`jsrl run tiny" in one.text
    _gone, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive, [p.cmdline() for p in alive]
    assert not list((one.folder / "tmp").iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_run_tunes_and_then_trains(tuning):
    words = (
        "--tune",
        "--tune-minutes",
        "0.05",
        "--total-env-steps",
        "200",
        "--display",
        "plain",
        "--placement",
        "inline",
    )
    one = tuning(*words, "--evaluator.final-episodes", "0", script="drive.py")
    assert one.end(400) == 0, one.text
    assert "tuning tiny" in one.text
    assert "reached total_env_steps" in one.text
    (folder,) = (one.folder / "runs" / "tiny").glob("2*")
    config = (folder / "experiment.json").read_text()
    assert '"placement": "inline"' in config
