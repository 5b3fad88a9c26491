"""Messages between a director and a run: assignments out, outcomes and scores in, commands out."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from jsrl.errors import ConfigError

LATEST = "latest"
"""Version: the newest params of a policy that learns."""
INITIAL = "initial"
"""Version: the first params of a policy. It exists from the start of the run."""


class Player(NamedTuple):
    """A policy at a version: LATEST, INITIAL, or the name under which it was frozen. Written `policy@version`."""

    policy: str
    version: str = LATEST

    def __str__(self) -> str:
        return f"{self.policy}@{self.version}"


def parse_player(text: str) -> Player:
    policy, _, version = text.partition("@")
    return Player(policy, version or LATEST)


@dataclass(frozen=True)
class Assignment:
    """The assignment of one episode. An actor takes it at is_first and keeps it until the episode ends.

    A side is the set of seats of one player: a team, or one role of a team.

    Attributes:
      id: unique in the run; assignments are numbered from 0 in the order of their proposals.
      players: one for each side. The assignment counts for the first one.
      learns: for each player: whether its rows train its policy.
      sides: a permutation: `players[i]` plays side `sides[i]` of the environment.
      seed: for an episode that you play in your own loop. Actors of a run do not use it: their environments have seeds.
      task: JSON value for the environment's reset; None: the environment's own.
    """

    id: int
    players: tuple[Player, ...]
    learns: tuple[bool, ...]
    sides: tuple[int, ...]
    seed: int
    task: Any = None


@dataclass(frozen=True)
class Outcome:
    """The actor's report: how the episode of an assignment ended. Returns and results are in the order of sides.

    Attributes:
      assignment: its id.
      length: env steps.
      returns: sum of rewards over the seats of each side, undiscounted.
      result: for each side 1 (won), 0.5 (draw) or 0 (lost); None: the environment has no winners.
      discarded: why the episode does not count (its actor died, a player changed during it); empty: it counts.
    """

    assignment: int
    length: int = 0
    returns: tuple[float, ...] = ()
    result: tuple[float, ...] | None = None
    discarded: str = ""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.returns)):
            raise ConfigError(
                f"assignment {self.assignment} ended with returns {self.returns}; finite numbers are expected. "
                "Report the episode as discarded instead"
            )
        if self.result is not None and not all(0.0 <= points <= 1.0 for points in self.result):
            raise ConfigError(
                f"assignment {self.assignment} ended with result {self.result}; give each side 1, 0.5 or 0"
            )


@dataclass(frozen=True)
class Score:
    """The learner's report: how much the rows of an assignment can still teach.

    The first score of an assignment counts; it may come before or after the outcome. Means are over the rows in which the
    policy acted. With GAE the error of a row, the value function's target less its value, is the advantage.

    Attributes:
      value: mean |error|. positive: mean of max(error, 0).
      predicted: mean of the value function. episode_return: mean over agents of the undiscounted sum of rewards.
    """

    assignment: int
    value: float
    positive: float = 0.0
    predicted: float = 0.0
    episode_return: float = 0.0

    def __post_init__(self) -> None:
        values = self.value, self.positive, self.predicted, self.episode_return
        if not all(map(math.isfinite, values)):
            raise ConfigError(f"assignment {self.assignment} has the scores {values}; report finite numbers, or none")


@dataclass(frozen=True)
class Freeze:
    """Keep the latest params of a policy permanently, as version `name`."""

    policy: str
    name: str


@dataclass(frozen=True)
class Reset:
    """Let a policy continue learning, from its next update, from another of its versions, with a fresh optimizer state."""

    policy: str
    source: str = INITIAL


@dataclass(frozen=True)
class Copy:
    """Give a policy, at its next update, the current whole state of the policy `source`, and these hyperparameters."""

    policy: str
    source: str
    hyperparameters: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """End the run."""

    reason: str = ""


Command: TypeAlias = Freeze | Reset | Copy | Stop
Message: TypeAlias = Assignment | Outcome | Score | Command
KINDS: dict[str, type] = {kind.__name__: kind for kind in (Assignment, Outcome, Score, Freeze, Reset, Copy, Stop)}


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON values; its type is under the key `type`, players are written `policy@version`."""
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    if isinstance(message, Assignment):
        fields["players"] = [str(player) for player in message.players]
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"type": type(message).__name__, **listed}


def from_json(values: dict[str, Any]) -> Message:
    kind = KINDS.get(values.get("type", ""))
    if kind is None:
        raise ConfigError(f"a message of type {values.get('type')!r}; expected one of {', '.join(KINDS)}")
    fields = {name: value for name, value in values.items() if name != "type"}
    for name in ("learns", "sides", "returns", "result"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    if kind is Assignment:
        fields["players"] = tuple(map(parse_player, fields["players"]))
    return kind(**fields)
