"""Tickets in deterministic runs: messages are processed in an order that does not depend on timing.

Each group of environments counts its steps, and reports after which of them games ended. The message of the lowest step is
processed first, of equal ones that of the lowest group, but only after every other group has reported a later step. Scores of
a learner come after all messages about their rows. Between two trajectories the state is kept for the snapshot
that the learner writes after them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from jsrl.directors.messages import Score, Stop
from jsrl.services.runs.control_bodies import GroupStep, Saving, Scores
from jsrl.types import version_updates
from jsrl.workers.director.tickets import Action, Closing, FromActor, Message, Tickets, Write

KEPT_STATES = 4  # states between trajectories that a learner's snapshot may still need


@dataclass(frozen=True)
class OrderSettings:
    """Settings for the order of messages.

    Attributes:
      groups: of environments. learners: whose scores are awaited; 0: the director uses none.
      rows: T of a trajectory. begun: trajectories of each group before this start of the run. updates: made with each batch.
    """

    groups: int
    learners: int
    rows: int
    begun: int
    updates: int


class Merge:
    """Merges the messages of several sources in order: the next one is known once no source can send an earlier one.

    A place is (step, source): sources 0 to groups - 1 are groups, the others learners, whose step is that of their last row.
    """

    def __init__(self, settings: OrderSettings) -> None:
        self._settings = s = settings
        self._waiting: dict[int, deque[tuple[int, Any]]] = {source: deque() for source in range(s.groups + s.learners)}
        first = {group: s.begun * s.rows for group in range(s.groups)}
        first |= {s.groups + number: (s.begun + 1) * s.rows for number in range(s.learners)}
        self._lowest = first  # source -> the lowest step of its next message

    def add(self, source: int, step: int, message: Any) -> None:
        """Add a source's message; messages of one source come in order."""
        self._waiting[source].append((step, message))

    def next(self) -> tuple[int, int] | None:
        """Return the place of the next message; None: it is not known yet."""
        heads = [(waiting[0][0], source) for source, waiting in self._waiting.items() if waiting]
        bounds = [(self._lowest[source], source) for source, waiting in self._waiting.items() if not waiting]
        return min(heads) if heads and (not bounds or min(heads) < min(bounds)) else None

    def take(self, place: tuple[int, int]) -> Any:
        step, source = place
        is_group = source < self._settings.groups
        self._lowest[source] = step + (1 if is_group else self._settings.rows)
        return self._waiting[source].popleft()[1]

    def is_past(self, step: int) -> bool:
        """Return whether everything up to a step was processed; messages of later steps may wait."""
        return min(self._lowest.values()) > step


class TicketsInOrder(Tickets):
    """Tickets whose proposals and commands do not depend on when messages arrive."""

    def __init__(self, *args: Any, order: OrderSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._order, self._merge = order, Merge(order)
        self._moment: tuple[str, int, GroupStep] | None = None  # whose slots are to be given assignments next
        # trajectories of each group -> the state between them and the next ones
        self._between: dict[int, dict[str, Any]] = {}
        self._begun = order.begun
        self._stops_in = -1  # trajectory in which it ended the run
        self._savings: list[int] = []  # versions whose state was not written yet
        # (actor, its incarnation, group) -> number of its newest message
        self._seen: dict[tuple[str, int, int], int] = {}

    def handle(self, message: Message, now: float) -> list[Action]:
        """Take a message, unless it is a repetition; see Tickets."""
        if isinstance(message, FromActor):
            worker, incarnation, body = message
            for moment in body.moments:
                who = worker, incarnation, moment.group
                if moment.group < self._order.groups and moment.number > self._seen.get(who, -1):
                    self._seen[who] = moment.number
                    self._merge.add(moment.group, moment.step, (worker, incarnation, moment))
        elif isinstance(message, Scores):
            self._merge.add(self._order.groups + message.policy, message.batches * self._order.rows, message)
        elif isinstance(message, Saving):
            self._savings.append(message.version)
        else:
            super().handle(message, now)
        return self.tick(now) if isinstance(message, Saving | Closing) else []

    def tick(self, now: float) -> list[Action]:
        """Process messages in order, as far as the order is known and commands are executed."""
        actions = self._give(now)
        while not self._orders:
            if self._moment is not None:
                if self.lacking:
                    break
                actions.append(self._answer(*self._moment, now))
                self._moment = None
                continue
            place = self._merge.next()
            if place is None:
                break
            self._begin_trajectory((place[0] - 1) // self._order.rows)
            self._take(self._merge.take(place))
            actions += self._give(now)
        return actions + self._write()

    def _begin_trajectory(self, number: int) -> None:
        """Keep the state before the first message of each trajectory."""
        if number < self._begun or number in self._between:
            return
        self._between[number] = self.saved
        for old in sorted(self._between)[:-KEPT_STATES]:
            del self._between[old]

    def _take(self, message: Scores | tuple[str, int, GroupStep]) -> None:
        if isinstance(message, Scores):
            self._report([Score(*score) for score in message.scores])
            return
        worker, incarnation, moment = message
        self._report(self._leases.outcomes(worker, incarnation, moment.played))
        self._moment = message if moment.slots and self._leases.is_of(worker, incarnation) else None

    def _answer(self, worker: str, incarnation: int, moment: GroupStep, now: float) -> Action:
        """Give the slots of a group their assignments; what they played before a resume is theirs again."""
        slots = [(moment.group, slot) for slot in moment.slots]
        kept = [self._leases.returning(*slot) for slot in slots]
        return self._assign(worker, self._proposed(kept), now, slots)

    def _stop(self, order: Stop) -> list[Action]:
        self._stops_in = max(self._between, default=self._begun)
        return super()._stop(order)

    def _write(self) -> list[Action]:
        """Write the states that belong to snapshots, once everything up to their last rows was taken."""
        actions: list[Action] = []
        for version in list(self._savings):
            trajectories = version_updates(version) // self._order.updates
            values = self._between.get(trajectories)
            idle = self._moment is None and not self._orders
            newest = trajectories > max(self._between, default=-1)  # nothing of a later one was taken
            if values is None and newest and idle and self._merge.is_past(trajectories * self._order.rows):
                values = self.saved
            if values is not None:
                self._savings.remove(version)
                actions.append(Write(version, values | {"stops": self._stops_in >= trajectories}))
        return actions
