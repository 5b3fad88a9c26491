"""The interface between the loop over single environments and an environment with seats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces


class SeatSpaces(NamedTuple):
    """A seat's name, Gymnasium spaces, and side (empty: its own)."""

    name: str
    observation: spaces.Space
    action: spaces.Space
    side: str = ""


@dataclass
class EnvState:
    """The state of an environment after a reset or a step.

    Attributes:
      observation: of the seats in the game: those that lived before the step, and possibly others.
      acting: the seats that act in the next step; after the last step of an episode, those that would have acted.
      reward: of the seats that lived before the step. terminated, truncated: those of them that ended in it.
      revived: seats that are present although they had ended, or were absent at the start of the episode.
      state: the global state, None: there is none. info: of each seat.
    """

    observation: Mapping[str, Any]
    acting: Collection[str]
    reward: Mapping[str, float] = field(default_factory=dict)
    terminated: Collection[str] = ()
    truncated: Collection[str] = ()
    revived: Collection[str] = ()
    state: Any = None
    info: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class PlayedGame(Protocol):
    """One environment with seats.

    Attributes:
      seats: all possible seats, in their order. state_space: of the global state, None: there is none.
      symmetric: as in GameSpec; so is `zero_sum`, where there is one.
    """

    seats: tuple[SeatSpaces, ...]
    state_space: spaces.Space | None
    symmetric: bool

    def reset(self, seed: int | None) -> EnvState:
        """Begin an episode; None: with its current random state.

        If its `takes_options` is true, a task's options are a second argument, when there are some.
        """
        ...

    def step(self, action: Mapping[str, Any]) -> EnvState:
        """Take one action of each seat in the last moment's `acting`."""
        ...

    def close(self) -> None:
        """Free its resources."""
        ...
