"""Players of matches: policies with the seats that they can play, under one name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

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
        return frozenset(place for policy in self.policies for place in policy.places)


def places_of_sides(spec: GameSpec) -> list[frozenset[int]]:
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


MOST_SIDES = 5  # up to here all orders of the players are used; with more sides some are drawn
DRAWN_ORDERS = 24


def seatings(spec: GameSpec, players: Sequence[Contestant], seed: int = 0) -> list[tuple[int, ...]]:
    """Return the seatings of successive games: the player of each side, by number.

    Each order comes with its rotations, so that each player has each side equally often. Fewer players than sides sit at
    several sides, in turn.

    Args:
      seed: of the orders of more than MOST_SIDES sides.
    """
    sides, num = places_of_sides(spec), len(players)
    draws, found = np.random.default_rng(seed), dict[tuple[int, ...], None]()
    for first in range(num if num < len(sides) else 1):
        seated = [(first + side) % num for side in range(len(sides))]
        orders: Iterable[Sequence[int]] = itertools.permutations(seated[1:])
        if len(sides) > MOST_SIDES:
            orders = (draws.permutation(seated[1:]).tolist() for _ in range(DRAWN_ORDERS))
        for order in orders:
            whole = (seated[0], *order)
            found |= dict.fromkeys(whole[-turn:] + whole[:-turn] for turn in range(len(sides)))
    fitting = [one for one in found if all(own <= players[i].places for own, i in zip(sides, one, strict=True))]
    if not fitting:
        have = "; ".join(f"{player.name} has {_named(spec, player.places)}" for player in players)
        raise ConfigError(
            f"these players cannot fill the sides of {spec.name!r} ({'; '.join(_named(spec, own) for own in sides)}): {have}. "
            "Each needs all seats of a side."
        )
    return fitting


def tables(num_players: int, num_sides: int) -> list[tuple[int, ...]]:
    """Return which players meet at one table, by number, so that each pair meets.

    With two sides these are the pairs. With more sides they are all groups of as many players as sides. If there are more
    groups than pairs, only some are taken, so that each pair meets and all play about equally often.
    """
    size = min(num_players, num_sides)
    if math.comb(num_players, size) <= math.comb(num_players, 2):
        return list(itertools.combinations(range(num_players), size))
    met, found = np.eye(num_players, dtype=int) * num_players**2, list[tuple[int, ...]]()
    while met.min() == 0:
        unmet: list[list[int]] = np.argwhere(met == 0).tolist()
        one, other = min(unmet, key=lambda pair: int(met[pair[0]].sum() + met[pair[1]].sum()))
        chosen = [one, other]
        while len(chosen) < size:
            others = [one for one in range(num_players) if one not in chosen]
            known = {one: (np.count_nonzero(met[one, chosen]), int(met[one].sum())) for one in others}
            chosen.append(min(others, key=known.__getitem__))
        met[np.ix_(chosen, chosen)] += 1
        found.append(tuple(sorted(chosen)))
    return found


def _named(spec: GameSpec, places: Collection[int]) -> str:
    return ", ".join(spec.names[place] for place in sorted(places)) or "none"
