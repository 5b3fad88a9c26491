"""What worker processes and others take of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from jsrl.launch import usage

BUSY = "import time; until = time.process_time() + 0.3\nwhile time.process_time() < until: pass\ninput()"


def start(kind: str) -> SimpleNamespace:
    popen = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
    return SimpleNamespace(popen=popen, job=SimpleNamespace(kind=kind))


@pytest.mark.parametrize("whole", [True, False])
def test_cpu_time_is_the_workers_or_somebody_elses(whole: bool, monkeypatch: pytest.MonkeyPatch):
    """A worker and a process that nobody knows of each use 0.3 s."""
    monkeypatch.setattr(usage, "owns_machine", lambda: whole)
    worker, other = start("parameter-server"), start("stranger")
    try:
        sampler = usage.Usage()
        sampler.sample([worker])
        begin_s = time.monotonic()
        time.sleep(0.5)
        while sum(usage.psutil.Process(other.popen.pid).cpu_times()[:2]) < 0.25:
            time.sleep(0.05)
        metrics = sampler.sample([worker])
        passed_s = time.monotonic() - begin_s
    finally:
        for process in (worker, other):
            process.popen.communicate(b"\n")
    assert metrics["system/parameter_server_rss_mb"] > 1
    assert 0.0 <= metrics["system/parameter_server_cpu_share"] * passed_s <= 0.5
    assert ("system/others_cpu_share" in metrics) == whole
    if whole:
        assert metrics["system/others_cpu_share"] * passed_s >= 0.1


def test_a_process_that_has_ended_is_left_out():
    worker = start("actor")
    worker.popen.communicate(b"\n")
    assert "system/actor_rss_mb" not in usage.Usage().sample([worker])


def test_a_part_of_the_machine_is_known_as_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage.os, "cpu_count", lambda: len(os.sched_getaffinity(0)) + 1)
    assert not usage.owns_machine()
