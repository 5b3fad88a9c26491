"""Messages of workers and commands of the controller; their contents are checked before the controller uses them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

REPLAYING = "replaying"  # begins the stages in which a worker replays a journal, which may take as long as the run did
FINAL = "evaluated finally"  # an event with the final score; later reports repeat it, because it may be lost
_NUMBER = re.compile(r"\d[\d,.]*")
MOST = 2**53  # largest count: floats are exact up to here
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Version = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """A worker's message; `worker` and `incarnation` identify the sender."""

    worker: str
    incarnation: int


class Stage(Message, tag="stage"):
    """Stage of a worker's start, and its process id."""

    stage: str
    pid: int


class Heartbeat(Message, tag="heartbeat"):
    """Alive; `activity`: current call of the worker, since `activity_s` seconds (empty: between steps)."""

    progress: int
    activity: str = ""
    activity_s: float = 0.0


class Report(Message, tag="report"):
    """Metrics since the last report, and facts that only this worker knows."""

    metrics: dict[str, float]
    facts: dict[str, Any] = {}


class Event(Message, tag="event"):
    """Something to show the user (`warning`, `note`) or to act on (`finished`, `evaluated`)."""

    name: str
    text: str = ""
    facts: dict[str, Any] = {}


class Crash(Message, tag="crash"):
    """The last message of a crashing worker: error type, message and traceback."""

    error: str
    text: str
    trace: str


class Stacks(Message, tag="stacks"):
    """Stacks of all threads: the answer to `stacks`, and sent with the last message of a hanging worker."""

    text: str


class Bye(Message, tag="bye"):
    """A worker has closed regularly; `facts` holds its ledger and last counters."""

    facts: dict[str, Any] = {}


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """A command of the controller to a worker: `stop`, `stacks`, `snapshot`, `evaluate`, ..."""

    name: str
    facts: dict[str, Any] = {}


AnyMessage = Stage | Heartbeat | Report | Event | Crash | Stacks | Bye


class WorkerStatus(msgspec.Struct):
    """The facts of a report or a goodbye that the controller acts on; others are only displayed.

    finished: all updates are made; repeated in each report, because the event of this name may be lost.
    unsaved: why the final snapshot was not written; empty: it was.
    """

    updates: Count = 0
    version: Version = 0
    env_steps: Count = 0
    finished: bool = False
    unsaved: str = ""


class Finished(msgspec.Struct):
    """All updates are made."""

    updates: Count
    env_steps: Count
    version: Version = 0


class Score(msgspec.Struct):
    """The score of an evaluation."""

    return_mean: float
    episodes: Count
    return_ci95: float = 0.0
    return_std: float = 0.0
    length_mean: float = 0.0
    win_rate: float | None = None
    win_rate_low: float = 0.0
    win_rate_high: float = 1.0


class Evaluated(Score, kw_only=True):
    """A score, and its snapshot."""

    updates: Count
    env_steps: Count
    metrics: dict[str, float]


class Confirmed(Score, kw_only=True):
    """A second score of a snapshot whose first one reached the goal."""

    updates: Count


class Filmed(msgspec.Struct):
    """A video: its file, and its snapshot."""

    updates: Count
    env_steps: Count
    metrics: dict[str, float]
    file: str


class Saved(msgspec.Struct):
    """A written snapshot, and its store."""

    store: Literal["state", "params"]
    version: Version
    tags: list[str]


class Notice(msgspec.Struct):
    """A warning or note."""

    once: str = ""


class GameLease(msgspec.Struct, forbid_unknown_fields=True):
    """An assignment for an actor.

    Attributes:
      id: of the assignment. session: incarnation of the director that gave it. players: of each side, (number of the policy,
        version).
      learns: whether each side's rows are trained on. task: for the environment's reset.
      before: the assignment that its slot had before this one; -1: none, or not known.
    """

    id: Count
    session: Count
    players: list[tuple[int, int]]
    learns: list[bool]
    task: Any = None
    before: int = -1


class Played(msgspec.Struct, forbid_unknown_fields=True):
    """The end of an assignment's episode: its length and the returns of the sides, or why it does not count."""

    id: Count
    session: Count
    length: Count = 0
    returns: list[float] = []
    discarded: str = ""


class GroupStep(msgspec.Struct, forbid_unknown_fields=True):
    """Results of one step of a group of environments.

    Attributes:
      step: its number, from the start of the run. number: of the message, in this incarnation of the actor.
      played: games that ended. slots: that need an assignment.
    """

    group: Count
    step: Count
    number: Count
    played: list[Played] = []
    slots: list[Count] = []


class Games(msgspec.Struct, forbid_unknown_fields=True):
    """An actor's finished games, and how many assignments it needs.

    Attributes:
      want: number that it needs. held: number that it has and does not play yet. received: so far, from this `session` of
        the director. holds: now and then, the ids of all that it has or plays from this session; None: not said now.
      moments: instead of all this, in deterministic runs.
    """

    played: list[Played]
    want: Count
    held: Count
    received: Count
    session: int
    moments: list[GroupStep] = []
    holds: list[Count] | None = None


class ForwardedCommand(msgspec.Struct):
    """A command for another worker, or for the learner of a policy (one of the two is empty)."""

    command: str
    facts: dict[str, Any]
    worker: str = ""
    policy: str = ""


class CommandDone(msgspec.Struct):
    """A learner executed the director's command of this ticket; `error`: or why it could not."""

    ticket: int
    version: int = -1
    error: str = ""


class Scores(msgspec.Struct):
    """A learner's scores of games that ended: the fields of jsrl.directors.messages.Score, in their order.

    `policy`: number of the learner's policy. `batches`: number trained on so far.
    """

    scores: list[tuple[Count, float, float, float, float]]
    policy: Count = 0
    batches: Count = 0


class Saving(msgspec.Struct):
    """A learner is about to write a snapshot of this version."""

    version: Version


class StandIn(msgspec.Struct):
    """A learner of this policy wants another number of trajectories of some groups, for every batch from `batch` on.

    `generation`: of the learner. `each`: (group, number) pairs.
    """

    policy: Count
    generation: Count
    batch: Count
    each: list[tuple[Count, Annotated[int, msgspec.Meta(ge=1, le=MOST)]]]


class Stopped(msgspec.Struct):
    """A director ends the run; `why`: for the user."""

    why: str = ""


EVENTS: dict[str, type[msgspec.Struct]] = {
    "finished": Finished,
    "evaluated": Evaluated,
    "confirmed": Confirmed,
    FINAL: Score,
    "filmed": Filmed,
    "saved": Saved,
    "warning": Notice,
    "note": Notice,
    "games": Games,
    "command": ForwardedCommand,
    "done": CommandDone,
    "scores": Scores,
    "saving": Saving,
    "stand_in": StandIn,
    "stop": Stopped,
}


SHOWN_EVENTS = {"warning", "note"}
RESERVED_EVENTS = EVENTS.keys() - SHOWN_EVENTS  # see Kind.sends


def complaint(message: AnyMessage) -> str:
    """Return why the body of a message is invalid; empty: it is valid."""
    if isinstance(message, Report):
        why = _named(message.metrics) or _unlike(message.facts, WorkerStatus)
        return why or (_unlike(message.facts[FINAL], Score) if FINAL in message.facts else "")
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


def texts_of(message: AnyMessage) -> tuple[list[str], list[str]]:
    """Return (texts, names) of a message: what the controller shows each time; what it keeps or shows once."""
    if isinstance(message, Crash):
        return [message.error, message.text, message.trace], []
    if isinstance(message, Stacks):
        return [message.text], []
    if isinstance(message, Stage | Heartbeat):  # only the newest is kept
        return [], [_NUMBER.sub("0", message.stage if isinstance(message, Stage) else message.activity)]
    if isinstance(message, Event):
        is_note = message.name == "note"
        said = [value for value in message.facts.values() if isinstance(value, str)]
        return [message.text] if is_note else [], [*said, *metrics_of(message), *([] if is_note else [message.text])]
    return [], [*metrics_of(message), *_names_in(message.facts)]


def metrics_of(message: AnyMessage) -> dict[str, float]:
    found = message.facts.get("metrics") if isinstance(message, Event) else getattr(message, "metrics", {})
    return found if isinstance(found, dict) else {}


def _names_in(value: Any) -> Iterator[str]:
    """Yield the texts in a fact that do not change with its numbers."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield str(name)
            yield from _names_in(part)
    elif isinstance(value, str):
        yield value
    elif not isinstance(value, int | float | None):
        yield repr(value)


class _Beat(msgspec.Struct):
    progress: Count


class _Place(msgspec.Struct):
    pid: Count


def _unlike(facts: dict[str, Any], body: type[msgspec.Struct]) -> str:
    """Return how facts differ from their schema; all numbers of a score must be finite, except metrics."""
    try:
        found = msgspec.convert(facts, body)
    except (msgspec.ValidationError, RecursionError) as error:
        return f"{error}"
    if isinstance(found, Score):
        checked = facts.keys() - {"metrics"} if isinstance(found, Evaluated) else facts.keys()
        wrong = [name for name in facts if name in checked and not _finite(facts[name])]
        if wrong:
            return f"{wrong[0][:80]} is {facts[wrong[0]]!r:.80}, expected a finite number"
    return _named(getattr(found, "metrics", {}))


def _named(metrics: dict[str, float]) -> str:
    """Return which metric has no worker in its name, such as `env_steps`, which the controller counts itself."""
    wrong = [name for name in metrics if "/" not in name]
    return f"metric {wrong[0][:80]!r} has no worker in its name, expected such as actor/episodes" if wrong else ""


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
