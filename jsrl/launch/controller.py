"""The controller of one machine: starts worker processes, watches them, and always ends them cleanly."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Collection
from typing import Any

from jsrl.errors import RunDeleted, WorkerDied
from jsrl.graph.graph import ranks_of
from jsrl.launch.devices import process_environment
from jsrl.launch.interrupts import interrupts, requests
from jsrl.launch.launcher import Launcher, Start
from jsrl.launch.links import tcp
from jsrl.launch.machine import accelerators
from jsrl.launch.plan import Plan
from jsrl.launch.result import Result
from jsrl.launch.session import Session
from jsrl.launch.status_writer import Usage
from jsrl.launch.supervised import NOT_BEGUN, SupervisedWorker, crash_text, death_notice, last_seen, loss_notice
from jsrl.launch.supervision import Restart, budgets_of, lost_text, replacement_job
from jsrl.launch.watchdog import Watchdog
from jsrl.references.importing import spawn_environment
from jsrl.runs.control import ControlServer, with_texts
from jsrl.runs.control_bodies import AnyMessage, Bye, Crash, Event, Heartbeat, Report, Stage
from jsrl.runs.door import objection, printable
from jsrl.runs.process import Pauses
from jsrl.runs.runs import to_resume
from jsrl.runs.state import NO_SNAPSHOT, has_snapshot
from jsrl.snapshots.format import MANIFEST
from jsrl.transport.ledger.hops import close_hops
from jsrl.transport.memory.locks import make_folder
from jsrl.types import version_updates
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, value_of

POLL_S = 0.05
CHECK_S = 0.001  # between two checks of all workers, per worker
PAUSE_S = 0.00005  # before messages are received, per worker: those of hundreds arrive one by one
QUIET_S = 3.0  # of waiting for the end of a worker, before a line says so
RESCUE_S = 4.0  # for the learner's snapshot after another worker's death


class Controller:
    """Runs a plan with the workers that a launcher starts."""

    def __init__(self, plan: Plan, session: Session, launcher: Launcher, source_folders: tuple[str, ...] = ()) -> None:
        self._plan, self._session, self._launcher = plan, session, launcher
        self._folder = session.folder.path
        self._spawn = spawn_environment(source_folders)
        self._gpus, self._forked = accelerators(), plan.forked
        self._workers: dict[str, SupervisedWorker] = {}
        self._crashes: dict[str, Crash] = {}
        self._interrupted = self._asked = False
        session.send_command, session.hosts_of_workers = self._pass_on, self._hosts_of_workers
        session.interrupt = self._interrupt
        self._usage = Usage(launcher.busy_s)
        self._deadlines = plan.experiment.deadlines
        self._budgets = budgets_of(plan.experiment, plan.jobs)
        self._restarts: list[Restart] = []
        self._finals: dict[str, dict[str, Any]] = {}  # workers with a last task, and the facts of its command
        self._check_s = 0.0
        self._absent: dict[str, tuple[int, list[int]]] = {}  # learner -> its incarnation, groups it knows as absent
        self._pauses = Pauses()
        self._groups = {w.name: [rank.name for rank in ranks_of(plan.graph, w)] for w in plan.graph.workers}
        self._silence_s = self._silence_limits()
        self._watchdog = Watchdog(
            session, self._workers, lambda worker: self._send_command(worker.name, "stacks"), self._listen
        )

    def run(self) -> Result:
        """Run until the session has a reason to stop.

        Ctrl-C, SIGTERM and SIGHUP end the run cleanly, with a snapshot; a second one ends it at once. Either way there is a
        result, with `ended` set to `interrupted`.
        """
        make_folder(self._plan.memory_folder)
        failure: BaseException | None = None
        shutil.rmtree(self._plan.registry, ignore_errors=True)  # of an earlier start of the run
        self._control = self._open_control()
        with interrupts(self._interrupt) as signals, requests(self._request):
            try:
                self._work()
            except KeyboardInterrupt:
                self._session.end("interrupted")
            except BaseException as error:
                if not isinstance(error, WorkerDied | RunDeleted):  # it has a report already, or no folder for one
                    report = self._watchdog.write("controller", repr(error), self._watchdog.look())
                    self._session.display.message(report)
                failure = error
                raise
            finally:
                signals.ignore()
                self._clear(failure)
        return self._session.result()

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
            while self._session.reason is None:
                self._watch()
            self._end_in_order()
        except WorkerDied as error:
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: without the snapshots
                self._save_learners()
            if has_snapshot(folder := self._session.folder.path):
                raise WorkerDied(f"{error}\n(to continue: {to_resume(folder)})") from None
            raise WorkerDied(f"{error}\n({NO_SNAPSHOT})") from None

    def _interrupt(self) -> None:
        self._interrupted = True
        self._session.end("interrupted")

    def _request(self) -> None:
        self._asked = True

    def _clear(self, failure: BaseException | None) -> None:
        """Remove all processes, shared memory and sockets. Counters are read once all processes have ended."""
        for worker in self._workers.values():
            if not worker.replaced and (not worker.left or worker.alive):
                worker.handle.kill()
        self._launcher.close()
        close_hops(self._folder)
        if failure is not None:
            self._session.fail(failure)
        self._control.close()
        self._watchdog.close()
        for folder in (self._plan.memory_folder, self._plan.registry):
            shutil.rmtree(folder, ignore_errors=True)
        self._session.hub.receive("controller", "controller", self._restart_metrics())  # includes the last moment
        self._session.close()

    def _start(self, job: Job, restarts: int = 0) -> None:
        def variables(gpus: list[str] | None = None, here: Collection[str] | None = None) -> dict[str, str]:
            return process_environment(self._plan, job, self._gpus if gpus is None else gpus, here)

        keys = self._plan.keys if self._plan.hosts.control_over_tcp else None
        start = Start(
            self._folder, self._control.address, self._spawn, variables(), keys, job.name in self._forked, variables
        )
        self._workers[job.name] = SupervisedWorker(job, self._launcher.start(job, start), restarts)
        if restarts:
            self._session.restarts[job.name] = restarts
        self._session.stage(job.name, NOT_BEGUN)

    def _restart_metrics(self) -> dict[str, float]:
        return {f"restarts/{kind}": float(count) for kind, count in self._budgets.counts.items()}

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        time.sleep(min(PAUSE_S * len(self._workers), POLL_S))
        self._listen(POLL_S)
        for name, why in self._launcher.moves().items():
            self._move(self._workers[name], why)
        due = self._due_checks()
        for worker in due:
            if self._session.reason is None:  # a SIGTERM to all processes of a job ends them all; these are no failures
                self._check(worker)
        self._start_due()
        if due:
            self._tell_absent()
        if self._session.line_due:
            usage = self._usage.sample(self._workers.values()) | self._restart_metrics()
            self._session.hub.receive("controller", "controller", usage)
            self._watchdog.report_standstill(self._deadlines.still_s)
        self._session.tick()

    def _tell_absent(self) -> None:
        """Tell learners which groups nobody steps now, so that the others make their rows; in deterministic runs they wait."""
        if self._plan.experiment.is_deterministic:
            return
        away = [w.job for w in self._workers.values() if self._kind(w).plays and w.is_absent]
        samples = [end for job in away for _, end in job.ends if end.stream.type == "samples"]
        absent = sorted({group for end in samples for group in end.groups})
        for worker in self._workers.values():
            told = (worker.job.incarnation, absent)
            if self._kind(worker).resources.device == "learns" and worker.is_reachable:
                if self._absent.get(worker.name, (worker.job.incarnation, [])) != told:
                    self._send_command(worker.name, "absent", groups=absent)
                self._absent[worker.name] = told

    def _due_checks(self) -> list[SupervisedWorker]:
        """Return the workers to check now: all, or none if very many were checked just now."""
        now_s = time.monotonic()
        if now_s < self._check_s:
            return []
        self._check_s = now_s + CHECK_S * len(self._workers)
        return list(self._workers.values())

    def _listen(self, timeout_s: float) -> None:
        """Receive workers' messages, waiting up to `timeout_s` for the first; write a report of all workers if requested."""
        for message in self._control.poll(timeout_s):
            self._receive(message)
        self._pauses.look()  # here, because every loop that waits listens
        if self._asked:
            self._asked = False
            report = self._watchdog.write("request", "SIGUSR1 asked for it", self._watchdog.look())
            self._session.display.message(report)

    def _receive(self, message: AnyMessage) -> None:
        worker = self._workers.get(message.worker)
        if worker is None or message.incarnation != worker.job.incarnation:
            return  # the last messages of a replaced incarnation
        if why := self._objection(worker, message):
            kind = f"{type(message).__name__.lower()} {getattr(message, 'name', '')}".strip()
            line, cut_off = worker.drops.add(worker.name, f"{kind}: {why}", time.monotonic())
            if line:
                self._session.display.message(line, "warning")
            worker.cut_off = worker.cut_off or cut_off
            worker.beat_s = time.monotonic()  # any message shows that it is alive
            worker.left = worker.left or isinstance(message, Bye)
            return
        message = with_texts(message, printable)
        worker.receive(message)
        if isinstance(message, Stage):
            self._session.stage(message.worker, message.stage)
        elif isinstance(message, Heartbeat):
            self._session.call(message.worker, message.activity, message.activity_s)
        elif isinstance(message, Report):
            self._session.report(message)
        elif isinstance(message, Event):
            self._session.event(message)
        elif isinstance(message, Crash):
            self._crashes[message.worker] = message
        elif isinstance(message, Bye):
            worker.left = True
            self._session.facts(message.worker, message.facts)

    def _objection(self, worker: SupervisedWorker, message: AnyMessage) -> str:
        """Return why a message of a worker is dropped; empty: it is not. Those that are relayed were checked at the port."""
        is_checked = self._plan.hosts.relayed and worker.handle.host
        if is_checked:
            return ""
        return objection(message, self._kind(worker).speech, worker.budget, time.monotonic())

    def _check(self, worker: SupervisedWorker) -> None:
        """Check that a worker is alive, becomes ready in time, sends heartbeats, and no wrong messages."""
        if worker.replaced:
            return
        if worker.cut_off:
            self._died(worker, f"was cut off: {worker.cut_off}")
            return
        limits, running = self._deadlines, self._session.reason is None
        if not worker.alive and not (worker.left or worker.moves):
            self._listen(0.1)
            if running and self._session.reason is not None:
                return  # the run has just ended, and the end handles those that are gone
            if not worker.left:
                self._died(worker, f"ended unexpectedly: {worker.ending}")
                return  # its silence is no second death
        if worker.moves:
            self._follow(worker)
        elif worker.left and not worker.alive:
            self._died(worker, "left without being asked to (a SIGTERM from elsewhere?)")
        elif not worker.ready and self._pauses.since(worker.started_s) > limits.ready_s:
            self._died(
                worker, f"was not ready within {limits.ready_s:g} s (deadlines.ready_s); it is still {worker.stage!r}"
            )
        elif worker.ready and self._pauses.since(worker.beat_s) > self._silence_s[worker.name]:  # before that: ready_s
            self._died(worker, self._silent(worker))

    def _ranks(self, worker: SupervisedWorker) -> list[SupervisedWorker]:
        return [self._workers[name] for name in self._groups[worker.name]]

    def _silence_limits(self) -> dict[str, float]:
        """Return worker -> seconds without a message after which it counts as hung."""
        usual_s, of_ranks_s = self._deadlines.silence_s, min(self._deadlines.silence_s, self._deadlines.rank_s)
        return {worker: of_ranks_s if len(ranks) > 1 else usual_s for worker, ranks in self._groups.items()}

    def _silent(self, worker: SupervisedWorker) -> str:
        silent_s = time.monotonic() - worker.beat_s
        return f"sent no message for {silent_s:.0f} s (stopped, or stuck in a call that holds the GIL)"

    def _move(self, worker: SupervisedWorker, why: str) -> None:
        """Ask a worker to leave, so that it restarts on another host; a worker that is just starting is ended."""
        if worker.moves or worker.replaced:
            return
        worker.moves, worker.moves_s = why, time.monotonic()
        self._session.stage(worker.name, "moving to another host")
        if worker.is_reachable:
            self._send_command(worker.name, "stop")
        else:
            worker.handle.kill()

    def _follow(self, worker: SupervisedWorker) -> None:
        """Start the next incarnation of a moving worker, once this one has left. It costs none of its restarts."""
        if worker.alive and self._pauses.since(worker.moves_s) < self._leave_s(worker):
            return
        self._listen(0.1)
        late = worker.alive and not worker.left
        if not worker.left:
            self._session.note_end(worker.name, worker.job.incarnation)
        worker.handle.kill()
        worker.replaced = True
        crash = self._crashes.pop(worker.name, None)
        what = crash_text(worker.name, crash) if crash else "it did not leave in order" if late else ""
        text = f"{worker.name} moves, because {worker.moves}" + (f" ({what})" if what else "")
        self._session.display.message(text, "warning" if what else "info")
        self._restarts.append(Restart(time.monotonic(), worker.job, worker.restarts))

    def _died(self, worker: SupervisedWorker, what: str) -> None:
        """Replace a worker while its budget allows it and the run continues; end the run otherwise.

        After the training nothing can replace a worker in its last task: the params' source has left. If it may be restarted
        at all, the run ends without the result of this task.
        """
        running = self._session.reason is None  # messages received meanwhile may end it
        seen = self._watchdog.look(worker)  # before it is killed
        worker.handle.kill()
        worker, what, crash = self._cause(worker, what)
        self._session.note_end(worker.name, worker.job.incarnation)
        reason = crash_text(worker.name, crash) if crash else what
        noticed = f"{worker.name} {reason}" + (f"\n\n{crash.trace}" if crash else "")
        report = self._watchdog.write(worker.name, noticed, seen)
        kind, ended = self._kind(worker), worker.handle.exit
        may_live = running and value_of(
            kind.lifecycle.may_restart, worker.job, ended.status if ended else None, crash.error if crash else None
        )
        is_free = ended is not None and ended.with_host
        if may_live and self._replace(worker, f"{reason.splitlines()[0]} ({report})", is_free=is_free):
            return
        if crash is None:
            what += value_of(kind.shown.death_hint, worker.job, ended.status if ended else None) + last_seen(worker)
        notice, spent = (
            death_notice(worker, what, crash),
            self._budgets.used_up(self._ranks(worker)[0].name, time.monotonic()),
        )
        notice = "\n".join([notice, f"({report})", *([f"({spent})"] if spent else [])])
        may_miss = not running and worker.name in self._finals and self._budgets.allows(worker.name)
        if may_miss or not kind.lifecycle.loss_ends_run:
            worker.replaced = True  # no replacement: nothing waits for it
            self._session.lose(worker.name, loss_notice(worker.name, notice, crash))
            return
        raise WorkerDied(notice)

    def _cause(self, worker: SupervisedWorker, what: str) -> tuple[SupervisedWorker, str, Crash | None]:
        """Return who died first, how, and its last message: a worker whose stream broke is a symptom, not the cause."""
        crash = self._crashes.pop(worker.name, None)
        if crash is not None and (witnessed := self._cause_among_ranks(worker)) is not None:
            return witnessed
        if crash is not None and crash.error == "StreamClosed":
            for other in self._workers.values():
                if other is not worker and not other.left and not other.replaced and not other.alive:
                    self._listen(0.1)
                    if not other.left:
                        ended = f"ended unexpectedly: {other.ending}"
                        return other, ended, self._crashes.pop(other.name, None)
        return worker, what, crash

    def _cause_among_ranks(self, worker: SupervisedWorker) -> tuple[SupervisedWorker, str, Crash | None] | None:
        """Return another rank that ended without a message, or has long been silent: all ranks' updates failed with it."""
        for other in (rank for rank in self._ranks(worker) if rank.name != worker.name):
            self._listen(0.1)
            if not other.alive and not other.left and other.name not in self._crashes:
                return other, f"ended unexpectedly: {other.ending}", None
            if other.alive and self._pauses.since(other.beat_s) > self._silence_s[other.name] / 2:
                return other, self._silent(other), None
        return None

    def _replace(self, worker: SupervisedWorker, notice: str, *, is_free: bool = False) -> bool:
        """Plan a worker's next incarnation; return whether it may have one. `notice`: the reason, for the user.

        All ranks of a learner are replaced together, with equal incarnations; that counts as one restart of the learner,
        or as none if `is_free`.
        """
        ranks = self._ranks(worker)
        first = ranks[0]
        pause_s = self._budgets.take(first.name, time.monotonic(), is_free=is_free)
        if pause_s is None:
            return False
        text = "started again" if is_free else self._budgets.text(first.name, time.monotonic())
        count = f"{text}, in {pause_s:.2g} s"
        with_all = f", with all {len(ranks)} ranks of {first.name}" if len(ranks) > 1 else ""
        self._session.display.message(f"{worker.name} {notice}; {count}{with_all}", "warning")
        due_s, incarnation = time.monotonic() + pause_s, max(rank.job.incarnation for rank in ranks)
        self._restarts = [restart for restart in self._restarts if restart.job.name not in self._groups[worker.name]]
        for rank in ranks:
            if rank is not worker:
                rank.handle.kill()
            rank.replaced = True
            self._session.stage(rank.name, "restarting")
            job = dataclasses.replace(rank.job, incarnation=incarnation)
            self._restarts.append(Restart(due_s, job, rank.restarts + 1))
        return True

    def _start_due(self) -> None:
        """Start the next incarnation of each worker whose pause is over."""
        now = time.monotonic()
        for restart in [restart for restart in self._restarts if restart.due_s <= now]:
            if restart not in self._restarts:
                continue  # another rank could not be started: all start once more
            if self._pauses.since(restart.due_s) < self._deadlines.snapshot_s and self._files_travel(restart):
                continue
            self._restarts.remove(restart)
            try:
                job, warnings = replacement_job(restart.job, self._folder)
                known = self._workers[job.name].known
                for line in filter(None, (*warnings, lost_text(job, int(known.get("updates", 0))))):
                    self._session.display.message(line, "warning")
                self._start(job, restart.count)
            except OSError as error:  # a full disk, no memory: it may be temporary
                if not self._replace(self._workers[restart.job.name], f"could not be restarted: {error}"):
                    raise WorkerDied(f"{restart.job.name} could not be restarted: {error}") from error

    def _files_travel(self, restart: Restart) -> bool:
        """Return whether files of the last incarnation, such as its snapshots, are on their way from another host.

        The run folder may lack its newest snapshot until then, and its host may have deleted the one that the run folder has.
        """
        ranks = self._ranks(self._workers[restart.job.name])
        away = [rank for rank in ranks if rank.replaced and rank.handle.host and rank.alive]
        return any(self._kind(rank).lifecycle.saves and self._keeps_files(rank) for rank in away)

    def _save_learners(self) -> None:
        """Let working learners write their snapshots, so that the run can be continued from here."""
        saving = [
            worker
            for worker in self._workers.values()
            if self._kind(worker).lifecycle.must_finish and worker.is_reachable and worker.alive
        ]
        for worker in saving:
            self._send_command(worker.name, "stop")
        until = time.monotonic() + RESCUE_S
        while time.monotonic() < until and any(worker.alive for worker in saving):
            self._listen(0.02)

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end_in_order(self) -> None:
        """Stop the workers along the data flow; workers with a last task start it before the params' source stops.

        Learners of several policies in deterministic mode make their last updates as they stop, so the tasks start after that.
        """
        if self._session.reason == "interrupted":
            self._drop_unready(self._workers.keys())
        finals = self._finals = self._wanted_finals()
        e, left = self._plan.experiment, dict(finals)
        drains = e.is_deterministic and len(e.policies) > 1
        for level in self._plan.graph.stop_order:
            names = {worker.name for worker in level}
            publishes = any(port.publishes for name in names for port in self._plan.kinds[name].ports)
            if publishes and not drains:
                self._begin_finals(left)
            for name in finals.keys() & names:
                self._await_final(name)
            self._stop(names)
            if publishes:
                self._begin_finals(left)

    def _drop_unready(self, names: Collection[str]) -> None:
        """End those of these workers that have nothing to save yet and would react only after compiling or connecting."""
        for worker in self._workers.values():
            if worker.name in names and not (worker.ready or worker.left or worker.replaced):
                worker.handle.kill()
                worker.left = worker.dropped = True
                self._session.display.message(
                    f"{worker.name} was stopped during its start ({worker.stage}), because the run ends"
                )

    def _wanted_finals(self) -> dict[str, dict[str, Any]]:
        """Return worker -> the facts of its command `final`, for workers with a last task."""
        reason, e = self._session.reason or "", self._plan.experiment
        if reason == "interrupted":
            return {}
        finals = {name: value_of(kind.lifecycle.last_task.facts, e, reason) for name, kind in self._plan.kinds.items()}
        return {name: facts for name, facts in finals.items() if facts is not None and name not in self._session.finals}

    def _kind(self, worker: SupervisedWorker) -> Kind:
        return self._plan.kinds[worker.name]

    def _keeps_files(self, worker: SupervisedWorker) -> tuple[str, ...]:
        return tuple(value_of(self._kind(worker).travel.keeps_files, worker.job))

    def _send_command(self, worker: str, command: str, **facts: Any) -> None:
        self._control.send_command(worker, self._workers[worker].job.incarnation, command, facts)

    def _hosts_of_workers(self) -> dict[str, tuple[int, str, int]]:
        return {worker.name: (worker.restarts, worker.handle.host, worker.pid) for worker in self._workers.values()}

    def _pass_on(self, worker: str, command: str, facts: dict[str, Any]) -> None:
        """Send a worker another worker's command; lost while it is replaced."""
        if worker in self._workers:
            self._control.send_command(worker, self._workers[worker].job.incarnation, command, facts)

    def _stop(self, names: set[str]) -> None:
        """Stop some workers, all at once; those that save something may take as long as a snapshot."""
        self._drop_unready(names)
        found = [worker for name, worker in self._workers.items() if name in names]
        leaving = [worker for worker in found if not (worker.replaced or worker.dropped)]
        for worker in leaving:
            self._send_command(worker.name, "stop")
        begun_s = time.monotonic()
        for worker in leaving:
            self._await_end(worker, begun_s)
        for worker in leaving:
            self._listen(0.1) if not worker.left else None
            late = f"did not leave in order within {self._leave_s(worker):g} s"
            if not worker.left:
                self._left_late(worker, late if worker.alive else f"ended: {worker.ending}")
            elif self._sends_files(worker) and ((end := worker.handle.exit) is None or end.with_host):
                self._left_late(worker, self._files_missing(worker))

    def _await_end(self, worker: SupervisedWorker, begun_s: float) -> None:
        """Wait until a worker that was asked to leave has ended; once it has left, as long as more of its files arrive."""
        limit_s, sends = self._leave_s(worker), self._sends_files(worker)
        told_s = min(limit_s, QUIET_S)
        while worker.alive and not (sends and worker.left) and (waited_s := self._pauses.since(begun_s)) < limit_s:
            if waited_s >= told_s:
                told_s = limit_s
                self._session.display.message(
                    f"waiting for {worker.name} to finish and leave, for at most {limit_s:g} s"
                )
            self._listen(0.02)
        if not (sends and worker.left):
            return
        known, begun_s = self._files_of(worker), time.monotonic()
        while worker.alive:
            self._listen(0.02)
            if self._pauses.since(begun_s) >= self._deadlines.snapshot_s:
                found = self._files_of(worker)
                if found <= known:
                    return
                known, begun_s = known | found, time.monotonic()

    def _sends_files(self, worker: SupervisedWorker) -> bool:
        """Return whether a worker's files come from another host, which reports its end once they have all arrived."""
        return bool(worker.handle.host and self._keeps_files(worker))

    def _files_of(self, worker: SupervisedWorker) -> set[tuple[str, int]]:
        """Return path and bytes of the files that a worker keeps in the run folder, also of one that is arriving."""
        found: set[tuple[str, int]] = set()
        for folder in self._keeps_files(worker):
            for place, _, names in os.walk(self._folder / folder):
                for path in (os.path.join(place, name) for name in names):
                    with contextlib.suppress(FileNotFoundError):  # it has just arrived completely, or was removed
                        found.add((path, os.stat(path).st_size))
        return found

    def _files_missing(self, worker: SupervisedWorker) -> str:
        """Return that files of a worker which has left did not arrive, and the newest snapshot of a learner that did."""
        limit_s, host = self._deadlines.snapshot_s, worker.handle.host
        why = f"no part of them came for {limit_s:g} s (deadlines.snapshot_s)" if worker.alive else worker.ending
        what = f"left, but its last files did not all arrive from host {host}: {why}"
        if not self._kind(worker).lifecycle.must_finish:
            return what
        versions = [int(path.parent.name) for path in worker.job.snapshots.glob(f"state/[0-9]*/{MANIFEST}")]
        if not versions:
            return f"{what}. No snapshot is in the run folder"
        return f"{what}. The newest snapshot in the run folder is version {version_updates(max(versions))}"

    def _leave_s(self, worker: SupervisedWorker) -> float:
        limits = self._deadlines
        if self._kind(worker).lifecycle.saves:
            return limits.snapshot_s
        return limits.leave_s / 10 if self._session.reason == "interrupted" else limits.leave_s

    def _left_late(self, worker: SupervisedWorker, what: str) -> None:
        """Report a worker that did not leave cleanly, and why; the run fails if the worker is essential."""
        late = worker.alive
        if self._kind(worker).lifecycle.must_finish and not self._interrupted:
            self._died(worker, what)  # without its last snapshot the run is incomplete
        if late and not self._interrupted:
            what += f" ({self._watchdog.write(worker.name, what, self._watchdog.look(worker))})"
        crash = self._crashes.get(worker.name)
        what = crash_text(worker.name, crash) if crash else what
        self._session.display.message(f"{worker.name} while stopping: {what}", "warning")

    def _begin_finals(self, left: dict[str, dict[str, Any]]) -> None:
        for name in list(left):
            self._begin_final(name, left.pop(name))

    def _begin_final(self, name: str, facts: dict[str, Any]) -> None:
        """Tell a worker to start its last task, once it receives commands: it may just be restarting."""
        self._session.stage(name, f"{self._plan.kinds[name].lifecycle.last_task.name} is about to begin")
        self._wait_with(name, lambda worker: worker.is_reachable)
        if self._workers[name].is_reachable:
            self._send_command(name, "final", updates=self._session.last_updates, **facts)

    def _await_final(self, name: str) -> None:
        task = self._plan.kinds[name].lifecycle.last_task
        self._session.stage(name, task.name)
        self._wait_with(name, lambda _: name in self._session.finals)
        if not (name in self._session.finals or self._workers[name].replaced):
            limit_s = getattr(self._deadlines, task.deadline)
            waited = f"within {limit_s:g} s (deadlines.{task.deadline}){task.hint}"
            why = "because it was interrupted" if self._interrupted else waited
            self._session.display.message(f"{name}: its {task.name} was not finished {why}", "warning")

    def _wait_with(self, name: str, reached: Callable[[SupervisedWorker], bool]) -> None:
        """Wait until a worker has reached a state; see `_died` if it dies meanwhile."""
        limit_s, begun_s = (
            getattr(self._deadlines, self._plan.kinds[name].lifecycle.last_task.deadline),
            time.monotonic(),
        )
        while not (reached(self._workers[name]) or self._interrupted or self._pauses.since(begun_s) > limit_s):
            if name in self._session.finals:
                return
            self._listen(POLL_S)
            self._start_due()
            self._check(self._workers[name])
            self._session.tick()
