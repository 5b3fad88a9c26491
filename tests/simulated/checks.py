"""What must hold at every step, from a record of its own: nothing here asks a machine what it believes.

* At most one living incarnation of a worker acts.
* Each incarnation is started, and each order, ticket and command is executed, at most once.
* Nothing of a fenced membership or incarnation is accepted, and nothing in another host's name.
* A message changes only what its sender was given.
* At the end all workers run, or the run has ended with a sentence that says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from zmq.utils import z85

from jsrl.cluster.members import JOIN
from jsrl.cluster.messages import LEASE_S, Exited, Hello, Order, Part
from jsrl.runs.control_bodies import AnyMessage, Command
from tests.simulated.world import Process, Violation, World

if TYPE_CHECKING:
    from jsrl.cluster.members import JoinedHost, Members
    from tests.simulated.workers import Worker


TOLD_S = 1.5  # after the lease: for the turns of agent and worker, and a beat on its way


def kind_name(worker: str) -> str:
    return worker.rpartition("-")[0] or worker


class Checks:
    """The invariants, and the record that they are judged by.

    Attributes:
      workers: names of the run's workers. liars: names of hosts that lie, whose own workers nobody can vouch for.
      is_told: a membership that ends now ends by a message or by the user, not by silence or a closed connection.
    """

    def __init__(self, world: World, workers: tuple[str, ...]) -> None:
        self.world, self.workers = world, workers
        self.liars: set[str] = set()
        self.is_told = False
        self._placed: dict[tuple[str, int], int] = {}  # (worker, incarnation) -> epoch of its host
        self._epochs: dict[str, int] = {}  # key of a host -> its present epoch
        self._sender_epoch: int | None = None  # of the message that is handled
        self._newest: dict[str, int] = {}  # worker -> its newest incarnation that was ever started
        self._started: set[tuple[str, int]] = set()
        self._living: dict[str, list[Worker]] = {worker: [] for worker in workers}
        self._executed: dict[tuple[int, int], int] = {}  # (agent, epoch) -> number of its last order
        self._orders: dict[tuple[int, int], Order] = {}  # (epoch, number) -> the order
        self._tickets: set[int] = set()
        self._heard_s: dict[int, float] = {}  # epoch -> when its host was heard
        self._agents: dict[int, Process] = {}  # epoch -> the agent with this membership
        self._excused_until: dict[int, float] = {}  # epoch that ended within its lease -> the end of that
        self.acted_s: dict[str, float] = {}

    def new_key(self) -> str:
        return z85.encode(self.world.random.randbytes(32)).decode()

    def fail(self, text: str) -> None:
        raise Violation(text)

    # -- workers

    def started(self, worker: Worker) -> None:
        name, number = worker.worker, worker.incarnation
        self.world.note(worker.host.name, "starts", worker.name, "pid", worker.pid)
        if (name, number) in self._started:
            self.fail(f"{worker.name} is started twice, now on {worker.host.name}")
        if number < self._newest.get(name, -1) and not self._is_excused(worker):
            self.fail(f"{worker.name} is started on {worker.host.name}, after incarnation {self._newest[name]}")
        self._started.add((name, number))
        self._newest[name] = max(number, self._newest.get(name, -1))
        self._living[name] = [other for other in self._living[name] if other.alive]
        for other in self._living[name] if number == self._newest[name] else ():
            if other.acts and not self._is_excused(other):
                self.fail(f"{worker.name} is started on {worker.host.name}; {other.name} lives on {other.host.name}")
        self._living[name].append(worker)

    def living(self, name: str) -> list[Worker]:
        return [worker for worker in self._living[name] if worker.alive]

    def _is_excused(self, worker: Worker) -> bool:
        """Return whether an incarnation may live though a later one was started: only a fence keeps it out.

        Its host lies, or its membership ended while its lease went on: by a message or the user, or because its connection
        was closed while its agent was stopped. Such an agent may not have been told yet; its lease ends all the same.
        """
        epoch = self._placed.get((worker.worker, worker.incarnation), 0)
        return worker.host.name in self.liars or self.world.now < self._excused_until.get(epoch, 0.0)

    def acted(self, worker: Worker) -> None:
        if worker.incarnation == self._newest[worker.worker]:
            self.acted_s[worker.worker] = self.world.now
        elif not self._is_excused(worker):
            self.fail(
                f"{worker.name} acts on {worker.host.name}, after incarnation {self._newest[worker.worker]} was started"
            )

    def obeyed(self, worker: Worker, command: Command) -> None:
        ticket = command.facts["ticket"]
        self.world.note(worker.name, "obeys", command.name, ticket)
        if ticket in self._tickets:
            self.fail(f"{worker.name} executes ticket {ticket} ({command.name}) twice")
        self._tickets.add(ticket)

    # -- orders

    def ordered(self, order: Order) -> None:
        self._orders[order.epoch, order.number] = order

    def executed(self, agent: Process, epoch: int, order: Order) -> None:
        last = self._executed.get((agent.pid, epoch), 0)
        if order.number != last + 1:
            self.fail(f"{agent.name} executes order {order.number} of epoch {epoch} after order {last}")
        if self._orders[epoch, order.number] != order:
            self.fail(f"{agent.name} executes order {order.number} of epoch {epoch}, which is another: {order}")
        self._executed[agent.pid, epoch] = order.number

    # -- members

    def placed(self, host: JoinedHost, worker: str, incarnation: int) -> None:
        self._placed[worker, incarnation] = host.epoch

    def lost(self, host: JoinedHost) -> None:
        self._epochs = {key: epoch for key, epoch in self._epochs.items() if epoch != host.epoch}
        heard_s, agent = self._heard_s[host.epoch], self._agents.get(host.epoch)
        was_stopped = agent is not None and (agent.frozen or agent.thawed_s > heard_s)
        if self.is_told or was_stopped:
            self._excused_until[host.epoch] = heard_s + LEASE_S + TOLD_S

    def welcomed(self, agent: Process, epoch: int) -> None:
        self.world.note(agent.name, "is welcome, epoch", epoch)
        self._agents[epoch] = agent

    @contextlib.contextmanager
    def taking(self, members: Members, key: str, message: Any) -> Iterator[None]:
        """Check what Members does with a message that was sent with a key."""
        before = {host.key: fingerprint(host) for host in members.hosts}
        self._sender_epoch = self._epochs.get(key)  # it may be lost by its message
        self.is_told = True
        yield
        self.is_told = False
        if self._sender_epoch is not None:
            self._heard_s[self._sender_epoch] = self.world.now
        after = {host.key: fingerprint(host) for host in members.hosts}
        kind = type(message).__name__
        for other, state in before.items():
            if other != key and after.get(other, state) != state:
                self.fail(f"a {kind} of one host changed another: {state} -> {after[other]}")
            if other != key and other not in after and not isinstance(message, Hello):
                self.fail(f"a {kind} of one host removed another")
        for host in members.hosts:
            if host.key not in self._epochs:
                if not isinstance(message, Hello) or host.key != key or key == JOIN:
                    self.fail(f"{host.name} became a member by a {kind} of another")
                if host.epoch in self._epochs.values():
                    self.fail(f"two members have the epoch {host.epoch}")
                self._epochs[host.key] = host.epoch
                self._heard_s[host.epoch] = self.world.now
        is_of_member = isinstance(message, Hello) or message.epoch == self._sender_epoch
        if not is_of_member and before.get(key) != after.get(key):
            self.fail(f"a {kind} of epoch {message.epoch} changed {key} of epoch {self._sender_epoch}")
        for host in members.hosts:
            if isinstance(message, Exited) and host.key == key:
                self._check_exit(host, message)

    def _check_exit(self, host: JoinedHost, message: Exited) -> None:
        remote = host.workers.get((message.worker, message.incarnation))
        if remote is None or remote.exit is None or host.name in self.liars:
            return
        if any(worker.acts and worker.incarnation == message.incarnation for worker in self._living[message.worker]):
            self.fail(f"{message.worker}.{message.incarnation} lives on {host.name}, and its end was accepted")

    def accepted(self, frame: bytes) -> None:
        """Check that a worker's message, which Members passed on, is one of the host with this key."""
        message = msgspec.msgpack.decode(frame, type=AnyMessage)
        placed = self._placed.get((message.worker, message.incarnation))
        if placed is None or placed != self._sender_epoch:
            self.fail(
                f"a {type(message).__name__} of {message.worker}.{message.incarnation}, of epoch {placed}, was accepted from "
                f"a host of epoch {self._sender_epoch}"
            )

    def kept(self, host: JoinedHost, part: Part) -> None:
        if self._epochs.get(host.key) != host.epoch:
            self.fail(f"the file {part.name} was kept of {host.name}, epoch {host.epoch}")
        if part.name.startswith("logs/"):
            worker = part.name.removeprefix("logs/").removesuffix(".log")
            if not any(name == worker and epoch == host.epoch for (name, _), epoch in self._placed.items()):
                self.fail(f"the log of {worker} was kept of {host.name}, where it never ran")
        else:
            self.fail(f"the file {part.name} was kept of {host.name}")


def fingerprint(host: JoinedHost) -> tuple[Any, ...]:
    """Return the state of a host in the controller, to be compared."""
    remotes = tuple((*key, r.pid, r.exit, r.tail, r.usage) for key, r in host.workers.items())
    return (
        host.epoch, host.session, host.identity, host.heard_s, host.closed_s, host.lost, host.leaves, host.silent,
        host.has_answered, host.num_pages, host.num_orders, len(host.orders), tuple(host.names), tuple(host.relays.items()),
        tuple(host.wanted), frozenset(host.placed), remotes,
    )  # fmt: skip
