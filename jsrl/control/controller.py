"""The controller of a run with processes: it receives messages, executes what the machines decide, and always cleans up.

The decisions are in jsrl/control: supervision.py while the run goes on, ending.py from its end on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from jsrl.control.ending import BeginTask, EndAction, Ending, Files, Interrupted, LookAtFiles, Rescue, ShowLate
from jsrl.control.result import Result
from jsrl.control.rules import ending_of, kept_files, supervision_of
from jsrl.control.run_record import Forwards, RunRecord
from jsrl.control.start_points import lost_text, replacement_job
from jsrl.control.status_writer import Usage
from jsrl.control.supervised import SupervisedWorker, death_notice, last_seen, loss_notice
from jsrl.control.supervision import (
    NOT_BEGUN,
    Died,
    Ended,
    Fail,
    Kill,
    Killed,
    Look,
    Move,
    NoteEnd,
    NotStarted,
    Observe,
    Observed,
    Phase,
    Send,
    Show,
    Start,
    Started,
    Supervision,
    crash_text,
)
from jsrl.control.watchdog import Watchdog
from jsrl.errors import RunDeleted, WorkerDied
from jsrl.graph.addresses import tcp
from jsrl.graph.devices import process_environment
from jsrl.graph.launcher import Launcher
from jsrl.graph.launcher import Start as StartParameters
from jsrl.graph.machine import accelerators
from jsrl.graph.plan import Plan
from jsrl.interrupts import interrupts, requests
from jsrl.references.importing import spawn_environment
from jsrl.services.runs.control import ControlServer, with_texts
from jsrl.services.runs.control_bodies import AnyMessage, Bye, Event, Heartbeat, Report, Stage
from jsrl.services.runs.message_limits import objection, printable
from jsrl.services.runs.process import Pauses
from jsrl.services.runs.runs import to_resume
from jsrl.services.runs.state import NO_SNAPSHOT, has_snapshot
from jsrl.services.snapshots.format import MANIFEST
from jsrl.transport.ledger.legs import close_legs
from jsrl.transport.shared.locks import make_folder
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import value_of

POLL_S = 0.05
END_POLL_S = 0.02  # while the run ends
CHECK_S = 0.001  # between two looks at all processes, per worker; a tenth of it while the run ends
PAUSE_S = 0.00005  # before messages are received, per worker: those of hundreds arrive one by one


class Controller:
    """Runs a plan with the workers that a launcher starts."""

    def __init__(self, plan: Plan, record: RunRecord, launcher: Launcher, source_folders: tuple[str, ...] = ()) -> None:
        self._plan, self._record, self._launcher = plan, record, launcher
        self._folder = record.folder.path
        self._spawn = spawn_environment(source_folders)
        self._gpus, self._forked = accelerators(), plan.forked
        self._workers: dict[str, SupervisedWorker] = {}
        self._interrupted = self._asked = False
        self._usage = Usage(launcher.busy_s)
        self._pauses = Pauses()
        self._supervision = supervision_of(plan)
        self._machine: Supervision | Ending | Rescue = self._supervision
        self._actions: deque[EndAction] = deque()
        self._look_s = 0.0
        self._seen: dict[str, str] = {}  # worker that is to be killed -> what was seen of all workers
        self._files: dict[str, set[tuple[str, int]]] = {}  # worker -> path and bytes of its files
        self._watchdog = Watchdog(
            record, self._workers, lambda worker: self._forward([(worker.name, "stacks", {})]), self._listen, self._now
        )

    def run(self) -> Result:
        """Run until there is a reason to stop.

        Ctrl-C, SIGTERM and SIGHUP end the run cleanly, with a snapshot; a second one ends it at once. Either way there is a
        result, with `ended` set to `interrupted`, or to why training had ended before.
        """
        make_folder(self._plan.memory_folder)
        failure: BaseException | None = None
        shutil.rmtree(self._plan.registry, ignore_errors=True)  # of an earlier start of the run
        self._control = self._open_control()
        with interrupts(self._interrupt) as signals, requests(self._request):
            try:
                self._work()
            except KeyboardInterrupt:
                lives, rules = self._supervision.lives.values(), self._supervision.rules
                self._record.cut(life.worker for life in lives if rules[life.worker].must_finish and not life.left)
            except BaseException as error:
                if not isinstance(error, WorkerDied | RunDeleted):  # it has a report already, or no folder for one
                    report = self._watchdog.write("controller", repr(error), self._watchdog.look())
                    self._record.display.message(report)
                failure = error
                raise
            finally:
                signals.ignore()
                self._clear(failure)
        return self._record.result()

    def _open_control(self) -> ControlServer:
        """Bind the control connection: a Unix socket, or a TCP port with keys if some workers are on other hosts."""
        plan = self._plan
        if plan.hosts.control_over_tcp:
            return ControlServer(tcp(plan.hosts.own), keys=plan.keys)
        return ControlServer(f"ipc://{plan.memory_folder}/control")

    def _work(self) -> None:
        for job in self._plan.jobs:
            self._start(job)
        try:
            while self._record.run.reason is None:
                self._watch()
            self._end()
        except WorkerDied as error:
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: without the snapshots
                self._rescue()
            if has_snapshot(folder := self._record.folder.path):
                raise WorkerDied(f"{error}\n(to continue: {to_resume(folder)})") from None
            raise WorkerDied(f"{error}\n({NO_SNAPSHOT})") from None

    def _interrupt(self) -> None:
        self._interrupted = True
        self._record.end("interrupted")

    def _request(self) -> None:
        self._asked = True

    def _clear(self, failure: BaseException | None) -> None:
        """Remove all processes, shared memory and sockets. Counters are read once all processes have ended."""
        for worker in self._workers.values():
            is_over = worker.life.phase in (Phase.REPLACED, Phase.GONE)
            if not is_over and (not worker.life.left or worker.alive):
                worker.handle.kill()
        self._launcher.close()
        close_legs(self._folder)
        if failure is not None:
            self._record.fail(failure)
        self._control.close()
        self._watchdog.close()
        for folder in (self._plan.memory_folder, self._plan.registry):
            shutil.rmtree(folder, ignore_errors=True)
        self._record.hub.receive("controller", "controller", self._restarts())  # includes the last moment
        self._record.close()

    def _start(self, job: Job, restarts: int = 0) -> None:
        def variables(gpus: list[str] | None = None, here: Collection[str] | None = None) -> dict[str, str]:
            return process_environment(self._plan, job, self._gpus if gpus is None else gpus, here)

        keys = self._plan.keys if self._plan.hosts.control_over_tcp else None
        start = StartParameters(
            self._folder,
            self._control.address,
            self._spawn,
            variables(),
            keys,
            job.name in self._forked,
            variables,
            server=self._control,
        )
        worker = self._workers[job.name] = SupervisedWorker(job, self._launcher.start(job, start))
        self._record.run.started(job.name, restarts, worker.handle.host)
        self._record.stage(job.name, NOT_BEGUN)  # now: it may be ready before all are started
        self._tell(Started(job.name, job.incarnation, restarts, worker.handle.host))
        worker.life = self._supervision.lives[job.name]

    # -- turns --------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._pauses.now()

    def _watch(self) -> None:
        time.sleep(min(PAUSE_S * len(self._workers), POLL_S))
        self._listen(POLL_S)
        if self._record.run.reason is None:  # a SIGTERM to all processes of a job ends them all; these are no failures
            for name, why in self._launcher.moves().items():
                self._tell(Move(name, why))
            self._observe_if_due(CHECK_S)
            self._decide()
        if self._record.line_due:
            usage = self._usage.sample(self._workers.values()) | self._restarts()
            self._record.hub.receive("controller", "controller", usage)
            self._watchdog.report_standstill()
        self._record.tick()

    def _end(self) -> None:
        """End the run in order."""
        record = self._record
        ending = ending_of(self._plan, self._supervision, record.run.reason or "", record.run.finals)
        self._machine = ending
        while not ending.is_over:
            if self._interrupted or record.stop_asked:
                self._tell(Interrupted())
            self._end_turn()
            if not (ending.is_stopping or ending.is_over):  # the last reports belong to the last line
                record.tick()

    def _rescue(self) -> None:
        """Let learners write their snapshots, so that the run can be continued from here."""
        rescue = self._machine = Rescue(self._supervision)
        self._actions.clear()
        while not rescue.is_over:
            self._end_turn()

    def _end_turn(self) -> None:
        self._observe_if_due(CHECK_S / 10)
        self._decide()
        self._listen(END_POLL_S)

    def _decide(self) -> None:
        """Let the machine decide what is due; execute all actions, and first those that answer to an action."""
        self._actions.extend(self._machine.tick(self._now()))
        while self._actions:
            action, later = self._actions.popleft(), self._actions
            self._actions = deque()
            self._execute(action)
            self._actions.extend(later)

    def _tell(self, message: Any) -> None:
        self._actions.extend(self._machine.handle(message, self._now()))

    def _observe_if_due(self, per_worker_s: float) -> None:
        if self._now() >= self._look_s:
            self._observe()
            self._look_s = self._now() + per_worker_s * len(self._workers)

    def _observe(self) -> None:
        """Look at all processes."""
        for worker in self._workers.values():
            self._look_at(worker)
        silence = getattr(self._launcher, "silence", None)
        self._tell(Observed(*silence()) if silence is not None else Observed())

    def _look_at(self, worker: SupervisedWorker) -> None:
        if worker.life.exit is None and (ended := worker.handle.exit) is not None:
            self._tell(Ended(worker.name, worker.job.incarnation, ended))

    def _listen(self, timeout_s: float) -> None:
        """Receive workers' messages, waiting up to `timeout_s` for the first; write a report of all workers if requested."""
        for message in self._control.poll(timeout_s):
            self._receive(message)
        if self._asked:
            self._asked = False
            report = self._watchdog.write("request", "SIGUSR1 asked for it", self._watchdog.look())
            self._record.display.message(report)

    def _receive(self, message: AnyMessage) -> None:
        worker = self._workers.get(message.worker)
        if worker is None or message.incarnation != worker.job.incarnation:
            return  # the last messages of a replaced incarnation
        if self._plan.hosts.control_over_tcp and (why := self._objection(worker, message)):
            line, _ = worker.drops.add(worker.name, why, self._now())
            if line:
                self._record.display.message(line, "warning")
            return
        message = with_texts(message, printable)
        worker.receive(message, self._now())
        self._tell(message)
        if isinstance(message, Stage):
            self._record.stage(message.worker, message.stage, message.pid)
        elif isinstance(message, Heartbeat):
            self._record.call(message.worker, message.activity, message.activity_s)
        elif isinstance(message, Report):
            self._forward(self._record.report(message))
        elif isinstance(message, Event):
            self._forward(self._record.event(message))
        elif isinstance(message, Bye):
            self._record.facts(message.worker, message.facts)

    def _objection(self, worker: SupervisedWorker, message: AnyMessage) -> str:
        """Return why a message that came over TCP is dropped; empty: it is not. Joined hosts' are checked at their port."""
        speech = self._plan.kinds[worker.name].speech
        return objection(message, speech) or worker.budget.objection(message, self._now())

    def _restarts(self) -> dict[str, float]:
        return {f"restarts/{kind}": float(count) for kind, count in self._supervision.budgets.counts.items()}

    def _forward(self, forwards: Forwards) -> None:
        """Send workers the commands of other workers; lost while they are replaced."""
        for worker, command, facts in forwards:
            if worker in self._workers:
                self._control.send_command(worker, self._workers[worker].job.incarnation, command, facts)

    # -- actions ------------------------------------------------------------------------------------------------------

    def _execute(self, action: EndAction) -> None:
        display = self._record.display
        match action:
            case Send(worker, incarnation, command, facts):
                self._control.send_command(worker, incarnation, command, dict(facts))
            case BeginTask(worker, incarnation, facts):
                facts = {"updates": self._record.run.last_updates, **facts}
                self._control.send_command(worker, incarnation, "final", facts)
            case Show(text, level, ""):
                display.message(text, level)
            case Show(stage, _, worker):
                self._record.stage(worker, stage)
            case NoteEnd(worker, incarnation):
                self._record.note_end(worker, incarnation)
            case Look(worker):
                self._seen[worker] = self._watchdog.look(self._workers[worker])
            case Kill(worker, incarnation):
                self._workers[worker].handle.kill()
                self._look_at(self._workers[worker])
                self._tell(Killed(worker, incarnation))
            case Observe():
                self._observe()
            case Start(worker, incarnation, restarts):
                self._restart(self._workers[worker], incarnation, restarts)
            case Died():
                self._report_death(action)
            case Fail(text):
                raise WorkerDied(text)
            case LookAtFiles(worker):
                self._look_at_files(self._workers[worker])
            case ShowLate(worker, _, what, hangs):
                if hangs:
                    seen = self._watchdog.look(self._workers[worker])
                    what += f" ({self._watchdog.write(worker, what, seen)})"
                crash = self._workers[worker].life.crash
                display.message(f"{worker} while stopping: {crash_text(worker, crash) if crash else what}", "warning")

    def _restart(self, worker: SupervisedWorker, incarnation: int, restarts: int) -> None:
        try:
            job, warnings = replacement_job(worker.job, incarnation, self._folder)
            for line in filter(None, (*warnings, lost_text(job, int(worker.known.get("updates", 0))))):
                self._record.display.message(line, "warning")
            self._start(job, restarts)
        except OSError as error:  # a full disk, no memory: it may be temporary
            self._tell(NotStarted(worker.name, incarnation, str(error)))

    def _report_death(self, death: Died) -> None:
        """Write a report of a death, show what follows from it, and end the run if it fails.

        Raises:
          WorkerDied: the run fails.
        """
        worker, what = self._workers[death.worker], death.what
        name, kind, crash, exit = worker.name, self._plan.kinds[worker.name], worker.life.crash, worker.life.exit
        reason = crash_text(name, crash) if crash else what
        latest = next(reversed(self._seen.values()), "")  # of another worker's death that this one caused
        seen = self._seen.pop(name, latest)
        report = self._watchdog.write(name, f"{name} {reason}" + (f"\n\n{crash.trace}" if crash else ""), seen)
        if death.outcome == "replaced":
            self._record.display.message(f"{name} {reason.splitlines()[0]} ({report}); {death.text}", "warning")
            return
        if crash is None:
            what += value_of(kind.shown.death_hint, worker.job, exit.status if exit else None) + last_seen(worker)
        notice = death_notice(worker, what, crash)
        notice = "\n".join([notice, f"({report})", *([f"({death.text})"] if death.text else [])])
        if death.outcome == "fails":
            raise WorkerDied(notice)
        self._record.lose(name, loss_notice(name, notice, crash))

    def _look_at_files(self, worker: SupervisedWorker) -> None:
        """Look at the files that a worker keeps in the run folder, also at one that is arriving."""
        found: set[tuple[str, int]] = set()
        for folder in kept_files(self._plan.kinds[worker.name], worker.job):
            for place, _, names in os.walk(self._folder / folder):
                for path in (os.path.join(place, name) for name in names):
                    with contextlib.suppress(FileNotFoundError):  # it has just arrived completely, or was removed
                        found.add((path, os.stat(path).st_size))
        known = self._files.setdefault(worker.name, set())
        grew = not found <= known
        known |= found
        versions = [int(path.parent.name) for path in worker.job.snapshots.glob(f"state/[0-9]*/{MANIFEST}")]
        self._tell(Files(worker.name, worker.job.incarnation, grew, max(versions, default=None)))
