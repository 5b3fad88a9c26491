"""Histories of a learner with several ranks: their agreement over connections that lose, repeat and delay messages.

* A rank makes an update only if all ranks of its incarnation have a batch for it, each update once, in order.
* If one rank begins an update, the others do too, or one of them has died: none waits inside a collective for nothing.
* No update begins after a rank has halted. In the end all ranks have made the same updates, and left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from jsrl.errors import StreamTimeout
from jsrl.experiment.settings import DeadlineConfig
from jsrl.workers.attached.agreement import (
    Do,
    FollowerAgreement,
    FromRank,
    Last,
    LeaderAgreement,
    RankMessage,
    RankStart,
    Send,
    Turn,
)
from tests.simulated.world import Fault, Host, Process, Result, Violation, World, judged

TROUBLE_S, STOP_S, OVER_S = 30.0, 60.0, 90.0
LIMITS = DeadlineConfig(ready_s=15.0, rank_s=3.0, stuck_s=8.0, snapshot_s=8.0)
BATCH_S, UPDATE_S, TURN_S = 0.6, 0.2, 0.5  # at most
COLLECTIVE_S = 4.0  # that ranks wait for each other in one
LOST_S = 10.0  # after a message was lost, in which ranks may wait for each other until their time is over
AGAIN_S = 0.5  # after a death, until all start again
BEGIN = RankStart(0, 0, "", generation=1, updates=0, trained=0, saved_generation=None)


class Rank(Process):
    """A process of a learner, as jsrl.workers.attached.ranks and Learner run it.

    Attributes:
      has: number of the update for which it has a batch; None: it has none. begun: of the last update that it began.
    """

    def __init__(self, group: Group, number: int, incarnation: int) -> None:
        super().__init__(Host(group.world, f"r{number}"), f"rank-{number}.{incarnation}")
        self.group, self.number, self.incarnation = group, number, incarnation
        self.inbox: deque[Any] = deque()
        self.has: int | None = None
        self.begun, self.halted, self.left, self.stops = -1, False, False, False
        now, others = self.host.now, [f"rank-{other}" for other in range(1, group.count)]
        self.agreement: LeaderAgreement | FollowerAgreement
        if number == 0:
            self.agreement = LeaderAgreement(others, incarnation, BEGIN, LIMITS, now)
        else:
            self.agreement = FollowerAgreement(f"rank-{number}", incarnation, "rank-0", LIMITS, now)
        self.run(self._main())

    def _main(self) -> Iterator[float]:
        yield self.world.between(0.1, 2.0)
        try:
            yield from self._request(None)
            if isinstance(self.agreement, FollowerAgreement) and self.agreement.begins is None:
                raise StreamTimeout("rank 0 does not answer")
            batch_s = self.host.now + self.world.between(0.0, BATCH_S)
            while not self.stops:
                if self.has is None and self.host.now >= batch_s:
                    self.has, batch_s = self.begun + 1, self.host.now + self.world.between(0.0, BATCH_S)
                if (yield from self._request(Turn(self.has is not None, TURN_S))):
                    yield from self._update()
            while (yield from self._request(Last.HALT)):
                yield from self._update()
            self.halted = True
            yield self.world.between(0.0, 1.0)  # the snapshot
            yield from self._request(Last.LEAVE)
            self.left = True
            self.die(0)
        except StreamTimeout as error:
            self.world.note(self.name, "raises:", error)
            self.die(1)

    def _request(self, request: Turn | Last | None) -> Iterator[float]:
        """Carry messages until a request has ended; return whether all ranks are ready."""
        found = None if request is None else self._execute(self.agreement.handle(request, self.host.now))
        while found is None:
            while self.inbox:
                ended = self._execute(self.agreement.handle(self.inbox.popleft(), self.host.now))
                found = ended if found is None else found
            if found is None:
                found = self._execute(self.agreement.tick(self.host.now))
            if found is None:
                until_s = self.world.now + self.agreement.wait_s(self.host.now)
                while not self.inbox and self.world.now < until_s:
                    yield 0.02
        return found

    def _execute(self, actions: list[Any]) -> bool | None:
        for action in actions:
            if isinstance(action, Send):
                self.group.carry(self, action)
        return True if Do.GO in actions else False if Do.PASS in actions else None

    def _update(self) -> Iterator[float]:
        self.group.begins(self)
        self.begun, self.has = self.begun + 1, None
        since_s = self.world.now
        while not self.group.all_began(self):
            yield 0.05
            if self.world.now - since_s > COLLECTIVE_S:
                self.group.waits_for_nothing(self)
                self.die(71)
                yield 0.0
        yield self.world.between(0.02, UPDATE_S)


class Group:
    """The ranks of a learner, which are all replaced if one dies."""

    def __init__(self, seed: int, only: Collection[int] | None = None) -> None:
        world = self.world = World(seed)
        self.count = world.random.randint(2, 4)
        self.loss, self.twice = world.random.choice((0.0, 0.02, 0.2)), world.random.choice((0.0, 0.1))
        self.slow_s = world.random.choice((0.01, 0.3, 1.5))
        sorts = world.random.choices(("kill", "freeze", "terminate"), (3, 3, 1), k=2)
        planned = sorted(
            Fault(world.between(1.0, TROUBLE_S), world.random.choice(sorts), 0, world.random.randrange(self.count),
                  world.between(0.1, 8.0))
            for _ in range(world.random.randint(0, 5))
        )  # fmt: skip
        self.faults = tuple(fault for number, fault in enumerate(planned) if only is None or number in only)
        self.ranks: list[Rank] = []
        self.incarnation, self.updated_s, self.lost_s, self._again = -1, 0.0, -LOST_S, False
        self._start()
        for fault in self.faults:
            world.after(fault.at_s, None, self._strike, fault)
        world.after(TROUBLE_S, None, self._calm)
        world.after(STOP_S, None, self._stop)
        self._supervise()

    def _start(self) -> None:
        self.incarnation += 1
        self.world.note("group", "starts incarnation", self.incarnation)
        self.ranks = [Rank(self, number, self.incarnation) for number in range(self.count)]
        self._again = False

    def _supervise(self) -> None:
        """Start all ranks again if one has died, or left without being told to."""
        if self.world.now < STOP_S and not self._again and any(not rank.alive for rank in self.ranks):
            self._again = True
            for rank in self.ranks:
                rank.die(-9)
            self.world.after(AGAIN_S, None, self._start)
        self.world.after(0.2, None, self._supervise)

    def _strike(self, fault: Fault) -> None:
        rank = self.ranks[fault.worker]
        self.world.note("faults", fault.name, rank.name, f"for {fault.for_s:.1f} s")
        if fault.name == "kill":
            rank.die(-9)
        elif fault.name == "terminate":
            rank.stops = True
        else:
            rank.freeze()
            self.world.after(fault.for_s, None, rank.thaw)

    def _calm(self) -> None:
        self.loss = self.twice = 0.0
        self.slow_s = 0.01

    def _stop(self) -> None:
        for rank in self.ranks:
            self.world.after(self.world.between(0.0, 1.0), None, setattr, rank, "stops", True)

    # -- connections

    def carry(self, sender: Rank, action: Send) -> None:
        """Carry a message; one of a follower may even reach rank 0 of a later incarnation."""
        copies = 0 if self.world.happens(self.loss) else 2 if self.world.happens(self.twice) else 1
        if not copies:
            self.lost_s = self.world.now
        for _ in range(copies):
            self.world.after(self.world.between(0.001, self.slow_s), None, self._arrive, sender, action)

    def _arrive(self, sender: Rank, action: Send) -> None:
        if isinstance(action.message, RankMessage):
            receiver, message = self.ranks[0], FromRank(str(sender.pid).encode(), action.message)
        else:
            receiver = next((rank for rank in self.ranks if str(rank.pid).encode() == action.receiver), None)
            message = action.message
        if receiver is not None and receiver.alive:
            receiver.inbox.append(message)

    # -- what must hold

    def begins(self, rank: Rank) -> None:
        number = rank.begun + 1
        self.world.note(rank.name, "begins update", number)
        if rank.halted:
            raise Violation(f"{rank.name} begins update {number} after it halted")
        for other in self.ranks:
            if other.incarnation != rank.incarnation:
                raise Violation(f"{rank.name} begins update {number} beside {other.name}")
            if other.begun < number and other.has != number:
                raise Violation(f"{rank.name} begins update {number}, and {other.name} has no batch for it")
            if other.begun > number:
                raise Violation(f"{rank.name} begins update {number}, and {other.name} has begun {other.begun}")
        self.updated_s = self.world.now

    def all_began(self, rank: Rank) -> bool:
        return all(other.begun >= rank.begun for other in self.ranks if other.incarnation == rank.incarnation)

    def waits_for_nothing(self, rank: Rank) -> None:
        late = [other for other in self.ranks if other.begun < rank.begun]
        if (
            self.lost_s < self.world.now - LOST_S
            and late
            and all(other.acts and self.world.now - other.thawed_s > COLLECTIVE_S for other in late)
        ):
            raise Violation(f"{rank.name} waits in update {rank.begun} for {[other.name for other in late]}")

    def run(self) -> str:
        def history() -> None:
            self.world.run(STOP_S)
            if self.world.now - self.updated_s > 2.0 + COLLECTIVE_S:
                raise Violation(f"no update was made for {self.world.now - self.updated_s:.1f} s, without any fault")
            self.world.run(OVER_S)
            for rank in self.ranks:
                if rank.alive or not rank.left:
                    raise Violation(f"{rank.name} has not left in order")
            if len({rank.begun for rank in self.ranks}) > 1:
                raise Violation(f"the ranks made different updates: {[rank.begun for rank in self.ranks]}")

        return judged(history)


def tell(seed: int, only: Collection[int] | None = None) -> Result:
    """Run a history."""
    group = Group(seed, only)
    why = group.run()
    return Result(seed, group.faults, why, "", group.world.history)
