"""How the controller checks a worker, without processes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.envs.config import EnvConfig
from jsrl.errors import WorkerDied
from jsrl.experiment import AgentReference, Experiment, PolicyConfig
from jsrl.launch.controller import Controller
from jsrl.launch.supervised import SupervisedWorker, death_notice
from jsrl.launch.supervision import budgets_of
from jsrl.runs.control_bodies import REPLAYING, Crash, Heartbeat, Stage
from jsrl.runs.process import Pauses
from jsrl.runs.values import Exit
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
    made._session = SimpleNamespace(
        reason="total_env_steps", lose=lambda name, _: lost.append(name), note_end=lambda *_: None
    )
    made._session.display = SimpleNamespace(message=lambda *_: None)
    made._deadlines = worker.job.experiment.deadlines
    made._budgets = budgets_of(worker.job.experiment, [worker.job])
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


def test_the_last_task_is_told_the_last_updates() -> None:
    worker, sent = dead("evaluator"), list[Any]()
    made = ending(worker, [])
    made._session.finals, made._session.stage, made._session.last_updates = set(), lambda *_: None, {"policy": 9}
    made._control, made._interrupted = SimpleNamespace(send_command=lambda *given: sent.append(given)), False
    made._begin_final("evaluator", {"which": "latest"})
    assert sent == [("evaluator", 0, "final", {"updates": {"policy": 9}, "which": "latest"})]


def test_a_lost_final_video_comes_with_advice() -> None:
    """On a busy machine a video recorder, which has a low priority, may need longer than the run waits for it."""
    worker, told = dead("video-recorder"), list[str]()
    made = ending(worker, [])
    made._session.finals, made._session.stage = set(), lambda *_: None
    made._session.display = SimpleNamespace(message=lambda text, level: told.append(text))
    made._interrupted = False
    made._wait_with = lambda *_: None  # in vain
    made._await_final("video-recorder")
    assert told == [
        "video-recorder: its final video was not finished within 60 s (deadlines.snapshot_s); --video.niceness 0 gives it "
        "more time on a busy machine, and a smaller --video.max-seconds makes the video shorter"
    ]
    made._interrupted = True
    made._await_final("video-recorder")
    assert told[1:] == ["video-recorder: its final video was not finished because it was interrupted"]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ["stop actor", "begin evaluator", "stop learner", "await evaluator", "stop evaluator"]),
        (
            {"deterministic": True},
            ["stop actor", "stop learner", "begin evaluator", "await evaluator", "stop evaluator"],
        ),
    ],
)
def test_last_tasks_of_several_policies_begin_after_the_updates_that_learners_make_as_they_stop(
    changes, wanted
) -> None:
    policies = {name: PolicyConfig(AgentReference("m:f"), name) for name in ("left", "right")}
    done, made = list[str](), object.__new__(Controller)
    order = [[SimpleNamespace(name=name)] for name in ("actor", "learner", "evaluator")]
    made._plan = SimpleNamespace(  # type: ignore[assignment]
        experiment=Experiment(None, EnvConfig(), policies=policies, **changes),
        graph=SimpleNamespace(stop_order=order),
        kinds={name: find_kind(name) for name in ("actor", "learner", "evaluator")},
    )
    made._session = SimpleNamespace(reason="stop_at_return", note_end=lambda *_: None)  # type: ignore[assignment]
    made._wanted_finals = lambda: {"evaluator": {}}  # type: ignore[method-assign]
    made._begin_final = lambda name, facts: done.append(f"begin {name}")  # type: ignore[method-assign]
    made._await_final = lambda name: done.append(f"await {name}")  # type: ignore[method-assign]
    made._stop = lambda names: done.extend(f"stop {name}" for name in names)  # type: ignore[method-assign]
    made._end_in_order()
    assert done == wanted


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
    made._session = SimpleNamespace(reason="total_env_steps", note_end=lambda *_: None)  # type: ignore[assignment]
    made._session.folder = SimpleNamespace(path=Path("nowhere"))
    made._end_in_order, made._save_learners = end, save  # type: ignore[method-assign]
    with pytest.raises(WorkerDied, match=r"the evaluator died\n\(it cannot be continued: .*--snapshots\.period-s"):
        made._work()
    assert saved == ["learner"]


def test_the_time_of_a_replay_does_not_count_as_a_start() -> None:
    """A resumed deterministic run plays all earlier steps again, which takes as long as they did."""
    worker = dead("actor")
    worker.handle.alive, worker.handle.exit = True, None  # type: ignore[misc]
    made, deaths = ending(worker, []), list[str]()
    made._pauses, made._died = Pauses(), lambda _, what: deaths.append(what)
    for stage, expected in ((f"{REPLAYING} trajectory 7 of 9 of group 0", 0), ("connecting to streams", 1)):
        worker.started_s = time.monotonic() - 1.5 * worker.job.experiment.deadlines.ready_s
        worker.receive(Stage("actor", 0, stage, 7))
        made._check(worker)
        assert len(deaths) == expected


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
    assert "log ends with" not in text.splitlines()[0]  # `jsrl status` shows this line alone
    assert ("The environment 'a:b' may have ended the process, by os._exit" in text and "check_env" in text) == is_own
    assert "(environment 'a:b')" in text or is_own
    assert f"At its last heartbeat it was in this call: {CALL} for 0.2 s." in text


def test_a_fault_names_its_worker_once() -> None:
    crash = Crash("actor", 0, "EnvironmentFault", f"{CALL} did not return", "")
    assert death_notice(dead("actor"), "ended", crash).startswith("actor: EnvironmentFault: step of environment 'a:b'")


def test_a_death_at_the_moment_of_the_end_is_left_to_the_end() -> None:
    worker = dead("actor")
    made = ending(worker, [])
    made._session.reason = None
    made._listen = lambda _: setattr(made._session, "reason", "total_env_steps")
    made._check(worker)


def leaving(folder: Path, arrive: Callable[[Path, float], bool]) -> tuple[Any, SupervisedWorker, list[str]]:
    """Return the controller of a run that ends, its learner on another host, and the warnings.

    The learner has said goodbye. `arrive` has the folder of its snapshots and the seconds since; it returns whether all of
    its files have arrived.
    """
    worker, shown = dead("learner"), list[str]()
    worker.job = dataclasses.replace(worker.job, folder=str(folder))
    handle: Any = SimpleNamespace(
        alive=True, exit=None, host="far", log="its log", tail=lambda _: "", kill=lambda: None
    )
    worker.handle, now_s = handle, [0.0]
    made = ending(worker, [])
    made._folder, made._interrupted = folder, False
    made._session.display = SimpleNamespace(message=lambda text, level="": shown.append(text))
    made._send_command = made._drop_unready = lambda *_: None
    made._pauses = SimpleNamespace(since=lambda began_s: now_s[0] - began_s)

    def listen(_: float) -> None:
        now_s[0], worker.left = now_s[0] + 10.0, True
        if arrive(folder / "snapshots" / "state", now_s[0]):
            handle.alive, handle.exit = False, Exit(0, "exit status 0")

    made._listen, made._clock = listen, lambda: now_s[0]
    return made, worker, shown


def write(path: Path, size: int = 1) -> None:
    """Write a file that has arrived from another host, or a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_the_end_waits_for_files_of_a_learner_on_another_host_while_more_of_them_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrive(state: Path, now_s: float) -> bool:
        write(state / "7" / "arrays.draft", int(now_s))
        return now_s >= 500.0

    made, worker, shown = leaving(tmp_path, arrive)
    monkeypatch.setattr("jsrl.launch.controller.time", SimpleNamespace(monotonic=made._clock))
    made._stop({"learner"})
    assert made._clock() == 500.0 and not worker.alive and not shown


@pytest.mark.parametrize(
    ("arrived", "newest"),
    [("7/manifest.json", "newest snapshot in the run folder is version 7"), ("8/arrays", "No snapshot is in")],
)
def test_files_that_stop_to_arrive_from_another_host_fail_the_run_and_the_newest_snapshot_is_named(
    arrived: str, newest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrive(state: Path, now_s: float) -> bool:
        write(state / arrived)
        write(state / "9" / "arrays.draft", 1 + int(now_s) % 20)  # it begins again each time
        return False

    made, _, _ = leaving(tmp_path, arrive)
    monkeypatch.setattr("jsrl.launch.controller.time", SimpleNamespace(monotonic=made._clock))
    with pytest.raises(
        WorkerDied, match="last files did not all arrive from host far: no part of them came for 60 s"
    ) as died:
        made._stop({"learner"})
    assert newest in str(died.value) and made._clock() < 300.0
    assert "--resume" not in str(died.value)  # `_work` adds it, once


def test_files_lost_with_their_host_fail_the_run(tmp_path: Path) -> None:
    made, worker, _ = leaving(tmp_path, lambda *_: True)
    worker.left = True
    worker.handle.alive, worker.handle.exit = (
        False,
        Exit(None, "lost with its host far: its link is down", with_host=True),
    )  # type: ignore[misc]
    made._listen = lambda _: None
    with pytest.raises(WorkerDied, match="did not all arrive from host far: lost with its host far: its link is down"):
        made._stop({"learner"})


@pytest.mark.parametrize("what", ["last task", "leaving"])
def test_a_pause_of_the_whole_run_counts_in_no_deadline_of_its_end(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes stop for 1000 s, then the evaluator needs 8 s more."""
    worker, now_s = dead("evaluator"), [0.0]
    handle: Any = SimpleNamespace(alive=True, exit=None, host="")
    worker.handle, worker.beat_s = handle, 0.0
    made = ending(worker, [])
    made._pauses, made._silence_s, made._interrupted, made._asked = (
        Pauses(lambda: now_s[0], lambda: 0.0),
        {"evaluator": 30.0},
        False,
        False,
    )
    made._session.finals, made._session.tick, made._session.stage = set(), lambda: None, lambda *_: None
    made._send_command = made._drop_unready = lambda *_, **__: None
    made._died = made._left_late = lambda _, why: pytest.fail(why)

    def poll(_: float) -> list[Any]:
        now_s[0] += 1000.0 if not now_s[0] else 2.0
        if now_s[0] >= 1008.0:  # its messages were waiting; `leave_s` is 10 s
            made._session.finals.add("evaluator")
            handle.alive, worker.left = what != "leaving", what == "leaving"
        return []

    made._control = SimpleNamespace(poll=poll)
    del made._listen
    monkeypatch.setattr("jsrl.launch.controller.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    if what == "leaving":
        made._stop({"evaluator"})
    else:
        made._await_final("evaluator")
    assert now_s[0] == 1008.0


def test_learners_are_told_once_which_groups_nobody_steps_now() -> None:
    """A worker is absent from its death, or the loss of its host's connection, until its replacement is ready."""
    made: Any = object.__new__(Controller)
    made._absent, sent = {}, list[tuple[str, list[int]]]()
    made._send_command = lambda worker, name, groups: sent.append((worker, groups))
    made._plan = SimpleNamespace(experiment=SimpleNamespace(is_deterministic=False), kinds={})
    made._workers = {}
    for name, groups in (("learner", ()), ("actor-0", (0, 1)), ("actor-1", (2,))):
        worker = dead(name.partition("-")[0])
        end = SimpleNamespace(stream=SimpleNamespace(type="samples"), groups=groups)
        worker.job, worker.handle = (
            dataclasses.replace(worker.job, name=name, ends=(("samples", end),)),
            SimpleNamespace(),
        )  # type: ignore[arg-type, assignment]
        made._workers[name], made._plan.kinds[name] = worker, find_kind(worker.job.kind)
    learner, first, second = made._workers.values()

    def told() -> list[tuple[str, list[int]]]:
        made._tell_absent()
        made._tell_absent()
        found, sent[:] = list(sent), []
        return found

    second.stage = "compiling act"  # of its first start, for which all wait
    assert told() == []
    first.replaced, second.stage = True, "ready"
    assert told() == [("learner", [0, 1])]
    second.handle.is_away = True
    assert told() == [("learner", [0, 1, 2])]
    first.replaced, first.job = False, dataclasses.replace(first.job, incarnation=1)
    first.stage, second.handle.is_away = "compiling act", False
    assert told() == [("learner", [0, 1])]
    learner.job = dataclasses.replace(learner.job, incarnation=1)
    learner.stage = "compiling the update"
    assert told() == []
    learner.stage = "ready"
    assert told() == [("learner", [0, 1])]  # a new learner knows nothing
    first.stage = "ready"
    assert told() == [("learner", [])]
    made._plan.experiment.is_deterministic, first.replaced = True, True
    assert told() == []  # its batches keep their order
