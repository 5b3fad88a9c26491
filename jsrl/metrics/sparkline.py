"""A curve as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float] | np.ndarray, width: int = 24) -> str:
    """Return finite values as at most `width` bars between their minimum and maximum (neighbours are averaged)."""
    finite = np.asarray([value for value in values if np.isfinite(value)], np.float64)
    if not finite.size:
        return ""
    points = np.array([part.mean() for part in np.array_split(finite, min(width, finite.size))])
    low, high = points.min(), points.max()
    if high == low:
        return _BARS[3] * points.size
    levels = np.rint((points - low) / (high - low) * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[level] for level in levels)
