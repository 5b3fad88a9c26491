"""What must hold at every step, from a record of its own: nothing here asks a machine what it believes.

* At most one living incarnation of a worker acts.
* Each incarnation is started, and each order and command is executed, at most once; each death is reported once.
* Nothing of a fenced membership or incarnation is accepted, and nothing in another host's name.
* A message changes only what its sender was given.
* A worker is ended for what it did: nobody is called silent who was heard, and an end is reported as what it was.
* Workers are stopped along the data flow, each after those before it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from zmq.utils import z85

from jsrl.cluster.members import HEARD_S, JOIN, Received, Revoke
from jsrl.cluster.messages import LEASE_S, Exited, Hello, Leaving, Order
from jsrl.services.runs.control_bodies import FINAL, AnyMessage, Command, Crash, Report
from tests.simulated.world import Process, Violation, World

if TYPE_CHECKING:
    from jsrl.cluster.members import JoinedHost, Members
    from jsrl.cluster.messages import Part
    from jsrl.control.ending import Level
    from jsrl.control.supervision import Died, Rules
    from jsrl.experiment.settings import DeadlineConfig
    from jsrl.services.runs.values import Registration
    from tests.simulated.workers import Worker

TOLD_S = 1.5  # after the lease: for the turns of agent and worker, and a beat on its way
SLACK_S = 1.0  # of a limit, for turns and messages on their way
Life = tuple[str, int]  # worker, incarnation


class Checks:
    """The invariants, and the record that they are judged by.

    Attributes:
      liars: names of hosts that lie, whose own workers nobody can vouch for. acted_s: worker -> when it last acted.
      hanging: workers whose next incarnation hangs in its start. processes: all that ever were, by worker and incarnation.
    """

    def __init__(self, world: World, rules: dict[str, Rules], levels: list[Level], limits: DeadlineConfig) -> None:
        self.world, self.rules, self.levels, self.limits = world, rules, levels, limits
        self.liars: set[str] = set()
        self.hanging: set[str] = set()
        self.acted_s: dict[str, float] = {}
        self.processes: dict[Life, Worker] = {}
        self._newest: dict[str, int] = {}  # worker -> its newest incarnation that was ever started
        self._living: dict[str, list[Worker]] = {worker: [] for worker in rules}
        self._saved: dict[str, int] = {}  # worker -> snapshots that it wrote
        # of hosts
        self._placed: dict[Life, int] = {}  # -> membership of its host
        self._memberships: dict[str, int] = {}  # key of a host -> its present membership
        self._happened: Any = None  # what is handled
        self._sender_membership: int | None = None  # of the host that sent it
        self._heard_s: dict[int, float] = {}  # membership -> when its host was heard
        self._agents: dict[int, Process] = {}  # membership -> the agent with this membership
        self._excused_until: dict[int, float] = {}  # membership that ended within its lease -> the end of that
        self._expelled: set[str] = set()  # keys of hosts
        self._stored: dict[str, int] = {}  # worker -> the newest of its snapshots that is in the run folder
        self._orders: dict[tuple[int, int], Order] = {}  # (membership, number) -> the order
        self._executed: set[tuple[int, int]] = set()  # (membership, number) of orders
        # of the controller
        self._tickets: set[int] = set()
        self._worker_heard_s: dict[Life, float] = {}
        self._began_s: dict[Life, float] = {}
        self._killed: set[Life] = set()  # by the controller
        self._judged_s: dict[Life, float] = {}  # when the controller began to end it,
        self._silent_s: dict[Life, float] = {}  # and for how long it was silent then while its host was heard
        self._reported: set[Life] = set()  # deaths
        self._finished: set[str] = set()  # workers that have reported the end of their task
        self._stopped_s: dict[str, float] = {}  # worker -> when it was told to stop, as the run ends

    @property
    def workers(self) -> list[str]:
        return list(self.rules)

    def new_key(self) -> str:
        return z85.encode(self.world.random.randbytes(32)).decode()

    def fail(self, text: str) -> None:
        raise Violation(text)

    # -- workers

    def started(self, worker: Worker) -> None:
        name, number = worker.worker, worker.incarnation
        self.world.note(worker.host.name, "starts", worker.name, "pid", worker.pid)
        if (name, number) in self.processes:
            self.fail(f"{worker.name} is started twice, now on {worker.host.name}")
        self.processes[name, number] = worker
        if number < self._newest.get(name, -1):
            if not self._is_excused(worker):
                self.fail(f"{worker.name} is started on {worker.host.name}, after incarnation {self._newest[name]}")
        else:
            self._newest[name] = number
            for other in self.living(name):
                if other.acts and not self._is_excused(other):
                    where = f"{other.name} lives on {other.host.name}"
                    self.fail(f"{worker.name} is started on {worker.host.name}; {where}")
        self._living[name] = [*self.living(name), worker]

    def living(self, name: str) -> list[Worker]:
        return [worker for worker in self._living[name] if worker.alive]

    def _is_excused(self, worker: Worker) -> bool:
        """Return whether an incarnation may live though a later one was started: only a fence keeps it out.

        Its host lies, or its membership ended while its lease went on: by a message or the user, or because its connection
        was closed while its agent was stopped. Such an agent may not have been told yet; its lease ends all the same.
        """
        membership = self._placed.get((worker.worker, worker.incarnation), 0)
        return worker.host.name in self.liars or self.world.now < self._excused_until.get(membership, 0.0)

    def acted(self, worker: Worker) -> None:
        newest = self._newest[worker.worker]
        if worker.incarnation == newest:
            self.acted_s[worker.worker] = self.world.now
        elif not self._is_excused(worker):
            self.fail(f"{worker.name} acts on {worker.host.name}, after incarnation {newest} was started")

    def hangs(self, worker: Worker) -> bool:
        """Return whether a worker hangs in its start, as a fault wants."""
        if worker.worker not in self.hanging:
            return False
        self.hanging.remove(worker.worker)
        return True

    def next_snapshot(self, worker: str) -> int:
        """Return the number of a snapshot that a worker writes."""
        self._saved[worker] = self._saved.get(worker, 0) + 1
        return self._saved[worker]

    def obeyed(self, worker: Worker, command: Command) -> None:
        if command.name == "snapshot":
            return  # its agent says so, before the end of a lease
        ticket = command.facts["ticket"]
        self.world.note(worker.name, "obeys", command.name, ticket)
        if ticket in self._tickets:
            self.fail(f"{worker.name} executes command {ticket} ({command.name}) twice")
        self._tickets.add(ticket)

    # -- orders to agents

    def sent(self, message: Any) -> None:
        if isinstance(message, Order):
            known = self._orders.setdefault((message.membership, message.number), message)
            if known != message:
                self.fail(f"order {message.number} of membership {message.membership} is {message}, and was {known}")

    def executed(self, agent: Process, order: Order) -> None:
        """Check that an agent executes an order once, and none of another membership."""
        if (order.membership, order.number) in self._executed or order.membership not in self._agents:
            self.fail(
                f"{agent.name} executes order {order.number} of membership {order.membership}, again or uninvited: {order}"
            )
        self._executed.add((order.membership, order.number))

    def confirmed(self, agent: Process, membership: int, number: int) -> None:
        """Check that an agent confirms only orders that were given to it."""
        if number and (membership, number) not in self._orders:
            self.fail(f"{agent.name} confirms order {number} of membership {membership}, which was never given")

    # -- members

    def placed(self, host: JoinedHost, worker: str, incarnation: int) -> None:
        self._placed[worker, incarnation] = host.membership

    def lost(self, host: JoinedHost, *, is_told: bool) -> None:
        """Record the end of a membership; `is_told`: by a message or the user, not by silence or a closed connection."""
        self.world.note("controller", "loses", host.name, "membership", host.membership)
        self._memberships = {
            key: membership for key, membership in self._memberships.items() if membership != host.membership
        }
        if is_told and self._is_sent_away(host):
            self._expelled.add(host.key)
        heard_s, agent = self._heard_s[host.membership], self._agents.get(host.membership)
        was_stopped = agent is not None and (agent.frozen or agent.thawed_s > heard_s)
        if is_told or was_stopped:
            self._excused_until[host.membership] = heard_s + LEASE_S + TOLD_S

    def _is_sent_away(self, host: JoinedHost) -> bool:
        """Return whether a membership ends because the user or the controller wants it."""
        if not isinstance(self._happened, Received):
            return isinstance(self._happened, Revoke)
        message = self._happened.message
        wants_to_leave = isinstance(message, Hello | Leaving) or bool(getattr(message, "leaves", ""))
        return host.name in self.liars and not wants_to_leave

    def welcomed(self, agent: Process, membership: int) -> None:
        self.world.note(agent.name, "is welcome, membership", membership)
        self._agents[membership] = agent

    @contextlib.contextmanager
    def taking(self, members: Members, happened: Any) -> Iterator[None]:
        """Check what Members does with a message."""
        self._happened = happened
        if not isinstance(happened, Received):
            self._sender_membership = None
            yield
            return
        key, message = happened.key, happened.message
        before = {host.key: fingerprint(host) for host in members.hosts}
        self._sender_membership = self._memberships.get(key)  # it may be lost by its message
        names = {host.key: set(host.names) for host in members.hosts}
        yield
        if isinstance(message, Exited):
            gone = {entry for host in members.hosts for entry in names[host.key] - set(host.names)}
            if others := [entry for entry in gone if entry.incarnation != message.incarnation]:
                self.fail(f"the end of {message.worker}.{message.incarnation} removed the name {others}")
        if self._sender_membership is not None:
            self._heard_s[self._sender_membership] = self.world.now
        after = {host.key: fingerprint(host) for host in members.hosts}
        kind = type(message).__name__
        for other, state in before.items():
            if other != key and after.get(other, state) != state:
                self.fail(f"a {kind} of one host changed another: {state} -> {after[other]}")
            if other != key and other not in after and not isinstance(message, Hello):
                self.fail(f"a {kind} of one host removed another")
        for host in members.hosts:
            if self._memberships.get(host.key) != host.membership:
                if not isinstance(message, Hello) or host.key != key or key == JOIN:
                    self.fail(f"{host.name} became a member by a {kind} of another")
                if key in self._expelled:
                    self.fail(f"{host.name} becomes a member with a key that was dropped")
                if host.membership in self._heard_s:
                    self.fail(f"{host.name} becomes a member with membership {host.membership}, which was before")
                self._memberships[host.key] = host.membership
                self._heard_s[host.membership] = self.world.now
        is_of_member = isinstance(message, Hello) or message.membership == self._sender_membership
        if not is_of_member and before.get(key) != after.get(key):
            self.fail(
                f"a {kind} of membership {message.membership} changed {key} of membership {self._sender_membership}"
            )
        if isinstance(message, Exited):
            self._check_exit(next((host for host in members.hosts if host.key == key), None), message)

    def _check_exit(self, host: JoinedHost | None, message: Exited) -> None:
        if host is None or host.name in self.liars:
            return
        remote = host.workers.get((message.worker, message.incarnation))
        process = self.processes.get((message.worker, message.incarnation))
        if remote is not None and remote.exit is not None and process is not None and process.alive:
            self.fail(f"{process.name} lives on {host.name}, and its end was accepted")

    def accepted(self, message: AnyMessage) -> None:
        """Check that a worker's message, which Members passes on, is one of the host that sent it."""
        placed = self._placed.get((message.worker, message.incarnation))
        if placed is None or placed != self._sender_membership:
            who = f"a {type(message).__name__} of {message.worker}.{message.incarnation}, of membership {placed}"
            self.fail(f"{who}, was accepted from a host of membership {self._sender_membership}")

    def kept(self, host: JoinedHost, part: Part) -> None:
        """Record that a file of a host's worker is kept in the run folder."""
        if part.name.startswith("logs/"):
            workers = {part.name.removeprefix("logs/").removesuffix(".log")}
        else:
            workers = {worker for worker in self.rules if part.name.startswith(f"snapshots/{worker}/")}
        if not any(name in workers and membership == host.membership for (name, _), membership in self._placed.items()):
            self.fail(
                f"the file {part.name} was kept of {host.name}, membership {host.membership}, where no such worker ran"
            )
        for worker in workers:
            self._stored[worker] = max(self._stored.get(worker, 0), len(part.content))

    def _check_files(self, worker: str) -> None:
        """Check that the snapshot of an incarnation that left in order is there before the next one starts."""
        before = self.processes.get((worker, self._newest.get(worker, -1)))
        membership = self._placed.get((worker, self._newest.get(worker, -1)))
        if before is None or before.status != 0 or before.host.name in self.liars:
            return
        if membership in self._memberships.values() and self._stored.get(worker, 0) < before.saved:
            self.fail(f"{worker} starts again, and the last snapshot of {before.name} has not arrived")

    def named(self, names: Iterable[Registration]) -> None:
        """Check that names belong to incarnations that run on members."""
        for entry in names:
            life = (entry.name.partition(".")[2], entry.incarnation)
            if self._placed.get(life) not in self._memberships.values():
                self.fail(f"the name {entry.name} is that of incarnation {entry.incarnation}, which runs on no member")
            if (life[0], life[1] + 1) in self._began_s and entry.host not in self.liars:
                self.fail(
                    f"the name {entry.name} is that of incarnation {entry.incarnation}, after which another was started"
                )
            if entry.name not in (f"inference.{worker}" for worker in self.rules if worker.startswith("inference")):
                self.fail(f"the name {entry.name} was registered")

    # -- the controller

    def heard(self, message: Any) -> None:
        self._worker_heard_s[message.worker, message.incarnation] = self.world.now
        if isinstance(message, Report) and FINAL in message.facts:
            self._finished.add(message.worker)

    def shown(self, text: str) -> None:
        """Check what the user is told about the end of a worker."""
        worker = text.partition(":")[0].partition(" ")[0]
        process = self.processes.get((worker, self._newest.get(worker, -1)))
        if "was not finished within" in text and worker in self._finished:
            self.fail(f"the controller has heard that {worker} finished its task, and says: {text}")
        if process is None or process.parent is None or process.parent.name != "controller":
            return
        since_s = self.world.now - process.ended_s
        if "did not leave in order within" in text and since_s > SLACK_S:
            self.fail(f"{process.name} ended {since_s:.1f} s ago, and the controller says: {text}")

    def starts(self, worker: str, incarnation: int) -> None:
        """Check that the controller may start an incarnation."""
        if worker in self._stopped_s:
            self.fail(f"{worker}.{incarnation} is started after {worker} was told to stop")
        if self.rules[worker].keeps_files:
            self._check_files(worker)
        self._began_s[worker, incarnation] = self.world.now

    def judged(self, worker: str, incarnation: int, *, kills: bool = False) -> None:
        """Record that the controller begins to end an incarnation; `kills`: it does so now."""
        life = (worker, incarnation)
        heard_s = max(self._worker_heard_s.get(life, 0.0), self._began_s[life])
        until_s = self._heard_s.get(self._placed.get(life, 0), self.world.now) + HEARD_S
        self._silent_s.setdefault(life, min(self.world.now, until_s) - heard_s)
        self._judged_s.setdefault(life, self.world.now)
        if kills:
            self._killed.add(life)

    def commands(self, worker: str, incarnation: int, command: str, *, ends: bool) -> None:
        """Check a command that the controller sends; `ends`: the run's end has begun, and it did not fail."""
        self.world.note("controller", "sends", command, f"to {worker}.{incarnation}")
        if not ends:
            return
        now = self.world.now
        if command == "final" and "learner" in self._stopped_s:
            self.fail(f"{worker} begins its last task after the learner was told to stop")
        if command != "stop":
            return
        for level in self.levels:
            if worker in level.workers:
                break
            for earlier in level.workers:
                process = self.processes.get((earlier, self._newest.get(earlier, -1)))
                limit_s = self.limits.snapshot_s if self.rules[earlier].saves else self.limits.leave_s / 10
                told_s = self._stopped_s.get(earlier, now)
                life = (earlier, process.incarnation if process is not None else -1)
                reachable = (
                    process is not None
                    and process.acts
                    and self._placed.get(life) in (None, *self._memberships.values())
                )
                if reachable and life not in self._killed and now - told_s < limit_s:
                    self.fail(f"{worker} is told to stop {now - told_s:.2f} s after {earlier}, which still runs")
        self._stopped_s.setdefault(worker, now)

    def died(self, death: Died, crash: Crash | None, ended: set[str]) -> None:
        """Check that a death is reported once, and as what it was; `ended`: workers whose ends the controller has seen."""
        life = (death.worker, death.incarnation)
        process = self.processes.get(life)
        if life in self._reported:
            self.fail(f"the death of {death.worker}.{death.incarnation} is reported twice")
        self._reported.add(life)
        group = self.rules[death.worker].ranks
        charged = len([one for one, _ in self._reported if one in group])
        if "has used its" in death.text and charged <= self.rules[group[0]].restarts:
            self.fail(f"{death.worker} has had {charged} deaths, and: {death.text}")
        if process is None or process.host.name in self.liars:
            return
        self._check_cause(death, crash, process)
        if crash is not None and process.peer is not None and process.peer.worker in ended:
            self._check_symptom(death, process, process.peer)

    def _check_cause(self, death: Died, crash: Crash | None, process: Worker) -> None:
        life, now = (death.worker, death.incarnation), self.world.now
        what = f"{process.name} {death.what} ({crash.error if crash else 'no error'})"
        is_here = process.parent is not None and process.parent.name == "controller"
        if death.what.startswith("sent no message"):
            limit_s = self.limits.rank_s / 2 if len(self.rules[death.worker].ranks) > 1 else self.limits.silence_s
            if self._silent_s[life] < limit_s - SLACK_S:
                self.fail(f"{what}, and was silent for {self._silent_s[life]:.1f} s while its host was heard")
            if is_here and not process.was_frozen and not process.error:
                self.fail(f"{what}, and was never stopped")
        if "status" in death.what and process.ended_s > self._judged_s.get(life, now):
            self.fail(f"{what}, and was alive")
        if death.what.startswith("was not ready") and now - self._began_s[life] < self.limits.ready_s - SLACK_S:
            self.fail(f"{what}, and was started {now - self._began_s[life]:.1f} s ago")
        if is_here and process.error and (crash is None or crash.error != process.error):
            self.fail(f"{what}, and said {process.error}")
        if is_here and process.status == -9 and life not in self._killed and "status -9" not in death.what:
            self.fail(f"{what}, and was killed")

    def _check_symptom(self, death: Died, process: Worker, cause: Worker) -> None:
        """Check that the death that a worker noticed is reported before that of the worker."""
        life = (cause.worker, cause.incarnation)
        ended_by_fault = cause.status == -9 and cause.ended_s < self._judged_s.get(life, math.inf)
        is_newest = cause.incarnation == self._newest[cause.worker]
        is_unknown = life not in self._reported
        if ended_by_fault and is_newest and is_unknown and process.error in ("StreamClosed", "RuntimeError"):
            self.fail(f"{process.name} is reported as dead ({death.what}); it ended because {cause.name} did")


def fingerprint(host: JoinedHost) -> tuple[Any, ...]:
    """Return the state of a host in the controller, to be compared."""
    remotes = tuple((*key, r.pid, r.exit, r.tail, r.usage) for key, r in host.workers.items())
    return (
        host.membership, host.session, host.identity, host.heard_s, host.closed_s, host.lost, host.leaves, host.silent,
        host.has_answered, host.num_pages, host.num_orders, len(host.orders), tuple(host.names), tuple(host.relays.items()),
        tuple(host.wanted), frozenset(host.asked), frozenset(host.placed), remotes,
    )  # fmt: skip
