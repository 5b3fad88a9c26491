"""Sums over priorities on the host: a tree with a fan-out of 16 in numpy, all draws and changes at once.

Like jsrl.replay.device.tree; a parent is recomputed from its children, so the tree does not drift.
"""

from __future__ import annotations

import numpy as np

FAN_OUT = 16  # measured for 256 to 8,192 draws (benchmarks/replay.py): 64 reads more than it saves, 2 needs more passes
ROUNDING = 1e-12  # a sum may be less by this share than its parts: no point may go beyond the last of them
SEARCHED = 4096  # up to this number sums are searched at once, which is faster than level by level


class HostTree:
    """`size` weights, all 0 at first, and the sums of their families up to one total."""

    def __init__(self, size: int, fan_out: int = FAN_OUT) -> None:
        self.size, self._fan_out = size, fan_out
        self._levels: list[np.ndarray] = []
        while True:
            families = -(-size // fan_out)
            self._levels.append(np.zeros((families, fan_out)))
            if families == 1:
                break
            size = families
        self._searched = next(i for i, level in enumerate(self._levels) if level.size <= max(SEARCHED, fan_out))

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum())

    @property
    def weights(self) -> np.ndarray:
        """Return the weights [size]: a view, not to be written."""
        return self._levels[0].reshape(-1)[: self.size]

    def set(self, at: np.ndarray, weights: np.ndarray | float) -> None:
        """Write weights at places [M]; if a place occurs twice the last weight stays."""
        if not len(at):
            return
        self._levels[0].reshape(-1)[at] = weights
        parents = at
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            parents = _distinct(parents // self._fan_out)
            above.reshape(-1)[parents] = below[parents].sum(axis=1)

    def find(self, points: np.ndarray) -> np.ndarray:
        """Return the places of points [M] in [0, 1): place i is found with probability w_i / total.

        A place of weight 0 is never found unless all weights are 0.
        """
        upto = np.concatenate(([0.0], self._levels[self._searched].reshape(-1).cumsum()))
        rest = np.minimum(points, 1.0 - ROUNDING) * upto[-1]
        families = np.minimum(upto[1:].searchsorted(rest, side="right"), len(upto) - 2)
        rest -= upto[families]
        rows = np.arange(len(points))
        upto = np.zeros((len(points), self._fan_out + 1))
        for level in self._levels[self._searched - 1 :: -1] if self._searched else ():
            np.cumsum(level[families], axis=1, out=upto[:, 1:])
            np.minimum(rest, upto[:, -1] * (1.0 - ROUNDING), out=rest)
            child = (upto[:, 1:] <= rest[:, None]).sum(axis=1)
            np.minimum(child, self._fan_out - 1, out=child)
            rest -= upto[rows, child]
            families = families * self._fan_out + child
        return families


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct numbers; numbers of a range are sorted already."""
    if len(numbers) > 1 and not (numbers[1:] >= numbers[:-1]).all():
        numbers = np.sort(numbers)
    keep = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=keep[1:])
    return numbers[keep]
