"""One policy's view of environments with several seats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, Episode, GameStep
from jsrl.errors import AgentFault
from jsrl.types import ACTING, Array

NO_SEATS = ""  # the group of the agent of an environment without seats


@dataclass(frozen=True)
class SeatView:
    """The seats of one policy.

    Attributes:
      group: its name among the groups of a VectorGame. places: of its N seats in the order of all.
    """

    group: str
    places: tuple[int, ...]

    @cached_property
    def index(self) -> Any:
        """Return an index of the seats: a slice if they are contiguous, which copies nothing."""
        first = self.places[0]
        follow = self.places == tuple(range(first, first + len(self.places)))
        return slice(first, first + len(self.places)) if follow else list(self.places)

    def step(self, step: GameStep) -> EnvStep:
        """Return the part of a step: observations, rewards, discounts and acts [B, N, ...]."""
        seats = self.index
        reward, discount, acts = (values[:, seats] for values in (step.reward, step.discount, step.acts))
        return EnvStep(step.observation[self.group], step.is_first, reward, discount, acts, step.episodes, step.state)

    def return_of(self, episode: Episode) -> float:
        """Return the mean of the seats' returns in an episode."""
        return float(np.mean([episode.returns[place] for place in self.places]))


def seats_named(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the seat of this name, which may have brackets or stars; if there is none, the seats that match the pattern."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def view_of(group: str, places: Sequence[int]) -> SeatView | None:
    """Return the view of a policy's seats; None: the environment has one agent and no seats."""
    return SeatView(group, tuple(places)) if places else None


def seat_group(view: SeatView | None) -> str:
    return NO_SEATS if view is None else view.group


def part_of(view: SeatView | None, step: EnvStep | GameStep) -> EnvStep:
    """Return a policy's part of a step: all of it if the environment has no seats."""
    if view is None:
        assert isinstance(step, EnvStep)
        return step
    assert isinstance(step, GameStep)
    return view.step(step)


def finite_actions(action: Array, part: EnvStep) -> Array:
    """Return a policy's actions for its part of a step, which must be finite in rows that act.

    Raises:
      AgentFault: one is not. The environment would be blamed for what it makes of it.
    """
    if action.dtype.kind != "f" or np.isfinite(action).all():
        return action
    counts = np.array(part.acts) == ACTING
    counts[[episode.slot for episode in part.episodes]] = False
    for place in np.argwhere(~np.isfinite(action).all(axis=-1) & counts)[:1].tolist():
        raise AgentFault(
            f"the agent's act chose {action[tuple(place)].tolist()} for slot {place[0]}; expected finite actions. Look for a "
            "division by zero, the logarithm or root of a negative number, or params that have diverged"
        )
    return action


def actions_of(chosen: Iterable[tuple[SeatView | None, Array]]) -> Any:
    """Return the policies' actions in the environment's form: group -> [B, N, ...], or [B, ...] of its only agent."""
    actions = {}
    for view, action in chosen:
        if view is None:
            return action
        actions[view.group] = action
    return actions
