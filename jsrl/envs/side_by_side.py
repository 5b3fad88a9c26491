"""The players of an environment with seats and their returns so far, as text on pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.seats import SeatView
from jsrl.types import EnvSpec, GameSpec

MOST_PARTS = 4  # returns in one line


class Returns:
    """The returns of the current episode of slot 0, by player: the policies, or the sides of one policy.

    Args:
      spec: of the environment. policies: (name, seats) of the players.
    """

    def __init__(self, spec: EnvSpec | GameSpec, policies: Sequence[tuple[str, SeatView | None]]) -> None:
        self._parts = _parts(spec, policies)
        self._total: np.ndarray = np.zeros(1)

    def see(self, step: EnvStep | GameStep) -> None:
        """Add a step, or start over."""
        reward = np.atleast_1d(step.reward[0])
        self._total = np.zeros(len(reward)) if step.is_first[0] else self._total + reward
        if step.episodes:
            episode = step.episodes[0]
            self._total = np.array(episode.returns or (episode.return_,))

    def __str__(self) -> str:
        """Return them in a line: `return 3.0`, or `hiders 3.0   seekers -3.0`; for several seats the mean."""
        return "   ".join(f"{name} {self._total[places].mean():,.1f}" for name, places in self._parts)


def _parts(
    spec: EnvSpec | GameSpec, policies: Sequence[tuple[str, SeatView | None]]
) -> list[tuple[str, list[int] | slice]]:
    if not isinstance(spec, GameSpec):
        return [("return", slice(None))]
    if len(policies) > 1:
        return [(name, list(view.places)) for name, view in policies if view is not None]
    sides = spec.sides
    if not 2 <= max(sides) + 1 <= MOST_PARTS:
        return [("return", slice(None))]
    found: list[tuple[str, list[int] | slice]] = []
    for side in range(max(sides) + 1):
        places = [place for place, own in enumerate(sides) if own == side]
        found.append((spec.seats[places[0]].side or spec.names[places[0]], places))
    return found
