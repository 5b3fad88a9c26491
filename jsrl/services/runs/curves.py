"""Curves and scores over env steps, from the columns of a run's metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jsrl.extras import import_extra


@dataclass(frozen=True)
class Scores:
    """The evaluations of a policy in the order of training; each field is an array [evaluations], with NaN where unknown.

    Attributes:
      env_steps: at which the evaluated params were published.
      return_mean, return_std: over the episodes of an evaluation. return_ci95: half of the mean's 95% interval.
      length_mean, episodes: mean length of the episodes, and how many there were.
      win_rate, win_rate_low, win_rate_high: against named opponents, and the 95% interval.
      others: the scores of the other policies, by name.
    """

    env_steps: np.ndarray
    return_mean: np.ndarray
    return_std: np.ndarray
    return_ci95: np.ndarray
    length_mean: np.ndarray
    episodes: np.ndarray
    win_rate: np.ndarray
    win_rate_low: np.ndarray
    win_rate_high: np.ndarray
    others: dict[str, Scores] = field(default_factory=dict)

    @property
    def against(self) -> bool:
        """Return whether opponents are named, so that the win rate is the score."""
        return bool(np.isfinite(self.win_rate).any())

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the score, win rate or mean return, and the ends of its 95% interval."""
        if self.against:
            return self.win_rate, self.win_rate_low, self.win_rate_high
        return self.return_mean, self.return_mean - self.return_ci95, self.return_mean + self.return_ci95


MEASURED = tuple(one.name for one in dataclasses.fields(Scores))[1:-1]


def scores_of(columns: Mapping[str, np.ndarray], policy: str = "") -> Scores:
    """Return the scores of a policy (empty: the first one, with those of the others)."""
    names = {name: f"{policy}/evaluator/{name}" if policy else f"evaluator/{name}" for name in MEASURED}
    lines, env_steps = _points(columns, names["return_mean"])
    unknown = np.full(len(lines), np.nan)
    values = {name: columns[metric][lines] if metric in columns else unknown for name, metric in names.items()}
    others = {} if policy else {name: scores_of(columns, name) for name in policies_in(columns)[1:]}
    return Scores(env_steps, **values, others=others)


def curve_of(columns: Mapping[str, np.ndarray], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (env_steps, values) of a column where it is finite; after a resume the older continuation is left out."""
    lines, env_steps = _points(columns, key)
    return env_steps, columns[key][lines]


def _points(columns: Mapping[str, np.ndarray], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (lines, env_steps) of a column where it is finite; see `curve_of`."""
    lines = np.flatnonzero(np.isfinite(columns.get(key, ())))
    own = f"{key.partition('/')[0]}/env_steps"  # of a policy other than the first
    env_steps = columns.get(own, columns.get("env_steps", np.zeros(0)))[lines]
    upcoming = np.minimum.accumulate(env_steps[::-1])[::-1]
    kept = np.append(upcoming[1:] >= env_steps[:-1], True)[: len(lines)]
    return lines[kept], env_steps[kept]


def policies_in(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Return the policies that wrote a run's metrics; the first one is called "".

    Each writes both of its counters; workers of a user may have a metric with the name of one.
    """
    counted = [name.removesuffix("/env_steps") for name in columns if name.endswith("/env_steps")]
    return ["", *(policy for policy in counted if f"{policy}/updates" in columns)]


def plot_scores(scores: Scores, name: str, axes: Any = None) -> Any:
    """Draw scores with their 95% intervals into matplotlib axes (None: new ones), and return these."""
    pyplot = import_extra("matplotlib.pyplot", "notebook", "plot()")
    axes = pyplot.subplots()[1] if axes is None else axes
    drawn = {name: scores} | scores.others
    for label, own in drawn.items():
        middle, low, high = own.interval
        axes.plot(own.env_steps, middle, label=label)
        axes.fill_between(own.env_steps, low, high, alpha=0.25)
    axes.set(xlabel="env steps", ylabel="win rate" if scores.against else "mean return")
    if len(axes.get_lines()) > 1:
        axes.legend()
    return axes
