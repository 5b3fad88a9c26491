"""Serial placement: every worker's `step` in turn, in this process; deterministic, and open to a debugger."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from typing import Any

from jsrl.launch.compilation import keep_compiled_here
from jsrl.launch.interrupts import interrupts, requests
from jsrl.launch.plan import Plan
from jsrl.launch.processes import loss_notice
from jsrl.launch.result import Result
from jsrl.launch.session import Session
from jsrl.launch.watchdog import Watchdog
from jsrl.services.control import Crash, Event, Report
from jsrl.workers.actor.worker import Actor
from jsrl.workers.evaluator.worker import Evaluator
from jsrl.workers.kinds import build_worker
from jsrl.workers.learner.worker import Learner
from jsrl.workers.recorder.worker import VideoRecorder
from jsrl.workers.replay.worker import ReplayWorker


class SerialReporter:
    """A worker's words go straight into the session."""

    def __init__(self, worker: str, session: Session) -> None:
        self._worker, self._session = worker, session

    def stage(self, stage: str) -> None:
        """Show the stage."""
        self._session.stage(self._worker, stage)

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        """Hand an event to the session."""
        self._session.event(Event(self._worker, 0, name, text, facts))

    def entering(self, activity: object, deadline_s: float | None = None) -> None:
        """Nothing watches a single process: what hangs can be looked at."""

    def left(self) -> None:
        """Nothing was watched."""


class SerialRun:
    """All workers of a plan, in this process."""

    def __init__(self, plan: Plan, session: Session) -> None:
        self._plan, self._session = plan, session
        self._workers: dict[str, Any] = {}
        self._reports: list[str] = []

    def run(self) -> Result:
        """Run until the session says why to stop.

        Ctrl-C, SIGTERM and SIGHUP end the run after the step that is being made, with a snapshot; a second one (or the first,
        as long as nothing has begun) ends it at once. Either way there is a result, `interrupted`.
        """
        keep_compiled_here()
        self._running = self._interrupted = False
        with interrupts(self._interrupt) as signals, requests(self._report_on_request):
            try:
                self._set_up()
                self._running = True
                self._loop()
                self._close()
            except KeyboardInterrupt:
                signals.ignore()
                self._session.end("interrupted")
                self._drop_pending()
                self._abandon()
            except BaseException as error:
                self._drop_pending()
                self._session.fail(error)
                self._abandon()
                raise
            finally:
                for worker in self._workers.values():
                    worker.recorder.close()
                shutil.rmtree(self._plan.memory_folder, ignore_errors=True)
        return self._session.result()

    def _interrupt(self) -> None:
        self._interrupted = True
        self._session.end("interrupted")
        if not self._running:
            raise KeyboardInterrupt

    def _report_on_request(self) -> None:
        """Write down what this process is doing, inside the signal's handler; the loop shows where."""
        watchdog = Watchdog(self._session, {}, lambda _: None, lambda _: None)
        self._reports.append(watchdog.write("request", "SIGUSR1 asked for it", ""))

    def _set_up(self) -> None:
        for job in self._plan.jobs:
            self._workers[job.name] = build_worker(job, SerialReporter(job.name, self._session))
        self._learner: Learner = self._workers["learner"]
        self._actors: list[Actor] = [w for w in self._workers.values() if isinstance(w, Actor)]
        self._replays: list[ReplayWorker] = [w for w in self._workers.values() if isinstance(w, ReplayWorker)]
        self._evaluator: Evaluator | None = self._workers.get("evaluator")
        self._video_recorder: VideoRecorder | None = self._workers.get("recorder")
        for worker in self._workers.values():
            if worker is not self._video_recorder:
                worker.setup()
                self._session.stage(worker.name, "ready")
        self._film(self._set_up_recorder)
        for worker in self._workers.values():
            worker.recorder.begin()  # the others' setups are no part of any worker's time

    def _loop(self) -> None:
        session, learner = self._session, self._learner
        while session.reason is None:
            while self._reports:
                session.display.message(self._reports.pop())
            for actor in self._actors:
                actor.step()
            for replay in self._replays:
                replay.step()
            if learner.step():
                self._report()
                self._evaluate()
                self._film(self._film_what_is_due)
            session.tick()

    def _report(self, *, last: bool = False) -> None:
        self._session.facts({"updates": self._learner.updates, "env_steps": self._learner.env_steps})
        if last or self._session.line_due:
            for worker in self._workers.values():
                metrics, facts = worker.report()
                self._session.report(Report(worker.name, 0, metrics, facts))

    def _evaluate(self) -> None:
        """Play a due evaluation to its end, so that scores depend on updates alone and not on the clock."""
        while self._evaluator is not None and self._session.reason != "interrupted" and self._evaluator.due:
            self._evaluator.step()
            self._session.tick()

    def _film(self, step: Callable[[VideoRecorder], Any]) -> None:
        """Have the recorder do something; when it fails, the run goes on without it."""
        recorder = self._video_recorder
        if recorder is None:
            return
        try:
            step(recorder)
        except Exception as error:  # whatever a renderer does, the training is worth more than its videos
            self._video_recorder = None
            del self._workers["recorder"]
            crash = Crash("recorder", 0, type(error).__name__, str(error), "")
            self._session.lose(
                "recorder", loss_notice("recorder", f"recorder: {traceback.format_exc().rstrip()}", crash)
            )
            try:
                recorder.close()
            except Exception as second:
                self._session.display.message(f"while closing the recorder: {second!r}")

    def _set_up_recorder(self, recorder: VideoRecorder) -> None:
        recorder.setup()
        self._session.stage("recorder", "ready")

    def _film_what_is_due(self, recorder: VideoRecorder) -> None:
        """Film to the end what is due, after the evaluation: one process cannot do both at once."""
        while self._session.reason != "interrupted" and recorder.due:
            recorder.step()
            self._session.tick()

    def _film_finally(self, recorder: VideoRecorder) -> None:
        recorder.begin_final()
        while not self._session.filmed and not self._interrupted:
            recorder.step()

    def _close(self) -> None:
        session = self._session
        session.finished_s = session.finished_s or session.now()
        self._report(last=True)
        finally_scored = session.reason != "interrupted" and session.experiment.evaluator.final_episodes > 0
        if self._evaluator is not None and finally_scored:
            self._evaluator.begin_final("best" if session.reason == "stop_at_return" else "latest")
        for name, worker in self._workers.items():
            if name not in ("evaluator", "recorder"):
                session.facts(worker.close())
        if self._evaluator is not None:
            while finally_scored and not session.final and not self._interrupted and self._evaluator.due:
                self._evaluator.step()
            self._evaluator.close()
        if session.reason != "interrupted" and session.experiment.recorder.final:
            self._film(self._film_finally)
        self._film(VideoRecorder.close)
        session.close()

    def _drop_pending(self) -> None:
        """Close the streams where they are read, so that what waits in them is counted."""
        for worker in self._workers.values():
            if isinstance(worker, Learner | ReplayWorker):
                worker.drop_pending()

    def _abandon(self) -> None:
        """Close environments, files and displays after an error, without letting a second error hide the first."""
        for worker in self._workers.values():
            if isinstance(worker, Actor):
                try:
                    worker.close()
                except Exception as error:
                    self._session.display.message(f"while closing {worker.name}: {error!r}")
        self._session.close()
