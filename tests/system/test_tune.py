"""The tuner on the real system: a new process for every trial, a profile at the end, and Ctrl-C keeps the best so far."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jsrl.tools.tuning.advice import Measurements, advise
from jsrl.tools.tuning.profiles import VARIABLE, Profile, load

WORLD = Path(__file__).parent / "world"


class Tuning:
    """`python drive_tune.py tiny ...` in its own session; temporary folders are in `folder`."""

    def __init__(self, folder: Path, *words: str, script: str = "drive_tune.py") -> None:
        self.folder, self.profiles = folder, folder / "profiles"
        (folder / "tmp").mkdir(parents=True)
        self._output = folder / "output.txt"
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            VARIABLE: str(self.profiles),
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
def test_tune_writes_a_profile_for_the_next_run(tuning, monkeypatch):
    one = tuning("--tune-minutes", "0.15", "--trial-seconds", "0.5", "--num-inference-servers", "1")
    assert one.end(400) == 0, one.text
    saved = [p for p in one.profiles.glob("*.json") if not p.name.endswith(".measurements.json")]
    assert len(saved) == 1, one.text
    profile = Profile.load(saved[0])
    advice = advise(load(Measurements, Path(profile.measurements)))
    assert advice.options == profile.options
    assert advice.text.splitlines()[0] in one.text
    measurements = json.loads(Path(profile.measurements).read_text())
    good = [t for t in measurements["trials"] if not t["error"]]
    assert good, one.text
    assert all(t["env_steps_per_s"] > 0 and t["updates"] >= 1 and t["start_s"] > 0 for t in good)
    assert {t["setting"].get("num-inference-servers", 1) for t in good} == {1}  # as given
    assert not list((one.folder / "tmp").iterdir())
    assert not (one.folder / "runs").exists()
    # the next run has the profile's settings, whatever they are, and another experiment does not
    run = [sys.executable, str(WORLD / "drive.py"), "tiny", "--plan"]
    run += ["--num-inference-servers", "1"]  # a profile is for runs with the options that its tuning was given
    monkeypatch.setenv(VARIABLE, str(one.profiles))
    same = subprocess.run(run, capture_output=True, text=True, check=True, cwd=one.folder)
    default = subprocess.run([*run, "--profile", "none"], capture_output=True, text=True, check=True, cwd=one.folder)
    assert f"placement {profile.options['placement']}" in same.stdout
    assert "uses profile" not in default.stdout
    if same.stdout != default.stdout:
        assert "uses profile" in same.stdout
        assert "--profile none switches it off" in same.stdout


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ctrl_c_keeps_the_best_so_far(tuning):
    one = tuning("--tune-minutes", "30", "--trial-seconds", "0.5")
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
    assert "times the default" in one.text or "the default" in one.text
    saved = list(one.profiles.glob("*.measurements.json"))
    assert len(saved) == 1
    assert all(not t["error"] for t in json.loads(saved[0].read_text())["trials"])
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
