"""The score of an evaluation: the win rate if opponents are named, else the mean return."""

from __future__ import annotations

from collections.abc import Mapping

from jsrl.intervals import with_half

WIN_RATE, RETURN = "win_rate", "return_mean"


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
        interval = "" if half is None else "95% CI"
    inside = ", ".join(filter(None, (interval, of)))
    return f"{score_title(facts)} {value}" + (f" ({inside})" if inside else "")


def decimals_of(value: float) -> int:
    """Return how many decimals show a return: 412.3, 4.12, 0.412."""
    return 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
