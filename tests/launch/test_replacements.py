"""When the next incarnation of a worker starts: once the files of the last one have come from its host."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, Experiment
from jsrl.launch import controller as module
from jsrl.launch.controller import Controller
from jsrl.launch.supervised import SupervisedWorker
from jsrl.launch.supervision import Restart
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import find_kind


def controller(
    kinds: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Controller, dict[str, SimpleNamespace], list[str]]:
    """Return a controller whose workers were just replaced on a host, their handles, and the names that it starts."""
    experiment = Experiment(AgentReference("m:f"), EnvConfig())
    jobs = {name: Job(kind, name, 0, experiment, None, (), "", "") for name, kind in kinds.items()}  # type: ignore[arg-type]
    handles = {name: SimpleNamespace(host=host, alive=True) for name in kinds}
    made: Any = object.__new__(Controller)
    made._folder, made._deadlines = Path(), experiment.deadlines
    made._pauses = SimpleNamespace(since=lambda began_s: time.monotonic() - began_s)
    made._plan = SimpleNamespace(kinds={name: find_kind(kind) for name, kind in kinds.items()})
    made._groups = {name: list(kinds) if "learner" in kinds else [name] for name in kinds}
    made._workers = {n: SupervisedWorker(jobs[n], handles[n], replaced=True) for n in kinds}  # type: ignore[arg-type]
    made._restarts = [Restart(time.monotonic(), job, 1) for job in jobs.values()]
    started: list[str] = []

    def start(job: Job, restarts: int) -> None:
        started.append(job.name)
        made._workers[job.name] = SupervisedWorker(job, SimpleNamespace(host=host, alive=True))  # type: ignore[arg-type]

    made._start = start
    monkeypatch.setattr(module, "replacement_job", lambda job, folder: (job, []))
    return made, handles, started


def test_all_ranks_start_once_the_files_of_the_learner_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    made, handles, started = controller({"learner": "learner", "rank-1": "rank"}, "far", monkeypatch)
    made._start_due()
    assert not started
    handles["learner"].alive = False  # its agent has sent all files, and then its end
    made._start_due()  # the other rank has no files, so its end is not waited for
    assert started == ["learner", "rank-1"] and not made._restarts


def test_files_that_never_come_are_waited_for_as_long_as_for_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, started = controller({"learner": "learner"}, "far", monkeypatch)
    now_s = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + made._deadlines.snapshot_s - 1.0)
    made._start_due()
    assert not started
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + made._deadlines.snapshot_s + 1.0)
    made._start_due()
    assert started == ["learner"]


@pytest.mark.parametrize(("kind", "host"), [("actor", "far"), ("learner", "")])
def test_others_do_not_wait(kind: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, started = controller({kind: kind}, host, monkeypatch)
    made._start_due()
    assert started == [kind]
