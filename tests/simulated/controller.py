"""The controller's process: executes what Supervision and Ending decide, as jsrl.control.controller does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from jsrl.cluster.members import Forward, GiveKeys, JoinedHost, Place, RemoteWorker, Tell
from jsrl.cluster.members import Start as StartRemote
from jsrl.cluster.messages import Begin, Keys, Signal
from jsrl.cluster.port import GONE_S
from jsrl.control.ending import BeginTask, Ending, Files, Interrupted, Level, LookAtFiles, Rescue, ShowLate, Task
from jsrl.control.supervision import (
    Died,
    Ended,
    Fail,
    Kill,
    Killed,
    Look,
    Move,
    NotStarted,
    Observe,
    Observed,
    Phase,
    Rules,
    Send,
    Show,
    Start,
    Started,
    Supervision,
)
from jsrl.experiment.settings import DeadlineConfig, SupervisionConfig
from jsrl.graph.launcher import Exit
from jsrl.services.runs.control_bodies import AnyMessage, Bye, Command, Event, Report
from jsrl.services.runs.process import Pauses
from jsrl.workers.kinds import find_kind
from tests.simulated.port import Port
from tests.simulated.workers import Worker
from tests.simulated.world import Host, Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks

POLL_S, END_POLL_S, OBSERVE_S, SETTLE_S, ECHO_S = 0.2, 0.05, 0.02, 2.0, 6.0
DEADLINES = DeadlineConfig(ready_s=12.0, silence_s=22.0, rank_s=10.0, leave_s=4.0, snapshot_s=25.0)
RESTARTS = SupervisionConfig(max_backoff_s=4.0)
TASK = Task("final evaluation", {}, 6.0, "evaluation_s")
HEX_KEY = "ab" * 32


class RunFailed(Exception):
    """The run fails, with a sentence."""


class Handle:
    """An incarnation of a worker: a process here, or one under the agent of a host."""

    def __init__(self, controller: Controller, local: Worker | None, remote: RemoteWorker | None) -> None:
        self._controller, self.local, self.remote = controller, local, remote

    @property
    def host(self) -> str:
        return self.remote.host.name if self.remote is not None else ""

    @property
    def exit(self) -> Exit | None:
        if self.remote is not None:
            return self.remote.exit
        assert self.local is not None
        return None if self.local.alive else Exit(self.local.status, f"status {self.local.status}")

    @property
    def is_away(self) -> bool:
        return self.remote is not None and self.remote.host.is_away(self._controller.host.now)

    @property
    def is_heard(self) -> bool:
        return self.remote is None or self.remote.host.is_heard(self._controller.host.now)

    def kill(self) -> Iterator[float]:
        """End it; the controller waits for its end, for a while."""
        if self.local is not None:
            self.local.die(-9)
        elif self.exit is None:
            assert self.remote is not None
            host, until_s = self.remote.host, self._controller.world.now + GONE_S
            self._controller.port.tell(
                Tell(host.membership, Signal(host.membership, self.remote.worker, self.remote.incarnation, "kill"))
            )
            while self.exit is None and self.is_heard and self._controller.world.now < until_s:
                yield END_POLL_S


class Controller(Process):
    """Keeps the workers of a run running until the run ends, and ends them in order.

    Args:
      levels: workers that stop together, in this order. rules: of the workers.

    Attributes:
      end: the sentence with which the run ended, at `ended_s`; empty: it goes on. lacks_space: nothing can be started here.
      echoes: probability that a message comes again, late.
    """

    def __init__(self, host: Host, checks: Checks, rules: dict[str, Rules], levels: list[Level]) -> None:
        super().__init__(host, "controller")
        self.checks, self.rules, self.levels = checks, rules, levels
        self.reason, self.end, self.ended_s = "", "", 0.0
        self.lacks_space = self._interrupted = False
        self.echoes = 0.0
        self.port = Port(
            self, checks, lambda message: self.after(0.001, self._inbox.append, msgspec.msgpack.encode(message))
        )
        self.supervision = Supervision(rules, DEADLINES, RESTARTS, tells_absent=True)
        self._machine: Any = self.supervision
        self._pauses = Pauses(lambda: host.now, lambda: 0.0)
        self._inbox: deque[bytes] = deque()
        self._actions: deque[Any] = deque()
        self.handles: dict[str, Handle] = {}
        self._look_s = 0.0
        self._finals: set[str] = set()
        self._has_keys: set[int] = set()  # memberships
        self._shared: set[int] = set()  # memberships of hosts that have their share
        self._targets: dict[str, str] = {}
        self.run(self._main())

    def _main(self) -> Iterator[float]:
        yield self.world.between(0.5, 2.5)  # hosts join before that, or later
        self._shared = {host.membership for host in self.port.members.staying}
        for worker in self.rules:
            self._start(worker, 0, 0)
        try:
            while not self.reason:
                yield from self._watch()
            self.world.note(self.name, "ends the run:", self.reason)
            yield from self._end()
            self.end = self.reason
        except RunFailed as error:
            self.world.note(self.name, "fails:", error)
            yield from self._rescue()
            self.end = str(error)
        for worker, handle in self.handles.items():
            life = self.supervision.lives[worker]
            if life.phase not in (Phase.REPLACED, Phase.GONE) and (not life.left or handle.exit is None):
                yield from handle.kill()
        self.ended_s = self.world.now
        self.port.close()
        yield 0.5
        self.die(0)

    def interrupt(self) -> None:
        """Get a Ctrl-C."""
        self._interrupted = True
        self.reason = self.reason or "interrupted"

    # -- turns

    def _now(self) -> float:
        return self._pauses.now()

    def _watch(self) -> Iterator[float]:
        yield from self._listen(POLL_S)
        if not self.reason:
            for worker, why in self._moves().items():
                self._tell(Move(worker, why))
            self._observe_if_due()
            yield from self._decide()

    def _end(self) -> Iterator[float]:
        has_tasks = self.reason != "interrupted"
        tasks = {"evaluator": TASK} if has_tasks and "evaluator" not in self._finals else {}
        ending = self._machine = Ending(
            self.supervision, self.levels, tasks, interrupted=self.reason == "interrupted", drains=False
        )
        while not ending.is_over:
            if self._interrupted:
                self._tell(Interrupted())
            yield from self._end_turn()

    def _rescue(self) -> Iterator[float]:
        rescue = self._machine = Rescue(self.supervision)
        self._actions.clear()
        while not rescue.is_over:
            yield from self._end_turn()

    def _end_turn(self) -> Iterator[float]:
        self._observe_if_due()
        yield from self._decide()
        yield from self._listen(END_POLL_S)

    def _listen(self, wait_s: float) -> Iterator[float]:
        yield wait_s
        while self._inbox:
            self._receive(self._inbox.popleft())

    def _decide(self) -> Iterator[float]:
        self._actions.extend(self._machine.tick(self._now()))
        while self._actions:
            action, later = self._actions.popleft(), self._actions
            self._actions = deque()
            yield from self._execute(action)
            self._actions.extend(later)

    def _tell(self, message: Any) -> None:
        self._actions.extend(self._machine.handle(message, self._now()))
        if self.echoes and not isinstance(message, Observed | Move | Interrupted) and self.world.happens(self.echoes):
            self.after(self.world.between(0.0, ECHO_S), self._echo, message)

    def _echo(self, message: Any) -> None:
        """Say again what happened to an incarnation that has been replaced."""
        if message.incarnation < self.supervision.lives[message.worker].incarnation and not self.end:
            self.world.note(self.name, "says again:", message)
            self._actions.extend(self._machine.handle(message, self._now()))

    def _observe_if_due(self) -> None:
        if self._now() >= self._look_s:
            self._observe()
            self._look_s = self._now() + OBSERVE_S

    def _observe(self) -> None:
        for worker in self.handles:
            self._look_at(worker)
        away = frozenset(name for name, handle in self.handles.items() if handle.is_away)
        unheard = frozenset(name for name, handle in self.handles.items() if not handle.is_heard)
        self._tell(Observed(away, unheard))

    def _look_at(self, worker: str) -> None:
        life, ended = self.supervision.lives[worker], self.handles[worker].exit
        if life.exit is None and ended is not None:
            self._tell(Ended(worker, life.incarnation, ended))

    # -- messages of workers

    def _receive(self, frame: bytes) -> None:
        message = msgspec.msgpack.decode(frame, type=AnyMessage)
        life = self.supervision.lives[message.worker]
        if message.incarnation != life.incarnation:
            self._tell(message)  # the real shell drops it here; the machine must do so itself
            return
        self.checks.heard(message)
        self._tell(message)
        if isinstance(message, Event) and message.name.endswith(" finally"):
            self._finals.add(message.worker)
        is_event = isinstance(message, Event) and message.name == "finished"
        if is_event or (isinstance(message, Report | Bye) and message.facts.get("finished")):
            self.reason = self.reason or "total_env_steps"

    # -- actions

    def _execute(self, action: Any) -> Iterator[float]:
        match action:
            case Send(worker, incarnation, command, facts):
                self._send(worker, incarnation, command, dict(facts))
            case BeginTask(worker, incarnation, facts):
                self._send(worker, incarnation, "final", dict(facts))
            case Look(worker, incarnation):
                self.checks.judged(worker, incarnation)
                yield from self._listen(0.4)
            case Kill(worker, incarnation):
                self.checks.judged(worker, incarnation, kills=True)
                yield from self.handles[worker].kill()
                self._look_at(worker)
                self._tell(Killed(worker, incarnation))
            case Observe():
                self._observe()
            case Start(worker, incarnation, restarts):
                if self.lacks_space and not self._host_for(worker):
                    self._tell(NotStarted(worker, incarnation, "no space left on device"))
                else:
                    self._start(worker, incarnation, restarts)
            case Died():
                crash = self.supervision.lives[action.worker].crash
                why = f"{action.worker} {crash.error if crash else action.what} ({action.text})"
                self.world.note(self.name, "reports:", why, action.outcome)
                ended = {worker for worker, handle in self.handles.items() if handle.exit is not None}
                self.checks.died(action, crash, ended)
                if action.outcome == "fails":
                    raise RunFailed(why)
                if action.outcome == "lost":
                    self._finals.add(action.worker)
            case Fail(text):
                raise RunFailed(text)
            case LookAtFiles(worker, incarnation):
                self._tell(Files(worker, incarnation, grew=False, newest=None))
            case Show(text):
                self.world.note(self.name, "shows:", text)
                self.checks.shown(text)
            case ShowLate(worker, _, what):
                self.world.note(self.name, "shows:", worker, what)
                self.checks.shown(f"{worker} {what}")

    def _send(self, worker: str, incarnation: int, command: str, facts: dict[str, Any]) -> None:
        self.checks.commands(worker, incarnation, command, ends=isinstance(self._machine, Ending))
        frame = msgspec.msgpack.encode(Command(command, facts | {"ticket": self.world.new_id()}))
        handle = self.handles[worker]
        if handle.local is not None:
            handle.local.after(0.001, handle.local.obey, frame)
        else:
            self.port.tell(Forward(worker, incarnation, frame))

    # -- hosts, as jsrl.cluster.launcher

    def _moves(self) -> dict[str, str]:
        members = self.port.members
        leaving = {r.worker: "its host leaves" for host in members.hosts if host.leaves for r in host.living_workers}
        new = [host for host in members.staying if host.membership not in self._shared]
        if new and self.host.now - new[-1].joined_s > SETTLE_S:
            self._shared |= {host.membership for host in new}
            movable = [name for name in self.rules if name.startswith("actor")]
            self._targets = {movable[host.membership % len(movable)]: host.name for host in new}
        names = {host.name for host in members.staying}
        self._targets = {worker: name for worker, name in self._targets.items() if name in names}
        return leaving | {worker: f"host {name} has room" for worker, name in self._targets.items()}

    def _host_for(self, worker: str) -> JoinedHost | None:
        target = self._targets.get(worker)
        return min(self.port.members.staying, key=lambda host: (host.name != target, host.num_living), default=None)

    def _start(self, worker: str, incarnation: int, restarts: int) -> None:
        self.checks.starts(worker, incarnation)
        host = self._host_for(worker)
        self._targets.pop(worker, None)
        if host is None:
            local = Worker(
                self.host,
                worker,
                incarnation,
                self,
                lambda frame: self.after(0.001, self._inbox.append, frame),
                self.checks,
            )
            self.handles[worker] = Handle(self, local, None)
        else:
            self.checks.placed(host, worker, incarnation)
            speech = find_kind(self.rules[worker].kind).speech
            binds = frozenset({f"inference.{worker}"}) if worker.startswith("inference") else frozenset()
            self.port.tell(Place(host.membership, worker, incarnation, speech, (), binds))
            remote = host.workers[worker, incarnation]
            if host.membership not in self._has_keys:
                self._has_keys.add(host.membership)
                self.port.tell(GiveKeys(host.membership, Keys(host.membership, b"c", b"s"), HEX_KEY))
            begin = Begin(
                host.membership,
                self.rules[worker].kind,
                worker,
                incarnation,
                b"{}",
                {},
                forks=worker.startswith("actor"),
            )
            begin.keeps = [f"snapshots/{worker}"] if self.rules[worker].keeps_files else []
            self.port.tell(StartRemote(host.membership, begin))
            self.handles[worker] = Handle(self, None, remote)
        self._tell(Started(worker, incarnation, restarts, self.handles[worker].host))
