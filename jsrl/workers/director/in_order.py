"""A director's worker in deterministic runs: it processes messages in an order that does not depend on timing.

Each group of environments counts its steps, and reports after which of them games ended. The message of the lowest step is
processed first, of equal ones that of the lowest group, but only after every other group has reported a later step. Scores of
a learner come after all messages about their rows. Between two trajectories the state is kept for the snapshot
that the learner writes after them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

from jsrl.directors.messages import Outcome, Score, Stop
from jsrl.runs.control_bodies import Command, CommandDone, Games, GroupStep, Scores
from jsrl.types import version_updates
from jsrl.workers.director.worker import DirectorWorker

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


class DirectorInOrder(DirectorWorker):
    """A DirectorWorker whose proposals and commands do not depend on when messages arrive."""

    def __init__(self, *args: Any, order: OrderSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._order, self._merge = order, Merge(order)
        self._moment: tuple[str, int, GroupStep] | None = None  # whose slots are to be given assignments next
        self._between: dict[
            int, dict[str, Any]
        ] = {}  # trajectories of each group -> the state between them and the next ones
        self._begun = order.begun
        self._stops_in = -1  # trajectory in which it ended the run
        self._savings: list[int] = []  # versions whose state was not written yet
        self._seen: dict[
            tuple[str, int, int], int
        ] = {}  # (actor, its incarnation, group) -> number of its newest message

    def _receive(self) -> int:
        count = len(self._inbox)
        for _ in range(count):
            command = self._inbox.popleft()
            facts = dict(command.facts)
            worker, incarnation = facts.pop("worker", ""), facts.pop("incarnation", 0)
            if command.name == "games":
                for moment in msgspec.convert(facts, Games).moments:
                    self._receive_step(worker, incarnation, moment)
            elif command.name == "done":
                self._confirmed(msgspec.convert(facts, CommandDone))
            elif command.name == "scores":
                body = msgspec.convert(facts, Scores)
                self._merge.add(self._order.groups + body.policy, body.batches * self._order.rows, body)
            elif command.name == "saving":
                self._savings.append(int(facts["version"]))
        self._go_on()
        return count

    def _receive_step(self, worker: str, incarnation: int, moment: GroupStep) -> None:
        """Process a message, unless it is a repetition."""
        who = worker, incarnation, moment.group
        if moment.group < self._order.groups and moment.number > self._seen.get(who, -1):
            self._seen[who] = moment.number
            self._merge.add(moment.group, moment.step, (worker, incarnation, moment))

    def _go_on(self) -> None:
        """Process messages in order, as far as the order is known and commands are executed."""
        while not self._orders:
            if self._moment is not None:
                if not self._can_propose():
                    break
                self._answer(*self._moment)
                self._moment = None
                continue
            place = self._merge.next()
            if place is None:
                break
            self._begin_trajectory((place[0] - 1) // self._order.rows)
            self._take(self._merge.take(place))
        self._save()

    def _begin_trajectory(self, number: int) -> None:
        """Keep the state before the first message of each trajectory."""
        if number < self._begun or number in self._between:
            return
        self._between[number] = self._kept()
        for old in sorted(self._between)[:-KEPT_STATES]:
            del self._between[old]

    def _take(self, message: Any) -> None:
        if isinstance(message, Scores):
            self._report([Score(*score) for score in message.scores])
        else:
            worker, incarnation, moment = message
            outcomes: list[Outcome] = self._leases.outcomes(worker, incarnation, moment.played)
            self._meter.rate("games", sum(not outcome.discarded for outcome in outcomes))
            self._report(outcomes)
            self._moment = message if moment.slots and self._leases.is_of(worker, incarnation) else None
        self._carry_out()

    def _answer(self, worker: str, incarnation: int, moment: GroupStep) -> None:
        """Give the slots of a group their assignments; what they played before a resume is theirs again."""
        slots = [(moment.group, slot) for slot in moment.slots]
        kept = [self._leases.returning(*slot) for slot in slots]
        own = self._proposed(kept)
        self._send_to_actor(worker, own, self._leases.give(worker, own, slots), slots)

    def _stop(self, order: Stop) -> None:
        self._stops_in = max(self._between, default=self._begun)
        super()._stop(order)

    def _save(self) -> None:
        """Write the states that belong to snapshots, once everything up to their last rows was taken."""
        for version in list(self._savings):
            trajectories = version_updates(version) // self._order.updates
            values = self._between.get(trajectories)
            idle = self._moment is None and not self._orders
            newest = trajectories > max(self._between, default=-1)  # nothing of a later one was taken
            if values is None and newest and idle and self._merge.is_past(trajectories * self._order.rows):
                values = self._kept()
            if values is not None:
                self._savings.remove(version)
                self._states.write(version, values | {"stops": self._stops_in >= trajectories})

    def command(self, command: Command) -> None:
        self._inbox.append(command)
        if command.name == "saving":
            self._receive()

    def _propose(self) -> int:
        return 0  # actors are answered in order
