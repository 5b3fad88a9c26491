"""What the controller does for the machines that decide (tests/control), without processes."""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.control.controller import Controller
from jsrl.control.ending import BeginTask, Files, LookAtFiles
from jsrl.control.rules import last_tasks
from jsrl.control.supervised import SupervisedWorker, death_notice
from jsrl.control.supervision import NOT_BEGUN, Died, Life, Rules, Supervision
from jsrl.envs.config import EnvConfig
from jsrl.errors import WorkerDied
from jsrl.experiment import AgentReference, Experiment
from jsrl.graph.launcher import ALONE
from jsrl.services.runs.control_bodies import Crash, Heartbeat, Stage
from jsrl.services.runs.process import Pauses
from jsrl.services.runs.values import Exit
from jsrl.workers.jobs import Job, JobPlace
from jsrl.workers.kinds import find_kind
from tests.control.shell import BACKOFF, DEADLINES

KILLED = Exit(-9, "killed")


def dead(kind: str, exit: Exit = KILLED, **changes: Any) -> SupervisedWorker:
    """Return a ready worker whose process has ended."""
    experiment = dataclasses.replace(Experiment(AgentReference("m:f"), EnvConfig()), **changes)
    job = Job(kind, kind, 0, experiment, None, (), JobPlace("", ""))  # type: ignore[arg-type]
    handle = SimpleNamespace(alive=False, exit=exit, log="its log", tail=lambda _: "", kill=lambda: None)
    return SupervisedWorker(job, handle, Life(kind, stage="ready", exit=exit))  # type: ignore[arg-type]


def controller(worker: SupervisedWorker) -> Any:
    made: Any = object.__new__(Controller)
    made._record = SimpleNamespace(
        run=SimpleNamespace(last_updates={"policy": 9}), display=SimpleNamespace(message=lambda *_: None)
    )
    made._plan = SimpleNamespace(kinds={worker.name: find_kind(worker.job.kind)})
    made._watchdog = SimpleNamespace(write=lambda *_: "report")
    made._workers, made._seen, made._files, made._actions = {worker.name: worker}, {}, {}, deque()
    return made


def test_the_last_task_is_told_the_last_updates() -> None:
    sent, made = list[Any](), controller(dead("evaluator"))
    made._control = SimpleNamespace(send_command=lambda *given: sent.append(given))
    made._execute(BeginTask("evaluator", 0, {"which": "latest"}))
    assert sent == [("evaluator", 0, "final", {"updates": {"policy": 9}, "which": "latest"})]


def test_a_last_task_has_the_deadline_and_the_advice_of_its_kind() -> None:
    """On a busy machine a video recorder, which has a low priority, may need longer than the run waits for it."""
    kinds = {name: find_kind(name) for name in ("actor", "evaluator", "video-recorder")}
    plan: Any = SimpleNamespace(experiment=Experiment(AgentReference("m:f"), EnvConfig()), kinds=kinds)
    tasks = last_tasks(plan, "total_env_steps")
    assert tasks.keys() == {"evaluator", "video-recorder"} and tasks["evaluator"].limit == "evaluation_s"
    task = tasks["video-recorder"]
    assert (task.limit_s, task.limit) == (60.0, "snapshot_s") and "--video.niceness 0 gives it more time" in task.hint
    assert last_tasks(plan, "interrupted") == {}


def test_a_worker_that_is_ready_before_all_are_started_is_shown_as_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a thousand takes longer than the start of the first."""
    monkeypatch.setattr("jsrl.control.controller.process_environment", lambda *_: {})
    made, shown = controller(dead("actor")), list[tuple[str, str]]()
    made._record.stage = lambda worker, stage, pid=0: shown.append((worker, stage))
    made._record.run.started = lambda *_: None
    made._supervision = made._machine = Supervision(
        {"actor": Rules("actor", 0, ("actor",))}, DEADLINES, BACKOFF, tells_absent=True
    )
    made._launcher = SimpleNamespace(start=lambda *_: SimpleNamespace(host=""))
    made._plan.hosts, made._plan.keys, made._forked, made._gpus, made._spawn = ALONE, None, (), [], None
    made._folder, made._control, made._pauses = Path("nowhere"), SimpleNamespace(address="ipc://x"), Pauses()
    made._start(made._workers["actor"].job)
    made._receive(Stage("actor", 0, "ready", 7))
    made._decide()
    assert shown == [("actor", NOT_BEGUN), ("actor", "ready")]


@pytest.mark.parametrize("interrupt", [None, KeyboardInterrupt])
def test_learners_save_after_a_death_at_the_end_of_a_run(interrupt: type[BaseException] | None) -> None:
    """An evaluator may die in its start while the run waits for it, before the learner is told to stop."""
    saved, made = list[str](), object.__new__(Controller)

    def end() -> None:
        raise WorkerDied("the evaluator died")

    def save() -> None:
        saved.append("learner")
        if interrupt is not None:
            raise interrupt

    made._plan = SimpleNamespace(jobs=())  # type: ignore[assignment]
    made._record = SimpleNamespace(run=SimpleNamespace(reason="x"), folder=SimpleNamespace(path=Path("nowhere")))  # type: ignore[assignment]
    made._end, made._rescue = end, save  # type: ignore[method-assign]
    with pytest.raises(WorkerDied, match=r"the evaluator died\n\(it cannot be continued: .*--snapshots\.period-s"):
        made._work()
    assert saved == ["learner"]


CALL = "actor: step of environment 'a:b', group 0 (slot 1, episode 2, step 3, seed 4),"


@pytest.mark.parametrize(("status", "is_own"), [(3, True), (-11, True), (-9, False), (None, False)])
def test_death_without_a_message_names_the_environment_and_the_last_call(status: int | None, is_own: bool) -> None:
    """A process that ended itself, or crashed in C code, did so in code of its environment; a SIGKILL is from elsewhere."""
    worker = dead("actor", Exit(status, "gone"), env=EnvConfig("a:b"))
    worker.receive(Heartbeat("actor", 0, 7, CALL, 0.25), 0.0)
    with pytest.raises(WorkerDied) as died:
        controller(worker)._execute(Died("actor", 0, "ended unexpectedly: gone", "fails", "used up"))
    text = str(died.value)
    assert text.startswith("actor ended unexpectedly: gone") and text.endswith("(report)\n(used up)")
    assert "log ends with" not in text.splitlines()[0]  # `jsrl status` shows this line alone
    assert ("The environment 'a:b' may have ended the process, by os._exit" in text and "check_env" in text) == is_own
    assert "(environment 'a:b')" in text or is_own
    assert f"At its last heartbeat it was in this call: {CALL} for 0.2 s." in text


def test_a_fault_names_its_worker_once() -> None:
    crash = Crash("actor", 0, "EnvironmentFault", f"{CALL} did not return", "")
    assert death_notice(dead("actor"), "ended", crash).startswith("actor: EnvironmentFault: step of environment 'a:b'")


def test_files_that_travel_grow_if_a_name_or_a_size_is_new(tmp_path: Path) -> None:
    worker, told = dead("learner"), list[Files]()
    worker.job = dataclasses.replace(worker.job, place=JobPlace(str(tmp_path), ""))
    made = controller(worker)
    made._folder, made._tell = tmp_path, told.append
    state = tmp_path / "snapshots" / "state"
    for path, size in (("7/manifest.json", 1), ("8/arrays.draft", 5), ("8/arrays.draft", 5), ("8/arrays.draft", 3)):
        (state / path).parent.mkdir(parents=True, exist_ok=True)
        (state / path).write_bytes(bytes(size))
        made._execute(LookAtFiles("learner", 0))
    made._execute(LookAtFiles("learner", 0))
    assert [(files.grew, files.newest) for files in told] == [(True, 7), (True, 7), (False, 7), (True, 7), (False, 7)]
