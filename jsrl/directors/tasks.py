"""Tasks for the newest params of all policies: the base of curricula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jsrl.directors.base import Bookkeeping, State, check_policies, check_range
from jsrl.directors.draws import Draws
from jsrl.directors.messages import Assignment, Player


@dataclass(frozen=True)
class SelfPlayTasks(Bookkeeping):
    """Base of curricula: all players use the newest params, on tasks that the director chooses."""

    policies: tuple[str, ...] = ("main",)
    """One: it plays all sides. Several: policy i plays side i."""
    num_sides: int = 1
    """Sides of the environment, if one policy plays all of them."""

    def __post_init__(self) -> None:
        check_policies(self, self.policies)
        check_range(self, 1, 1_000, num_sides=self.num_sides)

    def _assign_task(self, state: State, draws: Draws, task: Any, *, learns: bool = True, **kept: Any) -> Assignment:
        names = self.policies if len(self.policies) > 1 else self.policies * self.num_sides
        players = [Player(name) for name in names]
        return self._assign(state, draws, players, [learns] * len(names), range(len(names)), task=task, **kept)
