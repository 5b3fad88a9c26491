"""Players of matches: policies with the seats that they can play, under one name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from jsrl.errors import ConfigError
from jsrl.types import Array, GameSpec, Tree


@dataclass(frozen=True)
class SeatPolicy:
    """A policy that acts for seats.

    Attributes:
      places: of its N seats in the order of all.
      act: (observation [B, N, ...], is_first [B]) -> actions [B, N, ...], as agents store them.
    """

    places: tuple[int, ...]
    act: Callable[[Tree, Array], Array]


@dataclass(frozen=True)
class Contestant:
    """A player of matches: one policy, or several with different seats. It plays any side whose seats it has."""

    name: str
    policies: tuple[SeatPolicy, ...]

    @property
    def places(self) -> frozenset[int]:
        """Return the seats that it can play."""
        return frozenset(place for policy in self.policies for place in policy.places)


def places_of_sides(spec: GameSpec) -> list[frozenset[int]]:
    """Return the places of the seats of each side."""
    sides = spec.sides
    return [
        frozenset(place for place, own in enumerate(sides) if own == side) for side in range(max(sides, default=0) + 1)
    ]


def find_sides(
    spec: GameSpec, home: Contestant, away: Contestant, wanted: Collection[int] | None = None
) -> tuple[int, ...]:
    """Return the sides that `home` can play while `away` plays all others.

    Args:
      wanted: consider only these sides; None: all.

    Raises:
      ConfigError: there is none.
    """
    sides = places_of_sides(spec)
    if len(sides) < 2:
        raise ConfigError(
            f"all seats of {spec.name!r} are on one side, so there are no opponents; evaluate without one."
        )
    every = frozenset(range(len(spec.seats)))
    found = tuple(
        side
        for side, own in enumerate(sides)
        if (wanted is None or side in wanted) and own <= home.places and every - own <= away.places
    )
    if not found:
        raise ConfigError(
            f"{home.name} has the seats {_named(spec, home.places)} of {spec.name!r}, {away.name} has "
            f"{_named(spec, away.places)}; one must have all seats of a side, and the other all the rest. Sides: "
            f"{'; '.join(_named(spec, own) for own in sides)}."
        )
    return found


def _named(spec: GameSpec, places: Collection[int]) -> str:
    return ", ".join(spec.names[place] for place in sorted(places)) or "none"
