"""A worker whose loop hangs in a living process: its control thread ends it with the stack."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.control_bodies import Crash, Heartbeat, Stage

WORKER = """
import os, sys, threading, time
from jsrl.services.runs.control import ControlClient
from jsrl.services.metrics.metrics import Meter
from jsrl.workers.process import run

class Sleeper:
    name, turns = "inference-0", 0
    meter = Meter("inference")
    def setup(self):
        time.sleep(float(sys.argv[2]))
    def step(self):
        self.turns += 1
        if self.turns < 3:
            return 1
        return self.wait_for_a_thread_that_died()
    def wait_for_a_thread_that_died(self):
        threading.Event().wait()
    def report(self):
        return {}, {}

control = ControlClient(sys.argv[1], "inference-0", 4, parent_pid=os.getppid())
control.stuck_s = 0.5
sys.exit(run(lambda reporter: Sleeper(), control))
"""


@pytest.mark.slow
def test_hung_loop_is_detected_and_start_up_does_not_count(tmp_path) -> None:
    control = ControlServer(f"ipc://{tmp_path}/control")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen([sys.executable, "-c", WORKER, control.address, "1.2"], env=environment)
    try:
        said, until = [], time.monotonic() + 30.0
        while process.poll() is None and time.monotonic() < until:
            said += control.poll(0.05)
        said += control.poll(0.2)
    finally:
        process.kill()
        process.wait()
        control.close()
    assert process.returncode == 71
    stages = [message.stage for message in said if isinstance(message, Stage)]
    crashes = [message for message in said if isinstance(message, Crash)]
    assert stages == ["building", "ready"] and len(crashes) == 1  # 1.2 s of setup did not count as a hang of 0.5 s
    assert crashes[0].error == "WorkerStuck" and "within 0.5 s" in crashes[0].text
    assert "wait_for_a_thread_that_died" in crashes[0].trace
    beats = [message for message in said if isinstance(message, Heartbeat)]
    assert beats and all(beat.incarnation == 4 for beat in beats)
