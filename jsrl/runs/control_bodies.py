"""What may stand in a worker's messages: checked before the controller counts with it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from jsrl.runs.control import AnyMessage, Bye, Event, Heartbeat, Report, Stage

MOST = 2**53  # of any count: what a float still tells apart
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class WorkerStatus(msgspec.Struct):
    """The facts of a report or a goodbye that the controller acts on; others are only displayed."""

    updates: Count = 0
    env_steps: Count = 0


class Finished(msgspec.Struct):
    """All updates are made."""

    updates: Count
    env_steps: Count


class Score(msgspec.Struct):
    """An evaluation's."""

    return_mean: float
    return_ci95: float
    episodes: Count
    return_std: float = 0.0
    length_mean: float = 0.0
    win_rate: float | None = None
    win_rate_low: float = 0.0
    win_rate_high: float = 1.0


class Evaluated(Score, kw_only=True):
    """A score, and of which snapshot."""

    updates: Count
    env_steps: Count
    metrics: dict[str, float]


class Confirmed(Score, kw_only=True):
    """A second score of a snapshot whose first one reached the goal."""

    updates: Count


class Filmed(msgspec.Struct):
    """A video: its file, and of which snapshot."""

    updates: Count
    env_steps: Count
    metrics: dict[str, float]
    file: str


class Saved(msgspec.Struct):
    """A snapshot that was written, and in which store."""

    store: Literal["state", "params"]
    version: Annotated[int, msgspec.Meta(ge=0)]
    tags: list[str]


class Notice(msgspec.Struct):
    """A warning or note."""

    once: str = ""


class Lease(msgspec.Struct, forbid_unknown_fields=True):
    """An assignment on its way to an actor.

    Attributes:
      id: of the assignment. life: of the director that gave it. players: of each side, (number of the policy, version).
      learns: whether each side's rows train. task, seed: for the environment's reset.
    """

    id: Count
    life: Count
    players: list[tuple[int, int]]
    learns: list[bool]
    seed: int = 0
    task: Any = None


class Played(msgspec.Struct, forbid_unknown_fields=True):
    """How the episode of an assignment ended: its length and the returns of the sides, or why it counts as nothing."""

    id: Count
    life: Count
    length: Count = 0
    returns: list[float] = []
    void: str = ""


class Moment(msgspec.Struct, forbid_unknown_fields=True):
    """What came of one step of a group of environments.

    Attributes:
      step: which one, from the first of the run. number: of the message, in this life of the actor.
      played: games that ended. slots: that need an assignment.
    """

    group: Count
    step: Count
    number: Count
    played: list[Played] = []
    slots: list[Count] = []


class Games(msgspec.Struct, forbid_unknown_fields=True):
    """What an actor played, and how many assignments it needs.

    Attributes:
      want: that it would have. held: that it has, and plays none of yet. received: so far, in this `life` of the director.
      moments: instead of all this, where every bit of a run is fixed.
    """

    played: list[Played]
    want: Count
    held: Count
    received: Count
    life: int
    moments: list[Moment] = []


class Tell(msgspec.Struct):
    """A command for another worker, or for the learner of a policy (one of both is empty)."""

    command: str
    facts: dict[str, Any]
    worker: str = ""
    policy: str = ""


class Directed(msgspec.Struct):
    """A learner did what a director's command with this ticket said; `error`: or why it could not."""

    ticket: int
    name: str = ""
    version: int = -1
    error: str = ""


class Scores(msgspec.Struct):
    """What a learner's rows say of games that ended: (number of the game, score) pairs.

    `policy`: number of the learner's. `batches`: that it has trained on so far.
    """

    scores: list[tuple[Count, float]]
    policy: Count = 0
    batches: Count = 0


class Saving(msgspec.Struct):
    """A learner is about to write a snapshot of this version."""

    version: Annotated[int, msgspec.Meta(ge=0)]


class Stopped(msgspec.Struct):
    """A director ends the run; `why`: for people."""

    why: str = ""


EVENTS: dict[str, type[msgspec.Struct]] = {
    "finished": Finished,
    "evaluated": Evaluated,
    "confirmed": Confirmed,
    "evaluated finally": Score,
    "filmed": Filmed,
    "saved": Saved,
    "warning": Notice,
    "note": Notice,
    "games": Games,
    "tell": Tell,
    "done": Directed,
    "scores": Scores,
    "saving": Saving,
    "stop": Stopped,
}


def complaint(message: AnyMessage) -> str:
    """Return why the body of a message cannot be right; empty: it can."""
    if isinstance(message, Report):
        return _named(message.metrics) or _unlike(message.facts, WorkerStatus)
    if isinstance(message, Bye):
        return _unlike(message.facts, WorkerStatus)
    if isinstance(message, Event):
        body = EVENTS.get(message.name)
        return _unlike(message.facts, body) if body is not None else ""
    if isinstance(message, Heartbeat):
        return _unlike({"progress": message.progress}, _Beat)
    if isinstance(message, Stage):
        return _unlike({"pid": message.pid}, _Place)
    return ""


class _Beat(msgspec.Struct):
    progress: Count


class _Place(msgspec.Struct):
    pid: Count


def _unlike(facts: dict[str, Any], body: type[msgspec.Struct]) -> str:
    """Return how facts differ from their schema; all numbers of a score must be finite, but for metrics."""
    try:
        found = msgspec.convert(facts, body)
    except (msgspec.ValidationError, RecursionError) as error:
        return f"{error}"
    if isinstance(found, Score):
        wrong = [name for name, value in facts.items() if name != "metrics" and not _finite(value)]
        if wrong:
            return f"{wrong[0][:80]} is {facts[wrong[0]]!r:.80}, expected a finite number"
    return _named(getattr(found, "metrics", {}))


def _named(metrics: dict[str, float]) -> str:
    """Return which metric's name is none of a worker's, such as `env_steps`, which the controller counts itself."""
    wrong = [name for name in metrics if "/" not in name]
    return f"metric {wrong[0][:80]!r} has no worker in its name, expected such as actor/episodes" if wrong else ""


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
