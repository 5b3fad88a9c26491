"""The stations of the model and what moves between them: actors, inference servers, groups, leases, replies and credits."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field

from jsrl.tools.simulation.events import Clock, Mailbox

NEWS = object()  # in a server's mailbox: new params


class Activities:
    """The time that a worker spends in each activity."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._activity, self._since = clock, "other", 0.0
        self._total: defaultdict[str, float] = defaultdict(float)

    def enter(self, activity: str) -> None:
        self._total[self._activity] += self._clock.now - self._since
        self._activity, self._since = activity, self._clock.now

    def totals(self) -> dict[str, float]:
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
    """An actor in the model. version: of the newest params there. read: of those with which it acts."""

    host: int
    groups: list[Group]
    server: Server | None
    activities: Activities
    inbox: Mailbox = field(default_factory=Mailbox)
    blocks: int = 0
    version: int = 0
    read: int = 0
    pending: deque[Group] = field(default_factory=deque)  # groups that wait for the actor's own acting
    dies_s: float = math.inf


@dataclass
class Server:
    """An inference server in the model. Its inbox: (actor, group, updates that its params must have)."""

    host: int
    activities: Activities
    inbox: Mailbox = field(default_factory=Mailbox)
    version: int = 0
    read: int = 0


@dataclass(frozen=True)
class Lent:
    """A trajectory at the learner."""

    actor: Actor
    group: Group
    oldest: int


def wake() -> None:
    """Wake an actor, which checks its params again."""


class Reply:
    """Actions for a group: called when its actor takes them."""

    __slots__ = ("_group", "_version")

    def __init__(self, group: Group, version: int) -> None:
        self._group, self._version = group, version

    def __call__(self) -> None:
        self._group.version = self._version


class Credit:
    """A block that an actor may write again: called when the actor checks."""

    __slots__ = ("_actor",)

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __call__(self) -> None:
        self._actor.blocks += 1
