"""95% intervals of means: Student's t, which also holds for a few values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def t_factor(degrees: float) -> float:
    """Return the half width of a 95% t interval in standard errors."""
    from scipy.special import stdtrit  # here, as it takes a tenth of a second

    return float(stdtrit(degrees, 0.975))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the half width of its 95% interval; None: there are fewer than two values."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)) if n else 0.0, None
    return float(np.mean(values)), t_factor(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)


def with_half(mean: float, half: float | None, decimals: int = 2) -> str:
    """Return a mean as text, with the half width of its interval if there is one."""
    return f"{mean:.{decimals}f}" + ("" if half is None else f" ± {half:.{decimals}f}")


def return_facts(returns: Sequence[float]) -> dict[str, float]:
    """Return mean and standard deviation of returns, and the half width of the mean's 95% interval if there is one."""
    mean, half = mean_interval(returns)
    facts = {"return_mean": mean, "return_std": 0.0 if half is None else float(np.std(returns, ddof=1))}
    return facts if half is None else facts | {"return_ci95": half}


def seeds_interval(values: np.ndarray, centre: np.ndarray, cut: int = 0) -> tuple[Any, Any]:
    """Return the ends of the 95% interval of a mean over the last axis [..., seeds]; NaN with fewer than two seeds.

    Args:
      centre: the mean [...]. cut: seeds that it leaves out at each end, as the interquartile mean does.

    Source: Tukey and McLaughlin 1963: of a trimmed mean the standard error has the winsorised variance, and n - 2 cut - 1
    degrees of freedom.
    """
    n = values.shape[-1]
    if n < 2:
        return np.full(np.shape(centre), np.nan), np.full(np.shape(centre), np.nan)
    ordered = np.sort(values, axis=-1)
    winsorised = np.clip(ordered, ordered[..., cut : cut + 1], ordered[..., n - cut - 1 : n - cut])
    kept = n - 2 * cut
    half = t_factor(kept - 1) * winsorised.std(axis=-1, ddof=1) * math.sqrt(n) / kept
    return centre - half, centre + half
