"""The model of a run: actors, inference servers and the learner as processes that share cores, links and accelerators.

It follows the workers' own rules: which params a request waits for, blocks as credits, batches of all waiting requests.
"""

from __future__ import annotations

import bisect
import functools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from jsrl.tools.simulation.broadcast import Broadcast
from jsrl.tools.simulation.events import Clock, Mailbox, Pause, Process, Wait
from jsrl.tools.simulation.resources import Resources
from jsrl.tools.simulation.stations import NEWS, Activities, Actor, Credit, Group, Lent, Reply, Server
from jsrl.tools.simulation.system import System
from jsrl.tools.simulation.times import ServiceTimes

BUFFERS = 3  # batches in the learner: in training, ready, being joined


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
        self.resources = Resources(clock, system, times)
        self.servers = [Server(host, Activities(clock)) for host in system.servers]
        self.actors = [self._actor(number) for number in range(len(system.actors))]
        self.learner = Activities(clock)
        self._leases, self._ready = Mailbox(), Mailbox()
        self._free, self._slots = Mailbox(), Mailbox()
        self._params = Broadcast(clock, self.resources, system, times, self.servers or self.actors)
        for _ in range(BUFFERS):
            self._free.put(None)
        self._slots.put(None)
        for process in self._processes():
            clock.start(process)

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

    # -- actors

    def _act(self, actor: Actor) -> Process:
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
                seconds = self.times.actor.act.of(self.system.group_size) + self._params.reading(actor)
                yield self.resources.cores[actor.host].use(seconds)
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
        yield self.resources.cores[actor.host].use(seconds)
        assert group.version is not None
        if group.row == 0:
            group.oldest = group.version
            group.trajectory = group.version // s.updates if group.trajectory is None else group.trajectory
        actor.activities.enter("env")
        busy_s, idle_s = self._env_s(rows)
        if idle_s:
            yield Pause(idle_s)
        yield self.resources.cores[actor.host].use(busy_s)
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
        lease = Lent(actor, group, group.oldest)
        self.resources.send(actor.host, s.learner, s.bytes.trajectory, s.far_rows, self._leases.put, lease)
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
        take = functools.partial(self._through_thread, server, server.inbox.put)
        self.resources.send(actor.host, server.host, s.bytes.request, s.far_asks, take, request)

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
        held: list[tuple[Actor, Group, int]] = []
        most = max(1, self.system.max_rows // self.system.group_size)
        while True:
            server.activities.enter("wait_params" if held else "wait")
            arrived = [(yield server.inbox)]
            server.activities.enter("transport")
            yield self.resources.cores[server.host].use(self.times.server.gather + self._params.reading(server))
            arrived += [server.inbox.messages.popleft() for _ in range(min(most - 1, len(server.inbox.messages)))]
            held += [message for message in arrived if message is not NEWS]
            ready = [request for request in held if request[2] <= server.version]
            held = [request for request in held if request[2] > server.version]
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
        yield self.resources.cores[server.host].use(cost.act.of(padded) + one * len(batch))
        if idle_s := cost.act_idle.of(padded):
            gpus = self.resources.gpus[server.host]
            yield gpus[number % len(gpus)].use(idle_s) if gpus else Pause(idle_s)
        self.counts["calls"] += 1
        self.counts["rows"] += rows
        for actor, group, _ in batch:
            ways = (server.host, actor.host, s.bytes.reply, s.far_asks, actor.inbox.put)
            self._through_thread(server, functools.partial(self.resources.send, *ways), Reply(group, version))

    def _through_thread(self, server: Server, then: Callable[[Any], None], message: Any) -> None:
        seconds = self.times.server.far_thread.of(self.system.group_size) / 2 if self.system.far_asks else 0.0

        def carry() -> Process:
            yield self.resources.cores[server.host].use(seconds)
            then(message)

        if seconds:
            self.clock.start(carry())
        else:
            then(message)

    # -- the learner

    def _join(self) -> Process:
        """Join trajectories into batches, in a separate thread."""
        waiting: deque[Lent] = deque()
        number = 0
        while True:
            yield self._free
            taken: dict[int, Lent] = {}
            late: list[Lent] = []
            while len(taken) < self.system.batch_groups:
                lease = waiting.popleft() if waiting else (yield self._leases)
                yield from self._place(lease, taken, late, number * self.system.updates)
            waiting.extend(late)
            yield self._slots
            self._ready.put(list(taken.values()))
            number += 1

    def _place(self, lease: Lent, taken: dict[int, Lent], late: list[Lent], updates: int) -> Process:
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
            yield self.resources.cores[s.learner].use(
                cost.take.of(rows) + (cost.far_take.of(rows) if s.far_rows else 0.0)
            )
            taken[place] = lease
        self.resources.send(s.learner, lease.actor.host, 0.0, s.far_rows, lease.actor.inbox.put, Credit(lease.actor))

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
            yield self.resources.cores[s.learner].use(cost.batch.of(s.batch_rows))
            for _ in range(s.reuse):
                yield self._update()
                self.updates += s.updates // s.reuse
                self._params.publish(self.updates)
            self.counts["updates"] += s.updates
            self.counts["taken"] += len(batch)
            self.counts["env_steps"] += s.batch_rows
            self._free.put(None)

    def _update(self) -> Wait:
        s, cost = self.system, self.times.learner
        if cost.threads:
            seconds = cost.update.of(s.batch_rows)
            return self.resources.cores[s.learner].use(seconds * cost.threads, cost.threads)
        seconds, gpus = cost.update.of(s.batch_rows / s.devices), self.resources.gpus[s.learner]
        return gpus[0].use(seconds) if gpus else Pause(seconds)
