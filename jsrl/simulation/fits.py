"""Straight lines through measured costs, never below zero."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jsrl.simulation.times import Cost


def fit(points: Iterable[tuple[float, float]]) -> Cost:
    """Return the cost `call_s + row_s x rows` nearest to (rows, seconds), neither part below zero.

    If all points have the same rows, half of the cost is attributed to the call.
    """
    found = [(rows, seconds) for rows, seconds in points]
    if not found:
        return Cost()
    rows = np.array([float(rows) for rows, _ in found])
    seconds = np.array([max(0.0, float(seconds)) for _, seconds in found])
    if np.ptp(rows) == 0:
        mean = float(seconds.mean())
        return Cost(mean / 2, mean / 2 / float(rows[0]))
    slope = float(((rows - rows.mean()) * (seconds - seconds.mean())).sum() / ((rows - rows.mean()) ** 2).sum())
    call = float(seconds.mean() - slope * rows.mean())
    if slope < 0:
        return Cost(float(seconds.mean()), 0.0)
    if call < 0:
        return Cost(0.0, float((rows * seconds).sum() / (rows * rows).sum()))
    return Cost(call, slope)
