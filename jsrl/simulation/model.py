"""The model of a run: actors, inference servers and the learner as processes that share cores, links and accelerators.

It follows the workers' own rules: which params a request waits for, blocks as credits, batches of all waiting requests.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jsrl.simulation.events import Clock, Mailbox, Pause, Process, Shared
from jsrl.simulation.system import System
from jsrl.simulation.times import ServiceTimes

BUFFERS = 3  # batches in the learner: in training, ready, being joined
_BITS = 1e6 / 8  # bytes of a Mbit
_NEWS = object()  # in a server's mailbox: new params


class Activities:
    """The time that a worker spends in each activity."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._activity, self._since = clock, "other", 0.0
        self._total: defaultdict[str, float] = defaultdict(float)

    def enter(self, activity: str) -> None:
        """End the current activity and start another."""
        self._total[self._activity] += self._clock.now - self._since
        self._activity, self._since = activity, self._clock.now

    def totals(self) -> dict[str, float]:
        """Return activity -> seconds so far."""
        self.enter(self._activity)
        return dict(self._total)


@dataclass
class Group:
    """A group and its open trajectory.

    Attributes:
      version: of the waiting reply; None: not there yet. oldest: of the params that chose rows of this trajectory.
      trajectory: its number; None: not begun.
    """

    number: int
    row: int = 0
    made: int = 0
    version: int | None = None
    has_block: bool = False
    oldest: int = 0
    trajectory: int | None = None


@dataclass
class Actor:
    """An actor in the model."""

    host: int
    groups: list[Group]
    server: Server | None
    activities: Activities
    inbox: Mailbox = field(default_factory=Mailbox)
    blocks: int = 0
    version: int = 0
    pending: deque[Group] = field(default_factory=deque)  # groups that wait for the actor's own acting
    dies_s: float = math.inf


@dataclass
class Server:
    """An inference server in the model. requests: (actor, group, updates that its params must have)."""

    host: int
    activities: Activities
    inbox: Mailbox = field(default_factory=Mailbox)
    version: int = 0


@dataclass(frozen=True)
class Lease:
    """A trajectory at the learner."""

    actor: Actor
    group: Group
    oldest: int


class Model:
    """A simulated run.

    Args:
      system: the run. times: costs of its parts. seed: of the draws.

    Attributes:
      clock: its time. counts: `env_steps` trained on, `updates`, `calls` of servers and their `rows`, trajectories `taken`
        and `dropped`, `deaths`. lags: of trained trajectories, in updates -> how many.
    """

    def __init__(self, system: System, times: ServiceTimes, seed: int = 0) -> None:
        self.system, self.times, self._draw = system, times, random.Random(seed)
        self.clock = clock = Clock()
        self.counts: Counter[str] = Counter()
        self.lags: Counter[int] = Counter()
        self.updates = 0
        self._make_hosts()
        self.servers = [Server(host, Activities(clock)) for host in system.servers]
        self.actors = [self._actor(number) for number in range(len(system.actors))]
        self.learner = Activities(clock)
        self._leases, self._ready = Mailbox(), Mailbox()
        self._free, self._slots = Mailbox(), Mailbox()
        self._sending: dict[int, int] = {}  # reader of params, while a version is being sent -> the newest
        for _ in range(BUFFERS):
            self._free.put(None)
        self._slots.put(None)
        for process in self._processes():
            clock.start(process)

    def _make_hosts(self) -> None:
        """Make cores (of machines), links and accelerators."""
        s, clock = self.system, self.clock
        workers = Counter([part.host for part in s.actors] + list(s.servers) + [s.learner])
        machines: dict[str, list[int]] = {}
        for index, host in enumerate(s.hosts):
            machines.setdefault(f"machine {host.machine}" if host.machine else f"host {index}", []).append(index)
        self.cores: dict[int, Shared] = {}
        self.machines: list[tuple[str, Shared, float, float]] = []  # name, cores, their number, part used by reports
        for hosts in machines.values():
            count = max(s.hosts[i].cores for i in hosts)
            busy = sum(self.times.host_cores for i in hosts if workers[i])
            busy += self.times.relay_cores if s.far_params and s.learner in hosts else 0.0
            others = max(s.hosts[i].busy_cores for i in hosts)
            cores = Shared(clock, max(count - busy, 0.05 * count), 1.0, others)
            self.cores |= dict.fromkeys(hosts, cores)
            name = s.hosts[hosts[0]].machine or s.hosts[hosts[0]].name
            self.machines.append((name, cores, float(count), min(busy, 0.95 * count)))
        self.links: dict[tuple[int, str], tuple[Shared, float]] = {}
        for index, host in enumerate(s.hosts):
            for way, mbit in (("out", host.out_mbit), ("in", host.in_mbit)):
                if mbit:
                    rate = mbit * _BITS
                    self.links[index, way] = (Shared(clock, rate, rate), rate)
        self.gpus = {i: [Shared(clock, 1.0, 1.0) for _ in range(host.gpus)] for i, host in enumerate(s.hosts)}

    def _actor(self, number: int) -> Actor:
        part = self.system.actors[number]
        groups = [Group(group) for group in part.groups]
        server = None if part.server is None else self.servers[part.server]
        made = Actor(part.host, groups, server, Activities(self.clock), blocks=self.system.blocks * len(groups))
        made.dies_s = self._lifetime_s()
        return made

    def _lifetime_s(self) -> float:
        rate = self.system.deaths_per_hour / 3600.0
        return self.clock.now + self._draw.expovariate(rate) if rate else math.inf

    def _processes(self) -> Iterator[Process]:
        yield self._join()
        yield self._train()
        for number, server in enumerate(self.servers):
            yield self._serve(server, number)
        for actor in self.actors:
            yield self._act(actor)

    # -- messages

    def _send(
        self, source: int, sink: int, size: float, far: bool, deliver: Callable[[Any], None], message: Any
    ) -> None:
        """Deliver a message of `size` bytes to a host, through both hosts' links."""
        hop_s = self.times.far_hop_s if far else self.times.hop_s
        ways = [(source, "out"), (sink, "in")] if source != sink else []
        links = [self.links[way][0] for way in ways if way in self.links]
        if not links:
            self.clock.after(hop_s, deliver, message)
            return
        left = [len(links)]

        def carry(link: Shared) -> Process:
            yield link.use(size)
            left[0] -= 1
            if not left[0]:  # both links carry it at the same time; the slower one decides when it arrives
                self.clock.after(hop_s, deliver, message)

        for link in links:
            self.clock.start(carry(link))

    # -- actors

    def _act(self, actor: Actor) -> Process:
        """Step one group after another, as their actions arrive."""
        yield Pause(self._draw.random() * 0.01)
        for group in actor.groups:
            self._ask(actor, group)
        while True:
            if self.clock.now >= actor.dies_s:
                yield from self._restart(actor)
            while actor.inbox.messages:
                actor.inbox.messages.popleft()()
            chosen = self._next_group(actor)
            if chosen is None:
                yield from self._wait(actor)
                continue
            if actor.server is None:
                actor.activities.enter("act")
                yield self.cores[actor.host].use(self.times.actor.act.of(self.system.group_size))
            yield from self._step(actor, chosen)

    def _next_group(self, actor: Actor) -> Group | None:
        """Return a group that has its actions and a block for its rows, the one furthest behind first."""
        if actor.server is None:
            ready = [group for group in actor.pending if self._wanted(group) <= actor.version]
        else:
            ready = [group for group in actor.groups if group.version is not None]
        least = min(group.made for group in actor.groups)
        for group in sorted(ready, key=lambda group: group.made):
            if group.has_block:
                return self._taken(actor, group)
            ahead = self.system.by_group and group.made - least > self.system.blocks - 1
            if actor.blocks and not ahead:
                actor.blocks -= 1
                group.has_block = True
                return self._taken(actor, group)
        return None

    def _taken(self, actor: Actor, group: Group) -> Group:
        if actor.server is None:
            actor.pending.remove(group)
            group.version = actor.version
        return group

    def _wanted(self, group: Group) -> int:
        """Return the updates that the params for a group's next actions must have."""
        lag = self.system.wait_lag
        if lag is None or group.trajectory is None:
            return 0
        return max(0, group.trajectory * self.system.updates - lag)

    def _wait(self, actor: Actor) -> Process:
        if actor.server is None:
            late = all(self._wanted(group) > actor.version for group in actor.pending)
            actor.activities.enter("wait_params" if late else "wait_block")
        else:
            missing = any(group.version is None for group in actor.groups)
            actor.activities.enter("wait_inference" if missing else "wait_block")
        take = yield actor.inbox
        take()

    def _step(self, actor: Actor, group: Group) -> Process:
        """Write a row: the actor's own work, then the environments; commit the trajectory after its last row."""
        s, own, rows = self.system, self.times.actor, self.system.group_size
        cost = own.own if actor.server is None else own.asking
        seconds = cost.of(rows) + (own.far_rows.of(rows) if s.far_rows else 0.0)
        seconds += own.far_asks.of(rows) if s.far_asks and actor.server is not None else 0.0
        actor.activities.enter("transport")
        yield self.cores[actor.host].use(seconds)
        assert group.version is not None
        if group.row == 0:
            group.oldest = group.version
            group.trajectory = group.version // s.updates if group.trajectory is None else group.trajectory
        actor.activities.enter("env")
        busy_s, idle_s = self._env_s(rows)
        if idle_s:
            yield Pause(idle_s)
        yield self.cores[actor.host].use(busy_s)
        group.version = None
        group.row += 1
        self.counts["stepped"] += rows
        if group.row == s.rows:
            self._commit(actor, group)
        actor.activities.enter("transport")
        self._ask(actor, group)

    def _env_s(self, rows: int) -> tuple[float, float]:
        """Return the CPU seconds and the idle seconds of a group's step."""
        env = self.times.env
        factor = self._draw.choice(env.shape)
        busy, idle = factor * env.step.of(rows), factor * env.step_idle.of(rows)
        begun = (
            sum(self._draw.random() < 1.0 / env.episode_steps for _ in range(rows)) if env.episode_steps < 1e6 else 0
        )
        if begun:
            busy, idle = busy + env.reset.of(begun), idle + env.reset_idle.of(begun)
        return busy, idle

    def _commit(self, actor: Actor, group: Group) -> None:
        s = self.system
        assert group.trajectory is not None
        lease = Lease(actor, group, group.oldest)
        self._send(actor.host, s.learner, s.bytes.trajectory, s.far_rows, self._leases.put, lease)
        group.has_block, group.row = False, 0
        group.made += 1
        group.trajectory += 1

    def _ask(self, actor: Actor, group: Group) -> None:
        """Request the actions of a group's next row."""
        s, server = self.system, actor.server
        if server is None:
            actor.pending.append(group)
            return
        request = (actor, group, self._wanted(group))
        self._send(actor.host, server.host, s.bytes.request, s.far_asks, server.inbox.put, request)

    def _restart(self, actor: Actor) -> Process:
        """Discard open trajectories, and restart after a while."""
        self.counts["deaths"] += 1
        actor.activities.enter("other")
        yield Pause(self.system.restart_s)
        for group in actor.groups:
            group.row = 0
        actor.dies_s = self._lifetime_s()

    # -- inference servers

    def _serve(self, server: Server, number: int) -> Process:
        """Answer waiting requests, in batches."""
        held: list[tuple[Actor, Group, int]] = []
        while True:
            server.activities.enter("wait_params" if held else "wait")
            first = yield server.inbox
            if self.system.max_wait_s and not held:
                yield Pause(self.system.max_wait_s)
            arrived = [first, *server.inbox.messages]
            server.inbox.messages.clear()
            held += [message for message in arrived if message is not _NEWS]
            ready = [request for request in held if request[2] <= server.version]
            held = [request for request in held if request[2] > server.version]
            most = max(1, self.system.max_rows // self.system.group_size)
            for at in range(0, len(ready), most):
                yield from self._answer(server, number, ready[at : at + most])

    def _answer(self, server: Server, number: int, batch: list[tuple[Actor, Group, int]]) -> Process:
        s, cost = self.system, self.times.server
        rows = len(batch) * s.group_size
        place = bisect.bisect_left(s.sizes, rows)
        padded = s.sizes[place] if place < len(s.sizes) else rows
        one = cost.request.of(s.group_size) + (cost.far_request.of(s.group_size) if s.far_asks else 0.0)
        server.activities.enter("act")
        version = server.version
        yield self.cores[server.host].use(cost.act.of(padded) + one * len(batch))
        if idle_s := cost.act_idle.of(padded):
            gpus = self.gpus[server.host]
            yield gpus[number % len(gpus)].use(idle_s) if gpus else Pause(idle_s)
        self.counts["calls"] += 1
        self.counts["rows"] += rows
        for actor, group, _ in batch:
            arrive = _Reply(group, version)
            self._send(server.host, actor.host, s.bytes.reply, s.far_asks, actor.inbox.put, arrive)

    # -- the learner

    def _join(self) -> Process:
        """Join trajectories into batches, in a separate thread."""
        waiting: deque[Lease] = deque()
        number = 0
        while True:
            yield self._free
            taken: dict[int, Lease] = {}
            late: list[Lease] = []
            while len(taken) < self.system.batch_groups:
                lease = waiting.popleft() if waiting else (yield self._leases)
                yield from self._place(lease, taken, late, number * self.system.updates)
            waiting.extend(late)
            yield self._slots
            self._ready.put(list(taken.values()))
            number += 1

    def _place(self, lease: Lease, taken: dict[int, Lease], late: list[Lease], updates: int) -> Process:
        """Copy a trajectory into its place in the batch, drop it if it is too old, or keep it for the next."""
        s, cost = self.system, self.times.learner
        lag = updates - lease.oldest
        if s.max_lag is not None and lag + s.updates - 1 > s.max_lag:
            self.counts["dropped"] += 1
        else:
            place = lease.group.number if s.by_group else len(taken)
            if place in taken:
                late.append(lease)
                return
            rows = s.group_size * s.rows
            yield self.cores[s.learner].use(cost.take.of(rows) + (cost.far_take.of(rows) if s.far_rows else 0.0))
            taken[place] = lease
        self._send(s.learner, lease.actor.host, 0.0, s.far_rows, lease.actor.inbox.put, _Credit(lease.actor))

    def _train(self) -> Process:
        """Update with each batch, and publish params."""
        s, cost = self.system, self.times.learner
        while True:
            self.learner.enter("wait_batch")
            batch = yield self._ready
            self._slots.put(None)
            for lease in batch:
                self.lags[max(0, self.updates - lease.oldest)] += 1
            self.learner.enter("update")
            seconds = s.reuse * cost.update.of(s.batch_rows)
            if cost.threads:
                yield self.cores[s.learner].use(seconds * cost.threads, cost.threads)
            else:
                gpus = self.gpus[s.learner]
                yield gpus[0].use(seconds) if gpus else Pause(seconds)
            self.updates += s.updates
            self.counts["updates"] += s.updates
            self.counts["taken"] += len(batch)
            self.counts["env_steps"] += s.batch_rows
            self._free.put(None)
            self._publish()

    # -- params

    def _readers(self) -> Sequence[Actor | Server]:
        return self.servers or self.actors

    def _publish(self) -> None:
        """Send the newest params to all that act: at once over shared memory, else at the speed of the links."""
        s = self.system
        if not s.far_params:
            for reader in self._readers():
                self.clock.after(self.times.hop_s, partial(self._take_params, reader), self.updates)
        elif s.fan_out:
            self._hand_down(-1, self.updates)
        else:
            for index, reader in enumerate(self._readers()):
                self._hand_over(index, self.updates, s.learner, reader.host, partial(self._take_params, reader))

    def _hand_over(self, key: int, version: int, source: int, sink: int, deliver: Callable[[int], None]) -> None:
        """Send a version to a reader, or queue it until the previous one has arrived: the latest wins."""
        on_its_way = key in self._sending
        self._sending[key] = version
        if not on_its_way:
            self.clock.start(self._carry_params(key, source, sink, deliver))

    def _carry_params(self, key: int, source: int, sink: int, deliver: Callable[[int], None]) -> Process:
        while True:
            version = self._sending[key]
            yield self.cores[source].use(self.times.learner.relay.call_s)
            arrived = Mailbox()
            self._send(source, sink, self.system.bytes.params, True, arrived.put, version)
            deliver((yield arrived))
            if self._sending[key] == version:
                del self._sending[key]
                return

    def _hand_down(self, node: int, version: int) -> None:
        """Send a version to the hosts below one in the tree; -1: the learner's host, which is its root."""
        s = self.system
        hosts = sorted({reader.host for reader in self._readers()} - {s.learner})
        if node < 0:
            for reader in self._readers():
                if reader.host == s.learner:
                    self._take_params(reader, version)
        source = s.learner if node < 0 else hosts[node]
        first = (node + 1) * s.fan_out
        for below in range(first, min(first + s.fan_out, len(hosts))):
            self._hand_over(below, version, source, hosts[below], partial(self._arrive_below, below, hosts[below]))

    def _arrive_below(self, node: int, host: int, version: int) -> None:
        for reader in self._readers():
            if reader.host == host:
                self._take_params(reader, version)
        self._hand_down(node, version)

    def _take_params(self, reader: Actor | Server, version: int) -> None:
        reader.version = max(reader.version, version)
        if isinstance(reader, Server):
            reader.inbox.put(_NEWS)
        elif self.system.wait_lag is not None:
            reader.inbox.put(_nothing)


def _nothing() -> None:
    """Wake an actor, which checks its params again."""


class _Reply:
    """Actions for a group: called when its actor takes them."""

    __slots__ = ("_group", "_version")

    def __init__(self, group: Group, version: int) -> None:
        self._group, self._version = group, version

    def __call__(self) -> None:
        self._group.version = self._version


class _Credit:
    """A block that an actor may write again: called when the actor checks."""

    __slots__ = ("_actor",)

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __call__(self) -> None:
        self._actor.blocks += 1
