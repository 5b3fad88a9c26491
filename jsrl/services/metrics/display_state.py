"""The content of a display, short number formats with units, and curves as a line of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class WorkerRow:
    """Metric names for a kind of worker's row in the table of workers.

    Attributes:
      rate, unit: its speed. queue: its waiting input. waits: (what for, metric of the share) of each wait.
    """

    rate: str = ""
    unit: str = ""
    queue: str = ""
    waits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class OtherPolicy:
    """Progress of a policy other than the first. score, title: of its newest evaluation; None: there was none."""

    name: str
    env_steps: int
    updates: int
    score: float | None = None
    title: str = "return"

    def __str__(self) -> str:
        score = "" if self.score is None else f" {self.title} {short(self.score)}"
        return f"{self.name}: steps {short(self.env_steps)} updates {short(self.updates)}{score}"


@dataclass(frozen=True)
class PlayerRow:
    """A player that a director rates. elo, half: its rating with the half width of the 95% interval, in Elo points.

    shares: of the points that it won against each player shown, in their order; None: they did not play.
    """

    name: str
    elo: float
    half: float
    shares: tuple[float | None, ...]


def games_text(metric: Callable[[str], float | None]) -> str:
    """Return how a director's games ended, and its copies and scores, from metrics by name; empty: no director."""
    values = [(metric(f"director/{name}"), name) for name in ("finished", "discarded", "open", "copies")]
    parts = [f"{value:,.0f} {name}" for value, name in values if value is not None]
    worst, best = (metric(f"director/score_{which}") for which in ("worst", "best"))
    if worst is not None and best is not None:
        parts.append(f"scores {short(worst)} to {short(best)}")
    return f"games: {', '.join(parts)}" if parts else ""


LONG_S = 5.0  # stages and calls that take longer are shown with their duration


@dataclass(frozen=True)
class Waiting:
    """A worker in a stage, such as "making environments", or in a call. for_s: its duration so far."""

    worker: str
    stage: str
    for_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.worker}: {self.stage} for {clock(self.for_s)}"


@dataclass
class DisplayState:
    """The state of a run at one moment.

    Attributes:
      run: its name. elapsed_s: since the run began. env_steps, updates: so far.
      total_env_steps: when it ends, None when only time or a return ends it. total_s: the time limit, if any; it counts
        from the first update.
      start_s, start_env_steps: time and env steps of the first reported update since the start or the resume, so
        that rates count neither start-up nor earlier training. start_s is None until then.
      action_repeat: game frames per env step; frames are shown in brackets where it is not 1.
      workers: living processes by kind, such as {"actor": 4, "learner": 1}. rows: the table's row of each kind.
      metrics: the newest value of every metric (`MetricsHub.latest`).
      evaluations: (env_steps, return) of every evaluation so far.
      episode_metric: the environment's own metric on the line, of those that `env.episode_metrics` names; empty: none.
      policy: name of the first policy, which the other fields are about; empty: it is the only one. others: the others.
      players: the best players and those that learn, best first, if a director rates them.
      waiting: workers that are starting, restarting or at their last task; () while all work.
      long_calls: ready workers that have been in one call for seconds, such as the learner in an update.
    """

    run: str
    elapsed_s: float = 0.0
    env_steps: int = 0
    updates: int = 0
    total_env_steps: int | None = None
    total_s: float | None = None
    start_env_steps: int = 0
    start_s: float | None = None
    action_repeat: int = 1
    workers: dict[str, int] = field(default_factory=dict)
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    episode_metric: str = ""
    policy: str = ""
    others: tuple[OtherPolicy, ...] = ()
    players: tuple[PlayerRow, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    long_calls: tuple[Waiting, ...] = ()

    @property
    def prefix(self) -> str:
        """Return what stands before the figures of the first policy: its name if there are several."""
        return f"{self.policy}: " if self.policy else ""

    @property
    def trained_s(self) -> float:
        """Return seconds since the first update of this start of the run; 0 before it."""
        return 0.0 if self.start_s is None else max(self.elapsed_s - self.start_s, 0.0)

    @property
    def env_steps_per_s(self) -> float | None:
        """Return env steps per second since the first update of this start of the run; None before there is a rate."""
        return (self.env_steps - self.start_env_steps) / self.trained_s if self.trained_s > 0 else None

    @property
    def steps_share(self) -> float | None:
        """Return the trained share of the env steps, 0-1; None without a limit."""
        return min(self.env_steps / self.total_env_steps, 1.0) if self.total_env_steps else None

    @property
    def time_share(self) -> float | None:
        """Return the passed share of the time limit, 0-1; None without a limit."""
        return min(self.trained_s / self.total_s, 1.0) if self.total_s else None

    @property
    def share(self) -> float | None:
        """Return the finished share of the run, 0-1, by steps or time, whichever ends first; None without a limit."""
        shares = [share for share in (self.steps_share, self.time_share) if share is not None]
        return max(shares) if shares else None

    @property
    def stages(self) -> dict[str, list[Waiting]]:
        found: dict[str, list[Waiting]] = {}
        for one in self.waiting:
            found.setdefault(one.stage, []).append(one)
        return found

    def to_go_s(self, env_steps_per_s: float | None = None) -> float | None:
        """Return seconds until the first limit at this rate (default: the mean of this start), None when unknown."""
        rate = self.env_steps_per_s if env_steps_per_s is None else env_steps_per_s
        left = []
        if self.total_env_steps and rate:
            left.append(max(self.total_env_steps - self.env_steps, 0) / rate)
        if self.total_s and self.start_s is not None:
            left.append(max(self.total_s - self.trained_s, 0.0))
        return min(left) if left else None

    def metric(self, name: str) -> float | None:
        """Return a metric's newest value, None when absent or not a finite number."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def score_title(self) -> str:
        """Return the name of evaluations' scores: `win rate` with opponents, else `return`."""
        return "return" if self.metric("evaluator/win_rate") is None else "win rate"

    @property
    def scores(self) -> list[str]:
        """Return the newest evaluation's score, the actors' mean return, and the environment's own metric, as far as known.

        Evaluations are greedy and actors sample, so the first two may be far apart.
        """
        found = [f"{self.score_title} {short(self.evaluations[-1][1])} (eval)"] if self.evaluations else []
        if (value := self.metric("actor/return_mean")) is not None:
            found.append(f"{'' if found and self.score_title == 'return' else 'return '}{short(value)} (train)")
        if (value := self.metric(f"actor/episode_{self.episode_metric}_mean")) is not None:
            found.append(f"{self.episode_metric} {short(value)}")
        return found


def names(waiting: list[Waiting], most: int = 3) -> str:
    """Return the names of workers, at most `most` of them: actor-0, actor-1 and 6 more."""
    shown = [one.worker for one in (waiting if len(waiting) <= most + 1 else waiting[:most])]
    return ", ".join(shown) + (f" and {len(waiting) - len(shown)} more" if len(shown) < len(waiting) else "")


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
