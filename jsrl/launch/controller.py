"""The controller of one machine: starts worker processes, watches them, and ends them in order, whatever happens."""

from __future__ import annotations

import shutil
import signal
import time
from typing import Any

from jsrl.errors import WorkerDied
from jsrl.launch.actor_host import HOST_ACTORS, ActorHost
from jsrl.launch.plan import Plan, accelerators, process_environment
from jsrl.launch.processes import Process, next_life, start
from jsrl.launch.result import Result
from jsrl.launch.session import Session
from jsrl.reference import spawn_environment
from jsrl.services.control import AnyMessage, Bye, ControlServer, Crash, Event, Heartbeat, Report, Stage
from jsrl.transport.segment import make_folder

READY_TIMEOUT_S = 180.0
SILENCE_S = 30.0
LEAVE_S = 10.0
SNAPSHOT_S = 60.0
POLL_S = 0.05
# Whoever feeds others leaves first, so that nobody waits for the dead.
STOP_ORDER = ("actor", "inference", "learner", "parameter-server", "evaluator")


class Controller:
    """Runs a plan with processes."""

    def __init__(self, plan: Plan, session: Session, source_folders: tuple[str, ...] = ()) -> None:
        self._plan, self._session = plan, session
        self._folder = session.folder.path
        self._spawn = spawn_environment(source_folders)
        self._gpus = accelerators()
        self._processes: dict[str, Process] = {}
        self._host: ActorHost | None = None
        self._crashes: dict[str, Crash] = {}
        self._interrupts = 0

    def run(self) -> Result:
        """Run until the session says why to stop.

        Raises:
          WorkerDied: a worker ended, hung or never became ready; the message has its traceback.
        """
        make_folder(self._plan.memory_folder)
        self._control = ControlServer(f"ipc://{self._plan.memory_folder}/control")
        handlers = self._take_signals()
        try:
            self._host = self._start_host()
            for job in self._plan.jobs:
                self._start(job, host=self._host if job.kind == "actor" else None)
            while self._session.reason is None:
                self._watch()
            self._end_in_order()
        finally:
            for process in self._processes.values():
                if not process.left or process.exit_status is None:
                    process.kill()
            if self._host is not None:
                self._host.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._control.close()
            shutil.rmtree(self._plan.memory_folder, ignore_errors=True)
            self._session.close()
        return self._session.result()

    def _take_signals(self) -> dict[int, Any]:
        """Ctrl-C and SIGTERM end the run in order; a second one ends it at once."""

        def interrupt(*_: Any) -> None:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
            self._session.end("interrupted")

        handlers: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                handlers[number] = signal.signal(number, interrupt)
        except ValueError:  # not the main thread: whoever called handles signals
            pass
        return handlers

    def _start_host(self) -> ActorHost | None:
        """Start a process that forks the actors, where they are many and load no jax."""
        actors = [job for job in self._plan.jobs if job.kind == "actor" and job.experiment.agent is None]
        if len(actors) < HOST_ACTORS:
            return None
        variables = process_environment(actors[0], self._gpus)
        return ActorHost(self._control.address, self._folder, self._spawn, variables)

    def _start(self, job: Any, restarts: int = 0, host: ActorHost | None = None) -> None:
        variables = process_environment(job, self._gpus)
        process = start(job, self._control.address, self._folder, self._spawn, variables, restarts, host)
        self._processes[job.name] = process

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        for message in self._control.poll(POLL_S):
            self._hear(message)
        for process in list(self._processes.values()):
            if not process.left:
                self._check(process)
        self._session.tick()

    def _hear(self, message: AnyMessage) -> None:
        process = self._processes.get(message.worker)
        if process is None or message.incarnation != process.job.incarnation:
            return  # the last words of a life that was replaced
        process.beat_s = time.monotonic()
        if isinstance(message, Stage):
            process.stage, process.stage_s = message.stage, time.monotonic()
            self._session.stage(message.worker, message.stage)
        elif isinstance(message, Report):
            self._session.report(message)
        elif isinstance(message, Event):
            self._session.event(message)
        elif isinstance(message, Crash):
            self._crashes[message.worker] = message
        elif isinstance(message, Bye):
            process.left = True
            self._session.facts(message.facts)
        else:
            assert isinstance(message, Heartbeat)

    def _check(self, process: Process) -> None:
        """See that a worker lives, becomes ready in time, and is heard of."""
        now = time.monotonic()
        if process.exit_status is not None:
            self._last_words(process)
            if not process.left:
                self._died(process, f"ended unexpectedly: {process.exit_text()}")
        elif not process.ready and now - process.started_s > READY_TIMEOUT_S:
            self._died(process, f"was not ready within {READY_TIMEOUT_S:g} s; it is still {process.stage!r}")
        elif now - process.beat_s > SILENCE_S and process.stage != "starting the interpreter":
            self._died(
                process, f"was not heard of for {SILENCE_S:g} s (stopped, or stuck in a call that holds the GIL)"
            )

    def _last_words(self, process: Process) -> None:
        """Hear what a dead worker had still sent."""
        for message in self._control.poll(0.1):
            self._hear(message)

    def _died(self, process: Process, what: str) -> None:
        """Replace an actor while `restart` allows it; end the run otherwise.

        Raises:
          WorkerDied: with the worker's own traceback where it could send one, else the end of its log.
        """
        process.kill()
        crash = self._crashes.pop(process.name, None)
        # A worker whose stream broke is a witness, not the cause: look for whoever died before it.
        if crash is not None and crash.error == "StreamClosed":
            for other in self._processes.values():
                if other is not process and not other.left and other.exit_status is not None:
                    self._last_words(other)
                    if not other.left:
                        process, crash = other, self._crashes.pop(other.name, None)
                        what = f"ended unexpectedly: {process.exit_text()}"
                        break
        if process.job.kind == "actor" and process.restarts < self._plan.experiment.restart:
            reason = f"{crash.error}: {crash.text}" if crash else what
            count = f"restart {process.restarts + 1} of {self._plan.experiment.restart}"
            self._session.display.message(f"{process.name} {reason.splitlines()[0]}; {count}")
            self._start(next_life(process), process.restarts + 1)
            return
        raise WorkerDied(death_notice(process, what, crash))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end_in_order(self) -> None:
        """Stop actors, inference servers and learner; let the evaluator play the final episodes; stop the rest."""
        final = self._wants_final_evaluation()
        if final:
            self._tell("evaluator", "final", which="best" if self._session.reason == "stop_at_return" else "latest")
        for kind in STOP_ORDER:
            if kind == "evaluator" and final:
                self._await_final_evaluation()
            limit_s = SNAPSHOT_S if kind in ("learner", "parameter-server") else LEAVE_S
            self._stop(kind, limit_s)

    def _wants_final_evaluation(self) -> bool:
        evaluator = self._processes.get("evaluator")
        wanted = self._session.reason != "interrupted" and self._plan.experiment.evaluator.final_episodes > 0
        return wanted and evaluator is not None and evaluator.exit_status is None

    def _tell(self, worker: str, command: str, **facts: Any) -> None:
        self._control.tell(worker, self._processes[worker].job.incarnation, command, **facts)

    def _stop(self, kind: str, limit_s: float) -> None:
        leaving = [p for p in self._processes.values() if p.job.kind == kind]
        for process in leaving:
            self._tell(process.name, "stop")
        until = time.monotonic() + limit_s
        while time.monotonic() < until and any(p.exit_status is None for p in leaving):
            for message in self._control.poll(0.02):
                self._hear(message)
        for process in leaving:
            self._last_words(process) if not process.left else None
            if not process.left:
                text = f"did not leave in order within {limit_s:g} s" if process.exit_status is None else ""
                crash = self._crashes.get(process.name)
                what = text or (f"{crash.error}: {crash.text}" if crash else process.exit_text())
                self._session.display.message(f"{process.name} while stopping: {what}", "warning")

    def _await_final_evaluation(self) -> None:
        self._session.stage("evaluator", "final evaluation")
        evaluator = self._processes["evaluator"]
        while not self._session.final and evaluator.exit_status is None and not self._interrupts:
            for message in self._control.poll(POLL_S):
                self._hear(message)
            self._session.tick()


def death_notice(process: Process, what: str, crash: Crash | None) -> str:
    """Return which worker died, why, and what it said."""
    title = f"{process.name} {what}."
    if crash is not None:
        return f"{process.name}: {crash.error}: {crash.text}\n\n{crash.trace.rstrip()}\n\n(log: {process.log})"
    tail = process.last_lines()
    return f"{title} It sent no traceback; its log ends with:\n{tail or '(nothing)'}\n\n(log: {process.log})"
