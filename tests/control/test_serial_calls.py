"""Serial runs: long updates are shown while they run; the run continues without a dispensable worker that fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.control.ending import Task
from jsrl.control.serial import SerialReporter, SerialRun, UpdateDisplay
from jsrl.experiment import DeadlineConfig
from jsrl.workers.kinds import LastTask, Lifecycle, find_kind


class Scripted:
    """A worker of which one method fails."""

    def __init__(self, name: str, fails: str = "") -> None:
        self.name, self._fails, self.steps = name, fails, 0
        self.counts = {"updates": 0, "env_steps": 0}

    @property
    def due(self) -> bool:
        return self.steps < 5

    def _call(self, method: str) -> None:
        if method == self._fails:
            raise ZeroDivisionError(f"{self.name}: {method}")

    def step(self) -> int:
        self.steps += 1
        self._call("step")
        return 1

    def report(self) -> tuple[dict, dict]:
        self._call("report")
        return {}, {}

    def close(self) -> dict:
        self._call("close")
        return {}


def serial_run(*workers: Scripted, turns: int = 3) -> tuple[Any, list[str]]:
    """Return a serial run whose first worker is a learner and whose others are dispensable, and the lost workers."""
    lost: list[str] = []
    run = SimpleNamespace(reason=None, finals=set(), finished_s=1.0)
    record = SimpleNamespace(run=run, line_due=True, ticks=0, stop_asked=False)
    record.lose = lambda name, notice: lost.append(name)
    record.facts, record.report, record.close = lambda *_: None, lambda *_: [], lambda: None
    record.experiment = SimpleNamespace(deadlines=DeadlineConfig())
    record.display = SimpleNamespace(message=lambda *_: None)

    def tick() -> None:
        record.ticks += 1
        record.run.reason = "total_env_steps" if record.ticks >= turns else None

    record.tick = tick
    learner, *others = workers
    kinds = {learner.name: find_kind("learner")} | {one.name: find_kind("video-recorder") for one in others}
    kinds = {
        name: kind._replace(lifecycle=kind.lifecycle._replace(last_task=LastTask())) for name, kind in kinds.items()
    }
    made: Any = SerialRun(SimpleNamespace(kinds=kinds, experiment=record.experiment), record)  # type: ignore[arg-type]
    made._workers = {one.name: one for one in workers}
    made._each_turn, made._when_due = list(made._workers), []
    made._interrupted = False
    return made, lost


def loop(run: Any) -> None:
    while run._record.run.reason is None:
        run._turn()


@pytest.mark.parametrize("method", ["step", "report", "close"])
def test_a_serial_run_continues_without_a_dispensable_worker_that_fails(method: str) -> None:
    learner, other = Scripted("learner"), Scripted("watch", method)
    run, lost = serial_run(learner, other)
    loop(run)
    run._close()
    assert (lost, learner.steps) == (["watch"], 3)
    with pytest.raises(ZeroDivisionError, match=f"learner: {method}"):
        run, _ = serial_run(Scripted("learner", method), Scripted("watch"))
        loop(run)
        run._close()


def test_a_serial_run_continues_without_a_dispensable_worker_that_cannot_begin() -> None:
    run, lost = serial_run(Scripted("learner"), Scripted("watch"))
    del run._workers["watch"]
    loop(run)
    run._close()
    assert lost == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_error_of_a_worker_that_cannot_be_built_is_not_hidden(
    error: type[BaseException], tmp_path, monkeypatch
) -> None:
    run, _ = serial_run(Scripted("learner"), Scripted("watch"))
    ended = list[str]()
    run._record.fail, run._record.cut = ended.append, lambda unsaved: ended.append("interrupted")
    results = iter(["result"])  # written after a failure, it would hide the error in result.json
    run._record.result = lambda: next(results)
    run._plan.jobs, run._plan.memory_folder = [SimpleNamespace(name="learner"), SimpleNamespace(name="watch")], tmp_path

    def build(job: Any, reporter: Any) -> Any:
        if job.name == "watch":
            raise error
        return SimpleNamespace(name=job.name, meter=SimpleNamespace(close=lambda: None))

    monkeypatch.setattr("jsrl.control.serial.build_worker", build)
    run._workers = {}
    if error is KeyboardInterrupt:
        assert run.run() == "result" and ended == ["interrupted"]
    else:
        with pytest.raises(error):
            run.run()
    assert not tmp_path.exists()
    assert list(results) == ([] if error is KeyboardInterrupt else ["result"])


def test_a_serial_run_without_any_work_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, told = Scripted("learner"), list[str]()
    run, _ = serial_run(learner, turns=5)
    run._record.display.message = lambda text, level: told.append(text)
    monkeypatch.setattr("jsrl.control.serial.Watchdog", lambda *_: SimpleNamespace(write=lambda *_: "report: here"))
    clock = [100.0]
    monkeypatch.setattr("jsrl.control.serial.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def idle() -> int:
        clock[0] += 21.0
        return 0

    loop(run)
    assert told == []
    learner.step = idle  # type: ignore[method-assign]
    run._record.run.reason, run._record.ticks = None, 0
    loop(run)
    assert told == ["no worker has done any work for 63 s; the run continues (report: here)"]


def test_requests_are_noticed_during_the_final_evaluation_of_a_serial_run() -> None:
    """`jsrl stop` on another host writes one to the run folder; the display and the status also stay up to date."""
    run, _ = serial_run(Scripted("learner"))
    evaluator = Scripted("evaluator")
    run._plan.kinds["evaluator"] = find_kind("evaluator")
    written, told = list[bool](), list[str]()
    run._record.display.message = lambda text, level: told.append(text)

    def tick(*, writes: bool = True) -> None:
        written.append(writes)
        run._interrupted = evaluator.steps == 2

    run._record.tick = tick
    run._finish(Task("final evaluation", {}, 60.0, "evaluation_s"), evaluator)
    assert evaluator.steps == 2 and written == [False, False]  # the last line has the last reports of all workers
    assert told == ["evaluator: its final evaluation was not finished because it was interrupted"]


def test_a_worker_with_a_last_task_gets_the_same_command_as_in_a_process() -> None:
    run, _ = serial_run(Scripted("learner"), other := Scripted("watch"))
    facts = LastTask(lambda experiment, reason: {"why": reason})
    run._plan.kinds["watch"] = find_kind("video-recorder")._replace(lifecycle=Lifecycle(last_task=facts))
    told = list[Any]()
    other.command = lambda command: told.append((command.name, command.facts))  # type: ignore[attr-defined]
    run._record.run.reason = "total_env_steps"
    assert run._begin_finals().keys() == {"watch"} and told == [("final", {"why": "total_env_steps"})]


def test_long_stages_of_a_serial_start_are_shown_at_once() -> None:
    shown: list[bool] = []
    record = SimpleNamespace(stage=lambda *stage: None, show=lambda *, now: shown.append(now))
    reporter = SerialReporter("learner", record, list)  # type: ignore[arg-type]
    for stage in ("making the agent's state", "binding streams", "compiling the update"):
        reporter.stage(stage)
    assert shown == [True, False, True]


def test_running_update_of_a_serial_run_is_shown() -> None:
    """The main thread, which is inside the update, cannot."""
    shown, calls = threading.Event(), list[tuple[str, str, float]]()
    record = SimpleNamespace(call=lambda *call: calls.append(call), show=shown.set)
    with UpdateDisplay(record, period_s=0.001) as display:  # type: ignore[arg-type]
        reporter = SerialReporter("learner", record, list, display)  # type: ignore[arg-type]
        reporter.entering("an update")
        assert shown.wait(60.0)
        reporter.left()
        number = len(calls)
        other = SerialReporter("actor-0", record, list)  # type: ignore[arg-type]
        other.entering("a step", 1)
        other.left()
    assert {call[:2] for call in calls[:-1]} == {("learner", "an update")} and all(call[2] >= 0 for call in calls)
    assert calls[-1] == ("learner", "", 0.0) and len(calls) == number
    assert "update-display" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("over", [False, True])
def test_due_work_after_the_time_limit_ends_at_ctrl_c_and_at_the_limit(over: bool) -> None:
    """The reason for the end is max_minutes already when Ctrl-C or `jsrl stop` comes."""
    run, _ = serial_run(Scripted("learner"))
    evaluator, told = Scripted("evaluator"), list[str]()
    run._record.run.reason, run._record.time_is_over, run._running = "max_minutes", over, True
    run._record.end, run._record.display.message = lambda reason: None, lambda text, *_: told.append(text)
    run._record.tick = lambda: run.interrupt() if evaluator.steps == 2 and not over else None
    run._finish_due_work(evaluator)
    assert evaluator.steps == (1 if over else 2)
    assert told == (["evaluator: what it played was cut, because max_minutes are over"] if over else [])
