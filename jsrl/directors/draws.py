"""Random numbers whose whole state is two integers: a seed and how many numbers were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """Return 64 bits that look random, as a bijection of the 64 bits of `value`."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Draws:
    """SplitMix64 as a counter-based generator: number n depends only on the seed and n.

    It is the same on every machine and with every version of NumPy, so that a run is reproducible bit for bit.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), figure 12.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        """Draw from, and count in, the keys `seed` and `draws` of `state`."""
        self._state = state
        self._key = _mix(state["seed"] & _MASK)

    def bits(self) -> int:
        self._state["draws"] += 1
        return _mix((self._key + self._state["draws"] * _GAMMA) & _MASK)

    def uniform(self) -> float:
        return (self.bits() >> 11) * 2.0**-53

    def below(self, limit: int) -> int:
        return int(self.uniform() * limit)

    def choose(self, weights: Sequence[float]) -> int:
        """Return an index, in proportion to weights; uniformly if all are 0."""
        total = sum(weights)
        if total <= 0.0:
            return self.below(len(weights))
        left, chosen = self.uniform() * total, 0
        for index, weight in enumerate(weights):
            if weight > 0.0:
                chosen = index  # rounding may leave a remainder: the last positive weight gets it
                left -= weight
                if left < 0.0:
                    break
        return chosen

    def permutation(self, size: int) -> list[int]:
        """Return the numbers 0 to size - 1 in random order (Fisher-Yates)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def seed(self) -> int:
        return self.bits() >> 33
