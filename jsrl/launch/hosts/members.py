"""The joined hosts of a run in the controller: admission, states of their workers, losses.

No code here sends or waits: `handle` processes a message and returns the replies. Times are of this host's monotonic clock.
`own` is the name of this host, which no other may have; `on_loss` is called with a lost host and returns a text for the
user about its replacement.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from jsrl.counted import counted
from jsrl.errors import ConfigError
from jsrl.launch.hosts.facts import HostFacts
from jsrl.launch.hosts.kept_files import MOST_LOG_BYTES, log_name
from jsrl.launch.hosts.messages import (
    CLOSED_LOST_S,
    LEASE_S,
    LOST_S,
    PROMPT_S,
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
from jsrl.launch.hosts.tokens import CLAIM_S, Tokens
from jsrl.launch.hosts.versions import difference
from jsrl.launch.launcher import Exit, ResourceUsage
from jsrl.rate_limit import is_reported
from jsrl.runs.names import Registration
from jsrl.transport.stream import epoch_at, name_at

MAX_NAME_CHARS, MAX_STREAM_CHARS = 64, 200
REVOKED = "its key was revoked"
LACKS_S = 5.0  # after which keys, modules and orders that have not arrived are sent again
MOST_CODE_BYTES = 4 << 20  # of modules that a host has not confirmed: heartbeats wait behind them on a slow network
BREAKS, BREAKS_S = 3, 120.0  # so many breaks of a host's connection within this time are reported
AGAIN_S = 30.0  # after which a worker that has not started is requested again: agents start many one after another


@dataclass
class RemoteWorker:
    """One incarnation of a worker on a joined host.

    Attributes:
      hops: whose trajectories it counts as their reader.
      begin: its start message, last sent at `asked_s`. pid: once it has started. tail: the end of its log, once it has ended.
    """

    host: JoinedHost
    worker: str
    incarnation: int
    hops: tuple[str, ...] = ()
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
      facts: its resources. epoch: the number of this membership. token, session, boot, folder: see Hello.
      identity: of its connection. joined_s, heard_s: times of its admission and of its last message. lost: why its
        membership ended; empty: it has not.
      workers: of workers, by (worker, incarnation). answers: to questions, by their numbers.
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
    token: str
    session: str
    boot: str
    folder: str
    identity: bytes
    heard_s: float
    lost: str = ""
    workers: dict[tuple[str, int], RemoteWorker] = field(default_factory=dict)
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
        """Return its name."""
        return self.facts.name

    @property
    def living_workers(self) -> list[RemoteWorker]:
        """Return the incarnations of workers that have not ended."""
        return [remote for remote in self.workers.values() if remote.exit is None]

    @property
    def num_living(self) -> int:
        """Return the number of workers on this host."""
        return len(self.living_workers)

    def add(self, remote: RemoteWorker) -> None:
        """Add an incarnation of a worker that begins here, and forget its ended ones before the previous one."""
        earlier = sorted(key for key in self.workers if key[0] == remote.worker)
        for key in earlier[:-1]:
            if self.workers[key].exit is not None:
                del self.workers[key]
        self.workers[remote.worker, remote.incarnation] = remote

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
      notices: lines for the user, not shown yet.
    """

    def __init__(
        self,
        tokens: Tokens,
        lease_s: float = LEASE_S,
        lost_s: float = LOST_S,
        clock: Callable[[], float] = time.monotonic,
        own: str = "",
        on_loss: Callable[[JoinedHost], str] = lambda host: "",
    ) -> None:
        self._on_loss = on_loss
        self._tokens, self._lease_s, self._lost_s, self._clock, self._own = tokens, lease_s, lost_s, clock, own
        self.hosts: list[JoinedHost] = []
        self.frames: list[bytes] = []
        self.pages: list[tuple[int, dict[str, bytes]]] = []
        self.kept_files: list[tuple[JoinedHost, KeptFile]] = []
        self.given_up: list[str] = []
        self.stored: list[Stored] = []
        self.notices: list[str] = []
        self._refused = Counter[str]()  # joins by token: the names of hosts are theirs to choose
        self._epoch = 0
        self._revoked: frozenset[str] = frozenset()  # names of hosts that may not join

    def handle(self, token: str, identity: bytes, message: AnyAgentMessage) -> list[tuple[bytes, AnyControllerMessage]]:
        """Process a message sent with a token; return (identity, message) pairs to send."""
        if isinstance(message, Hello):
            return self._admit(token, identity, message)
        host = self._member(token, message.epoch)
        if host is None:
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
            if any(message.name.startswith(f"{folder}/") for folder in _kept_by(host)) or _is_log_of(host, message):
                self.kept_files.append((host, message))
        elif isinstance(message, Stored):
            self.stored.append(message)
        elif isinstance(message, WorkerMessages):
            self.frames += message.frames
        elif isinstance(message, Exited):
            self._note_exit(host, message)
        elif isinstance(message, TextReply):
            host.answers[message.number] = message.text
        elif isinstance(message, Leaving):
            self.lose(host, message.text[:200])
        return []

    def _note_beat(self, host: JoinedHost, message: Beat) -> list[tuple[bytes, AnyControllerMessage]]:
        """Record a host's beat; return the answers to send, with what the host lacks and orders that it has not confirmed."""
        self.frames += message.frames
        host.names = [entry for entry in message.names if _is_of(host, entry)]
        host.relays = {name: address for name, address in message.relays.items() if _is_bound_by(host, address)}
        host.wanted = message.wanted
        for usage in message.usage:
            self._note_usage(host, usage)
        if message.leaves and not host.leaves:
            host.leaves = message.leaves[:200]
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
        """Return the hosts that may get workers."""
        return [host for host in self.hosts if not host.leaves]

    def _member(self, token: str, epoch: int) -> JoinedHost | None:
        return next((host for host in self.hosts if (host.token, host.epoch) == (token, epoch)), None)

    def _admit(self, token: str, identity: bytes, hello: Hello) -> list[tuple[bytes, AnyControllerMessage]]:
        """Admit a host, or refuse it with a reason. A previous agent of the same host has no workers any more."""
        why, answers = self._objection(token, hello), list[tuple[bytes, AnyControllerMessage]]()
        if why:
            self._refused[token] += 1
            if is_reported(count := self._refused[token]):
                times = f" ({count} times so far)" if count > 1 else ""
                self.notices.append(f"a host could not join{times}: {why}")
            return [(identity, Refused(0, why))]
        for host in [host for host in self.hosts if self._is_same(host, hello)]:
            if host.session == hello.session and not (host.has_answered or host.workers):
                # It repeats its hello: the welcome was late or lost.
                host.identity, host.heard_s = identity, self._clock()
                return [(identity, Welcome(host.epoch, self._lease_s))]
            if host.session != hello.session:
                answers.append((host.identity, Refused(host.epoch, "a new agent has taken the place of this one.")))
                self._tokens.revoke(host.token)
            self.lose(host, "its agent joined again without workers")
        self._epoch += 1
        shared = {name: getattr(hello, name) for name in ("name", "cores", "memory_mb", "address", "gpus", "shm_mb")}
        facts = HostFacts(**shared, machine=hello.boot, machine_mb=hello.machine_mb)
        host = JoinedHost(facts, self._epoch, token, hello.session, hello.boot, hello.folder, identity, self._clock())
        host.joined_s = host.heard_s
        self.hosts.append(host)
        self.notices.append(
            f"host {host.name} ({facts.address}, {counted(facts.cores, 'core')}, {facts.memory_mb:,} MB) joined"
        )
        return [*answers, (identity, Welcome(host.epoch, self._lease_s))]

    def _is_same(self, host: JoinedHost, hello: Hello) -> bool:
        return (host.name, host.boot) == (hello.name, hello.boot) or host.session == hello.session

    def _objection(self, token: str, hello: Hello) -> str:
        """Return why a host may not join, for the user; empty: it may."""
        if not 0 < len(hello.name) <= MAX_NAME_CHARS or min(hello.cores, hello.memory_mb) < 1:
            return (
                f"it calls itself {hello.name[:80]!r}, with {hello.cores} cores and {hello.memory_mb} MB; expected a name of "
                f"1 to {MAX_NAME_CHARS} characters (--name), and at least one core and one MB."
            )
        if hello.name in self._revoked:
            return f"the key of {hello.name} was revoked."
        others = [host.name for host in self.hosts if not self._is_same(host, hello)]
        if hello.name in (self._own, *others):
            return f"another host is called {hello.name}; give this one a name with --name."
        if hello.lacks:
            return f"{hello.name} has only {hello.lacks[:200]}; free some, or leave this host out."
        return difference(hello.name, hello.versions, hello.code) or self._tokens.use(token, hello.session)

    def _note_usage(self, host: JoinedHost, usage: Usage) -> None:
        remote = host.workers.get((usage.worker, usage.incarnation))
        if remote is not None and remote.exit is None:
            remote.pid = usage.pid
            remote.usage = ResourceUsage(usage.state, usage.cpu_s, usage.resident_bytes, usage.threads)

    def _note_exit(self, host: JoinedHost, message: Exited) -> None:
        remote = host.workers.get((message.worker, message.incarnation))
        if remote is not None and remote.exit is None:
            remote.tail, remote.usage = message.tail, None
            remote.exit = Exit(message.status, message.text)
            host.names = [entry for entry in host.names if _is_of(host, entry)]

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
        """Report and remove hosts that were silent for too long, and replace tokens that an agent took without joining."""
        now_s = self._clock()
        with contextlib.suppress(ConfigError):  # a full disk: tried again at the next call
            for path in self._tokens.renew(now_s):
                self.notices.append(
                    f"an agent took a token and did not join within {CLAIM_S:g} s; another may join with {path}"
                )
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

    def revoke(self, names: Collection[str]) -> list[tuple[bytes, AnyControllerMessage]]:
        """Remove the hosts of these names with their keys, and admit none; return (identity, message) pairs to send."""
        self._revoked, answers = frozenset(names), list[tuple[bytes, AnyControllerMessage]]()
        for host in [host for host in self.hosts if host.name in names]:
            answers.append((host.identity, Refused(host.epoch, REVOKED)))
            self._tokens.revoke(host.token)
            host.leaves = REVOKED  # an engine starts no agent there again
            self.lose(host, REVOKED)
        return answers

    def lose(self, host: JoinedHost, why: str) -> None:
        """Remove a host."""
        self.given_up += _kept_by(host)
        host.lose(why)
        self.hosts.remove(host)
        more = self._on_loss(host)
        self.notices.append(f"host {host.name} is gone: {why}{f' ({more})' if more else ''}")


def _kept_by(host: JoinedHost) -> list[str]:
    """Return the folders in which living workers of a host keep files."""
    return [folder for remote in host.living_workers if remote.begin is not None for folder in remote.begin.keeps]


def _is_log_of(host: JoinedHost, message: KeptFile) -> bool:
    """Return whether a file is the log of a worker that the host has, or had; the host may send no other logs."""
    ends_at = message.at + len(message.part)
    return ends_at <= MOST_LOG_BYTES and any(
        message.name == log_name(remote.worker) for remote in host.workers.values()
    )


def _is_bound_by(host: JoinedHost, address: str) -> bool:
    """Return whether an address has the server key of a host."""
    return address.startswith(f"tcp://{host.server_key}@") and bool(host.server_key)


def _is_of(host: JoinedHost, entry: Registration) -> bool:
    """Return whether a name is of a living worker of a host: of a stream bound with the host's key, or of its epoch.

    The host may register no others.
    """
    if len(entry.name) > MAX_STREAM_CHARS:
        return False
    own = [remote.worker for remote in host.living_workers if remote.incarnation == entry.incarnation]
    if entry.name.endswith(tuple(epoch_at("", worker) for worker in own)):
        return entry.address.isdigit()
    return _is_bound_by(host, entry.address) and entry.name.endswith(tuple(name_at("", worker) for worker in own))
