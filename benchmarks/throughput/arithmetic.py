"""The arithmetic of the benchmark: rates from samples, the physical limit, medians, ratios. Imports nothing heavy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LIMIT_TEXT = "cores / (1 / environment + 1 / inference + 1 / update), each alone on one core"
LIMIT_DEVICE_TEXT = "min(cores x environment, 1 / (1 / inference + 1 / update)), the last two alone on the accelerator"


class Sample(NamedTuple):
    """One sample of a run: seconds on any clock, env steps trained so far, CPU seconds of the process tree so far."""

    time_s: float
    env_steps: float
    cpu_s: float


class Spread(NamedTuple):
    """Median and range of repetitions."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and largest; NaN values are left out."""
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(finite), min(finite), max(finite))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line, a rate that is robust to a single late or early sample."""
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    spread_x = sum((a - mean_x) ** 2 for a in x)
    if spread_x == 0:
        return math.nan
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread_x


def rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Return env steps per second and per CPU-second of a window of samples; needs at least two."""
    steps = [sample.env_steps for sample in samples]
    per_s = slope([sample.time_s for sample in samples], steps)
    cores = slope([sample.time_s for sample in samples], [sample.cpu_s for sample in samples])
    window_s = samples[-1].time_s - samples[0].time_s
    return {
        "env_steps_per_s": per_s,
        "env_steps_per_cpu_s": per_s / cores if cores > 0 else math.nan,
        "cores_used": cores,
        "window_s": window_s,
        "window_env_steps": steps[-1] - steps[0],
    }


def physical_limit(
    environment: float, inference: float, update: float, *, cores: int, on_accelerator: bool = False
) -> float:
    """Return the env steps per second that no arrangement of these three parts can exceed.

    On CPU every row needs the time of all three on one of the cores. With an accelerator, inference and update share it
    while the cores step environments. Transport, waiting and all other costs are ignored.

    Args:
      environment, inference, update: rows per second of each part alone, on one core (or on the accelerator).
    """
    if on_accelerator:
        return min(cores * environment, 1.0 / (1.0 / inference + 1.0 / update))
    return cores / (1.0 / environment + 1.0 / inference + 1.0 / update)


def best(results: Mapping[str, float], *, smallest: bool = False) -> str | None:
    """Return the name of the largest (or smallest) number; None where there is none."""
    known = {name: value for name, value in results.items() if not math.isnan(value)}
    if not known:
        return None
    return (min if smallest else max)(known, key=lambda name: known[name])


def ratio(ours: float, theirs: float) -> float:
    """Return ours / theirs, NaN if one of them is missing."""
    return ours / theirs if theirs else math.nan
