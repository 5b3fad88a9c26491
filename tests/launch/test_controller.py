"""How the controller checks a worker, without processes."""

from __future__ import annotations

import time
from types import SimpleNamespace

from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, Experiment
from jsrl.launch.controller import Controller
from jsrl.launch.launcher import Exit
from jsrl.launch.supervised import SupervisedWorker
from jsrl.workers.jobs import Job


def test_a_death_noticed_late_is_one_death() -> None:
    """While many deaths are handled, the last ones have been silent for longer than a worker may be."""
    job = Job("actor", "actor-0", 0, Experiment(AgentReference("m:f"), EnvConfig()), None, (), "", "")  # type: ignore[arg-type]
    handle = SimpleNamespace(alive=False, exit=Exit(-9, "killed"))
    worker = SupervisedWorker(job, handle, stage="ready", beat_s=time.monotonic() - 100.0)  # type: ignore[arg-type]
    deaths: list[str] = []
    controller = SimpleNamespace(
        _deadlines=SimpleNamespace(ready_s=180.0),
        _pauses=SimpleNamespace(since=lambda began_s: time.monotonic() - began_s),
        _silence_s={"actor-0": 30.0},
        _silent=lambda _: "silent",
        _listen=lambda _: None,
        _died=lambda _, what: deaths.append(what),
    )
    Controller._check(controller, worker)  # type: ignore[arg-type]
    assert deaths == ["ended unexpectedly: killed"]
