"""What a display shows, and how numbers read: short, with units, never a page of digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerRow:
    """What the table of workers shows of a kind: names of metrics.

    Attributes:
      rate, unit: its speed. queue: what waits for it. waits: (what for, metric of the share) of each wait.
    """

    rate: str = ""
    unit: str = ""
    queue: str = ""
    waits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class OtherPolicy:
    """How far a policy beside the first has come. return_: of its newest evaluation; None: there was none."""

    name: str
    env_steps: int
    updates: int
    return_: float | None = None

    def __str__(self) -> str:
        """Return it as a few words."""
        score = "" if self.return_ is None else f" return {short(self.return_)}"
        return f"{self.name}: steps {short(self.env_steps)} updates {short(self.updates)}{score}"


@dataclass
class DisplayState:
    """A moment of a run.

    Attributes:
      run: its name. elapsed_s: since the run began. env_steps, updates: so far.
      total_env_steps: when it ends, None when only time or a return ends it. total_s: the time limit, if any.
      start_env_steps, start_s: where this life began (after a resume), so that rates and time to go are of this life.
      action_repeat: game frames per env step; frames are shown in brackets where it is not 1.
      workers: processes alive by kind, such as {"actor": 4, "learner": 1}. rows: what to show of each kind.
      metrics: the newest value of every metric (`MetricsHub.latest`).
      evaluations: (env_steps, return) of every evaluation so far.
      others: the policies beside the first, which everything else is about.
      stage: what the run is doing before it trains or while it ends, such as "starting 4 actors"; "" while training.
    """

    run: str
    elapsed_s: float = 0.0
    env_steps: int = 0
    updates: int = 0
    total_env_steps: int | None = None
    total_s: float | None = None
    start_env_steps: int = 0
    start_s: float = 0.0
    action_repeat: int = 1
    workers: dict[str, int] = field(default_factory=dict)
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    others: tuple[OtherPolicy, ...] = ()
    stage: str = ""

    @property
    def env_steps_per_s(self) -> float:
        """Return env steps per second over this life of the run (0 before anything happened)."""
        passed_s = self.elapsed_s - self.start_s
        return (self.env_steps - self.start_env_steps) / passed_s if passed_s > 0 else 0.0

    @property
    def share(self) -> float | None:
        """Return how much of the run is over, 0-1, by steps or time, whichever ends first; None without a limit."""
        shares = []
        if self.total_env_steps:
            shares.append(self.env_steps / self.total_env_steps)
        if self.total_s:
            shares.append(self.elapsed_s / self.total_s)
        return min(max(shares), 1.0) if shares else None

    def to_go_s(self, env_steps_per_s: float | None = None) -> float | None:
        """Return seconds until the first limit at this rate (default: this life's mean), None when unknown."""
        rate = self.env_steps_per_s if env_steps_per_s is None else env_steps_per_s
        left = []
        if self.total_env_steps and rate > 0:
            left.append(max(self.total_env_steps - self.env_steps, 0) / rate)
        if self.total_s:
            left.append(max(self.total_s - self.elapsed_s, 0.0))
        return min(left) if left else None

    def metric(self, name: str) -> float | None:
        """Return a metric's newest value, None when absent or not a finite number."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def return_(self) -> tuple[str, float] | None:
        """Return ("eval", value) of the newest evaluation, else ("train", the actors' mean return), else None."""
        if self.evaluations:
            return "eval", self.evaluations[-1][1]
        value = self.metric("actor/return_mean")
        return None if value is None else ("train", value)


def short(value: float | None) -> str:
    """Return a number in at most six characters: 950, 12.3k, 4.56M, 0.012; "-" for None."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= (9995 if unit == "k" else 0.9995 * factor):
            digits = 2 if size < 9.995 * factor else 1 if size < 99.95 * factor else 0
            return f"{value / factor:.{digits}f}{unit}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.001 else f"{value:.0e}"


def percent(value: float | None) -> str:
    """Return a share as a percentage, "-" for None."""
    return "-" if value is None else f"{100 * value:.0f}%"


def clock(seconds: float | None) -> str:
    """Return a duration as 45s, 3:07 (minutes), or 2:03:07 (hours); "-" for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
