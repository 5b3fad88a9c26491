"""The agent of a host: a stand-in for jsrl.launch.local.agent, and a host that lies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from jsrl.cluster.messages import (
    BEAT_S,
    CLOSED_LEASE_S,
    PROMPT_S,
    Admitted,
    Beat,
    BeatReceived,
    Begin,
    Exited,
    Farewell,
    Hello,
    Join,
    Keys,
    Leaving,
    Order,
    Refused,
    Signal,
    Usage,
    Welcome,
    WorkerCommand,
    WorkerMessages,
)
from jsrl.runs.control_bodies import AnyMessage, Heartbeat, Stage
from tests.launch.hosts.hostile import attacks
from tests.simulated.network import Connection, Link, Server
from tests.simulated.workers import Worker
from tests.simulated.world import Host, Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks

PATIENCE_S, DRAIN_S, TURN_S = 120.0, 10.0, 0.1
UNUSED = ("a huge stage", "another key")  # slow to make; random


class Agent(Process):
    """Joins the run, starts workers, and ends them with its lease.

    Attributes:
      end: why it ended by itself; empty: it has not. may_return: an engine starts it again.
    """

    def __init__(self, host: Host, link: Link, server: Server, join_key: str, hello: Hello, checks: Checks) -> None:
        super().__init__(host, f"agent-{host.name}")
        self._link, self._server, self._hello, self.checks = link, server, hello, checks
        self._join_key, self._own_key = join_key, checks.new_key()
        self.end, self.may_return, self.lies = "", True, False
        self._epoch = self._executed = 0
        self._lease_s, self._lease_from_s, self._lease_until = 0.0, host.now, 0.0
        self._closed_s, self._is_connected = math.inf, False
        self._leave_by_s: float | None = None
        self._has_keys = False
        self._queue: dict[tuple[str, int], Begin] = {}
        self._newest: dict[str, int] = {}
        self._workers: dict[tuple[str, int], Worker] = {}
        self._beats: dict[tuple[str, int], bytes] = {}
        self._stages: dict[tuple[str, int], bytes] = {}  # the last one of each
        self._frames: list[bytes] = []
        self._sent_exits: list[Exited] = []
        self._connect(join_key)
        self.every(BEAT_S, self._beat)
        self.every(TURN_S, self._turn)

    def _connect(self, key: str) -> None:
        identity = f"{self.world.random.getrandbits(64):016x}".encode()
        self._connection = Connection(
            self._link, self._server, self, self._receive, self._note_connection, key, identity
        )

    def _send(self, message: Any) -> None:
        self._connection.send_up(message)

    def ended(self) -> None:
        self._connection.end()

    def thawed(self) -> None:
        if self.world.now - self.frozen_s > 10.0:
            self._connection.shut()  # its end lacked heartbeats

    def _finish(self, why: str, *, may_return: bool) -> None:
        self.end, self.may_return = why, may_return
        self.die(0)

    def _note_connection(self, is_open: bool | None) -> None:
        if is_open is None:
            self._finish("its key is not accepted", may_return=True)
            return
        self._is_connected = is_open
        if is_open:
            for exited in self._sent_exits:
                self._send(exited)
            self._frames += [self._stages[key] for key in self._workers if key in self._stages]
        prompt = not is_open and self.host.now - self._lease_from_s < PROMPT_S
        self._closed_s = self.host.now if prompt else math.inf

    # -- its loop

    def _turn(self) -> None:
        self._check_lease()
        if self._epoch:
            self._start_queued()
            if self._frames:
                self._send(WorkerMessages(self._epoch, self._frames))
                self._frames = []
            for key, worker in list(self._workers.items()):
                if not worker.alive:
                    del self._workers[key]
                    self._send_exit(Exited(self._epoch, *key, worker.status, f"status {worker.status}", ""))
        if self._leave_by_s is not None and (not self._epoch or self.host.now >= self._leave_by_s):
            self._send(Leaving(self._epoch, "its agent was told to end"))
            self._kill_all()
            self._finish("left", may_return=False)

    def _send_exit(self, exited: Exited) -> None:
        self._sent_exits.append(exited)
        self._send(exited)

    def _check_lease(self) -> None:
        silent_s, closed_s = self.host.now - self._lease_from_s, self.host.now - self._closed_s
        if self._epoch and min(self._lease_s - silent_s, CLOSED_LEASE_S - closed_s) < 0.0:
            self.world.note(self.name, "its lease of epoch", self._epoch, "has ended")
            self._kill_all()
            self._epoch, self._lease_from_s = 0, self.host.now
        elif not self._epoch and silent_s > PATIENCE_S:
            self._finish("no answer", may_return=True)

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.die(-9)
        for kept in (self._workers, self._queue, self._newest, self._beats, self._stages):
            kept.clear()
        self._frames = []

    def _beat(self) -> None:
        if not self._epoch:
            if self._is_connected:
                admitted = self._connection.key == self._own_key
                self._send(self._hello if admitted else Join(0, self._own_key))
            return
        usage = [Usage(*key, worker.pid) for key, worker in self._workers.items() if worker.alive]
        frames, self._frames = [*self._frames, *self._beats.values()], []
        self._beats.clear()
        leaves = "" if self._leave_by_s is None else "its agent was told to end"
        lacks = bool(self._queue) and not self._has_keys
        self._send(Beat(self._epoch, self.host.now, frames, usage, leaves=leaves, lacks=lacks, executed=self._executed))
        if self.lies:
            self._lie()

    def terminate(self) -> None:
        """Get a SIGTERM; the second one ends it at once."""
        self._leave_by_s = self.host.now + DRAIN_S if self._leave_by_s is None else 0.0

    # -- messages of the controller

    def _receive(self, message: Any) -> None:
        if isinstance(message, Welcome):
            self._join(message)
        elif isinstance(message, Admitted):
            if self._connection.key != self._own_key:
                self._connection.end()
                self._connect(self._own_key)
        elif isinstance(message, Refused):
            self._finish(message.text, may_return=not message.epoch)
        elif message.epoch != self._epoch or not self._epoch:
            return
        elif isinstance(message, Order):
            self._obey(message)
        elif isinstance(message, BeatReceived):
            self._lease_from_s = max(self._lease_from_s, min(message.sent_s, self.host.now))
            self._lease_until = self._lease_from_s + self._lease_s
        elif isinstance(message, Keys):
            self._has_keys = True
        elif isinstance(message, Farewell):
            self._kill_all()
            self._finish(message.text, may_return=False)

    def _join(self, message: Welcome) -> None:
        if message.epoch > self._epoch:
            self.checks.welcomed(self, message.epoch)
            self._kill_all()
            self._epoch, self._lease_s, self._lease_from_s = message.epoch, message.lease_s, self.host.now
            self._lease_until = self._lease_from_s + self._lease_s
            self._executed, self._has_keys = 0, False
            self._sent_exits.clear()

    def _start_queued(self) -> None:
        for key, begin in list(self._queue.items()) if self._has_keys else ():
            del self._queue[key]
            earlier = self._newest.get(begin.worker, -1)
            if begin.incarnation <= earlier:
                continue
            if (old := self._workers.get((begin.worker, earlier))) is not None:
                old.die(-9)
            self._newest[begin.worker] = begin.incarnation
            self._workers[key] = Worker(self.host, *key, self, self._listen, self.checks, lambda: self._lease_until)

    def _obey(self, order: Order) -> None:
        if order.number != self._executed + 1:
            return
        self._executed += 1
        self.checks.executed(self, self._epoch, order)
        if isinstance(order, Begin):
            self._queue[order.worker, order.incarnation] = order
        elif isinstance(order, WorkerCommand):
            worker = self._workers.get((order.worker, order.incarnation))
            if worker is not None:
                worker.after(0.001, worker.obey, order.frame)
        elif isinstance(order, Signal):
            key = (order.worker, order.incarnation)
            begun = self._newest.get(order.worker, -1) >= order.incarnation
            if self._queue.pop(key, None) is not None or (order.what == "kill" and not begun):
                self._newest[order.worker] = order.incarnation  # its start may still be on its way
                self._send_exit(Exited(self._epoch, *key, None, "ended before its start", ""))
            if (worker := self._workers.get(key)) is not None:
                {"kill": lambda: worker.die(-9), "pause": worker.freeze, "resume": worker.thaw}[order.what]()

    def _listen(self, frame: bytes) -> None:
        """Keep a message of a worker; it comes after a moment, as through a socket."""
        self.after(0.001, self._keep, frame, self._epoch)

    def _keep(self, frame: bytes, epoch: int) -> None:
        message = msgspec.msgpack.decode(frame, type=AnyMessage)
        key = (message.worker, message.incarnation)
        if isinstance(message, Heartbeat):
            self._beats[key] = frame
        elif epoch == self._epoch:
            self._frames.append(frame)
            if isinstance(message, Stage):
                self._stages[key] = frame

    # -- a host that lies

    def _lie(self) -> None:
        """Say what is not this host's to say, with its own key."""
        own = [key for key in self._workers] or [("actor-0", 0)]
        others = [worker for worker in self.checks.workers if worker not in {key[0] for key in own}] or ["nobody"]
        epoch = self._epoch if self.world.happens(0.7) else self.world.random.randint(1, self._epoch + 1)
        found = [(title, said) for title, said in attacks(epoch, own[0][0], others, 3) if title not in UNUSED]
        for _ in range(self.world.random.randint(0, 3)):
            title, message = self.world.random.choice(found)
            self.world.note(self.name, "lies:", title, "of epoch", epoch)
            self._send(message)
