"""The joined hosts of a run in the controller: admission, states of their workers, losses.

No code here sends or waits: `handle` processes a message and returns the replies. Times are of this host's monotonic clock.
`own` is the name of this host, which no other may have; `on_loss` is called with a lost host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from jsrl.errors import ConfigError, counted
from jsrl.launch.hosts.facts import HostFacts, difference
from jsrl.launch.hosts.join_key import JOIN, JoinKey
from jsrl.launch.hosts.kept_files import MOST_LOG_BYTES, log_name
from jsrl.launch.hosts.messages import (
    CLOSED_LOST_S,
    LEASE_S,
    LOST_S,
    PROMPT_S,
    Admitted,
    AnyAgentMessage,
    AnyControllerMessage,
    AnyOrder,
    Beat,
    BeatReceived,
    Begin,
    CodePart,
    Exited,
    Farewell,
    Hello,
    Join,
    KeptFile,
    Leaving,
    Pages,
    Refused,
    Stored,
    TextReply,
    Usage,
    Welcome,
    WorkerMessages,
)
from jsrl.rate_limit import is_reported
from jsrl.runs.control_bodies import AnyMessage
from jsrl.runs.door import Drops, Speech, TextBudget, objection
from jsrl.runs.values import Exit, Registration, ResourceUsage
from jsrl.transport.stream import EPOCH

MAX_NAME_CHARS = 64
REVOKED = "its key was revoked"
AWAY_S = 1.0  # after its connection closed, until which a new one may follow
LACKS_S = 5.0  # after which keys, modules and orders that have not arrived are sent again
MOST_CODE_BYTES = 4 << 20  # of modules that a host has not confirmed: heartbeats wait behind them on a slow network
BREAKS, BREAKS_S = 3, 120.0  # so many breaks of a host's connection within this time are reported
AGAIN_S = 30.0  # after which a worker that has not started is requested again: agents start many one after another


@dataclass
class RemoteWorker:
    """One incarnation of a worker on a joined host.

    Attributes:
      speech: what it may say; None: nothing. hops: whose trajectories it counts as their reader. binds: names of
        the streams that it registers. budget: of its text.
      begin: its start message, last sent at `asked_s`. pid: once it has started. tail: the end of its log, once it has ended.
    """

    host: JoinedHost
    worker: str
    incarnation: int
    speech: Speech | None = None
    hops: tuple[str, ...] = ()
    binds: frozenset[str] = frozenset()
    budget: TextBudget = field(default_factory=TextBudget)
    begin: Begin | None = None
    asked_s: float = 0.0
    pid: int | None = None
    usage: ResourceUsage | None = None
    exit: Exit | None = None
    tail: str = ""


@dataclass
class JoinedHost:
    """A host during its membership.

    Attributes:
      facts: its resources. epoch: the number of this membership. key: its own. session, boot, folder: see Hello.
      identity: of its connection. joined_s, heard_s: times of its admission and of its last message. lost: why its
        membership ended; empty: it has not.
      workers: of workers, by (worker, incarnation). placed: all that were placed here so far.
      asked: numbers of the questions that it has not answered. newest_asked: the last one. answers: by these numbers.
      wanted: frozen players for which its workers wait; see Beat. leaves: why it gets no new workers; empty: it does.
      has_answered: whether a message came since its welcome. num_pages: number of its newest Pages.
      silent: whether the user was told that its lease has ended. closed_s: when its connection closed; None: it is open.
        breaks_s: when it closed, within the last BREAKS_S seconds.
      server_key: public key of the streams that its workers bind, 64 hexadecimal digits. names: of these streams.
      relays: params stream -> address at which the host relays it.
      sent, sent_s: its keys, and when they were last sent. code: parts of its workers' modules that are still to be sent.
      orders, ordered_s: those that it has not confirmed, and when they were last sent. num_orders: given so far.
    """

    facts: HostFacts
    epoch: int
    key: str
    session: str
    boot: str
    folder: str
    identity: bytes
    heard_s: float
    lost: str = ""
    workers: dict[tuple[str, int], RemoteWorker] = field(default_factory=dict)
    placed: set[tuple[str, int]] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    newest_asked: int = 0
    answers: dict[int, str] = field(default_factory=dict)
    server_key: str = ""
    names: list[Registration] = field(default_factory=list)
    relays: dict[str, str] = field(default_factory=dict)
    sent: list[AnyControllerMessage] = field(default_factory=list)
    sent_s: float = 0.0
    code: list[CodePart] = field(default_factory=list)
    orders: list[AnyOrder] = field(default_factory=list)
    ordered_s: float = 0.0
    num_orders: int = 0
    wanted: list[str] = field(default_factory=list)
    leaves: str = ""
    has_answered: bool = False
    num_pages: int = 0
    silent: bool = False
    closed_s: float | None = None
    breaks_s: list[float] = field(default_factory=list)
    joined_s: float = 0.0

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def living_workers(self) -> list[RemoteWorker]:
        return [remote for remote in self.workers.values() if remote.exit is None]

    @property
    def num_living(self) -> int:
        return len(self.living_workers)

    def is_away(self, now_s: float) -> bool:
        """Return whether its connection has closed, and no new one followed at once, or it has long been silent."""
        closed_s = now_s if self.closed_s is None else self.closed_s
        return now_s - closed_s > AWAY_S or now_s - self.heard_s > CLOSED_LOST_S

    def add(self, remote: RemoteWorker) -> None:
        """Add an incarnation of a worker that begins here, and forget its ended ones before the previous one."""
        earlier = sorted(key for key in self.workers if key[0] == remote.worker)
        for key in earlier[:-1]:
            if self.workers[key].exit is not None:
                del self.workers[key]
        self.workers[remote.worker, remote.incarnation] = remote
        self.placed.add((remote.worker, remote.incarnation))

    def lose(self, why: str) -> None:
        """End its membership: its workers have ended, or end when its lease expires."""
        self.lost = why
        for remote in self.workers.values():
            if remote.exit is None:
                remote.exit = Exit(None, f"lost with its host {self.name}: {why}", with_host=True)


class Members:
    """The hosts of a run; see the module.

    Attributes:
      hosts: the current members, in the order in which they joined. frames: messages of workers, for the control connection.
      pages: (host epoch, counts of its workers for the streams that they read), for the run folder.
      kept_files: parts of files that workers keep there. given_up: folders that lost hosts may have sent in part.
      stored: confirmations of files that hosts have got.
      farewells: (identity, message) pairs for hosts that were sent away. notices: lines for the user, not shown yet.
      drops: of messages, by their keys.
    """

    def __init__(
        self,
        join_key: JoinKey,
        lease_s: float = LEASE_S,
        lost_s: float = LOST_S,
        clock: Callable[[], float] = time.monotonic,
        own: str = "",
        on_loss: Callable[[JoinedHost], None] = lambda host: None,
    ) -> None:
        self._on_loss = on_loss
        self._join_key, self._lease_s, self._lost_s, self._clock, self._own = join_key, lease_s, lost_s, clock, own
        self.hosts: list[JoinedHost] = []
        self.frames: list[bytes] = []
        self.pages: list[tuple[int, dict[str, bytes]]] = []
        self.kept_files: list[tuple[JoinedHost, KeptFile]] = []
        self.given_up: list[str] = []
        self.stored: list[Stored] = []
        self.farewells: list[tuple[bytes, AnyControllerMessage]] = []
        self.notices: list[str] = []
        self._refused = 0  # joins
        self.drops: dict[str, Drops] = {}
        self._epoch = 0
        self._revoked: frozenset[str] | None = None  # names of hosts that may not join; None: not read yet
        self._cut_off: set[str] = set()  # the same, because of their messages

    def handle(self, key: str, identity: bytes, message: AnyAgentMessage) -> list[tuple[bytes, AnyControllerMessage]]:  # noqa: C901
        """Process a message sent with a key; return (identity, message) pairs to send."""
        if isinstance(message, Join) and key == JOIN:
            self._join_key.admit(message.key.encode())
            return [(identity, Admitted(0))]
        if isinstance(message, Hello) and key != JOIN:
            return self._admit(key, identity, message)
        if key == JOIN or isinstance(message, Join):
            self.drop(key, f"it is a {type(message).__name__.lower()}, with the wrong key for that")
            return []
        host = self._member(key)
        if host is None or message.epoch != host.epoch:
            return []  # of an earlier membership: its workers are already replaced
        host.heard_s, host.closed_s, host.has_answered = self._clock(), None, True
        if isinstance(message, Beat):
            return self._note_beat(host, message)
        if isinstance(message, Pages):
            if message.number < host.num_pages:
                return []  # newer ones have come over another connection
            host.num_pages = message.number
            hops = {hop for remote in host.workers.values() for hop in remote.hops}
            own = {name: page for name, page in message.pages.items() if name.partition("/")[0] in hops}
            self.pages.append((host.epoch, own))
        elif isinstance(message, KeptFile):
            if message.name.startswith(_keeps(host.living_workers)) or _is_log_of(host, message):
                self.kept_files.append((host, message))
            elif not message.name.startswith(_keeps(host.workers.values())):  # else it is late
                self.drop(key, f"the file {message.name} belongs to no worker there")
        elif isinstance(message, Stored):
            self.stored.append(message)
        elif isinstance(message, WorkerMessages):
            self._take_frames(host, message.frames)
        elif isinstance(message, Exited):
            self._note_exit(host, message)
        elif isinstance(message, TextReply):
            if message.number in host.asked:
                host.asked.remove(message.number)
                host.answers[message.number] = message.text
            elif message.number > host.newest_asked:  # else it is late
                self.drop(key, "it answers what was not asked")
        elif isinstance(message, Leaving):
            self.lose(host, message.text)
        return []

    def drop(self, key: str, why: str) -> None:
        """Count a message that is not processed; a host with too many of them is cut off."""
        host = self._member(key)
        sender = "a host that has not joined" if host is None else f"host {host.name}"
        line, cut_off = self.drops.setdefault(key, Drops()).add(sender, why, self._clock())
        if line:
            self.notices.append(line)
        if cut_off and host is not None:
            self._cut_off.add(host.name)
            self._send_away(host, f"it was cut off: {cut_off}")

    def _send_away(self, host: JoinedHost, why: str) -> None:
        """Remove a host with its key; no host of its name joins again."""
        self.farewells.append((host.identity, Refused(host.epoch, why)))
        self._join_key.drop(host.key)
        host.leaves = why  # an engine starts no agent there again
        self.lose(host, why)

    def _take_frames(self, host: JoinedHost, frames: list[bytes]) -> None:
        """Pass on the messages of a host's workers; drop those in the name of others, and those that may not be sent."""
        for frame in frames:
            if host.lost:
                return
            try:
                message: AnyMessage = msgspec.msgpack.decode(frame, type=AnyMessage)
            except (ValueError, RecursionError) as error:
                self.drop(host.key, f"a worker's message cannot be read ({error})")
                continue
            remote = self._worker(host, message.worker, message.incarnation)
            if remote is None or remote.speech is None:
                continue
            if why := objection(message, remote.speech, remote.budget, self._clock()):
                self.drop(host.key, f"{message.worker}, {type(message).__name__.lower()}: {why}")
            else:
                self.frames.append(frame)

    def _worker(self, host: JoinedHost, worker: str, incarnation: int) -> RemoteWorker | None:
        """Return the worker of a host that a message is about; None: it is not, or not any more, on this host."""
        key = (worker, incarnation)
        if key not in host.placed:
            self.drop(
                host.key, f"it speaks for {worker[:MAX_NAME_CHARS]}, incarnation {incarnation}, which is not there"
            )
        return host.workers.get(key)

    def _note_beat(self, host: JoinedHost, message: Beat) -> list[tuple[bytes, AnyControllerMessage]]:
        """Record a host's beat; return the answers to send, with what the host lacks and orders that it has not confirmed."""
        self._take_frames(host, message.frames)
        if host.lost:
            return []
        host.names = [entry for entry in message.names if self._registers(host, entry)]
        host.relays = {name: address for name, address in message.relays.items() if _is_bound_by(host, address)}
        host.wanted = message.wanted
        for usage in message.usage:
            self._note_usage(host, usage)
        if host.lost:
            return []  # it was cut off
        if message.leaves and not host.leaves:
            host.leaves = message.leaves
            self.notices.append(
                f"host {host.name} leaves ({host.leaves}): {counted(host.num_living, 'worker')} must move"
            )
        if host.leaves and not host.num_living:
            self.lose(host, host.leaves)
            return [(host.identity, Farewell(host.epoch, f"this host has left the run: {host.leaves}"))]
        again = message.lacks and self._clock() - host.sent_s > LACKS_S
        host.sent_s = self._clock() if again else host.sent_s
        orders = [*self._unconfirmed(host, message.executed), *self._next_code(host)]
        answers = [BeatReceived(host.epoch, message.sent_s), *(host.sent if again else ()), *orders]
        return [(host.identity, answer) for answer in answers]

    def note_closed(self, identity: bytes) -> None:
        """Note that the connection with this identity has closed. A link that is down closes it too, but much later."""
        now_s = self._clock()
        for host in self.hosts:
            if host.identity == identity and now_s - host.heard_s < PROMPT_S:
                host.closed_s = now_s
                host.breaks_s = [at_s for at_s in host.breaks_s if now_s - at_s < BREAKS_S] + [now_s]
                if len(host.breaks_s) == BREAKS:
                    self.notices.append(
                        f"the connection to host {host.name} broke {BREAKS} times within {BREAKS_S:g} s. If small messages "
                        "arrive and large ones do not, packets are too large for the network between the hosts: "
                        f"`ping -M do -s 1472 {host.facts.address}` shows it, and a smaller mtu of this host repairs it"
                    )

    def number(self, host: JoinedHost, order: AnyOrder) -> None:
        """Give an order to a host its number; from now on it is sent again until the host confirms it."""
        host.num_orders += 1
        order.number = host.num_orders
        host.ordered_s = host.ordered_s if host.orders else self._clock()
        host.orders.append(order)

    def _unconfirmed(self, host: JoinedHost, executed: int) -> list[AnyOrder]:
        """Return the orders to send again to a host that has executed those up to this number."""
        left = [order for order in host.orders if order.number > executed]
        if len(left) < len(host.orders) and any(isinstance(order, CodePart) for order in left):
            host.ordered_s = self._clock()  # parts of modules arrive, slowly
        host.orders = left
        if self._clock() - host.ordered_s <= LACKS_S:
            return []
        host.ordered_s = self._clock()
        return list(left)

    def _next_code(self, host: JoinedHost) -> list[AnyOrder]:
        """Return the next parts of a host's modules to send, as orders."""
        found = list[AnyOrder]()
        room = MOST_CODE_BYTES - sum(len(order.part) for order in host.orders if isinstance(order, CodePart))
        while host.code and room > 0:
            part = host.code.pop(0)
            room -= len(part.part)
            self.number(host, part)
            found.append(part)
        return found

    @property
    def staying(self) -> list[JoinedHost]:
        return [host for host in self.hosts if not host.leaves]

    def _member(self, key: str) -> JoinedHost | None:
        return next((host for host in self.hosts if host.key == key), None)

    def _admit(self, key: str, identity: bytes, hello: Hello) -> list[tuple[bytes, AnyControllerMessage]]:
        """Admit a host, or refuse it with a reason. A previous agent of the same host has no workers any more."""
        why, answers = self._objection(key, hello), list[tuple[bytes, AnyControllerMessage]]()
        if why:
            self._refused += 1
            if is_reported(self._refused):
                times = f" ({self._refused} times so far)" if self._refused > 1 else ""
                self.notices.append(f"a host could not join{times}: {why}")
            return [(identity, Refused(0, why))]
        for host in [host for host in self.hosts if self._is_same(host, hello)]:
            if host.session == hello.session and not (host.has_answered or host.workers):
                # It repeats its hello: the welcome was late or lost.
                host.identity, host.heard_s = identity, self._clock()
                return [(identity, Welcome(host.epoch, self._lease_s))]
            if host.session != hello.session:
                answers.append((host.identity, Refused(host.epoch, "a new agent has taken the place of this one.")))
                self._join_key.drop(host.key)
            self.lose(host, "its agent joined again without workers")
        self._join_key.use(key)
        self._epoch += 1
        shared = {name: getattr(hello, name) for name in ("name", "cores", "memory_mb", "address", "gpus", "shm_mb")}
        facts = HostFacts(**shared, machine=hello.boot, machine_mb=hello.machine_mb)
        host = JoinedHost(facts, self._epoch, key, hello.session, hello.boot, hello.folder, identity, self._clock())
        host.joined_s = host.heard_s
        self.hosts.append(host)
        self.notices.append(
            f"host {host.name} ({facts.address}, {counted(facts.cores, 'core')}, {facts.memory_mb:,} MB) joined"
        )
        return [*answers, (identity, Welcome(host.epoch, self._lease_s))]

    def _is_same(self, host: JoinedHost, hello: Hello) -> bool:
        return (host.name, host.boot) == (hello.name, hello.boot) or host.session == hello.session

    def _objection(self, key: str, hello: Hello) -> str:
        """Return why a host may not join, for the user; empty: it may."""
        if not 0 < len(hello.name) <= MAX_NAME_CHARS or min(hello.cores, hello.memory_mb) < 1:
            return (
                f"it calls itself {hello.name[:80]!r}, with {hello.cores} cores and {hello.memory_mb} MB; expected a name of "
                f"1 to {MAX_NAME_CHARS} characters (--name), and at least one core and one MB."
            )
        if hello.name in (self._revoked or ()):
            return f"the key of {hello.name} was revoked."
        if hello.name in self._cut_off:
            return f"{hello.name} was cut off, because of its messages."
        others = [host.name for host in self.hosts if not self._is_same(host, hello)]
        if hello.name in (self._own, *others):
            return f"another host is called {hello.name}; give this one a name with --name."
        if hello.lacks:
            return f"{hello.name} has only {hello.lacks}; free some, or leave this host out."
        if not self._join_key.admits(key.encode()):
            return f"the key of {hello.name} was dropped: another agent has taken its place."
        return difference(hello.name, hello.versions, hello.code)

    def _note_usage(self, host: JoinedHost, usage: Usage) -> None:
        remote = self._worker(host, usage.worker, usage.incarnation)
        if remote is not None and remote.exit is None:
            remote.pid = usage.pid
            remote.usage = ResourceUsage(usage.state, usage.cpu_s, usage.resident_bytes, usage.threads)

    def _note_exit(self, host: JoinedHost, message: Exited) -> None:
        remote = self._worker(host, message.worker, message.incarnation)
        if remote is not None and remote.exit is None:
            remote.tail, remote.usage = message.tail, None
            remote.exit = Exit(message.status, message.text)
            host.names = [entry for entry in host.names if self._registers(host, entry)]

    def _registers(self, host: JoinedHost, entry: Registration) -> bool:
        """Return whether a name is of a living worker of a host: of a stream bound with the host's key, or of its epoch."""
        if not any(entry.name in remote.binds for remote in host.workers.values()):
            self.drop(host.key, f"it registers {entry.name[:MAX_NAME_CHARS]}, of a worker that is not there")
            return False
        if not any(r.incarnation == entry.incarnation and entry.name in r.binds for r in host.living_workers):
            return False
        return entry.address.isdigit() if entry.name.endswith(EPOCH) else _is_bound_by(host, entry.address)

    def names(self) -> list[Registration]:
        """Return where workers on all hosts have bound streams."""
        entries = [entry for host in self.hosts for entry in host.names]
        return list({entry.name: entry for entry in sorted(entries, key=lambda entry: entry.incarnation)}.values())

    def unanswered_starts(self) -> list[tuple[bytes, AnyControllerMessage]]:
        """Return (identity, Begin) pairs to send again, for workers that did not start: the message may have been lost."""
        now_s, found = self._clock(), list[tuple[bytes, AnyControllerMessage]]()
        for host in self.hosts:
            for remote in host.workers.values():
                if remote.begin is None or remote.pid is not None or remote.exit is not None:
                    continue
                if now_s - remote.asked_s > AGAIN_S:
                    remote.asked_s = now_s
                    found.append((host.identity, remote.begin))
        return found

    def look(self) -> None:
        """Report and remove hosts that were silent for too long."""
        now_s = self._clock()
        for host in list(self.hosts):
            silent_s = now_s - host.heard_s
            if silent_s > self._lost_s:
                self.lose(host, f"it sent no message for {self._lost_s:g} s")
            elif host.closed_s is not None and now_s - host.closed_s > CLOSED_LOST_S:
                self.lose(host, f"its connection was closed, and it did not return within {CLOSED_LOST_S:g} s")
            elif silent_s <= self._lease_s:
                host.silent = False
            elif not host.silent:
                host.silent = True
                self.notices.append(
                    f"host {host.name} has sent no message for {self._lease_s:g} s, the length of its lease: after "
                    f"{self._lost_s:g} s it is lost"
                )

    def revoke(self, names: Collection[str]) -> None:
        """Remove the hosts of these names with their keys, and admit none; replace the join key, which they know too.

        Those that were revoked before this run began have no key of it.
        """
        is_new = self._revoked is not None and not self._revoked.issuperset(names)
        hosts = [host for host in self.hosts if host.name in names]
        self._revoked = frozenset(names)
        for host in hosts:
            self._send_away(host, REVOKED)
        if is_new or hosts:
            try:
                self._join_key.replace()
                self.notices.append(
                    f"the join key was replaced; hosts that join from now on need {self._join_key.path}"
                )
            except ConfigError as error:  # a full disk
                self.notices.append(f"no more hosts can join: {error}")

    def lose(self, host: JoinedHost, why: str) -> None:
        self.given_up += _keeps(host.living_workers)
        host.lose(why)
        self.hosts.remove(host)
        self._on_loss(host)
        self.notices.append(f"host {host.name} is gone: {why}")


def _keeps(workers: Iterable[RemoteWorker]) -> tuple[str, ...]:
    return tuple(f"{name}/" for remote in workers if remote.begin is not None for name in remote.begin.keeps)


def _is_log_of(host: JoinedHost, message: KeptFile) -> bool:
    """Return whether a file is the log of a worker that the host has, or had; the host may send no other logs."""
    ends_at = message.at + len(message.part)
    return ends_at <= MOST_LOG_BYTES and any(
        message.name == log_name(remote.worker) for remote in host.workers.values()
    )


def _is_bound_by(host: JoinedHost, address: str) -> bool:
    return address.startswith(f"tcp://{host.server_key}@") and bool(host.server_key)
