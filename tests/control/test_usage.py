"""The load of the machine by workers and by other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jsrl.control.processes import launcher, processes
from jsrl.control.processes.processes import LocalHandle
from jsrl.control.run_record import RunRecord
from jsrl.control.status_writer import Usage
from jsrl.control.supervised import SupervisedWorker
from jsrl.experiment import Experiment
from jsrl.services.metrics.display import make_display
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.values import ResourceUsage

BUSY = "import time; until = time.process_time() + 0.3\nwhile time.process_time() < until: pass\ninput()"


def start(kind: str, folder: Path) -> SupervisedWorker:
    popen = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
    job = SimpleNamespace(kind=kind, name=kind)
    return SupervisedWorker(job, LocalHandle(popen, folder / "log", kind))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_cpu_time_is_split_into_workers_and_others(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker and an unrelated process each use 0.3 s."""
    monkeypatch.setattr(launcher, "owns_machine", lambda: whole)
    worker, other = start("parameter-server", tmp_path), start("stranger", tmp_path)
    try:
        sampler = Usage(launcher.Local().busy_s)
        sampler.sample([worker])
        begin_s = time.monotonic()
        time.sleep(0.5)
        while other.handle.usage().cpu_s < 0.25:
            time.sleep(0.05)
        metrics = sampler.sample([worker])
        passed_s = time.monotonic() - begin_s
    finally:
        for life in (worker, other):
            life.handle.popen.communicate(b"\n")
    assert metrics["system/parameter_server_rss_mb"] > 1
    assert 0.0 <= metrics["system/parameter_server_cpu_share"] * passed_s <= 0.5
    assert ("system/others_cpu_share" in metrics) == whole
    if whole:
        assert metrics["system/others_cpu_share"] * passed_s >= 0.1


CHILD = "import time\nwhile time.process_time() < 1.0: pass\nprint(flush=True)\ninput()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
print(flush=True)
input()
"""


@pytest.mark.slow
def test_child_time_counts_while_it_runs_and_only_once() -> None:
    popen = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    handle = LocalHandle(popen, Path("log"), "actor")  # type: ignore[arg-type]
    try:
        popen.stdout.readline()  # the child has used its second
        processes.PROCESSES._look_s = 0.0  # children are listed every 10 s
        running = handle.usage().cpu_s
        popen.stdin.write(b"\n")
        popen.stdin.flush()
        popen.stdout.readline()  # it has ended
        assert 1.0 <= running <= handle.usage().cpu_s < 1.9
    finally:
        popen.communicate(b"\n")


def test_only_new_processes_are_read_at_a_later_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands on the host."""
    read: list[int] = []
    host = processes.HostProcesses()
    parent_of = processes.parent_of
    monkeypatch.setattr(processes, "parent_of", lambda pid: read.append(pid) or parent_of(pid))
    host._look()
    assert os.getpid() in read
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        read.clear()
        host._look()
        assert popen.pid in read and os.getpid() not in read
        assert popen.pid in host.children_of(os.getpid())
    finally:
        popen.communicate(b"\n")
    host._look()
    assert popen.pid not in host._parents


def test_a_process_that_has_ended_is_left_out(tmp_path: Path):
    worker = start("actor", tmp_path)
    worker.handle.popen.communicate(b"\n")
    assert "system/actor_rss_mb" not in Usage(lambda: None).sample([worker])


def test_partial_cpu_affinity_is_recognised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launcher.os, "cpu_count", lambda: len(os.sched_getaffinity(0)) + 1)
    assert not launcher.owns_machine()


def test_a_replaced_worker_is_counted_from_its_start_on():
    """Its start-up is the run's own work, not that of other programs."""

    class Handle:
        def usage(self) -> ResourceUsage:
            return ResourceUsage("running", 1.0, 10**6, 1)

    busy_s = iter((0.0, 1.0))
    sampler = Usage(lambda: next(busy_s))
    sampler._sampled_s -= 1.0
    metrics = sampler.sample([SimpleNamespace(job=SimpleNamespace(kind="learner"), handle=Handle())])
    assert metrics["system/learner_cpu_share"] == pytest.approx(1.0, rel=0.1)
    assert metrics["system/others_cpu_share"] == pytest.approx(0.0)


def test_usage_is_sampled_once_a_line(tmp_path: Path):
    """The display refreshes more often: a second sample after some milliseconds would divide by too little time."""
    folder = RunFolder.create(tmp_path, "tried", "one")
    record = RunRecord(Experiment(agent=None, name="tried"), folder, make_display("log-only"))
    written: list[int] = []
    record._tick = lambda: written.append(ms)  # type: ignore[method-assign]
    begin_s, due = time.monotonic() + 10.0, []
    for ms in range(0, 3000, 3):
        record.now = lambda: begin_s + ms / 1000  # type: ignore[method-assign]  # noqa: B023
        due += [ms] if record.line_due else []
        record.tick()
    assert due == written and len(due) == 3
    record.close()
