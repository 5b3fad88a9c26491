"""The agent of a host: executes what HostAgent decides, as jsrl.cluster.agent_process does; and a host that lies."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from jsrl.cluster.agent import (
    Action,
    Ask,
    BeginMembership,
    CannotJoin,
    Connected,
    End,
    Ended,
    Execute,
    ExtendLease,
    FilesSent,
    HostAgent,
    KillAll,
    Message,
    Notify,
    Ready,
    Received,
    Repeat,
    Send,
    SendBeat,
    SendFiles,
    SignalWorker,
    StartWorker,
    ToldToEnd,
    UseOwnKey,
)
from jsrl.cluster.messages import (
    REPLACED,
    Beat,
    BeatReceived,
    Begin,
    FilePart,
    Hello,
    Join,
    Part,
    Refused,
    Stored,
    Usage,
    WorkerCommand,
    WorkerMessages,
)
from jsrl.services.runs.control_bodies import AnyMessage, Bye, Crash, Heartbeat, Stage
from jsrl.services.runs.values import Registration
from tests.cluster.hostile import attacks
from tests.simulated.network import Connection, Link
from tests.simulated.workers import Worker
from tests.simulated.world import Host, Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks
    from tests.simulated.port import Port

PATIENCE_S, DRAIN_S, TURN_S = 120.0, 10.0, 0.1
MAX_STARTS = 2  # of forked workers, at once
KEPT_AGAIN_S = 1.0  # until a file that was not confirmed is sent again
CONNECTION_S = 10.0  # without heartbeats, after which the controller's end closes a connection
HEX_KEY = "ab" * 32  # of the streams that workers of a host bind
UNUSED = ("a huge stage", "another key")  # slow to make; random
Life = tuple[str, int]


class Agent(Process):
    """An agent's process.

    Attributes:
      may_return: an engine starts it again, if it has ended. lies: it says what is not its to say.
    """

    def __init__(self, host: Host, link: Link, port: Port, hello: Hello, checks: Checks) -> None:
        super().__init__(host, f"agent-{host.name}")
        self._link, self._port, self._hello, self.checks = link, port, hello, checks
        self._own_key, self.may_return, self.lies = checks.new_key(), True, False
        self._machine = HostAgent(host.name, "here:7", MAX_STARTS, host.now, PATIENCE_S, DRAIN_S)
        self._lease_until = 0.0
        self._pending: deque[Any] = deque()
        self._workers: dict[Life, Worker] = {}
        self._ending: set[Life] = set()
        self._beats: dict[Life, bytes] = {}
        self._frames: list[bytes] = []
        self._last_words: dict[Life, dict[type, bytes]] = {}
        self._unsent: dict[str, tuple[FilesSent, int]] = {}  # name of a file -> what to report, the file's content
        self._connect(port.join_key)
        self.every(TURN_S, self._turn)
        self.every(KEPT_AGAIN_S, self._send_kept)

    @property
    def _membership(self) -> int:
        return self._machine.membership

    def _connect(self, key: str) -> None:
        identity = f"{self.world.random.getrandbits(64):016x}".encode()
        self._connection = Connection(self._link, self._port, self, self._deliver, self._note, key, identity)

    def _deliver(self, message: Any) -> None:
        if isinstance(message, BeatReceived):
            self._tell(Received(message))
        else:
            self._pending.append(message)

    def _note(self, is_open: bool | None) -> None:
        self._tell(CannotJoin("its key is not accepted") if is_open is None else Connected(is_open))

    def ended(self) -> None:
        self._connection.end()

    def thawed(self) -> None:
        if self.world.now - self.frozen_s > CONNECTION_S:
            self._connection.shut()

    def terminate(self) -> None:
        """Get a SIGTERM."""
        self._tell(ToldToEnd(hangs_up=False, may_repeat=False))

    # -- its loop

    def _turn(self) -> None:
        self._do_all(self._machine.tick(self.host.now))
        while self._pending and self.alive:
            self._tell(Received(self._pending.popleft()))
        if self.alive and self._membership:
            self._report()

    def _tell(self, message: Message) -> None:
        if isinstance(message, Received) and isinstance(message.message, Refused) and self.lies:
            self._take_another_name()
        elif self.alive:
            self._do_all(self._machine.handle(message, self.host.now))

    def _do_all(self, actions: list[Action]) -> None:
        reports = [report for action in actions for report in self._do(action)]
        for report in reports:
            self._tell(report)

    def _report(self) -> None:
        if self._frames:
            self._send(WorkerMessages(self._membership, self._frames))
            self._frames = []
        gone = {life for life, worker in self._workers.items() if not worker.alive}
        known, self._ending = (
            gone & self._ending,
            gone - self._ending,
        )  # their last messages have arrived at the second look
        for life in sorted(known):
            worker = self._workers.pop(life)
            self._tell(Ended(*life, worker.status, f"status {worker.status}", ""))

    # -- actions

    def _do(self, action: Action) -> list[Message]:
        match action:
            case Send(message):
                self._send(message)
            case SendBeat():
                self._beat(action)
            case Ask(is_admitted, membership):
                if self._connection.is_open:
                    hello = msgspec.structs.replace(self._hello, membership=membership)
                    self._send(hello if is_admitted else Join(0, self._own_key))
            case UseOwnKey():
                self._connection.end()
                self._connect(self._own_key)
            case Repeat():
                if words := [frame for said in self._last_words.values() for frame in said.values()]:
                    self._send(WorkerMessages(self._membership, words))
            case BeginMembership():
                for kept in (self._beats, self._frames, self._last_words, self._unsent):
                    kept.clear()
                self.checks.welcomed(self, self._membership)
            case ExtendLease(until_s):
                self._lease_until = until_s
            case StartWorker(begin):
                self._start(begin)
            case SignalWorker(worker, incarnation, what):
                if (process := self._workers.get((worker, incarnation))) is not None:
                    {"kill": lambda: process.die(-9), "pause": process.freeze, "resume": process.thaw}[what]()
            case KillAll():
                for process in self._workers.values():
                    process.die(-9)
                self._workers.clear()
            case SendFiles():
                self._send_files(action)
            case Execute(message):
                return self._execute(message)
            case Notify(line):
                self.world.note(self.name, "says:", line)
            case End(status, why):
                self.world.note(self.name, "ends:", why)
                self.may_return = status not in (0, REPLACED)
                self.die(status)
        return []

    def _send(self, message: Any) -> None:
        self._connection.send_up(message)

    def _beat(self, beat: SendBeat) -> None:
        usage = [Usage(*life, worker.pid) for life, worker in self._workers.items() if worker.alive]
        names = [
            Registration(f"inference.{worker}", f"tcp://{HEX_KEY}@10.0.0.9:7", number, 1, self.host.name)
            for (worker, number), process in self._workers.items()
            if worker.startswith("inference") and process.ready
        ]
        frames, self._frames = [*self._frames, *self._beats.values()], []
        self._beats.clear()
        now, executed = self.host.now, beat.executed
        self.checks.confirmed(self, self._membership, executed)
        self._send(Beat(self._membership, now, frames, usage, names, leaves=beat.leaves, executed=executed))
        if self.lies:
            self._lie()

    def _start(self, begin: Begin) -> None:
        life = (begin.worker, begin.incarnation)
        self.checks.executed(self, begin)
        self._workers[life] = Worker(self.host, *life, self, self._listen, self.checks, lambda: self._lease_until)

    def _execute(self, message: Any) -> list[Message]:
        match message:
            case WorkerCommand(worker=worker, incarnation=incarnation, frame=frame):
                if (process := self._workers.get((worker, incarnation))) is not None:
                    process.after(0.001, process.obey, frame)
            case Stored(name=name, size=size):
                if name in self._unsent and self._unsent[name][1] == size:
                    return [self._unsent.pop(name)[0]]
        return []

    # -- what workers say and keep

    def _listen(self, frame: bytes) -> None:
        self.after(0.001, self._keep, frame, self._membership)

    def _keep(self, frame: bytes, membership: int) -> None:
        message = msgspec.msgpack.decode(frame, type=AnyMessage)
        life = (message.worker, message.incarnation)
        if membership != self._membership:
            return
        if isinstance(message, Heartbeat):
            self._beats[life] = frame
            return
        if isinstance(message, Stage | Crash | Bye):
            self._last_words.setdefault(life, {})[type(message)] = frame
        if isinstance(message, Stage) and message.stage == "ready":
            self._tell(Ready(*life))
        self._frames.append(frame)

    def _send_files(self, action: SendFiles) -> None:
        """Send the snapshot of a worker, whose content is its number."""
        worker = self.checks.processes[action.worker, action.incarnation]
        for folder in action.folders:
            sent = FilesSent(action.worker, action.incarnation, action.folders)
            self._unsent[f"{folder}/{action.incarnation}"] = (sent, worker.saved)
        self._send_kept()

    def _send_kept(self) -> None:
        for name, (_, number) in self._unsent.items() if self._membership else ():
            self._send(FilePart(self._membership, Part(name, 0, b"x" * number, True)))

    # -- a host that lies

    def _lie(self) -> None:
        """Say what is not this host's to say, with its own key."""
        own = [life[0] for life in self._workers] or ["actor-0"]
        others = [worker for worker in self.checks.workers if worker not in own] or ["nobody"]
        membership = self._membership if self.world.happens(0.7) else self.world.random.randint(1, self._membership + 1)
        found = [(title, said) for title, said in attacks(membership, own[0], others, 3) if title not in UNUSED]
        for _ in range(self.world.random.randint(0, 3)):
            title, message = self.world.random.choice(found)
            self.world.note(self.name, "lies:", title, "of membership", membership)
            self._send(message)

    def _take_another_name(self) -> None:
        """Join again with the same key under another name, after it was sent away."""
        for process in self._workers.values():
            process.die(-9)
        self._workers.clear()
        self._pending.clear()  # one new name for all refusals of a turn, or duplicates of messages would multiply it
        name = f"{self.host.name}-{self.world.new_id()}"
        self._hello = msgspec.structs.replace(self._hello, name=name, session=name, boot=name)
        self._send(self._hello)

    def be_honest(self) -> None:
        """Stop lying."""
        self.lies = False
