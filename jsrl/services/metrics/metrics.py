"""Metrics: `Meter` counts inside a worker, `MetricsHub` in the controller turns reports into one line at a time.

Names are `worker/what_unit`; the catalogue lists them and defines how reports of several workers of a kind are
combined. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jsrl.errors import ConfigError, MissingExtra
from jsrl.services.metrics.catalogue import Catalogue
from jsrl.services.metrics.phases import REST, Phases
from jsrl.services.metrics.sink_thread import SinkThread
from jsrl.services.metrics.sinks import JsonLinesSink, Line, TensorBoardSink

if TYPE_CHECKING:
    from jsrl.services.metrics.tracing import Tracer

_logger = logging.getLogger("jsrl.services.metrics")
_RESERVOIR = 1024
# suffixes of metrics of which a line has the mean over the reports since the last
WHOLE_TIME = ("_share", "_per_s", "_mean")


class Meter:
    """Counts in a worker between two reports; every call is a dictionary access and an addition.

    Attributes:
      phases: activities of the worker's main thread.
    """

    def __init__(
        self,
        kind: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        rest: str = REST,
        tracer: Tracer | None = None,
    ):
        """Prefix every name with `kind` (`actor`, `learner`, ...); `rest`: name of the activity between others."""
        self._tracer, self._rest = tracer, rest
        self._threads: dict[str, Phases] = {}
        self.phases = self.thread("", rest)
        self._kind = kind
        self._clock = clock
        self._rng = np.random.default_rng(0)
        self._totals: dict[str, float] = {}
        self._amounts: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._since_s = self._clock()
        self._amounts = dict.fromkeys(self._amounts, 0.0)  # an amount that does not change has a rate of 0
        self._times: dict[str, float] = {}
        self._means: dict[str, list[float]] = {}
        self._last: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._spreads: dict[str, _Spread] = {}

    def thread(self, name: str, rest: str = REST) -> Phases:
        """Return the phases of another thread, reported as `NAME_activity_share`."""
        phases = Phases(rest) if self._tracer is None else self._tracer.thread(name or "main", rest)
        self._threads[f"{name}_" if name else ""] = phases
        return phases

    def begin(self) -> None:
        """Reset everything except counts: the worker is ready, and shares and rates start here."""
        self.phases.begin()
        self._begin()

    def close(self) -> None:
        """Write the trace, if there is one."""
        if self._tracer is not None:
            self._tracer.save()

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a count since the worker's start, reported as `name` (such as `episodes`)."""
        self._totals[name] = self._totals.get(name, 0) + amount

    def rate(self, name: str, amount: float = 1) -> None:
        """Add to an amount that is reported per second, as `name_per_s`."""
        self._amounts[name] = self._amounts.get(name, 0) + amount

    def spent(self, name: str, seconds: float) -> None:
        """Add time to an activity that is reported as a share of the elapsed time, as `name_share`."""
        self._times[name] = self._times.get(name, 0.0) + seconds

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time inside the `with` block to `name_share`."""
        start_s = self._clock()
        try:
            yield
        finally:
            self.spent(name, self._clock() - start_s)

    def mean(self, name: str, value: float, weight: float = 1) -> None:
        """Add to a mean, reported as `name` (ending with `_mean`, or its name in the catalogue)."""
        entry = self._means.setdefault(name, [0.0, 0.0])
        entry[0] += value * weight
        entry[1] += weight

    def means(self, values: dict[str, float]) -> None:
        """Add a dict of values, such as an update's metrics, to the means of the same names."""
        for name, value in values.items():
            self.mean(name, float(value))

    def last(self, name: str, value: float) -> None:
        """Keep the latest value, reported as `name`."""
        self._last[name] = value

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value, reported as `name` (ending with `_max`)."""
        self._maxima[name] = max(self._maxima.get(name, -math.inf), value)

    def spread(self, name: str, values: Any) -> None:
        """Add values (a number or an array), reported as `name_mean`, `_p50`, `_p95`, `_max`.

        Mean and maximum are exact; percentiles come from a uniform sample of 1,024 values.
        """
        self._spreads.setdefault(name, _Spread(self._rng)).add(np.asarray(values, np.float64).reshape(-1))

    def flush(self) -> dict[str, float]:
        """Return everything since the last flush as a flat dict of full names, and start over (counts continue)."""
        passed_s = max(self._clock() - self._since_s, 1e-9)
        report = dict(self._totals)
        report.update({f"{name}_per_s": amount / passed_s for name, amount in self._amounts.items()})
        report.update({f"{name}_share": spent_s / passed_s for name, spent_s in self._times.items()})
        for prefix, phases in self._threads.items():
            if phases.used:
                report.update({f"{prefix}{name}_share": share for name, share in phases.shares().items()})
        report.update({name: total / weight for name, (total, weight) in self._means.items() if weight})
        report.update(self._last)
        report.update(self._maxima)
        for name, spread in self._spreads.items():
            report.update({f"{name}_{what}": value for what, value in spread.summary().items()})
        self._begin()
        return {f"{self._kind}/{name}": as_number(name, value) for name, value in report.items()}


def as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"the metric {name} is {value!r}; metrics are numbers.") from None


class _Spread:
    """Mean and maximum of all values; percentiles of a uniform sample of bounded size."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._sample = np.empty(_RESERVOIR)
        self._count = 0
        self._sum = 0.0
        self._max = -math.inf

    def add(self, values: np.ndarray) -> None:
        if not values.size:
            return
        self._sum += float(values.sum())
        self._max = max(self._max, float(values.max()))
        room = max(_RESERVOIR - self._count, 0)
        head, rest = values[:room], values[room:]
        self._sample[self._count : self._count + head.size] = head
        self._count += head.size
        if rest.size:
            order = self._count + 1 + np.arange(rest.size)
            places = (self._rng.random(rest.size) * order).astype(np.int64)
            kept = places < _RESERVOIR
            self._sample[places[kept]] = rest[kept]
            self._count += rest.size

    def summary(self) -> dict[str, float]:
        if not self._count:
            return {}
        p50, p95 = np.percentile(self._sample[: min(self._count, _RESERVOIR)], [50, 95])
        return {"mean": self._sum / self._count, "p50": p50, "p95": p95, "max": self._max}


@dataclass
class _Report:
    """The latest report of one worker; totals include the counts of its earlier incarnations.

    `whole` has sum and number of the values since the last line, of metrics that represent all of the time between lines;
    `most` the largest value, of maxima. `reports`: since the last line, with shares of time.
    """

    kind: str
    metrics: dict[str, float] = field(default_factory=dict)
    arrived_s: float = 0.0
    earlier_lives: dict[str, float] = field(default_factory=dict)
    at_last_line: dict[str, float] = field(default_factory=dict)
    whole: dict[str, tuple[float, int]] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    reports: int = 0

    @property
    def has_shares(self) -> bool:
        return any(name.endswith("_share") for name in self.metrics)

    def total(self, name: str) -> float:
        return self.earlier_lives.get(name, 0.0) + self.metrics.get(name, 0.0)


class MetricsHub:
    """Collects reports in the controller and writes lines to `metrics.jsonl` at once, and to other sinks in a thread.

    Attributes:
      latest: the newest value of every metric, for displays. sinks: further places for every line.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tensorboard: str | os.PathLike[str] | None = None,
        sinks: Iterable[Any] = (),
        catalogue: Catalogue | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_note: Callable[[str], None] = lambda text: None,
        on_line: Callable[[Line], None] = lambda line: None,
        stale_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Open (or continue) the file at `path`.

        Args:
          path: metrics.jsonl. tensorboard: folder for events; without tensorboardX only a note.
          on_warning: called with one line of text; default: logged. on_note: the same, for notes.
          stale_after_s: a worker silent for longer is left out of sums and means of its kind.
        """
        self._warn = on_warning or _logger.warning
        self._catalogue = catalogue or Catalogue()
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._note, self._on_line = on_note, on_line
        self._file = file = JsonLinesSink(Path(path))
        every = list(sinks)
        if tensorboard is not None:
            try:
                every.insert(0, TensorBoardSink(tensorboard))
            except MissingExtra as error:
                self._note(str(error))
        self.sinks = SinkThread(every)
        self._complained = False
        self._start_s = clock() - float((file.last_line or {}).get("wall_s") or 0.0)
        self._reports: dict[str, _Report] = {}
        self._fresh: set[tuple[str, str]] = set()
        self._resumes = file.last_line is not None
        self.latest: Line = dict(file.last_line or {})

    def elapsed_s(self) -> float:
        """Return seconds since the run began, over all resumes (time between them is not counted)."""
        return self._clock() - self._start_s

    def receive(self, worker: str, kind: str, metrics: Mapping[str, float]) -> None:
        """Take a worker's report for the next line, which has means, rates and maxima of all reports since the last one."""
        report = self._reports.setdefault(worker, _Report(kind))
        for name, value in metrics.items():
            before, how = report.metrics.get(name, 0.0), self._catalogue.combination(name)
            if how == "total" and value < before:  # the worker was restarted
                report.earlier_lives[name] = report.earlier_lives.get(name, 0.0) + before
            is_mean = how == "mean" and kind.rpartition("/")[2] in self._catalogue.averaged
            if not self._catalogue.weight_of(name) and (name.endswith(WHOLE_TIME) or is_mean):
                # before an activity's first time the worker spent none of its time there
                before_first = report.reports if name.endswith("_share") and name not in report.metrics else 0
                total, count = report.whole.get(name, (0.0, before_first))
                report.whole[name] = total + value, count + 1
            elif how == "max":
                report.most[name] = max(value, report.most.get(name, value))
            self._fresh.add((kind, name))
        report.reports += any(name.endswith("_share") for name in metrics)
        report.metrics.update(metrics)
        report.metrics.update(report.most)
        report.metrics.update({name: total / count for name, (total, count) in report.whole.items()})
        report.arrived_s = self._clock()

    def tick(self, env_steps: int, updates: int) -> Line:
        """Write one line of what arrived since the last one (combined over workers) and return it."""
        of_kind: dict[str, list[_Report]] = {}
        for report in self._reports.values():
            of_kind.setdefault(report.kind, []).append(report)
        line = {name: self._combine(of_kind[kind], name) for kind, name in sorted(self._fresh)}
        self._fresh.clear()
        for report in self._reports.values():
            report.whole.clear()
            report.reports = 0
            report.most.clear()
            report.at_last_line = {name: report.total(name) for name in self._catalogue.weights & report.metrics.keys()}
        return self.write(line, env_steps, updates)

    def write(self, metrics: dict[str, float], env_steps: int, updates: int) -> Line:
        """Write one line of given metrics at once (an evaluation: with the env steps of its snapshot) and return it."""
        line = {"env_steps": int(env_steps), "updates": int(updates), "wall_s": round(self.elapsed_s(), 3), **metrics}
        if self._resumes:
            line["system/resumed"], self._resumes = 1, False
        try:
            if told := self._file.write(line):
                self._warn(told)
        except (OSError, ValueError, TypeError) as error:
            if not self._complained:
                self._complained = True
                where = self._file.path
                self._warn(f"metrics could not be written to {where} ({error}); lines are lost until it works again.")
        self.sinks.write(dict(line))
        self._on_line(line)
        self.show_messages()
        self.latest.update(line)
        return line

    def show_messages(self) -> None:
        for text, level in self.sinks.messages():
            (self._note if level == "info" else self._warn)(text)

    def close(self) -> None:
        """Close metrics.jsonl; `end` ends the sinks."""
        try:
            self._file.close()
        except OSError as error:
            if not self._complained:
                self._warn(f"{self._file.path} could not be closed ({error}).")

    def end(self, summary: dict[str, Any], limit_s: float) -> None:
        """End the sinks, and wait for all of them together no longer than `limit_s`."""
        self.sinks.end(summary, limit_s)
        self.show_messages()

    def _combine(self, of_kind: list[_Report], name: str) -> float:
        how = self._catalogue.combination(name)
        reports = [r for r in of_kind if name in r.metrics]
        if how == "total":
            return sum(report.total(name) for report in reports)
        oldest_s = self._clock() - self._stale_after_s
        alive = [r for r in reports if r.arrived_s >= oldest_s] or reports
        values = np.asarray([report.metrics[name] for report in alive], np.float64)
        if how in ("sum", "max", "min"):
            return float(getattr(np, how)(values))
        weight = self._catalogue.weight_of(name)
        weights = np.asarray([r.total(weight) - r.at_last_line.get(weight, 0.0) for r in alive]) if weight else None
        if weights is not None and weights.sum() > 0:
            return float(np.average(values, weights=weights))
        if name.endswith("_share"):  # a worker that never began an activity spent none of its time there
            idle = [r for r in of_kind if name not in r.metrics and r.arrived_s >= oldest_s and r.has_shares]
            return float(values.sum()) / (len(values) + len(idle))
        return float(values.mean())
