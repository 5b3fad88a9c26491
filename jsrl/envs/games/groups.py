"""Groups of seats, one for each policy: stacks their observations and splits their actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jsrl.errors import ConfigError
from jsrl.references.importing import nearest
from jsrl.types import Array, GameSpec, Tree, map_tree


class SeatGroups:
    """The seats of each group, in order.

    Attributes:
      names: group -> names of its seats. index: group -> their positions among all seats, int [N_g].
      places: of each seat in the order of all: (group, index in it).
    """

    def __init__(self, spec: GameSpec, groups: Mapping[str, tuple[str, ...]] | None):
        """Use the given groups; None: each seat is a group.

        Raises:
          ConfigError: a seat that does not exist, is in two groups or in none, or groups of different seats.
        """
        asked = {name: (name,) for name in spec.names} if groups is None else groups
        self.names = {group: tuple(seats) for group, seats in asked.items()}
        counts = Counter(seat for seats in self.names.values() for seat in seats)
        for seat in counts:
            if seat not in spec.names:
                raise ConfigError(
                    f"environment {spec.name!r} has no seat {seat!r}{nearest(seat, spec.names)}; its seats are "
                    f"{', '.join(spec.names)}"
                )
        for seat in spec.names:
            if counts[seat] != 1:
                held = [group for group, seats in self.names.items() if seat in seats]
                raise ConfigError(
                    f"seat {seat!r} of {spec.name!r} is in {'the groups ' + ', '.join(held) if held else 'no group'}; put "
                    "each seat into one group"
                )
        for seats in self.names.values():
            spec.view(seats)
        self.index = {group: np.array(spec.index(seats)) for group, seats in self.names.items()}
        place = {seat: (group, i) for group, seats in self.names.items() for i, seat in enumerate(seats)}
        self.places = [place[name] for name in spec.names]

    def stacked(self, seats: Sequence[Tree]) -> dict[str, Tree]:
        """Return group -> tree of [B, N_g, ...] from every seat's tree of [B, ...]."""
        return {group: _stack([seats[i] for i in index.tolist()]) for group, index in self.index.items()}

    def divided(self, seats: Array) -> dict[str, Array]:
        """Return group -> [B, N_g, ...] from an array [B, N, ...] of all seats in their order."""
        everybody = np.arange(seats.shape[1])
        return {
            group: seats if np.array_equal(index, everybody) else seats[:, index] for group, index in self.index.items()
        }

    def actions(self, action: Mapping[str, Array]) -> list[Any]:
        """Return each seat's actions [B, ...] from group -> [B, N_g, ...]."""
        arrays = {group: np.asarray(array) for group, array in action.items()}
        return [arrays[group][:, i] for group, i in self.places]


def _stack(trees: list[Tree]) -> Tree:
    return map_tree(lambda *leaves: np.stack(leaves, axis=1), *trees)
