"""The controller's process: a shell around Members, as jsrl.launch.hosts.port is, and a stand-in for supervision."""

from __future__ import annotations

from typing import Any

import msgspec

from jsrl.cluster.members import (
    JOIN,
    Action,
    Admit,
    Closed,
    Expel,
    Forward,
    GiveKeys,
    KeepPart,
    Lost,
    Members,
    Message,
    Notify,
    Place,
    Received,
    Relay,
    RemoteWorker,
    ReplaceJoinKey,
    Revoke,
    RunEnded,
    Send,
    Tell,
)
from jsrl.cluster.members import Start as StartRemote
from jsrl.cluster.messages import Begin, Keys, Order, Signal
from jsrl.launch.hosts.facts import code_digest, versions
from jsrl.launch.hosts.port import LOOK_S
from jsrl.runs.control_bodies import AnyMessage, Bye, Command, Stage
from jsrl.workers.kinds import find_kind
from tests.simulated.checks import Checks, kind_name
from tests.simulated.network import Connection
from tests.simulated.workers import Worker
from tests.simulated.world import Host, Process

WATCH_S, PAUSE_S, GONE_S, LEAVE_S = 0.1, 0.25, 25.0, 10.0
READY_S, SILENCE_S = 20.0, 30.0
FIRST_S = 1.5  # until the workers start: hosts join before that, or later


class Task:
    """A worker of the run: its present incarnation, as the controller knows it."""

    def __init__(self, name: str) -> None:
        self.name, self.incarnation = name, -1
        self.kind = find_kind(kind_name(name))
        self.remote: RemoteWorker | None = None  # its handle, on another host,
        self.local: Worker | None = None  # or here
        self.ready = self.left = False
        self.moves_s: float | None = None
        self.began_s = self.heard_s = 0.0
        self.killed_s: float | None = None
        self.due_s: float | None = 0.0  # of its next start; None: it has started

    @property
    def alive(self) -> bool:
        return self.local.alive if self.local is not None else self.remote is not None and self.remote.exit is None


class Controller(Process):
    """Serves agents, and keeps all workers running until the run ends.

    Attributes:
      end: the sentence with which the run ended; empty: it goes on.
    """

    def __init__(self, host: Host, checks: Checks) -> None:
        super().__init__(host, "controller")
        self.process, self.checks, self.end = self, checks, ""
        self.join_key, self._admitted = checks.new_key(), set[str]()
        self.members = Members("here", versions(), code_digest())
        self.revoked: set[str] = set()
        self.tasks = [Task(name) for name in checks.workers]
        for task in self.tasks:
            task.due_s = host.now + FIRST_S
        self._connections: dict[bytes, Connection] = {}
        self._interrupted_s: float | None = None
        self._sent_keys: set[int] = set()
        self.every(LOOK_S, self._look)
        self.every(WATCH_S, self._watch)

    # -- the port

    def admits(self, key: str) -> str:
        return JOIN if key == self.join_key else key if key in self._admitted else ""

    def opened(self, connection: Connection) -> None:
        self._connections[connection.identity] = connection

    def closed(self, connection: Connection) -> None:
        self._tell(Closed(connection.identity))

    def receive(self, connection: Connection, message: Any) -> None:
        with self.checks.taking(self.members, connection.name, message):
            actions = self.members.handle(Received(connection.name, connection.identity, message), self.host.now)
            for action in actions:
                if isinstance(action, Lost):
                    self._do(action)
        for action in actions:
            if not isinstance(action, Lost):
                self._do(action)

    def _tell(self, message: Message) -> None:
        for action in self.members.handle(message, self.host.now):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Send(identity, message):
                if isinstance(message, Order):
                    self.checks.ordered(message)
                if (connection := self._connections.get(identity)) is not None:
                    connection.send_down(message)
            case Relay(frames):
                for frame in frames:
                    self.checks.accepted(frame)
                    self._take(frame)
            case KeepPart(host, part):
                self.checks.kept(host, part)
            case Notify(line):
                self.world.note(self.name, "says:", line)
            case Admit(key):
                self._admitted.add(key)
            case Expel(key):
                self._admitted.discard(key)
            case ReplaceJoinKey():
                self.join_key = self.checks.new_key()
            case Lost(host):
                self.world.note(self.name, "loses", host.name, "epoch", host.epoch)
                self.checks.lost(host)

    def _look(self) -> None:
        for action in self.members.tick(self.host.now):
            self._do(action)
        self.checks.is_told = True
        self._tell(Revoke(self.revoked))
        self.checks.is_told = False

    # -- a stand-in for supervision: whatever ends is started again

    def _take(self, frame: bytes) -> None:
        message = msgspec.msgpack.decode(frame, type=AnyMessage)
        task = next(task for task in self.tasks if task.name == message.worker)
        if message.incarnation != task.incarnation:
            return
        task.heard_s = self.host.now
        if isinstance(message, Stage) and message.stage == "ready":
            task.ready = True
        elif isinstance(message, Bye):
            task.left = True

    def _watch(self) -> None:
        if self._interrupted_s is not None:
            self._finish()
            return
        for task in self.tasks:
            if task.due_s is None:
                self._check(task)
            elif self.host.now >= task.due_s:
                self._start(task)

    def _check(self, task: Task) -> None:
        now = self.host.now
        leaves = task.remote is not None and bool(task.remote.host.leaves)
        if not task.alive:
            task.due_s = now + (0.0 if task.moves_s is not None else PAUSE_S)
        elif task.killed_s is not None:
            if now - task.killed_s > GONE_S:  # longer than a host takes to be lost
                task.due_s = now
        elif leaves and task.moves_s is None:
            task.moves_s = now
            if task.ready:
                self._command(task, "stop")
            else:
                self._kill(task)
        else:
            leaves_late = task.moves_s is not None and now - task.moves_s > LEAVE_S
            is_late = not task.ready and now - task.began_s > READY_S
            is_silent = task.ready and now - task.heard_s > SILENCE_S
            if leaves_late or is_late or is_silent:
                self._kill(task)

    def _kill(self, task: Task) -> None:
        task.killed_s = self.host.now
        if task.local is not None:
            task.local.die(-9)
        elif task.remote is not None and task.remote.exit is None:
            host = task.remote.host
            self._tell(Tell(host.epoch, Signal(host.epoch, task.name, task.incarnation, "kill")))

    def _command(self, task: Task, name: str, **facts: Any) -> None:
        frame = msgspec.msgpack.encode(Command(name, {"ticket": self.world.new_id(), **facts}))
        if task.local is not None:
            task.local.after(0.001, task.local.obey, frame)
        elif task.remote is not None and not task.remote.host.lost:
            self._tell(Forward(task.name, task.incarnation, frame))

    def _start(self, task: Task) -> None:
        now = self.host.now
        task.incarnation += 1
        task.ready = task.left = False
        task.moves_s = task.due_s = task.killed_s = task.remote = task.local = None
        task.began_s = task.heard_s = now
        staying = self.members.staying
        if not staying:
            task.local = Worker(
                self.host,
                task.name,
                task.incarnation,
                self,
                lambda frame: self.after(0.001, self._take, frame),
                self.checks,
            )
            return
        host = min(staying, key=lambda host: host.num_living)
        self.checks.placed(host, task.name, task.incarnation)
        self._tell(Place(host.epoch, task.name, task.incarnation, task.kind.speech))
        task.remote = host.workers[task.name, task.incarnation]
        if host.epoch not in self._sent_keys:
            self._sent_keys.add(host.epoch)
            self._tell(GiveKeys(host.epoch, Keys(host.epoch, b"c", b"s"), "ab" * 32))
        self._tell(StartRemote(host.epoch, Begin(host.epoch, task.kind.name, task.name, task.incarnation, b"{}", {})))

    # -- the end

    def interrupt(self) -> None:
        """Get a Ctrl-C."""
        if self._interrupted_s is None:
            self.world.note(self.name, "is interrupted")
            self._interrupted_s = self.host.now
            for task in self.tasks:
                self._command(task, "stop")

    def _finish(self) -> None:
        assert self._interrupted_s is not None
        if any(task.alive for task in self.tasks) and self.host.now - self._interrupted_s < LEAVE_S:
            return
        self._tell(RunEnded("the run has ended"))
        self.end = "interrupted"
        self.after(0.5, self.die, 0)
