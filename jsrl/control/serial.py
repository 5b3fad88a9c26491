"""Serial placement: every worker's `step` in turn, in this process; deterministic, and usable with a debugger."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any, Self

from jsrl.control.ending import Task
from jsrl.control.result import Result
from jsrl.control.rules import last_tasks
from jsrl.control.run_record import Forwards, RunRecord
from jsrl.control.supervised import loss_notice
from jsrl.control.supervision import Standstill
from jsrl.control.watchdog import Watchdog
from jsrl.graph.machine import keep_compiled_here
from jsrl.graph.plan import Plan
from jsrl.interrupts import interrupts, requests
from jsrl.linux import return_freed_memory
from jsrl.services.runs.control_bodies import Command, Crash, Event, Report
from jsrl.workers.base import report_of, step_of
from jsrl.workers.kinds import build_worker

LONG_STAGES = ("making", "compiling")  # states, environments; updates, act
CLOSE = methodcaller("close")


class SerialReporter:
    """A worker's reports go straight into the record; `display` shows a learner's long updates."""

    def __init__(
        self,
        worker: str,
        record: RunRecord,
        forward: Callable[[Forwards], None],
        display: UpdateDisplay | None = None,
    ) -> None:
        self._worker, self._record, self._forward, self._display = worker, record, forward, display

    def stage(self, stage: str) -> None:
        """Show the stage, before a long one at once: nothing else is displayed before it ends."""
        self._record.stage(self._worker, stage)
        self._record.show(now=stage.startswith(LONG_STAGES))

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        self._forward(self._record.event(Event(self._worker, 0, name, text, facts)))

    def entering(self, activity: object, steps: float | None = None) -> None:
        """Show a long update; there is no time limit, as a hang of a single process can be seen directly."""
        if self._display is not None:
            self._display.begin(self._worker, str(activity))

    def left(self) -> None:
        if self._display is not None:
            self._display.end(self._worker)


PERIOD_S = 1.0  # between looks


class UpdateDisplay:
    """Shows for how long an update has been running. Its thread uses the record only during updates, under a lock.

    Updates are compiled: no breakpoint of the user's, and nothing else that uses the terminal, is inside them.

    Args:
      record: of the run. period_s: between looks.
    """

    def __init__(self, record: RunRecord, period_s: float = PERIOD_S) -> None:
        self._record, self._period_s = record, period_s
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._call: tuple[str, str, float] | None = None  # worker, name, and since when
        self._thread = threading.Thread(target=self._run, name="update-display", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._thread.join()

    def begin(self, worker: str, name: str) -> None:
        with self._lock:
            self._call = worker, name, time.monotonic()

    def end(self, worker: str) -> None:
        """Record its end, and wait until the thread has left the record."""
        with self._lock:
            self._call = None
        self._record.call(worker, "", 0.0)

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            with self._lock:
                if self._call is not None:
                    worker, name, since_s = self._call
                    self._record.call(worker, name, time.monotonic() - since_s)
                    self._record.show()


class SerialRun:
    """All workers of a plan, in this process.

    Args:
      build: (job, reporter) -> a worker; None: as its kind says.
    """

    def __init__(self, plan: Plan, record: RunRecord, build: Callable[[Any, Any], Any] | None = None) -> None:
        self._plan, self._record, self._build = plan, record, build
        self._workers: dict[str, Any] = {}
        self._learners = [name for name, kind in plan.kinds.items() if kind.lifecycle.must_finish]
        self._unsaved = set(self._learners)  # their final snapshot is not written yet
        self._display = UpdateDisplay(record)
        self._shown = contextlib.ExitStack()  # the display, until the end of the training
        self._standstill: Standstill | None = None
        self._reports: list[str] = []
        self._running = self._interrupted = False

    def run(self) -> Result:
        """Run until there is a reason to stop.

        Ctrl-C, SIGTERM and SIGHUP end the run after the current step, with a snapshot; a second one (or the first,
        before anything has begun) ends it at once. Either way there is a result: `interrupted`, or why training had ended
        before.
        """
        (outcome,) = run_in_turn([self])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def set_up(self) -> None:
        self._shown.enter_context(self._display)
        self._set_up()
        self._running = True

    def turn(self) -> Result | None:
        """Let each worker make a step; return the result once the run has ended."""
        if self._record.run.reason is None:
            self._turn()
            return None
        self._shown.close()
        self._close()
        self._free()
        return self._record.result()

    def interrupted(self) -> Result:
        """End at once, without a snapshot."""
        self._record.cut(self._unsaved)
        self._drop_pending()
        self._abandon()
        self._free()
        return self._record.result()

    def failed(self, error: BaseException) -> BaseException:
        self._drop_pending()
        self._record.fail(error)
        self._abandon()
        self._free()
        return error

    def _free(self) -> None:
        self._shown.close()
        for worker in self._workers.values():
            worker.meter.close()
        shutil.rmtree(self._plan.memory_folder, ignore_errors=True)

    def interrupt(self) -> bool:
        """Ask for the end after the current step; return whether all workers are set up, so that there is one."""
        self._interrupted = True
        self._record.end("interrupted")
        return self._running

    def request_report(self) -> None:
        """Write a report of this process, inside the signal's handler; the loop shows its path."""
        self._reports.append(self._report_of_process("request", "SIGUSR1 asked for it"))

    def _report_of_process(self, who: str, noticed: str) -> str:
        return Watchdog(self._record, {}, lambda _: None, lambda _: None).write(who, noticed, "")

    def _set_up(self) -> None:
        kinds = self._plan.kinds
        for job in self._plan.jobs:
            display = self._display if kinds[job.name].lifecycle.must_finish else None
            reporter = SerialReporter(job.name, self._record, self._forward, display)
            self._workers[job.name] = (self._build or build_worker)(job, reporter)
        flow = [worker.name for worker in self._plan.graph.flow]
        self._when_due = [name for name in flow if _works_when_due(self._workers[name])]
        self._each_turn = [name for name in flow if name not in self._when_due]
        for node in self._plan.graph.start_order:
            self._guarded(node.name, self._set_up_one)
        return_freed_memory()
        for worker in self._workers.values():
            worker.meter.begin()  # the setup of others is not counted in any worker's time

    def _set_up_one(self, worker: Any) -> None:
        worker.setup()
        self._record.stage(worker.name, "ready")

    def _guarded(self, name: str, call: Callable[[Any], Any]) -> Any:
        """Return what a call of a worker returns; the run continues without a dispensable one that fails."""
        worker, kind = self._workers.get(name), self._plan.kinds[name]
        if worker is None:
            return None
        if kind.lifecycle.loss_ends_run:
            return call(worker)
        try:
            return call(worker)
        except Exception as error:  # an error there must not end the training
            del self._workers[name]
            crash = Crash(name, 0, type(error).__name__, str(error), "")
            self._record.lose(name, loss_notice(name, f"{name}: {traceback.format_exc().rstrip()}", crash))
            try:
                worker.close()
            except Exception as second:
                self._record.display.message(f"while closing {name}: {second!r}")
            return None

    def _forward(self, forwards: Forwards) -> None:
        for worker, name, facts in forwards:
            if worker in self._workers:
                self._workers[worker].command(Command(name, facts))

    @property
    def _is_interrupted(self) -> bool:
        return self._interrupted or self._record.stop_asked

    def _turn(self) -> None:
        record = self._record
        while self._reports:
            record.display.message(self._reports.pop())
        moved = False
        for name in self._each_turn:
            progress = self._guarded(name, step_of)
            moved |= bool(progress)
            if progress and name in self._learners:
                self._report()
                for due in self._when_due:
                    self._guarded(due, self._finish_due_work)
        if self._standstill is None:
            self._standstill = Standstill(record.experiment.deadlines.still_s, time.monotonic())
        if still_s := self._standstill.tick(time.monotonic(), moved=moved):
            noticed = f"no worker has done any work for {still_s:.0f} s"
            report = self._report_of_process("standstill", noticed)
            record.display.message(f"{noticed}; the run continues ({report})", "warning")
        record.tick()

    def _report(self, *, last: bool = False) -> None:
        for name in self._learners:
            learner = self._workers[name]
            self._record.facts(name, learner.counts)
        if last or self._record.line_due:
            for name in list(self._workers):
                self._guarded(name, self._report_of)

    def _report_of(self, worker: Any) -> None:
        metrics, facts = report_of(worker)
        self._forward(self._record.report(Report(worker.name, 0, metrics, facts)))

    def _finish_due_work(self, worker: Any) -> None:
        """Finish the due work, so that scores depend on updates only; it is cut when `max_minutes` are over."""
        while not self._is_interrupted and worker.due:
            worker.step()
            self._record.tick()
            if self._record.time_is_over and worker.due:
                self._record.display.message(f"{worker.name}: what it played was cut, because max_minutes are over")
                return

    def _close(self) -> None:
        record = self._record
        record.run.finished_s = record.run.finished_s or record.now()
        self._report(last=True)
        finals = self._begin_finals()
        for name in list(self._workers):
            if name not in self._when_due:
                record.facts(name, self._guarded(name, CLOSE) or {})
                self._unsaved.discard(name)
        for name in self._when_due:
            if name in finals:
                self._guarded(name, functools.partial(self._finish, finals[name]))
            self._guarded(name, CLOSE)
        record.close()

    def _drop_pending(self) -> None:
        """Close the reading ends of streams, so that waiting data is counted."""
        for worker in self._workers.values():
            if hasattr(worker, "drop_pending"):
                worker.drop_pending()

    def _begin_finals(self) -> dict[str, Task]:
        """Tell workers with a last task to start it; return the tasks."""
        tasks = last_tasks(self._plan, self._record.run.reason or "")
        for name in [name for name in self._workers if name in tasks]:
            self._guarded(name, functools.partial(_begin_final, tasks[name].facts))
        return tasks

    def _finish(self, task: Task, worker: Any) -> None:
        while worker.name not in self._record.run.finals and not self._is_interrupted and worker.due:
            worker.step()
            self._record.tick(writes=False)
        if self._is_interrupted and worker.name not in self._record.run.finals:
            self._record.display.message(task.unfinished(worker.name, interrupted=True), "warning")

    def _abandon(self) -> None:
        """Close environments, files and displays after an error; a second error must not hide the first."""
        for worker in self._workers.values():
            if not _works_when_due(worker) and worker.name not in self._learners:
                try:
                    worker.close()
                except Exception as error:
                    self._record.display.message(f"while closing {worker.name}: {error!r}")
        self._record.close()


def _works_when_due(worker: Any) -> bool:
    """Return whether a worker works after updates, until it is no longer `due`."""
    return hasattr(type(worker), "due")  # not of the worker: its property may need the setup


def _begin_final(facts: Mapping[str, Any], worker: Any) -> None:
    worker.command(Command("final", dict(facts)))


def run_in_turn(
    runs: Sequence[SerialRun], ended: Callable[[int], None] = lambda number: None
) -> list[Result | BaseException]:
    """Run several runs to their ends, a turn of each after the other; return their results, or why they failed.

    A run that fails, or ends, does not end the others; but if one cannot be set up, all fail. See SerialRun.run for signals.

    Args:
      ended: called with the number of each run once it has ended.
    """
    keep_compiled_here()
    outcomes: dict[int, Result | BaseException] = {}

    def interrupt() -> None:
        if not all([run.interrupt() for run in runs]):
            raise KeyboardInterrupt

    def report() -> None:
        for run in runs:
            run.request_report()

    def go_through(how: Callable[[SerialRun], Result | BaseException | None]) -> None:
        for number, run in enumerate(runs):
            if number not in outcomes and (outcome := how(run)) is not None:
                outcomes[number] = outcome
                ended(number)

    with interrupts(interrupt) as signals, requests(report):
        try:
            for run in runs:
                run.set_up()
            while len(outcomes) < len(runs):
                go_through(_turn_of)
        except KeyboardInterrupt:
            signals.ignore()
            go_through(SerialRun.interrupted)
        except BaseException as error:
            go_through(methodcaller("failed", error))
    return [outcomes[number] for number in range(len(runs))]


def _turn_of(run: SerialRun) -> Result | BaseException | None:
    try:
        return run.turn()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return run.failed(error)
