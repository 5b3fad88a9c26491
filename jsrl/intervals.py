"""95% intervals of means: Student's t, which also holds for a few values. Scores of evaluations as text, with them.

The score is the win rate if opponents are named, else the mean return.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WIN_RATE, RETURN = "win_rate", "return_mean"
NORMAL = 1.9599640  # the 97.5% quantile
FEW = (
    12.7062047,
    4.3026527,
    3.1824463,
    2.7764451,
    2.5705818,
    2.4469119,
    2.3646243,
    2.3060041,
    2.2621572,
)  # 1 to 9 degrees


def t_factor(degrees: float) -> float:
    """Return the half width of a 95% t interval in standard errors.

    Source: the expansion of Fisher and Cornish 1960 for 10 degrees of freedom and more (exact to 2e-4).
    """
    z = NORMAL
    if degrees >= 10:
        terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
        return z + sum(term / degrees**power for power, term in enumerate(terms, 1))
    if degrees == int(degrees):
        return FEW[int(degrees) - 1]
    from scipy.special import stdtrit  # of a comparison only: it takes a tenth of a second, and workers need none of it

    return float(stdtrit(degrees, 0.975))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the half width of its 95% interval; None: there are fewer than two values."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)) if n else 0.0, None
    return float(np.mean(values)), t_factor(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)


def with_half(mean: float, half: float | None, decimals: int = 2) -> str:
    """Return a mean as text, with the half width of its interval if there is one; equal values say nothing of their spread."""
    return f"{mean:.{decimals}f}" + (f" ± {half:.{decimals}f}" if half else "")


def return_facts(returns: Sequence[float]) -> dict[str, float]:
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


def score_name(facts: Mapping[str, float]) -> str:
    return WIN_RATE if WIN_RATE in facts else RETURN


def score_of(facts: Mapping[str, float]) -> float:
    return float(facts[score_name(facts)])


def score_title(facts: Mapping[str, float]) -> str:
    return "win rate" if score_name(facts) == WIN_RATE else "return"


def score_text(facts: Mapping[str, float], of: str = "") -> str:
    """Return a score and its 95% interval as text; of: what was scored, such as `20 greedy episodes`."""
    if score_name(facts) == WIN_RATE:
        value, interval = f"{facts[WIN_RATE]:.3f}", f"95%: {facts['win_rate_low']:.3f} to {facts['win_rate_high']:.3f}"
    else:
        half = facts.get("return_ci95")
        value = with_half(facts[RETURN], half, decimals_of(facts[RETURN]))
        interval = "95% CI" if half else ""
        of += ", all equal" if of and half == 0 else ""
    inside = ", ".join(filter(None, (interval, of)))
    return f"{score_title(facts)} {value}" + (f" ({inside})" if inside else "")


def decimals_of(value: float) -> int:
    """Return how many decimals show a return: 412.3, 4.12, 0.412."""
    return 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
