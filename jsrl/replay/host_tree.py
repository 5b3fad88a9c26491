"""Sums over priorities on the host: a tree with a fan-out of 16 in numpy, all draws and changes at once.

Like `device_tree`; a parent is recomputed from its children, so the tree does not drift.
"""

from __future__ import annotations

import numpy as np

FAN_OUT = 16  # measured for 256 to 8,192 draws (benchmarks/replay.py): 64 reads more than it saves, 2 makes more passes


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

    @property
    def total(self) -> float:
        """Return the sum of all weights."""
        return float(self._levels[-1].sum())

    @property
    def weights(self) -> np.ndarray:
        """Return the weights [size]: a view, not to be written."""
        return self._levels[0].reshape(-1)[: self.size]

    def set(self, at: np.ndarray, weights: np.ndarray | float) -> None:
        """Write weights at places [M]; of a place that occurs twice the last weight stays."""
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
        rest = points * self.total
        families = np.zeros(len(points), np.int64)
        for level in reversed(self._levels):
            upto = level[families].cumsum(axis=1)
            np.minimum(rest, upto[:, -1] * (1.0 - 1e-12), out=rest)  # rounding must not lead past the last weight
            child = (upto <= rest[:, None]).sum(axis=1)
            np.minimum(child, self._fan_out - 1, out=child)
            before = np.where(child > 0, np.take_along_axis(upto, np.maximum(child - 1, 0)[:, None], 1)[:, 0], 0.0)
            rest -= before
            families = families * self._fan_out + child
        return families


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers without repetitions; those of a run come sorted already."""
    if len(numbers) > 1 and not (numbers[1:] >= numbers[:-1]).all():
        numbers = np.sort(numbers)
    keep = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=keep[1:])
    return numbers[keep]
