"""The catalogue of metrics: every name that a run may write, and how reports of several workers are combined.

Kinds of workers define their own metrics (jsrl.workers.kinds). docs/metrics.md lists all; a test compares the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from jsrl.services.metrics.phases import Activity

SUFFIX_RULES = (  # the first matching rule; otherwise: mean over the workers that report it
    ("_per_s", "sum"),
    ("_mb", "sum"),
    ("_depth", "sum"),
    ("_max", "max"),
    ("_p95", "max"),
    ("_min", "min"),
    ("_version", "min"),
)
COMBINATIONS = ("total", "sum", "mean", "max", "min")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
      name: `worker/what_unit`. meaning, unit, healthy: columns of the document.
      combine: `total` (counts since the worker's start, summed; a restart does not reset them), `sum`, `mean`,
        `max`, `min`; empty: by SUFFIX_RULES.
      weight: name of a `total` metric whose growth weights this mean (returns are weighted by episodes).
    """

    name: str
    meaning: str
    unit: str
    healthy: str
    combine: str = ""
    weight: str = ""


def worker_metrics(
    prefix: str, plural: str, metrics: Iterable[Metric], activities: Iterable[Activity]
) -> tuple[Metric, ...]:
    """Return the metrics of a kind of worker: its own, the shares of its activities, and the common ones."""
    return (
        *(dataclasses.replace(metric, name=f"{prefix}/{metric.name}") for metric in metrics),
        *(Metric(f"{prefix}/{a.name}_share", a.meaning, "0-1", a.healthy) for a in activities),
        Metric(f"system/{prefix}_rss_mb", f"resident memory of all {plural}", "MB", "level after warm-up", "sum"),
        Metric(
            f"system/{prefix}_cpu_share",
            f"CPU time of all {plural} per second",
            "cores",
            "below the cores given",
            "sum",
        ),
        Metric(f"restarts/{prefix}", f"{plural} that were replaced so far", "count", "0", "sum"),
    )


COMMON: tuple[Metric, ...] = (
    Metric("env_steps", "env steps consumed by the learner so far", "steps", "rises"),
    Metric("updates", "updates so far", "count", "rises"),
    Metric("wall_s", "time since the run began, over all resumes", "s", "rises"),
    Metric("system/resumed", "1 in the first line after a resume", "-", "absent in all other lines"),
    Metric("ledger/received", "trajectories that the learner received", "count", "the sum of the next three", "sum"),
    Metric("ledger/consumed", "trajectories consumed", "count", "near received", "sum"),
    Metric("ledger/dropped", "trajectories dropped, all reasons", "count", "0, or few when async", "sum"),
    Metric("ledger/in_flight", "trajectories that wait in the learner", "count", "level", "sum"),
    Metric("snapshots/written", "snapshots on disk so far", "count", "rises", "total"),
    Metric("snapshots/failed", "snapshots that could not be written", "count", "0", "total"),
    Metric("snapshots/superseded", "snapshots given up for a newer one", "count", "0; else the disk is slow", "total"),
    Metric("snapshots/last_write_s", "duration of the last write", "s", "below the snapshot period", "max"),
    Metric(
        "system/load",
        "processes of this machine that run or wait for a core, over a minute",
        "count",
        "below twice the cores",
    ),
    Metric("system/others_cpu_share", "CPU time of other programs on this machine per second", "cores", "0", "sum"),
)


def _of_policy(policy: str, metric: Metric) -> Metric:
    weight = f"{policy}/{metric.weight}" if metric.weight else ""
    return dataclasses.replace(metric, name=f"{policy}/{metric.name}", weight=weight)


class Catalogue:
    """The metrics of a run: those of its kinds of workers, and the common ones.

    Attributes:
      metrics: all of them. by_name: the same, by name; those of policies other than the first are `POLICY/NAME`.
      weights: names of the totals whose growth weights means.
      averaged: prefixes of the kinds whose reports have means under any name.
    """

    def __init__(
        self, metrics: Iterable[Metric] = (), policies: Iterable[str] = (), averaged: Iterable[str] = ()
    ) -> None:
        """Take the metrics of kinds of workers, and the names of the run's policies other than the first."""
        self.averaged = frozenset(averaged)
        self.metrics = (*COMMON, *metrics)
        self.by_name = {metric.name: metric for metric in self.metrics}
        for policy in policies:
            self.by_name |= {f"{policy}/{metric.name}": _of_policy(policy, metric) for metric in self.metrics}
        self.weights = frozenset(metric.weight for metric in self.by_name.values() if metric.weight)

    def combination(self, name: str) -> str:
        """Return how reports of several workers are combined: `total`, `sum`, `mean`, `max` or `min`."""
        metric = self.by_name.get(name)
        if metric is not None and metric.combine:
            return metric.combine
        return next((rule for suffix, rule in SUFFIX_RULES if name.endswith(suffix)), "mean")

    def weight_of(self, name: str) -> str:
        """Return the name of the total whose growth weights this mean, or an empty string."""
        metric = self.by_name.get(name)
        return metric.weight if metric is not None else ""
