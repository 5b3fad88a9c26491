"""Detection of growth: a slope that is robust to outliers, its interval, and levels of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z_95 = 1.959964


class Slope(NamedTuple):
    """Theil-Sen slope per unit of time with its 95% interval; NaN if there are too few samples."""

    slope: float
    low: float
    high: float


class Level(NamedTuple):
    """A count over time: the lowest of the first and of the last third, and the range over all.

    Resources that are held briefly (a snapshot being written) come and go; leaks raise the lowest value.
    """

    first: float
    last: float
    lowest: float
    highest: float

    @property
    def constant(self) -> bool:
        """Return whether the last third equals the first one."""
        return self.first == self.last


def theil_sen(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the median of all pairs' slopes, and the interval of Kendall's statistic for it.

    Source: P. K. Sen (1968), Estimates of the regression coefficient based on Kendall's tau.
    """
    x, y = np.asarray(times, float), np.asarray(values, float)
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] != x[first]
    slopes = np.sort((y[second] - y[first])[apart] / (x[second] - x[first])[apart])
    number, n = len(slopes), len(x)
    if n < 4 or not number:
        return Slope(math.nan, math.nan, math.nan)
    reach = Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((number - reach) / 2))
    high = min(number - 1, math.ceil((number + reach) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def level(values: Sequence[float]) -> Level:
    """Return the levels of a count in the first and the last third."""
    third = max(1, len(values) // 3)
    return Level(min(values[:third]), min(values[-third:]), min(values), max(values))
