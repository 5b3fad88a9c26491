"""A connection that sends endless messages to each socket of a run: memory stays bounded, and the run continues."""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from benchmarks.endless import Flood
from jsrl.runs.memory import MIB
from jsrl.runs.names import FileNames
from tests.system.test_supervision import await_training, consumed, counting, end

MARGIN_MB = 128
CONTROLLER_MARGIN_MB = 256
LATE_MB = 384  # what may arrive between two checks and during the last messages


class PeakMemory:
    """The peak resident memory of a process from now on."""

    def __init__(self, process: psutil.Process) -> None:
        self.first = self.bytes = process.memory_info().rss
        self._process, self._stop = process, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            try:
                self.bytes = max(self.bytes, self._process.memory_info().rss)
            except psutil.Error:
                return

    def growth_mb(self) -> int:
        self._stop.set()
        self._thread.join()
        return (self.bytes - self.first) // MIB


@pytest.mark.slow
def test_memory_stays_bounded_under_message_floods(launch) -> None:
    margin = ("--supervision.memory-margin-mb", str(MARGIN_MB))
    run = counting(launch, "--transport", "zeromq", "--placement", "served", "--restart", "3", *margin)
    (memory,) = run.memory_folders()
    for worker in ("inference-0", "parameter-server", "learner"):
        process = run.workers()[worker]
        found = FileNames(memory / "names").names().values()
        (path,) = {entry.address[6:] for entry in found if entry.pid == process.pid and entry.address[:6] == "ipc://"}
        since_s, peak = time.monotonic(), PeakMemory(process)
        flood = Flood(path)
        assert flood.ended.wait(60), f"{worker} still accepts messages"
        flood.close()
        assert peak.growth_mb() < MARGIN_MB + LATE_MB
        await_training(run, since_s, worker, process.pid)
    lives = {name: process.pid for name, process in run.workers().items()}
    peak = PeakMemory(psutil.Process(run.popen.pid))
    flood = Flood(f"{memory}/control")
    assert flood.ended.wait(60), "the controller still accepts messages"
    flood.close()
    assert peak.growth_mb() < CONTROLLER_MARGIN_MB + LATE_MB
    before = consumed(run)[1]
    run.until(lambda: consumed(run)[1] > before + 5, "training after the flood")
    assert {name: process.pid for name, process in run.workers().items()} == lives, "the controller lost no worker"
    text = run.text
    assert text.count("MemoryExceeded") >= 3 and "unfinished multiparts" in text
    end(run)
