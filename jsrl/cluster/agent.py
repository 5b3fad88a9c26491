"""The agent of a host: its membership and lease, what it executes once, which workers start, and when it ends.

A state machine: `handle` and `tick` return what is to be done, in order; agent_process.py does it. `now_s`: of a steady
clock that goes on while the process, or the machine, is stopped: a lease ends all the same.

The agent ends its workers when the controller has not answered for the length of its lease, and joins again without any. When
it must end, it waits for the controller to move its workers to other hosts. Shortly before a lease ends, learners here write
snapshots.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from jsrl.cluster import messages as wire
from jsrl.errors import counted
from jsrl.services.runs.control_bodies import Command

PATIENCE_S, DRAIN_S = 120.0, 30.0
SAVE_S = 4.0  # before the lease ends; half of it if it is shorter than twice that
USAGE_S = 1.0  # between two beats with the use of this host
START_S = 5.0  # after which a forked worker that is not ready lets the next one start
LOG_S = 2.0  # in which the log of a failed worker may reach the run folder before its end is reported
MOST_EXITS = 100  # that are sent again over a new connection
LEAVES = "its agent was told to end"
NO_FILES = "this host cannot keep the run's files"

Worker = tuple[str, int]  # name and incarnation


# -- what happened


class Received(NamedTuple):
    """A message of the controller."""

    message: wire.AnyControllerMessage


class Connected(NamedTuple):
    """A connection to the controller was made, perhaps after one was lost; False: it was lost."""

    is_open: bool


class CannotJoin(NamedTuple):
    """The controller does not accept the key of the connection, or the run's key file is no longer that of this run."""

    why: str


class ToldToEnd(NamedTuple):
    """A signal. `hangs_up`: the parent is gone; `may_repeat`: it may come twice without haste."""

    hangs_up: bool
    may_repeat: bool


class Arrived(NamedTuple):
    """This host has now the modules with this digest."""

    code: str


class NotStarted(NamedTuple):
    """The answer to StartWorker: it could not be done."""

    worker: str
    incarnation: int
    why: str


class Ready(NamedTuple):
    """A worker is ready."""

    worker: str
    incarnation: int


class Ended(NamedTuple):
    """A worker has ended, and its last messages were sent; `log`: the name of the file, if it failed and has one."""

    worker: str
    incarnation: int
    status: int | None
    text: str
    tail: str
    log: str = ""


class FilesSent(NamedTuple):
    """The run folder has the files of a worker: all of those in some folders, or its log."""

    worker: str
    incarnation: int
    names: tuple[str, ...]


class DiskFull(NamedTuple):
    """Something could not be written."""

    why: str


Message = Received | Connected | CannotJoin | ToldToEnd | Arrived | NotStarted | Ready | Ended | FilesSent | DiskFull


# -- what is to be done


class Ask(NamedTuple):
    """Ask to be admitted, or to join if this host's own key is admitted; look first whether the key file has moved.

    `membership`: the last one; 0: there was none.
    """

    is_admitted: bool
    membership: int


class UseOwnKey(NamedTuple):
    """Connect again with this host's own key, which is admitted."""


class Send(NamedTuple):
    """A message to the controller; it may be lost."""

    message: wire.Exited | wire.Leaving


class SendBeat(NamedTuple):
    """A beat with what workers said; `measures`: with their usage, and before it the changes of counts and of kept files."""

    measures: bool
    leaves: str
    executed: int


class Repeat(NamedTuple):
    """What was sent last may be lost with the previous connection: counts, and the last words of workers."""


class BeginMembership(NamedTuple):
    """Forget files, counts and keys of an earlier membership: the run folder has what counts."""

    folders: list[str]


class ExtendLease(NamedTuple):
    """Workers here may run until then."""

    until_s: float


class StartWorker(NamedTuple):
    """Start a worker; answered by NotStarted if that fails."""

    begin: wire.Begin


class SignalWorker(NamedTuple):
    """See Signal."""

    worker: str
    incarnation: int
    what: str


class KillAll(NamedTuple):
    """End all workers at once, and the relays of params."""


class SendFiles(NamedTuple):
    """Send what a worker kept in some folders, and its log; either is answered by FilesSent. First the counts of workers."""

    worker: str
    incarnation: int
    folders: tuple[str, ...]
    log: tuple[str, ...]


class Execute(NamedTuple):
    """What the controller sent: write it, show it to workers, or answer it."""

    message: wire.AnyControllerMessage


class Notify(NamedTuple):
    """A line for the user."""

    line: str


class End(NamedTuple):
    """End this process with a status; the last action."""

    status: int
    why: str


Action = (
    Ask | UseOwnKey | Send | SendBeat | Repeat | BeginMembership | ExtendLease | StartWorker | SignalWorker | KillAll
    | SendFiles | Execute | Notify | End
)  # fmt: skip


@dataclass
class _Exit:
    """A worker that ended at `since_s`. It is reported once these files are in the run folder, or soon without its log."""

    exited: wire.Exited
    files: set[tuple[str, ...]]
    log: tuple[str, ...]
    since_s: float


class HostAgent:
    """The decisions of one agent; see the module.

    Args:
      name: of this host. address: of the controller. max_starts: forked workers that start at once.
      patience_s: how long it tries to reach the controller.
      drain_s: how long its workers may take to leave when it must end.

    Attributes:
      membership: its number; 0: it is no member. kept: worker -> folders in which it keeps files.
      run: the run folder on the controller's host. was_lost: the controller was, and has not welcomed this host since.
    """

    def __init__(
        self,
        name: str,
        address: str,
        max_starts: int,
        now_s: float,
        patience_s: float = PATIENCE_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._name, self._address, self._max_starts = name, address, max_starts
        self._patience_s, self._drain_s = patience_s, drain_s
        self.membership = self._newest_membership = 0
        self.kept: dict[str, list[str]] = {}
        self.run = ""
        self.was_lost = False
        self._executed = 0  # number of the last order
        self._lease_s, self._lease_from_s = 0.0, now_s
        self._is_admitted = self._is_connected = False
        self._closed_s = math.inf  # inf: open, or closed after a long silence
        self._beat_at_s = self._measure_at_s = 0.0
        self._leave_by_s: float | None = None  # once it must end
        self._ends_soon = False  # its lease does, unless the controller answers
        self._arrived: set[str] = set()  # digests of modules
        self._queue: dict[Worker, wire.Begin] = {}  # workers to be started
        self._starting: dict[Worker, float] = {}  # forked ones that are not ready -> when they were started
        self._running: set[Worker] = set()
        self._newest: dict[str, int] = {}  # worker -> its newest incarnation that was started
        self._exits: dict[Worker, _Exit] = {}
        self._sent_exits: deque[wire.Exited] = deque(maxlen=MOST_EXITS)  # in this membership
        self._has_ended = False
        self._now_s = now_s
        self._actions: list[Action] = []

    @property
    def folders(self) -> list[str]:
        """Return where workers of this host keep files."""
        return [folder for folders in self.kept.values() for folder in folders]

    def handle(self, message: Message, now_s: float) -> list[Action]:
        self._now_s, self._actions = now_s, []
        if not self._has_ended:
            self._handle(message)
        return self._actions

    def _handle(self, message: Message) -> None:
        match message:
            case Received():
                self._receive(message.message)
            case Connected():
                self._note_connection(message.is_open)
            case CannotJoin():
                self._end(1, message.why)
            case ToldToEnd():
                self._prepare_to_leave(message)
            case Arrived():
                self._arrived.add(message.code)
                self._start_queued()
            case NotStarted(worker, incarnation, why):
                self._running.discard((worker, incarnation))
                text = f"could not be started on {self._name}: {why}"
                self._send_exit(wire.Exited(self.membership, worker, incarnation, None, text, ""))
            case Ready():
                self._starting.pop((message.worker, message.incarnation), None)
            case Ended():
                self._note_end(message)
            case FilesSent(worker, incarnation, names):
                if (worker, incarnation) in self._exits:
                    self._exits[worker, incarnation].files.discard(names)
                    self._report_exits()
            case DiskFull():  # else the restarts of workers would be used up here
                self._leave(1, f"{NO_FILES} ({message.why})")

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due; an expired lease is handled first, even after this process was stopped."""
        self._now_s, self._actions = now_s, []
        if not self._has_ended:
            self._check_lease()
        if not self._has_ended:
            self._start_queued()
            self._report_exits()
            if now_s >= self._beat_at_s:
                self._beat_at_s = now_s + wire.BEAT_S
                self._beat()
            left_alone = not self.membership or now_s >= (self._leave_by_s or 0.0)
            if self._leave_by_s is not None and left_alone:
                self._leave(0, LEAVES)
        return self._actions

    # -- membership and lease

    def _note_connection(self, is_open: bool) -> None:
        if is_open:
            self._closed_s = math.inf
            if self.membership:
                self._do(Repeat())
                for exited in self._sent_exits:
                    self._do(Send(exited))
        elif self._is_connected:
            prompt = self._now_s - self._lease_from_s < wire.PROMPT_S
            self._closed_s = self._now_s if prompt else math.inf
        self._is_connected = is_open

    def _check_lease(self) -> None:
        silent_s, closed_s = self._now_s - self._lease_from_s, self._now_s - self._closed_s
        left_s = min(self._lease_s - silent_s, wire.CLOSED_LEASE_S - closed_s)
        ended_soon, self._ends_soon = self._ends_soon, left_s < min(SAVE_S, self._lease_s / 2)
        if self.membership and left_s < 0.0:
            count = counted(len(self._running), "worker")
            self._kill_all()
            self._do(Notify(f"no message from the controller for {silent_s:.0f} s: {count} ended; joining again"))
            self.membership, self._lease_from_s = 0, self._now_s  # its patience begins now: it may have been stopped
            self.was_lost = True
        elif self.membership and self._ends_soon and not ended_soon:
            self._save()
        elif not self.membership and silent_s > self._patience_s:
            self._end(1, f"no answer from {self._address} within {self._patience_s:g} s; is the run there?")

    def _beat(self) -> None:
        if not self.membership:
            self._do(Ask(self._is_admitted, self._newest_membership))
            return
        measures = self._now_s >= self._measure_at_s
        if measures:
            self._measure_at_s = self._now_s + USAGE_S
        self._do(SendBeat(measures, "" if self._leave_by_s is None else LEAVES, self._executed))

    def _join(self, message: wire.Welcome) -> None:
        if message.membership <= self._newest_membership:  # also of one that ended with its lease
            return
        self._kill_all()  # of an earlier membership; there should be none
        self._do(BeginMembership(self.folders))
        self.membership = self._newest_membership = message.membership
        self._lease_s = message.lease_s
        self._extend(self._now_s)
        self._executed, self.was_lost = 0, False
        self.kept.clear()
        self._do(Notify(f"joined the run at {self._address} as {self._name}"))

    def _extend(self, from_s: float) -> None:
        self._lease_from_s = from_s
        self._do(ExtendLease(from_s + self._lease_s))

    def _kill_all(self) -> None:
        self._do(KillAll())
        for workers in (self._queue, self._starting, self._running, self._newest, self._exits, self._sent_exits):
            workers.clear()

    # -- the end

    def _prepare_to_leave(self, signal: ToldToEnd) -> None:
        """Let the workers leave. A second signal ends them at once, also a hangup if none is a learner."""
        if self._leave_by_s is not None and signal.may_repeat:
            return
        wait_s = self._drain_s
        if signal.hangs_up:
            wait_s = SAVE_S if self.folders else 0.0
            self.was_lost = True
            self._save()
        self._leave_by_s = 0.0 if self._leave_by_s is not None else self._now_s + wait_s
        self._beat_at_s = 0.0

    def _save(self) -> None:
        """Let the learners here write snapshots now."""
        frame = msgspec.msgpack.encode(Command("snapshot"))
        for worker in [worker for worker, folders in self.kept.items() if folders and worker in self._newest]:
            self._do(Execute(wire.WorkerCommand(self.membership, worker, self._newest[worker], frame)))

    def _leave(self, status: int, why: str) -> None:
        self._kill_all()
        self._do(Send(wire.Leaving(self.membership, why)))
        self._end(status, f"this host has left the run: {why}")

    def _end(self, status: int, why: str) -> None:
        self._has_ended = True
        self._do(End(status, why))

    # -- messages of the controller

    def _receive(self, message: wire.AnyControllerMessage) -> None:
        if isinstance(message, wire.Welcome):
            self._join(message)
        elif isinstance(message, wire.Admitted):
            if not self._is_admitted:
                self._is_admitted = True
                self._do(UseOwnKey())
        elif isinstance(message, wire.Refused):
            status = wire.REPLACED if message.membership else 1
            self._end(status, f"the controller at {self._address} refused this host: {message.text}")
        elif message.membership != self.membership or not self.membership:
            pass  # of an earlier membership
        elif isinstance(message, wire.Order):
            self._obey(message)
        elif isinstance(message, wire.BeatReceived):
            self._extend(max(self._lease_from_s, min(message.sent_s, self._now_s)))
        elif isinstance(message, wire.Farewell):
            self._end(0, message.text)
        else:
            self._do(Execute(message))

    def _obey(self, order: wire.AnyOrder) -> None:
        """Execute an order; not if it was executed before, or if one before it was lost: all are sent again then."""
        if order.number != self._executed + 1:
            return
        self._executed += 1
        if isinstance(order, wire.Begin):
            self._queue[order.worker, order.incarnation] = order
            self._start_queued()
        elif isinstance(order, wire.Signal):
            worker = (order.worker, order.incarnation)
            if self._queue.pop(worker, None) is not None:
                self._send_exit(wire.Exited(self.membership, *worker, None, "ended before its start", ""))
            elif worker in self._running:
                self._do(SignalWorker(*worker, order.what))
        else:
            self._do(Execute(order))

    # -- workers

    def _start_queued(self) -> None:
        """Start the workers that wait for it; of those that are forked, only as many at once as the cores can take.

        Else hundreds that start would take the agent's share of the cores, and its lease would end.
        """
        oldest_s = self._now_s - START_S
        self._starting = {worker: since_s for worker, since_s in self._starting.items() if since_s > oldest_s}
        for worker, begin in list(self._queue.items()):
            lacks_code = bool(begin.code) and begin.code not in self._arrived
            if lacks_code or (begin.forks and len(self._starting) >= self._max_starts):
                continue
            del self._queue[worker]
            self._start(worker, begin)

    def _start(self, worker: Worker, begin: wire.Begin) -> None:
        """Start an incarnation of a worker, and end an earlier one; nothing if this or a later one was started before."""
        earlier = self._newest.get(begin.worker, -1)
        if begin.incarnation <= earlier:
            return
        if (begin.worker, earlier) in self._running:
            self._do(SignalWorker(begin.worker, earlier, "kill"))
        if begin.forks:
            self._starting[worker] = self._now_s
        self._newest[begin.worker] = begin.incarnation
        self._running.add(worker)
        self.kept[begin.worker], self.run = begin.keeps, begin.run
        self._do(StartWorker(begin))

    def _note_end(self, ended: Ended) -> None:
        """Report the end of a worker once the run folder has its files: those that it kept, and, for a while, its log."""
        worker = (ended.worker, ended.incarnation)
        if worker not in self._running:
            return
        self._running.remove(worker)
        self._starting.pop(worker, None)
        folders, log = tuple(self.kept.get(ended.worker, ())), (ended.log,) if ended.log else ()
        exited = wire.Exited(self.membership, *worker, ended.status, ended.text, ended.tail)
        self._exits[worker] = _Exit(exited, {names for names in (folders, log) if names}, log, self._now_s)
        self._do(SendFiles(*worker, folders, log))
        self._report_exits()

    def _report_exits(self) -> None:
        for worker, ended in list(self._exits.items()):
            if not ended.files or (ended.files == {ended.log} and self._now_s >= ended.since_s + LOG_S):
                del self._exits[worker]
                self._send_exit(ended.exited)

    def _send_exit(self, exited: wire.Exited) -> None:
        self._sent_exits.append(exited)
        self._do(Send(exited))

    def _do(self, action: Action) -> None:
        self._actions.append(action)
