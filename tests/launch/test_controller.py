"""How the controller checks a worker, without processes."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.envs.config import EnvConfig
from jsrl.errors import WorkerDied
from jsrl.experiment import AgentReference, Experiment
from jsrl.launch.controller import Controller
from jsrl.launch.launcher import Exit
from jsrl.launch.supervised import SupervisedWorker
from jsrl.launch.supervision import Supervision
from jsrl.runs.control import Heartbeat
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import find_kind


def test_a_death_noticed_late_is_one_death() -> None:
    """While many deaths are handled, the last ones have been silent for longer than a worker may be."""
    job = Job("actor", "actor-0", 0, Experiment(AgentReference("m:f"), EnvConfig()), None, (), "", "")  # type: ignore[arg-type]
    handle = SimpleNamespace(alive=False, exit=Exit(-9, "killed"))
    worker = SupervisedWorker(job, handle, stage="ready", beat_s=time.monotonic() - 100.0)  # type: ignore[arg-type]
    deaths: list[str] = []
    controller = SimpleNamespace(
        _session=SimpleNamespace(reason=None),
        _deadlines=SimpleNamespace(ready_s=180.0),
        _pauses=SimpleNamespace(since=lambda began_s: time.monotonic() - began_s),
        _silence_s={"actor-0": 30.0},
        _silent=lambda _: "silent",
        _listen=lambda _: None,
        _died=lambda _, what: deaths.append(what),
    )
    Controller._check(controller, worker)  # type: ignore[arg-type]
    assert deaths == ["ended unexpectedly: killed"]


def dead(kind: str, **changes: Any) -> SupervisedWorker:
    """Return a ready worker whose process was killed."""
    experiment = dataclasses.replace(Experiment(AgentReference("m:f"), EnvConfig()), **changes)
    job = Job(kind, kind, 0, experiment, None, (), "", "")  # type: ignore[arg-type]
    handle = SimpleNamespace(alive=False, exit=Exit(-9, "killed"), log="its log", tail=lambda _: "", kill=lambda: None)
    return SupervisedWorker(job, handle, stage="ready")  # type: ignore[arg-type]


def ending(worker: SupervisedWorker, lost: list[str]) -> Any:
    """Return a controller of a run that has ended, except for this worker's last task."""
    made: Any = object.__new__(Controller)
    made._session = SimpleNamespace(reason="total_env_steps", lose=lambda name, _: lost.append(name))
    made._deadlines, made._supervision = worker.job.experiment.deadlines, Supervision(worker.job.experiment)
    made._plan = SimpleNamespace(kinds={worker.name: find_kind(worker.job.kind)})
    made._watchdog = SimpleNamespace(look=lambda _: "", write=lambda *_: "report")
    made._workers, made._groups = {worker.name: worker}, {worker.name: [worker.name]}
    made._crashes, made._restarts, made._listen = {}, [], lambda _: None
    made._finals = {"evaluator": {"which": "latest"}}
    return made


def test_a_death_in_the_last_task_fails_only_runs_without_restarts() -> None:
    lost: list[str] = []
    worker = dead("evaluator", restart=1)
    ending(worker, lost)._check(worker)
    assert lost == ["evaluator"] and worker.replaced
    for other in (dead("evaluator"), dead("learner", restart=1)):
        with pytest.raises(WorkerDied, match="killed"):
            ending(other, lost)._check(other)
    assert lost == ["evaluator"]


CALL = "actor: step of environment 'a:b', group 0 (slot 1, episode 2, step 3, seed 4),"


@pytest.mark.parametrize(("status", "is_own"), [(3, True), (-11, True), (-9, False), (None, False)])
def test_death_without_a_message_names_the_environment_and_the_last_call(status: int | None, is_own: bool) -> None:
    """A process that ended itself, or crashed in C code, did so in code of its environment; a SIGKILL is from elsewhere."""
    worker = dead("actor", env=EnvConfig("a:b"))
    worker.handle.exit = Exit(status, "gone")  # type: ignore[misc]
    made = ending(worker, [])
    made._session.reason = None
    worker.receive(Heartbeat("actor", 0, 7, CALL, 0.25))
    with pytest.raises(WorkerDied) as died:
        made._check(worker)
    text = str(died.value)
    assert text.startswith("actor ended unexpectedly: gone")
    assert ("The environment 'a:b' may have ended the process, by os._exit" in text and "check_env" in text) == is_own
    assert "(environment 'a:b')" in text or is_own
    assert f"At its last heartbeat it was in this call: {CALL} for 0.2 s." in text


def test_a_death_at_the_moment_of_the_end_is_left_to_the_end() -> None:
    worker = dead("actor")
    made = ending(worker, [])
    made._session.reason = None
    made._listen = lambda _: setattr(made._session, "reason", "total_env_steps")
    made._check(worker)
