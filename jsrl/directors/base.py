"""The protocol of directors, and the bookkeeping that all directors of jsrl share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from jsrl.directors.draws import Draws
from jsrl.directors.messages import Assignment, Command, Outcome, Player, Score, parse_player
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, option, suggesting

State: TypeAlias = dict[str, Any]
"""A director's state: JSON values only."""
Report: TypeAlias = Outcome | Score
FORMAT = 1
"""Version of the state's layout."""


class Director(Protocol):
    """Decides what is played and changes the policies. Its functions are pure: state in, state out.

    The same seed and the same calls give the same assignments and commands, bit for bit. The state consists of JSON values:
    a run keeps it in its snapshots.
    """

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that it assigns and commands."""

    def init(self, seed: int) -> State:
        """Return the state before the first assignment."""

    def propose(self, state: State, num: int) -> tuple[State, list[Assignment]]:
        """Return the next `num` assignments."""

    def report(self, state: State, reports: Sequence[Report]) -> tuple[State, list[Command]]:
        """Record outcomes and scores; execute the commands in order, before the next proposal."""


class Bookkeeping(ABC):
    """Base of our directors: numbers assignments, copies the state, and counts: assigned = finished + discarded + open.

    An outcome of an assignment that is not open (because it was given up, or the message came twice) is counted as
    `late` and changes nothing else.
    """

    def init(self, seed: int) -> State:
        counts = {"assigned": 0, "finished": 0, "discarded": 0, "late": 0}
        return {
            "format": FORMAT,
            "director": type(self).__name__,
            "seed": seed,
            "draws": 0,
            **counts,
            "open": {},
            **self._start(),
        }

    def propose(self, state: State, num: int) -> tuple[State, list[Assignment]]:
        state = self._checked(state)
        draws, cache = Draws(state), {}  # type: Draws, dict[Any, Any]
        return state, [self._next(state, draws, cache) for _ in range(num)]

    def report(self, state: State, reports: Sequence[Report]) -> tuple[State, list[Command]]:
        state = self._checked(state)
        commands: list[Command] = []
        for report in reports:
            if isinstance(report, Score):
                self._score(state, report)
                continue
            record = state["open"].pop(str(report.assignment), None)
            if record is None:
                state["late"] += 1
                continue
            state["discarded" if report.discarded else "finished"] += 1
            commands += self._ended(state, record, report)
        return state, commands

    def results(self, state: State) -> tuple[list[Player], np.ndarray, np.ndarray]:
        return [], np.zeros((0, 0)), np.zeros((0, 0))

    # -- implemented by a director -------------------------------------------------------------------------------------

    def _start(self) -> State:
        """Return the director's own part of the first state."""
        return {}

    @abstractmethod
    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        """Return one assignment, made by `_assign`. Reports change nothing while the same `cache` is passed."""

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterable[Command]:
        """Record an outcome, even a discarded one. `record`: data kept by `_assign`."""
        return ()

    def _score(self, state: State, score: Score) -> None:  # noqa: B027  (most directors need no scores)
        ...

    # -- used by a director --------------------------------------------------------------------------------------------

    def _assign(
        self,
        state: State,
        draws: Draws,
        players: Sequence[Player],
        learns: Sequence[bool],
        sides: Sequence[int],
        *,
        task: Any = None,
        **kept: Any,
    ) -> Assignment:
        """Number an assignment and open it; `kept` is returned with its outcome."""
        game = state["assigned"]
        state["assigned"] += 1
        state["open"][str(game)] = {
            "players": [str(player) for player in players],
            "learns": list(learns),
            "sides": list(sides),
            **kept,
        }
        return Assignment(game, tuple(players), tuple(learns), tuple(sides), draws.seed(), task)

    def _checked(self, state: State) -> State:
        name = type(self).__name__
        if (state.get("director"), state.get("format")) != (name, FORMAT):
            raise ConfigError(
                f"a state of {state.get('director')}, format {state.get('format')}, was given to {name}, which reads "
                f"its own of format {FORMAT}. Resume with the director that the run began with, or start a new run"
            )
        return json.loads(json.dumps(state))  # the fastest copy, and what a resumed run starts from


def open_assignments(state: State) -> list[int]:
    """Return the ids of the assignments without an outcome, oldest first.

    A run that resumes from a snapshot reports as discarded those that no actor plays any more. Games that were
    assigned later wait for them.
    """
    return [int(game) for game in state["open"]]


def players_of(record: State) -> tuple[Player, ...]:
    return tuple(map(parse_player, record["players"]))


def learning_policies(record: State) -> list[str]:
    """Return the policies that an open assignment trains, without repetition."""
    pairs = zip(players_of(record), record["learns"], strict=True)
    return list(dict.fromkeys(player.policy for player, learns in pairs if learns))


def of_players(record: State, per_side: Sequence[float]) -> list[float]:
    """Return numbers by player, from numbers in the order of sides."""
    if len(per_side) != len(record["sides"]):
        raise ConfigError(
            f"an outcome has {len(per_side)} numbers where the assignment has {len(record['sides'])} sides; "
            "report one return and one result for each side"
        )
    return [per_side[side] for side in record["sides"]]


def check_policies(director: Any, policies: Sequence[str], at_least: int = 1, at_most: int | None = None) -> None:
    name = type(director).__name__
    if not at_least <= len(policies) <= (at_most or len(policies)):
        wanted = str(at_least) if at_least == at_most else f"{at_least} to {at_most}" if at_most else f">= {at_least}"
        raise ConfigError(f"{name} has the policies {list(policies)}; it needs {wanted} of them")
    if len(set(policies)) < len(policies):
        raise ConfigError(f"{name} has the policies {list(policies)}; name each of them once")
    for policy in policies:
        if not policy or any(letter.isspace() or letter == "@" for letter in policy):
            raise ConfigError(f"{name} has a policy {policy!r}; names have no space and no @, and are not empty")


@suggesting
@dataclass(frozen=True)
class SelfPlayTasks(Bookkeeping):
    """Base of curricula: all players use the newest params, on tasks that the director chooses."""

    # fmt: off
    policies: tuple[str, ...] = option(("main",), "One: it plays all sides. Several: policy i plays side i.")
    num_sides: PositiveInt = option(1, "Sides of the environment, if one policy plays all of them.")
    # fmt: on

    def __post_init__(self) -> None:
        check_policies(self, self.policies)

    def _assign_task(self, state: State, draws: Draws, task: Any, *, learns: bool = True, **kept: Any) -> Assignment:
        names = self.policies if len(self.policies) > 1 else self.policies * self.num_sides
        players = [Player(name) for name in names]
        return self._assign(state, draws, players, [learns] * len(names), range(len(names)), task=task, **kept)
