"""Fixed matches, drawn by weight, and self-play against the newest params."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jsrl.directors.base import Bookkeeping, SelfPlayTasks, State, check_policies
from jsrl.directors.draws import Draws
from jsrl.directors.messages import LATEST, Assignment, parse_player
from jsrl.errors import ConfigError
from jsrl.fields import NonNegativeFloat, PositiveInt, option, suggesting


@suggesting
@dataclass(frozen=True)
class Match:
    """One way to fill the sides of an environment."""

    # fmt: off
    players: tuple[str, ...] = option(help="`policy` (its latest version, which learns) or `policy@version` (frozen), "
        "one for each side.")
    weight: NonNegativeFloat = option(1.0, "How often it is drawn, relative to other matches.")
    task: Any = option(None, "JSON value for the environment's reset; None: the environment's own.")
    # fmt: on


@suggesting
@dataclass(frozen=True)
class Fixed(Bookkeeping):
    """The same matches throughout: each assignment draws one by its weight. Latest versions learn, others do not."""

    # fmt: off
    matches: tuple[Match, ...] = option(help="The matches to draw from; a list of weighted tasks is one match for "
        "each task.")
    permute_sides: bool = option(False, "Seat the players at random sides; for symmetric games.")
    # fmt: on

    def __post_init__(self) -> None:
        sizes = {len(match.players) for match in self.matches}
        if len(sizes) != 1 or 0 in sizes:
            raise ConfigError(
                f"Fixed has matches of {sorted(sizes)} players; give at least one match, all with one player for each side"
            )
        if not 0.0 < sum(match.weight for match in self.matches) < float("inf"):
            raise ConfigError("Fixed has matches whose weights are all 0, or infinite; give one a positive weight")
        check_policies(self, self.policies)

    @property
    def policies(self) -> tuple[str, ...]:
        names = (parse_player(text).policy for match in self.matches for text in match.players)
        return tuple(dict.fromkeys(names))

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        match = self.matches[draws.choose([match.weight for match in self.matches])]
        players = [parse_player(text) for text in match.players]
        sides = draws.permutation(len(players)) if self.permute_sides else range(len(players))
        learns = [player.version == LATEST for player in players]
        return self._assign(state, draws, players, learns, list(sides), task=match.task)


@suggesting
@dataclass(frozen=True)
class LatestSelfPlay(SelfPlayTasks):
    """All players use the newest params, and learn.

    It need not converge: even exact best responses to the latest opponent cycle in Kuhn poker.
    """

    # fmt: off
    num_sides: PositiveInt = option(2, "Sides of the environment, if one policy plays all of them.")
    # fmt: on

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        return self._assign_task(state, draws, None)
