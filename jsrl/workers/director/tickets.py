"""What a director's worker decides: which games actors play, and which command a learner executes now, once.

A game counts once: with an outcome, or as discarded. A command has a ticket; it is given again until the learner confirms the
ticket, and no games are proposed before. Nothing here reads a clock or a file.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from jsrl.directors.base import Report, State, open_assignments
from jsrl.directors.messages import (
    INITIAL,
    Assignment,
    Command,
    Copy,
    Freeze,
    Outcome,
    Player,
    Reset,
    Score,
    Stop,
    from_json,
    to_json,
)
from jsrl.errors import SnapshotError
from jsrl.services.runs.control_bodies import CommandDone, ForwardedCommand, GameLease, Games, Saving, Scores, Stopped
from jsrl.workers.director.leases import AGAIN_S, LEFT_OPEN, Leases, leases_of, unknown_policy


class FromActor(NamedTuple):
    """Message: an actor's finished games, and what it needs."""

    worker: str
    incarnation: int
    body: Games


class Frozen(NamedTuple):
    """Message: these players have been found on disk."""

    versions: Mapping[Player, int]


class Closing(NamedTuple):
    """Message: the worker ends; what it has received must be in its state."""


class Write(NamedTuple):
    """Action: write the state that belongs to the snapshot of this version."""

    version: int
    values: dict[str, Any]


class SavedState(NamedTuple):
    """A director's state, the games of the slots, and the unconfirmed commands.

    stops: with this state it ended the run; a resumed run must not end at the same place again.
    """

    state: State
    leases: list[Any]
    orders: list[dict[str, Any]]
    stops: bool = False


Message: TypeAlias = FromActor | Frozen | CommandDone | Scores | Saving | Closing
Action: TypeAlias = ForwardedCommand | Stopped | Write


class Tickets:
    """The open games and the unconfirmed commands of a director.

    Errors of a director and of its commands are raised: they end the worker.

    Args:
      director: proposes games and gives commands. seed: of its draws.
      versions: of the players that exist, the latest ones among them. policies: in the order of their numbers.
      session: incarnation of the worker; higher than any before. saved: its state before; None: it starts from scratch.
      exact: environments and assignments continue exactly from `saved`.
      check: raises ConfigError if an assignment cannot be played.

    Attributes:
      state: of the director. finished: games that ended with an outcome, since this start.
    """

    def __init__(
        self,
        director: Any,
        seed: int,
        policies: Sequence[str],
        versions: Mapping[Player, int],
        *,
        session: int,
        saved: SavedState | None = None,
        exact: bool = False,
        check: Callable[[Assignment], None] = lambda one: None,
    ) -> None:
        self._director, self._check = director, check
        self._numbers = {policy: number for number, policy in enumerate(policies)}
        self._versions, self._leases = dict(versions), Leases(session)
        self._asking: dict[str, Games] = {}  # each actor's newest unanswered message
        self._reports: list[Report] = []  # that the director does not know yet
        self._orders: deque[Command] = deque()  # the first one is being executed
        self._ticket, self._given_s = session << 20, None  # type: int, float | None
        self._handed: int | None = None  # version of the state that the first order's source has handed over
        self._stopped_before = saved is not None and saved.stops
        self.finished = 0
        if saved is None:
            self.state: State = director.init(seed)
            return
        self.state = saved.state
        self._orders.extend(from_json(order) for order in saved.orders)  # type: ignore[misc]
        going_on = self._leases.restore(saved.leases) if exact else set()
        left = [game for game in open_assignments(self.state) if game not in going_on]
        self._report([Outcome(game, discarded=LEFT_OPEN) for game in left])

    @property
    def waits_for_learner(self) -> bool:
        """Return whether a command is not confirmed yet."""
        return bool(self._orders)

    @property
    def lacking(self) -> list[Player]:
        """Return the first params that are not there yet; games may use them, so none are proposed before."""
        return [player for policy in self._numbers if (player := Player(policy, INITIAL)) not in self._versions]

    @property
    def saved(self) -> dict[str, Any]:
        """Return the fields of SavedState as JSON values."""
        orders = [to_json(order) for order in self._orders]
        return {"state": self.state, "leases": self._leases.saved(), "orders": orders}

    def handle(self, message: Message, now: float) -> list[Action]:
        """Take a message. What follows from it is decided in `tick`, for all messages at once; a snapshot cannot wait."""
        if isinstance(message, FromActor):
            worker, incarnation, body = message
            self._reports += self._leases.outcomes(worker, incarnation, body.played)
            if self._leases.is_of(worker, incarnation):
                self._reports += self._leases.lost(worker, body)
                self._asking[worker] = body
        elif isinstance(message, Scores):
            self._reports += [Score(*score) for score in message.scores]
        elif isinstance(message, Frozen):
            self._versions |= message.versions
        elif isinstance(message, CommandDone):
            self._confirm(message)
        else:
            self._report()
        return [Write(message.version, self.saved), *self._give(now)] if isinstance(message, Saving) else []

    def tick(self, now: float) -> list[Action]:
        """Report outcomes, give commands and propose games."""
        self._report()
        actions = self._give(now)
        return actions if self._orders or self.lacking else actions + self._propose(now)

    def _report(self, more: Sequence[Report] = ()) -> None:
        """Report outcomes and scores together: the director copies its state once."""
        reports, self._reports = [*self._reports, *more], []
        if reports:
            self.finished += sum(isinstance(report, Outcome) and not report.discarded for report in reports)
            self.state, orders = self._director.report(self.state, reports)
            self._orders.extend(orders)

    # -- the director's commands --------------------------------------------------------------------------------------

    def _give(self, now: float) -> list[Action]:
        """Give the first command, and again if it is not confirmed for a while."""
        actions: list[Action] = []
        while self._orders and isinstance(order := self._orders[0], Stop):
            self._orders.popleft()
            actions += self._stop(order)
        if self._orders and (self._given_s is None or now - self._given_s >= AGAIN_S):
            self._ticket += self._given_s is None
            self._given_s = now
            policy, command, facts = self._command(self._orders[0])
            actions.append(ForwardedCommand(command, facts | {"ticket": self._ticket}, policy=policy))
        return actions

    def _stop(self, order: Stop) -> list[Action]:
        """End the run, unless it already ended at this place and was resumed."""
        before, self._stopped_before = self._stopped_before, False
        return [] if before else [Stopped(order.reason or "the director ended the run")]

    def _command(self, order: Command) -> tuple[str, str, dict[str, Any]]:
        """Return the policy whose learner must do something for the first order, the name of that command, and its facts."""
        assert not isinstance(order, Stop)
        for policy in (order.policy, order.source) if isinstance(order, Copy) else (order.policy,):
            if policy not in self._numbers:
                raise unknown_policy(f"gives the command {order}", policy, self._numbers)
        if isinstance(order, Freeze):
            return order.policy, "freeze", {"name": order.name}
        if isinstance(order, Reset):
            return order.policy, "reset", {"version": self._version_of(Player(order.policy, order.source))}
        if self._handed is None:
            return order.source, "hand_over", {"to": order.policy}
        return order.policy, "copy", {"version": self._handed, "hyperparameters": order.hyperparameters}

    def _confirm(self, done: CommandDone) -> None:
        if done.ticket != self._ticket or not self._orders:
            return  # a confirmation of a repeated command
        order, self._given_s = self._orders[0], None
        if done.error:
            raise SnapshotError(f"the director's command {order} failed: {done.error}")
        if isinstance(order, Copy) and self._handed is None:
            self._handed = done.version  # which the copy can be made of now
            return
        self._orders.popleft()
        self._handed = None
        if isinstance(order, Freeze):
            self._versions[Player(order.policy, order.name)] = done.version

    # -- assignments --------------------------------------------------------------------------------------------------

    def _propose(self, now: float) -> list[Action]:
        """Give each actor the assignments that it still lacks, and those that did not arrive."""
        asking, self._asking = self._asking, {}
        lacks = {worker: self._leases.short(worker, body) for worker, body in asking.items()}
        again = {worker: self._leases.again(worker, body, now) for worker, body in asking.items()}
        found = iter(self._proposed([None] * sum(lacks.values())))
        given = {worker: list(itertools.islice(found, count)) for worker, count in lacks.items()}
        return [
            self._assign(worker, new, now, again=again[worker]) for worker, new in given.items() if new or again[worker]
        ]

    def _proposed(self, kept: Sequence[GameLease | None]) -> list[GameLease]:
        """Return assignments, with a new one for each None."""
        found: list[Assignment] = []
        if new := sum(lease is None for lease in kept):
            self.state, found = self._director.propose(self.state, new)
        for one in found:
            self._check(one)
        leases = leases_of(found, self._leases.session, self._numbers, self._version_of)
        return [next(leases) if lease is None else lease for lease in kept]

    def _version_of(self, player: Player) -> int:
        if player not in self._versions:
            known = ", ".join(map(str, self._versions))
            raise SnapshotError(f"no player is called {player}. There are: {known}.")
        return self._versions[player]

    def _assign(
        self,
        worker: str,
        leases: Sequence[GameLease],
        now: float,
        slots: Sequence[tuple[int, int]] = (),
        again: Sequence[GameLease] = (),
    ) -> ForwardedCommand:
        """Note assignments as an actor's, and return the command that gives them to it, after those that it gets again."""
        facts = {
            "sent": self._leases.give(worker, leases, now, slots),
            "leases": [msgspec.to_builtins(lease) for lease in (*again, *leases)],
            "session": self._leases.session,
            "slots": list(slots),
            "incarnation": self._leases.incarnation_of(worker),
        }
        return ForwardedCommand("games", facts, worker=worker)


class ExecutedTickets:
    """The tickets that a learner has executed. Those of one director rise, and so do those of its later incarnations.

    Args:
      done: the newest confirmation at the restart; None: none.

    Attributes:
      done: the newest confirmation. Snapshots keep it: their state has the effect of the command, or holds the command.
    """

    def __init__(self, done: CommandDone | None = None) -> None:
        self.done = CommandDone(-1) if done is None else done

    def handle(self, message: int | CommandDone) -> list[int | CommandDone]:
        """Take the ticket of a command, or what became of it; return the ticket to execute, or the confirmation to send.

        The director repeats a command until it has the confirmation; a repetition may also arrive after later commands.
        """
        if isinstance(message, CommandDone):
            self.done = message
        elif message > self.done.ticket:
            return [message]
        elif message < self.done.ticket:
            return []
        return [self.done]
