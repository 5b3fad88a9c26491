"""The joined hosts of a run: who is a member, who may speak for which worker, orders to hosts, and their losses.

A state machine: `handle` and `tick` return what is to be done, in order; jsrl.cluster.port does it. `now_s`: of a steady
clock. `membership` is the number of a membership: a host that joins again has another one, and no workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from jsrl.cluster import messages as wire
from jsrl.cluster.facts import HostFacts, difference
from jsrl.errors import counted
from jsrl.rate_limit import is_reported
from jsrl.services.runs.control_bodies import AnyMessage, Bye, Crash, Stage
from jsrl.services.runs.message_limits import Drops, Speech, TextBudget, objection
from jsrl.services.runs.values import Exit, Registration, ResourceUsage, log_name
from jsrl.transport.stream import GENERATION

JOIN = "join"  # name of the join key, where those of hosts are the keys themselves
MAX_NAME_CHARS = 64
MOST_WAITING = 1_000  # admitted keys of hosts that have not joined yet
REVOKED = "its key was revoked"
AWAY_S = 1.0  # after its connection closed, until which a new one may follow
HEARD_S = 2.0  # four beats: after a longer silence no answer is waited for
AGAIN_S = 5.0  # without progress, after which orders are sent again
BREAKS, BREAKS_S = 3, 120.0  # so many breaks of a host's connection within this time are reported


# -- what happened


class Received(NamedTuple):
    """A message of an agent, over the connection `identity`, encrypted with an admitted key (JOIN: the join key)."""

    key: str
    identity: bytes
    message: wire.AnyAgentMessage


class Unreadable(NamedTuple):
    """A message with an admitted key was too large, or no message."""

    key: str
    why: str


class Closed(NamedTuple):
    """The connection with this identity has closed. A link that is down closes it too, but much later."""

    identity: bytes


class Place(NamedTuple):
    """An incarnation of a worker belongs to a host from now on; see RemoteWorker."""

    membership: int
    worker: str
    incarnation: int
    speech: Speech
    legs: tuple[str, ...] = ()
    binds: frozenset[str] = frozenset()


class Start(NamedTuple):
    """A placed worker is to start; `needs_files`: once its host has what it kept in the run folder, and its counts."""

    membership: int
    begin: wire.Begin
    needs_files: bool = False


class FilesSent(NamedTuple):
    """A host has the files of SendFiles."""

    membership: int
    worker: str
    incarnation: int


class GiveKeys(NamedTuple):
    """Keys for a host; `server_key`: public key of the streams that its workers bind, 64 hexadecimal digits."""

    membership: int
    keys: wire.Keys
    server_key: str


class Tell(NamedTuple):
    """A message for a host. Orders are sent again if they are lost on the way."""

    membership: int
    message: wire.Signal | wire.TextRequest


class Forward(NamedTuple):
    """A command of the control connection for a worker."""

    worker: str
    incarnation: int
    frame: bytes


class Revoke(NamedTuple):
    """The names of hosts that were revoked so far. Those that were revoked before this run began have no key of it."""

    names: Collection[str]


class AgentEnded(NamedTuple):
    """The engine that started the agent of a host reports its end."""

    host: str
    why: str


class RunEnded(NamedTuple):
    """All agents are to end."""

    text: str


ForHost = Place | Start | FilesSent | GiveKeys | Tell
Message = Received | Unreadable | Closed | ForHost | Forward | Revoke | AgentEnded | RunEnded


# -- what is to be done


class Send(NamedTuple):
    """A message over a connection; it may be lost."""

    identity: bytes
    message: wire.AnyControllerMessage


class Admit(NamedTuple):
    """Connections with this key may be made from now on."""

    key: str


class Expel(NamedTuple):
    """Connections with this key end, and no more are made."""

    key: str


class ReplaceJoinKey(NamedTuple):
    """Hosts that have joined keep their own keys; others need the new join key."""


class Relay(NamedTuple):
    """Messages of workers, for the control connection."""

    messages: list[AnyMessage]


class KeepPages(NamedTuple):
    """Counts of a host's workers for the streams that they read, for the run folder."""

    membership: int
    pages: dict[str, bytes]


class KeepPart(NamedTuple):
    """A part of a file of a host's worker, for the run folder; the answer is Stored."""

    host: JoinedHost
    part: wire.Part


class SendFiles(NamedTuple):
    """Files for a host: what a worker kept in these folders of the run, and its counts of these legs."""

    host: JoinedHost
    worker: str
    incarnation: int
    keeps: list[str]
    legs: tuple[str, ...]


class Confirm(NamedTuple):
    """A host has got a part of a file."""

    stored: wire.Stored


class RemoveHalfSent(NamedTuple):
    """A lost host may have sent files in these folders in part."""

    folders: tuple[str, ...]


class Answer(NamedTuple):
    """The reply to a question."""

    number: int
    text: str


class Lost(NamedTuple):
    """A membership is over."""

    host: JoinedHost


class Notify(NamedTuple):
    """A line for the user."""

    line: str


Action = (
    Send | Admit | Expel | ReplaceJoinKey | Relay | KeepPages | KeepPart | SendFiles | Confirm | RemoveHalfSent | Answer | Lost
    | Notify
)  # fmt: skip


# -- state


@dataclass
class RemoteWorker:
    """One incarnation of a worker on a joined host.

    Attributes:
      speech: what it may say. legs: whose trajectories it counts as their reader. binds: names of the streams that it
        registers. budget: of its text.
      waits: its start message, while its host gets its files. begin: the same, once it was sent. pid: once it has started.
      tail: the end of its log, once it has ended.
    """

    host: JoinedHost
    worker: str
    incarnation: int
    speech: Speech
    legs: tuple[str, ...] = ()
    binds: frozenset[str] = frozenset()
    budget: TextBudget = field(default_factory=TextBudget)
    waits: wire.Begin | None = None
    begin: wire.Begin | None = None
    pid: int | None = None
    usage: ResourceUsage | None = None
    exit: Exit | None = None
    tail: str = ""


@dataclass
class JoinedHost:
    """A host during its membership.

    Attributes:
      facts: its resources. membership: its number. key: its own. session, folder: see Hello.
      identity: of its connection. joined_s, heard_s: times of its admission and of its last message. lost: why its
        membership ended; empty: it has not.
      workers: of workers, by (worker, incarnation). placed: all that were placed here so far.
      asked: numbers of the questions that it has not answered.
      wanted: frozen players for which its workers wait; see Beat. leaves: why it gets no new workers; empty: it does.
      has_answered: whether a message came since its welcome. num_pages: number of its newest Pages.
      silent: whether the user was told that its lease has ended. closed_s: when its connection closed; None: it is open.
        breaks_s: when it closed, within the last BREAKS_S seconds.
      server_key: see GiveKeys. names: of the streams that its workers bind.
      relays: params stream -> address at which the host relays it.
      orders: those that it has not confirmed. ordered_s: when they were last sent, or the host last confirmed some.
        num_orders: given so far.
    """

    facts: HostFacts
    membership: int
    key: str
    session: str
    folder: str
    identity: bytes
    joined_s: float
    heard_s: float
    lost: str = ""
    workers: dict[tuple[str, int], RemoteWorker] = field(default_factory=dict)
    placed: set[tuple[str, int]] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    server_key: str = ""
    names: list[Registration] = field(default_factory=list)
    relays: dict[str, str] = field(default_factory=dict)
    orders: list[wire.AnyOrder] = field(default_factory=list)
    ordered_s: float = 0.0
    num_orders: int = 0
    wanted: list[str] = field(default_factory=list)
    leaves: str = ""
    has_answered: bool = False
    num_pages: int = 0
    silent: bool = False
    closed_s: float | None = None
    breaks_s: list[float] = field(default_factory=list)

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
        return now_s - closed_s > AWAY_S or now_s - self.heard_s > wire.CLOSED_LOST_S

    def is_heard(self, now_s: float) -> bool:
        """Return whether its messages come, also those of its workers."""
        return not self.lost and now_s - self.heard_s <= HEARD_S


class Members:
    """The hosts of a run; see the module.

    Args:
      own: name of the controller's host, which no other may have. versions, code: of jsrl and its libraries there.
      lease_s: after which an agent without an answer ends its workers. lost_s: silence after which a host is lost.

    Attributes:
      hosts: the current members, in the order in which they joined. drops: of messages, by their keys.
    """

    def __init__(
        self,
        own: str,
        versions: Mapping[str, str],
        code: str,
        lease_s: float = wire.LEASE_S,
        lost_s: float = wire.LOST_S,
    ) -> None:
        self._own, self._versions, self._code, self._lease_s, self._lost_s = own, versions, code, lease_s, lost_s
        self.hosts: list[JoinedHost] = []
        self.drops: dict[str, Drops] = {}
        self._keys: dict[str, bool] = {}  # admitted key of a host -> whether it has joined
        self._refused = 0  # joins
        self._membership = 0
        self._revoked: frozenset[str] | None = None  # names of hosts that may not join; None: not read yet
        self._cut_off: set[str] = set()  # the same, because of their messages
        self._lived_s: dict[str, float] = {}  # lost host -> seconds of its last membership
        self._now_s = 0.0
        self._actions: list[Action] = []

    def handle(self, message: Message, now_s: float) -> list[Action]:
        self._now_s, self._actions = now_s, []
        match message:
            case Received():
                self._receive(*message)
            case Unreadable():
                self._drop(*message)
            case Closed():
                self._note_closed(message.identity)
            case Forward():
                self._forward(message)
            case Revoke():
                self._revoke(message.names)
            case AgentEnded():
                for host in [host for host in self.hosts if host.name == message.host]:
                    self._lose(host, message.why)
                self._lived_s.pop(message.host, None)
            case RunEnded():
                for host in self.hosts:
                    self._send(host, wire.Farewell(host.membership, message.text))
            case _:
                self._tell_host(message)
        return self._actions

    def tick(self, now_s: float) -> list[Action]:
        """Report and remove hosts that were silent for too long."""
        self._now_s, self._actions = now_s, []
        for host in list(self.hosts):
            silent_s = now_s - host.heard_s
            if silent_s > self._lost_s:
                self._lose(host, f"it sent no message for {self._lost_s:g} s")
            elif host.closed_s is not None and now_s - host.closed_s > wire.CLOSED_LOST_S:
                self._lose(host, f"its connection was closed, and it did not return within {wire.CLOSED_LOST_S:g} s")
            elif silent_s <= self._lease_s:
                host.silent = False
            elif not host.silent:
                host.silent = True
                self._notify(
                    f"host {host.name} has sent no message for {self._lease_s:g} s, the length of its lease: after "
                    f"{self._lost_s:g} s it is lost"
                )
        return self._actions

    # -- read by others

    @property
    def staying(self) -> list[JoinedHost]:
        return [host for host in self.hosts if not host.leaves]

    def names(self) -> list[Registration]:
        """Return where workers on all hosts have bound streams."""
        entries = [entry for host in self.hosts for entry in host.names]
        return list({entry.name: entry for entry in sorted(entries, key=lambda entry: entry.incarnation)}.values())

    def lived_s(self, name: str, now_s: float) -> float:
        """Return for how long a host is a member, or was one until it was lost; 0: its agent's end was reported since."""
        living = [now_s - host.joined_s for host in self.hosts if host.name == name]
        return max(living, default=self._lived_s.get(name, 0.0))

    # -- joining

    def _admit_key(self, key: str) -> None:
        """Admit the own key of a host. Of those that do not join, the oldest are dropped."""
        waiting = [one for one, used in self._keys.items() if not used]
        if key not in self._keys and len(waiting) >= MOST_WAITING:
            self._drop_key(waiting[0])
        self._keys.setdefault(key, False)
        self._do(Admit(key))

    def _drop_key(self, key: str) -> None:
        self._keys.pop(key, None)
        self._do(Expel(key))

    def _admit(self, key: str, identity: bytes, hello: wire.Hello) -> None:
        """Admit a host, or refuse it with a reason. A previous agent of the same host has no workers any more."""
        if why := self._objection(key, hello):
            self._refused += 1
            if is_reported(self._refused):
                times = f" ({self._refused} times so far)" if self._refused > 1 else ""
                self._notify(f"a host could not join{times}: {why}")
            self._do(Send(identity, wire.Refused(0, why)))
            return
        for host in [host for host in self.hosts if self._is_same(host, hello)]:
            if (
                host.session == hello.session
                and hello.membership < host.membership
                and not (host.has_answered or host.workers)
            ):
                # It repeats its hello: the welcome was late or lost.
                host.identity, host.heard_s = identity, self._now_s
                self._send(host, wire.Welcome(host.membership, self._lease_s))
                return
            if host.session != hello.session:
                self._send(host, wire.Refused(host.membership, "a new agent has taken the place of this one."))
                self._drop_key(host.key)
            self._lose(host, "its agent joined again without workers")
        self._keys[key] = True
        self._membership += 1
        shared = {name: getattr(hello, name) for name in ("name", "cores", "memory_mb", "address", "gpus", "shm_mb")}
        facts = HostFacts(**shared, machine=hello.boot, machine_mb=hello.machine_mb)
        host = JoinedHost(facts, self._membership, key, hello.session, hello.folder, identity, self._now_s, self._now_s)
        self.hosts.append(host)
        self._notify(
            f"host {host.name} ({facts.address}, {counted(facts.cores, 'core')}, {facts.memory_mb:,} MB) joined"
        )
        self._send(host, wire.Welcome(host.membership, self._lease_s))

    def _is_same(self, host: JoinedHost, hello: wire.Hello) -> bool:
        return (host.name, host.facts.machine) == (hello.name, hello.boot) or host.session == hello.session

    def _objection(self, key: str, hello: wire.Hello) -> str:
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
        if key not in self._keys:
            return f"the key of {hello.name} was dropped: another agent has taken its place."
        return difference(hello.name, self._versions, self._code, hello.versions, hello.code)

    # -- messages of hosts

    def _receive(self, key: str, identity: bytes, message: wire.AnyAgentMessage) -> None:
        if isinstance(message, wire.Join) and key == JOIN:
            self._admit_key(message.key)
            self._do(Send(identity, wire.Admitted(0)))
            return
        if isinstance(message, wire.Hello) and key != JOIN:
            self._admit(key, identity, message)
            return
        if key == JOIN or isinstance(message, wire.Join):
            self._drop(key, f"it is a {type(message).__name__.lower()}, with the wrong key for that")
            return
        host = next((host for host in self.hosts if host.key == key), None)
        if host is None or message.membership != host.membership:
            return  # of an earlier membership: its workers are already replaced
        host.heard_s, host.closed_s, host.has_answered = self._now_s, None, True
        self._hear(host, message)

    def _hear(self, host: JoinedHost, message: wire.AnyAgentMessage) -> None:
        """Process a message of a member; only what belongs to its own workers is used."""
        match message:
            case wire.Beat():
                self._note_beat(host, message)
            case wire.Pages() if message.number >= host.num_pages:  # else newer ones have come over another connection
                host.num_pages = message.number
                legs = {leg for remote in host.workers.values() for leg in remote.legs}
                own = {name: page for name, page in message.pages.items() if name.partition("/")[0] in legs}
                self._do(KeepPages(host.membership, own))
            case wire.FilePart():
                self._note_file(host, message.part)
            case wire.Stored():
                self._do(Confirm(message))
            case wire.WorkerMessages():
                self._take_frames(host, message.frames)
            case wire.Exited():
                self._note_exit(host, message)
            case wire.TextReply():
                self._note_reply(host, message)
            case wire.Leaving():
                self._lose(host, message.text)

    def _note_file(self, host: JoinedHost, part: wire.Part) -> None:
        if part.name.startswith(_keeps(host.living_workers)) or _is_log_of(host, part):
            self._do(KeepPart(host, part))
        elif not part.name.startswith(_keeps(host.workers.values())):  # else it is late
            self._drop(host.key, f"the file {part.name} belongs to no worker there")

    def _note_reply(self, host: JoinedHost, message: wire.TextReply) -> None:
        if message.number in host.asked:
            host.asked.remove(message.number)
            self._do(Answer(message.number, message.text))
        else:
            self._drop(host.key, "it answers what was not asked")

    def _take_frames(self, host: JoinedHost, frames: list[bytes]) -> None:
        """Pass on the messages of a host's workers; drop those in the name of others, and those that may not be sent."""
        relayed = list[AnyMessage]()
        for frame in frames:
            if host.lost:
                return
            try:
                message: AnyMessage = msgspec.msgpack.decode(frame, type=AnyMessage)
            except (ValueError, RecursionError) as error:
                self._drop(host.key, f"a worker's message cannot be read ({error})")
                continue
            remote = self._worker(host, message.worker, message.incarnation)
            is_repeated = isinstance(message, Stage | Crash | Bye) and remote is not None and remote.exit is not None
            if remote is None or is_repeated:  # over a new connection; its text would be paid twice
                continue
            if why := objection(message, remote.speech) or remote.budget.objection(message, self._now_s):
                self._drop(host.key, f"{message.worker}, {type(message).__name__.lower()}: {why}")
            else:
                relayed.append(message)
        if relayed and not host.lost:
            self._do(Relay(relayed))

    def _worker(self, host: JoinedHost, worker: str, incarnation: int) -> RemoteWorker | None:
        """Return the worker of a host that a message is about; None: it is not, or not any more, on this host."""
        key = (worker, incarnation)
        if key not in host.placed:
            self._drop(
                host.key, f"it speaks for {worker[:MAX_NAME_CHARS]}, incarnation {incarnation}, which is not there"
            )
        return host.workers.get(key)

    def _note_beat(self, host: JoinedHost, message: wire.Beat) -> None:
        """Record a host's beat; answer it, with orders that it has not confirmed."""
        self._take_frames(host, message.frames)
        if host.lost:
            return
        host.names = [entry for entry in message.names if self._registers(host, entry)]
        host.relays = {name: address for name, address in message.relays.items() if _is_bound_by(host, address)}
        host.wanted = message.wanted
        for usage in message.usage:
            self._note_usage(host, usage)
        if host.lost:
            return  # it was cut off
        if message.leaves and not host.leaves:
            host.leaves = message.leaves
            self._notify(f"host {host.name} leaves ({host.leaves}): {counted(host.num_living, 'worker')} must move")
        if host.leaves and not host.num_living:
            self._lose(host, host.leaves)
            self._send(host, wire.Farewell(host.membership, f"this host has left the run: {host.leaves}"))
            return
        self._send(host, wire.BeatReceived(host.membership, message.sent_s))
        self._confirm_orders(host, message.executed)

    def _note_usage(self, host: JoinedHost, usage: wire.Usage) -> None:
        remote = self._worker(host, usage.worker, usage.incarnation)
        if remote is not None and remote.exit is None:
            remote.pid = usage.pid
            remote.usage = ResourceUsage(usage.state, usage.cpu_s, usage.resident_bytes, usage.threads)

    def _note_exit(self, host: JoinedHost, message: wire.Exited) -> None:
        remote = self._worker(host, message.worker, message.incarnation)
        if remote is not None and remote.exit is None:
            remote.tail, remote.usage = message.tail, None
            remote.exit = Exit(message.status, message.text)
            host.names = [entry for entry in host.names if self._registers(host, entry)]

    def _registers(self, host: JoinedHost, entry: Registration) -> bool:
        """Return whether a name is of a living worker of a host: a stream bound with its key, or a reader's generation."""
        if not any(entry.name in remote.binds for remote in host.workers.values()):
            self._drop(host.key, f"it registers {entry.name[:MAX_NAME_CHARS]}, of a worker that is not there")
            return False
        if not any(r.incarnation == entry.incarnation and entry.name in r.binds for r in host.living_workers):
            return False
        return entry.address.isdigit() if entry.name.endswith(GENERATION) else _is_bound_by(host, entry.address)

    def _note_closed(self, identity: bytes) -> None:
        for host in self.hosts:
            if host.identity == identity and self._now_s - host.heard_s < wire.PROMPT_S:
                host.closed_s = self._now_s
                host.breaks_s = [at_s for at_s in host.breaks_s if self._now_s - at_s < BREAKS_S] + [self._now_s]
                if len(host.breaks_s) == BREAKS:
                    self._notify(
                        f"the connection to host {host.name} broke {BREAKS} times within {BREAKS_S:g} s. If small messages "
                        "arrive and large ones do not, packets are too large for the network between the hosts: "
                        f"`ping -M do -s 1472 {host.facts.address}` shows it, and a smaller mtu of this host repairs it"
                    )

    # -- for hosts

    def _tell_host(self, message: ForHost) -> None:
        host = next((host for host in self.hosts if host.membership == message.membership), None)
        if host is None:
            return  # it was lost meanwhile, with its workers
        match message:
            case Place():
                self._place(host, message)
            case Start():
                self._start(host, message)
            case FilesSent():
                remote = host.workers.get((message.worker, message.incarnation))
                if remote is not None and remote.waits is not None and remote.exit is None:
                    self._begin(remote, remote.waits)
            case GiveKeys():
                host.server_key = message.server_key
                self._give(host, message.keys)
            case Tell(_, wire.TextRequest() as question):
                host.asked.add(question.number)
                self._send(host, question)
            case Tell(_, wire.Signal() as signal):
                self._signal(host, signal)

    def _place(self, host: JoinedHost, message: Place) -> None:
        """Add an incarnation of a worker to a host, and forget its ended ones before the previous one."""
        _, worker, incarnation, speech, legs, binds = message
        if (worker, incarnation) in host.placed:
            return
        earlier = sorted(key for key in host.workers if key[0] == worker)
        for key in earlier[:-1]:
            if host.workers[key].exit is not None:
                del host.workers[key]
        host.workers[worker, incarnation] = RemoteWorker(host, worker, incarnation, speech, legs, binds)
        host.placed.add((worker, incarnation))

    def _start(self, host: JoinedHost, message: Start) -> None:
        remote = host.workers.get((message.begin.worker, message.begin.incarnation))
        if remote is None or remote.waits is not None or remote.exit is not None:
            return
        remote.waits = message.begin
        if message.needs_files:
            self._do(SendFiles(host, remote.worker, remote.incarnation, message.begin.keeps, remote.legs))
        else:
            self._begin(remote, message.begin)

    def _begin(self, remote: RemoteWorker, begin: wire.Begin) -> None:
        if remote.begin is None:
            remote.begin = begin
            self._give(remote.host, begin)

    def _signal(self, host: JoinedHost, signal: wire.Signal) -> None:
        remote = host.workers.get((signal.worker, signal.incarnation))
        if signal.what == "kill" and remote is not None and remote.begin is None and remote.exit is None:
            remote.exit = Exit(None, "ended before its start")  # the host does not know it
        else:
            self._give(host, signal)

    def _give(self, host: JoinedHost, order: wire.AnyOrder) -> None:
        """Send an order with its number; from now on it is sent again until the host confirms it."""
        host.num_orders += 1
        order = msgspec.structs.replace(order, number=host.num_orders)
        host.ordered_s = host.ordered_s if host.orders else self._now_s
        host.orders.append(order)
        self._send(host, order)

    def _forward(self, message: Forward) -> None:
        for host in self.hosts:
            if (message.worker, message.incarnation) in host.workers:
                self._give(
                    host, wire.WorkerCommand(host.membership, message.worker, message.incarnation, message.frame)
                )

    def _confirm_orders(self, host: JoinedHost, executed: int) -> None:
        """Note that a host has executed its orders up to this number; send the others again if that takes too long."""
        left = [order for order in host.orders if order.number > executed]
        if len(left) < len(host.orders):
            host.ordered_s = self._now_s
        host.orders = left
        if self._now_s - host.ordered_s > AGAIN_S:
            host.ordered_s = self._now_s
            for order in left:
                self._send(host, order)

    # -- losses

    def _drop(self, key: str, why: str) -> None:
        """Count a message that is not processed; a host with too many of them is cut off."""
        host = next((host for host in self.hosts if host.key == key), None)
        sender = "a host that has not joined" if host is None else f"host {host.name}"
        line, cut_off = self.drops.setdefault(key, Drops()).add(sender, why, self._now_s)
        if line:
            self._notify(line)
        if cut_off and host is not None:
            self._cut_off.add(host.name)
            self._send_away(host, f"it was cut off: {cut_off}")

    def _revoke(self, names: Collection[str]) -> None:
        """Remove the hosts of these names with their keys, and admit none; replace the join key, which they know too."""
        is_new = self._revoked is not None and not self._revoked.issuperset(names)
        hosts = [host for host in self.hosts if host.name in names]
        self._revoked = frozenset(names)
        for host in hosts:
            self._send_away(host, REVOKED)
        if is_new or hosts:
            self._do(ReplaceJoinKey())

    def _send_away(self, host: JoinedHost, why: str) -> None:
        """Remove a host with its key; no host of its name joins again."""
        self._send(host, wire.Refused(host.membership, why))  # it hears why only while its key is still admitted
        self._drop_key(host.key)
        host.leaves = why  # an engine starts no agent there again
        self._lose(host, why)

    def _lose(self, host: JoinedHost, why: str) -> None:
        """End a membership: its workers have ended, or end when its lease expires."""
        self._do(RemoveHalfSent(_keeps(host.living_workers)))
        host.lost = why
        for remote in host.living_workers:
            remote.exit = Exit(None, f"lost with its host {host.name}: {why}", with_host=True)
        self.hosts.remove(host)
        self._lived_s[host.name] = self._now_s - host.joined_s
        self._do(Lost(host))
        self._notify(f"host {host.name} is gone: {why}")

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _send(self, host: JoinedHost, message: wire.AnyControllerMessage) -> None:
        self._actions.append(Send(host.identity, message))

    def _notify(self, line: str) -> None:
        self._actions.append(Notify(line))


def _keeps(workers: Iterable[RemoteWorker]) -> tuple[str, ...]:
    return tuple(f"{name}/" for remote in workers if remote.begin is not None for name in remote.begin.keeps)


def _is_log_of(host: JoinedHost, part: wire.Part) -> bool:
    """Return whether a file is the log of a worker that the host has, or had; the host may send no other logs."""
    ends_at = part.at + len(part.content)
    return ends_at <= wire.MOST_LOG_BYTES and any(part.name == log_name(one.worker) for one in host.workers.values())


def _is_bound_by(host: JoinedHost, address: str) -> bool:
    return address.startswith(f"tcp://{host.server_key}@") and bool(host.server_key)
