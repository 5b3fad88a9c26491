"""Histories of a director: its games and commands, over connections that lose, repeat and delay messages.

* A learner executes each command of a director once, in order, also if it restarts from a snapshot in between.
* A game ends once; all that were assigned are finished, discarded or open, and nothing of a replaced actor counts.
* No games are proposed while a command is not executed; in the end games are played, and no command waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from jsrl.directors.base import Bookkeeping, State
from jsrl.directors.draws import Draws
from jsrl.directors.messages import INITIAL, LATEST, Assignment, Command, Copy, Freeze, Outcome, Player, Reset
from jsrl.services.runs.control_bodies import CommandDone, ForwardedCommand, GameLease, Games, Played, Saving
from jsrl.workers.director.tickets import ExecutedTickets, FromActor, Frozen, SavedState, Tickets, Write
from tests.simulated.world import Fault, Host, Process, Result, Violation, World, judged

POLICIES = ("a", "b")
TROUBLE_S, OVER_S = 30.0, 60.0
GAME_S, TELL_S, STEP_S, SAVE_S, PLAYED_S = 1.5, 0.5, 0.1, 4.0, 5.0
AHEAD = 3  # games that an actor wants


class Caller(Bookkeeping):
    """A director that gives a command after every few games."""

    policies = POLICIES

    def _start(self) -> State:
        return {"commands": 0}

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        return self._assign(state, draws, [Player("a", LATEST), Player("b", LATEST)], [True, True], [0, 1])

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterable[Command]:
        if (state["finished"] + state["discarded"]) % 4:
            return ()
        number = state["commands"] = state["commands"] + 1
        policy, other = POLICIES[number % 2], POLICIES[1 - number % 2]
        commands = (Freeze(policy, f"f{number}"), Reset(policy, INITIAL), Copy(policy, other, {"lr": float(number)}))
        return (commands[number % 3],)


class Done(NamedTuple):
    """A command that a learner executed, of this session of the director."""

    session: int
    ticket: int
    name: str
    facts: str


class Director(Process):
    """As jsrl.workers.director.worker: it keeps its state with snapshots, and from time to time."""

    def __init__(self, run: Run, session: int) -> None:
        super().__init__(Host(run.world, "director"), f"director.{session}")
        self.history, self.session = run, session
        latest = {Player(policy): 0 for policy in POLICIES}
        self.tickets = Tickets(Caller(), 7, POLICIES, latest, session=session, saved=run.saved)
        self.tickets.handle(Frozen({Player(policy, INITIAL): 0 for policy in POLICIES}), self.host.now)
        self.every(STEP_S, self._step)
        self.every(1.0, self._keep)

    def _step(self) -> None:
        self._execute(self.tickets.tick(self.host.now))

    def take(self, message: Any) -> None:
        before = len(self.tickets.saved["orders"])
        self._execute(self.tickets.handle(message, self.host.now))
        if isinstance(message, CommandDone) and len(self.tickets.saved["orders"]) < before:
            self.history.confirmed(self, message)
        self.history.check_counts(self.tickets.state)

    def _execute(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Write):
                self.history.saved = SavedState(**action.values)
            elif isinstance(action, ForwardedCommand):
                self.history.command(self, action)

    def _keep(self) -> None:
        self.history.saved = SavedState(**self.tickets.saved)


class Learner(Process):
    """A policy's learner, as jsrl.workers.attached.directed: its snapshots hold what it executed.

    Attributes:
      done: what it has executed, in its present history. kept: the same and the newest confirmation, of its snapshot.
    """

    def __init__(self, run: Run, policy: str, kept: tuple[list[Done], CommandDone | None]) -> None:
        super().__init__(Host(run.world, policy), f"learner-{policy}")
        self.history, self.policy, self.kept = run, policy, kept
        self.done, self.version = list(kept[0]), len(kept[0])
        self.tickets = ExecutedTickets(kept[1])
        self.every(SAVE_S, self._save)

    def _save(self) -> None:
        self.kept = (list(self.done), self.tickets.done)
        if self.policy == POLICIES[0]:
            self.history.to_director(self.history.director, Saving(self.version))

    def obey(self, session: int, name: str, facts: dict[str, Any]) -> None:
        for action in self.tickets.handle(facts["ticket"]):
            if isinstance(action, int):
                self._carry_out(session, name, facts)
                self.version += 1
                (action,) = self.tickets.handle(CommandDone(facts["ticket"], version=self.version))
                if name in ("reset", "copy"):
                    self._save()
            self.history.to_director(self.history.director, action)

    def _carry_out(self, session: int, name: str, facts: dict[str, Any]) -> None:
        ticket = facts["ticket"]
        done = Done(session, ticket, name, str({key: value for key, value in facts.items() if key != "ticket"}))
        self.world.note(self.name, "executes", done)
        for other in self.done:
            if other.ticket >= ticket:
                raise Violation(f"{self.name} executes {done} after {other}")
            if (other.session, other.name, other.facts) == (session, name, done.facts) and name in ("freeze", "copy"):
                raise Violation(f"{self.name} executes a command twice: {done} and {other}")
        self.done.append(done)
        self.history.executed.add((session, ticket))


class Actor(Process):
    """Plays games, as jsrl.workers.attached.selfplay."""

    def __init__(self, run: Run, number: int, incarnation: int) -> None:
        super().__init__(Host(run.world, f"actor-{number}"), f"actor-{number}.{incarnation}")
        self.history, self.worker, self.incarnation = run, f"actor-{number}", incarnation
        self.leases: list[GameLease] = []
        self.played: list[Played] = []
        self.received, self.session = 0, -1
        self.every(TELL_S, self._tell)
        self.every(GAME_S, self._play)

    def take(self, facts: dict[str, Any]) -> None:
        found = [msgspec.convert(lease, GameLease) for lease in facts["leases"]]
        if facts["session"] != self.session:
            self.session, self.received = facts["session"], facts["sent"] - len(found)
            self.leases.clear()
        self.received += len(found)
        self.leases += found
        self.history.holders |= {(lease.session, lease.id): (self.worker, self.incarnation) for lease in found}

    def _play(self) -> None:
        if self.leases:
            lease = self.leases.pop(0)
            self.history.plays(self, lease)
            self.played.append(Played(lease.id, lease.session, 9, [1.0, 0.0]))

    def _tell(self) -> None:
        played, self.played = self.played, []
        body = Games(played, AHEAD, len(self.leases), self.received, self.session)
        self.history.to_director(self.history.director, FromActor(self.worker, self.incarnation, body))


class Run:
    """A director, two learners and three actors.

    Attributes:
      saved: the director's state.
    """

    def __init__(self, seed: int, only: Collection[int] | None = None) -> None:
        world = self.world = World(seed)
        self.loss, self.twice = world.random.choice((0.0, 0.05, 0.3)), world.random.choice((0.0, 0.2))
        self.slow_s = world.random.choice((0.01, 0.5, 4.0))
        planned = sorted(
            Fault(world.between(0.5, TROUBLE_S), world.random.choice(("kill", "kill", "freeze")), 0,
                  world.random.randrange(6), world.between(0.1, 6.0))
            for _ in range(world.random.randint(0, 8))
        )  # fmt: skip
        self.faults = tuple(fault for number, fault in enumerate(planned) if only is None or number in only)
        self.saved: SavedState | None = None
        self._sessions = itertools.count()
        self.ended: dict[tuple[int, int], str] = {}  # (session, game) -> the actor that played it
        self.executed: set[tuple[int, int]] = set()  # (session, ticket), in any history of a learner
        self.holders: dict[tuple[int, int], tuple[str, int]] = {}  # (session, game) -> actor, incarnation
        self.played_s = 0.0
        self._due_s: dict[int, float] = {}
        self.director = Director(self, next(self._sessions))
        self.learners = {policy: Learner(self, policy, ([], None)) for policy in POLICIES}
        self.actors = [Actor(self, number, 0) for number in range(3)]
        for fault in self.faults:
            world.after(fault.at_s, None, self._strike, fault)
        world.after(TROUBLE_S, None, self._calm)

    def _strike(self, fault: Fault) -> None:
        processes: list[Process] = [self.director, *self.learners.values(), *self.actors]
        process = processes[fault.worker]
        if fault.name == "freeze":
            process.freeze()
            self.world.after(fault.for_s, None, process.thaw)
        elif process.alive:
            process.die(-9)
            self.world.after(self.world.between(0.2, 2.0), None, self._replace, fault.worker)

    def _replace(self, number: int) -> None:
        if number == 0:
            self.director = Director(self, next(self._sessions))
        elif number <= len(POLICIES):
            policy = POLICIES[number - 1]
            self.learners[policy] = Learner(self, policy, self.learners[policy].kept)
        else:
            before = self.actors[number - 3]
            self.actors[number - 3] = Actor(self, number - 3, before.incarnation + 1)

    def _calm(self) -> None:
        self.loss = self.twice = 0.0
        self.slow_s = 0.01
        for process in [self.director, *self.learners.values(), *self.actors]:
            process.thaw()

    # -- connections: messages reach whoever has the name when they arrive

    def to_director(self, director: Director, message: Any) -> None:
        self._carry(lambda: (self.director, lambda: self.director.take(message)))

    def command(self, director: Director, action: ForwardedCommand) -> None:
        if action.worker:
            number = int(action.worker.rpartition("-")[2])
            self._check_proposal(director)
            self._carry(lambda: self._to_actor(number, action.facts), number)
        else:
            facts = dict(action.facts)
            self._carry(lambda: self._to_learner(director.session, action.policy, action.command, facts))

    def _to_actor(self, number: int, facts: dict[str, Any]) -> tuple[Process, Callable[[], None]]:
        actor = self.actors[number]
        is_its = facts["incarnation"] == actor.incarnation
        return actor, lambda: actor.take(facts) if is_its else None

    def _to_learner(
        self, session: int, policy: str, name: str, facts: dict[str, Any]
    ) -> tuple[Process, Callable[[], None]]:
        learner = self.learners[policy]
        return learner, lambda: learner.obey(session, name, facts)

    def _carry(self, receiver: Callable[[], tuple[Process, Callable[[], None]]], order: int | None = None) -> None:
        """Carry a message; `order`: in order and once to this actor, as orders to hosts and local connections do."""
        delay_s = self.world.between(0.001, self.slow_s)
        if order is not None:
            due_s = self._due_s[order] = max(self._due_s.get(order, 0.0), self.world.now + delay_s)
            self.world.after(due_s - self.world.now, None, self._arrive, receiver)
            return
        for _ in range(0 if self.world.happens(self.loss) else 2 if self.world.happens(self.twice) else 1):
            self.world.after(self.world.between(0.001, self.slow_s), None, self._arrive, receiver)

    def _arrive(self, receiver: Callable[[], tuple[Process, Callable[[], None]]]) -> None:
        process, action = receiver()
        if process.alive:
            process.after(0.0, action)

    # -- what must hold

    def _check_proposal(self, director: Director) -> None:
        if director.tickets.saved["orders"]:
            raise Violation(f"{director.name} proposes games, and commands wait: {director.tickets.saved['orders']}")

    def confirmed(self, director: Director, done: CommandDone) -> None:
        """Check that a command that the director takes as executed was, by a learner that is there or was."""
        if (director.session, done.ticket) not in self.executed:
            raise Violation(f"{director.name} takes ticket {done.ticket} as executed, and no learner executed it")

    def check_counts(self, state: State) -> None:
        if state["assigned"] != state["finished"] + state["discarded"] + len(state["open"]):
            raise Violation(f"games were lost or counted twice: {state}")

    def plays(self, actor: Actor, lease: GameLease) -> None:
        self.played_s = self.world.now
        before = self.ended.setdefault((lease.session, lease.id), actor.worker)
        if before != actor.worker:
            raise Violation(f"{actor.name} plays game {lease.id} of session {lease.session}, which {before} played")

    def run(self) -> str:
        def history() -> None:
            self.world.run(OVER_S)
            if self.world.now - self.played_s > PLAYED_S:
                waits = self.director.tickets.saved["orders"]
                raise Violation(
                    f"no game was played for {self.world.now - self.played_s:.1f} s; commands wait: {waits}"
                )

            for game in self.director.tickets.state["open"]:
                worker, incarnation = self.holders.get((self.director.session, int(game)), ("", 0))
                if any(actor.worker == worker and actor.incarnation > incarnation for actor in self.actors):
                    raise Violation(
                        f"game {game} is still open, and {worker}.{incarnation}, which had it, was replaced"
                    )

        return judged(history)


def tell(seed: int, only: Collection[int] | None = None) -> Result:
    """Run a history."""
    run = Run(seed, only)
    why = run.run()
    return Result(seed, run.faults, why, "", run.world.history)
