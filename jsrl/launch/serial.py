"""Serial placement: every worker's `step` in turn, in this process; deterministic, and open to a debugger."""

from __future__ import annotations

from typing import Any

from jsrl.launch.plan import Plan
from jsrl.launch.result import Result
from jsrl.launch.session import Session
from jsrl.services.control import Event, Report
from jsrl.workers.actor import Actor
from jsrl.workers.evaluator import Evaluator
from jsrl.workers.jobs import build
from jsrl.workers.learner import Learner


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

    def entering(self, activity: str, deadline_s: float | None = None) -> None:
        """Nothing watches a single process: what hangs can be looked at."""

    def left(self) -> None:
        """Nothing was watched."""


class SerialRun:
    """All workers of a plan, in this process."""

    def __init__(self, plan: Plan, session: Session) -> None:
        self._session = session
        workers: dict[str, Any] = {job.name: build(job, SerialReporter(job.name, session)) for job in plan.jobs}
        self._learner: Learner = workers["learner"]
        self._actors: list[Actor] = [w for w in workers.values() if isinstance(w, Actor)]
        self._evaluator: Evaluator | None = workers.get("evaluator")
        self._workers = workers

    def run(self) -> Result:
        """Run until the session says why to stop; Ctrl-C ends in order, with a snapshot."""
        opened: list[Any] = []
        try:
            for worker in self._workers.values():
                opened.append(worker)
                worker.setup()
                self._session.stage(worker.name, "ready")
            self._loop()
        except KeyboardInterrupt:
            self._session.end("interrupted")
        except BaseException:
            self._abandon(opened)
            raise
        return self._close()

    def _loop(self) -> None:
        session, learner = self._session, self._learner
        while session.reason is None:
            for actor in self._actors:
                actor.step()
            if learner.step():
                self._report()
                self._evaluate()
            session.tick()

    def _report(self) -> None:
        self._session.facts({"updates": self._learner.updates, "env_steps": self._learner.env_steps})
        if self._session.line_due:
            for worker in self._workers.values():
                metrics, facts = worker.report()
                self._session.report(Report(worker.name, 0, metrics, facts))

    def _evaluate(self) -> None:
        """Play a due evaluation to its end, so that scores depend on updates alone and not on the clock."""
        while self._evaluator is not None and self._evaluator.due:
            self._evaluator.step()
            self._session.tick()

    def _close(self) -> Result:
        session = self._session
        session.finished_s = session.finished_s or session.now()
        self._report()
        finally_scored = session.reason != "interrupted" and session.experiment.evaluator.final_episodes > 0
        if self._evaluator is not None and finally_scored:
            self._evaluator.begin_final("best" if session.reason == "stop_at_return" else "latest")
        for name, worker in self._workers.items():
            if name != "evaluator":
                session.facts(worker.close())
        if self._evaluator is not None:
            while finally_scored and not session.final and self._evaluator.due:
                self._evaluator.step()
            self._evaluator.close()
        session.close()
        return session.result()

    def _abandon(self, workers: list[Any]) -> None:
        """Close files and displays after an error, without letting a second error hide the first."""
        for worker in workers:
            if isinstance(worker, Actor):
                try:
                    worker.close()
                except Exception as error:
                    self._session.display.message(f"while closing {worker.name}: {error!r}")
        self._session.close()
