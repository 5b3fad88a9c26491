"""Results of a soak: a line per process, and everything that grew but must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.endurance.holdings import Holdings
from benchmarks.endurance.slopes import Level, Slope, level, theil_sen
from jsrl.control.result import contradicted

RSS_LIMIT_MB_PER_MIN = 1.0
COUNTS = ("descriptors", "threads", "segments")
LEAST_SAMPLES = 12  # after the warm-up


@dataclass
class Watched:
    """One process over time: seconds since the warm-up started, its resources, and log lines about compiled programs.

    Attributes:
      pid: of its first sample. ended_s: when the process ended or was replaced under its name; None: never.
    """

    name: str
    pid: int
    seconds: list[float] = field(default_factory=list)
    held: list[Holdings] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)
    ended_s: float | None = None

    def add(self, second: float, held: Holdings, compiled: int) -> None:
        """Add a sample."""
        self.seconds.append(round(second, 2))
        self.held.append(held)
        self.compiled.append(compiled)

    def after(self, second: float) -> Watched:
        """Return its samples from a time on."""
        start = next((i for i, s in enumerate(self.seconds) if s >= second), len(self.seconds))
        return Watched(
            self.name, self.pid, self.seconds[start:], self.held[start:], self.compiled[start:], self.ended_s
        )

    def column(self, name: str) -> list[float]:
        """Return one number of every sample."""
        return [float(getattr(held, name)) for held in self.held]


@dataclass(frozen=True)
class Verdict:
    """The result of one process after the warm-up; `faults` is empty if nothing grew.

    Attributes:
      rss, uss: slopes in MB per minute. counts: name -> level. recompiled: programs compiled after the warm-up.
    """

    name: str
    rss: Slope
    uss: Slope
    rss_mb: Level
    counts: dict[str, Level]
    recompiled: int
    samples: int
    faults: tuple[str, ...]


def judge(watched: Watched, warm_up_s: float) -> Verdict:
    """Return the verdict on a process after the warm-up."""
    warm = watched.after(warm_up_s)
    if len(warm.held) < LEAST_SAMPLES:
        nothing = Slope(*[float("nan")] * 3)
        why = f"only {len(warm.held)} samples after the warm-up, {LEAST_SAMPLES} are needed"
        return Verdict(watched.name, nothing, nothing, Level(0, 0, 0, 0), {}, 0, len(warm.held), (why,))
    minutes = [second / 60 for second in warm.seconds]
    rss, uss = theil_sen(minutes, warm.column("rss_mb")), theil_sen(minutes, warm.column("uss_mb"))
    counts = {name: level(warm.column(name)) for name in COUNTS}
    recompiled = warm.compiled[-1] - warm.compiled[0]
    faults = [] if rss.slope < RSS_LIMIT_MB_PER_MIN else [f"RSS grows by {rss.slope:.2f} MB/min"]
    faults += [f"{name}: {c.first:g} -> {c.last:g}" for name, c in counts.items() if not c.constant]
    faults += [f"{recompiled} programs compiled after the warm-up"] if recompiled else []
    faults += [f"gone after {watched.ended_s:.0f} s"] if watched.ended_s is not None else []
    rss_mb = level(warm.column("rss_mb"))
    return Verdict(watched.name, rss, uss, rss_mb, counts, recompiled, len(warm.held), tuple(faults))


def run_faults(raw: dict[str, Any]) -> list[str]:
    """Return the faults of the run as a whole."""
    faults = []
    files = level([row[1] for row in raw["memory_folder"] if row[0] >= raw["warm_up_s"]] or [0])
    if not files.constant:
        faults.append(f"files in shared memory: {files.first:g} -> {files.last:g}")
    if raw["compilations_after_warmup"]:
        faults.append(f"inference compiled {raw['compilations_after_warmup']:g} times after its warm-up")
    result = raw["result"] or {}
    if contradicted(result):
        faults.append(f"the ledger does not balance: {result.get('ledger')} {result.get('hops', '')}")
    if raw["left"]:
        faults.append(f"left behind: {', '.join(raw['left'])}")
    if raw["ended_early"]:
        faults.append(raw["ended_early"])
    return faults


def table(verdicts: Sequence[Verdict], faults: Sequence[str]) -> str:
    """Return the printed lines."""
    lines = [f"  {'process':<18}{'RSS MB':>15}{'MB/min (95%)':>26}{'fds':>10}{'threads':>10}{'segments':>10}  verdict"]
    for v in verdicts:
        rss = f"{v.rss_mb.first:.0f} -> {v.rss_mb.last:.0f}"
        slope = f"{v.rss.slope:+.3f} ({v.rss.low:+.3f} - {v.rss.high:+.3f})"
        counts = "".join(f"{span(v.counts[name]) if v.counts else '-':>10}" for name in COUNTS)
        lines.append(f"  {v.name:<18}{rss:>15}{slope:>26}{counts}  {'; '.join(v.faults) or 'holds'}")
    lines += [f"  the run: {'; '.join(faults) or 'holds'}"]
    good = not faults and all(not v.faults for v in verdicts)
    return "\n".join([f"soak: {'passed' if good and verdicts else 'FAILED'}", *lines])


def span(found: Level) -> str:
    """Return a level as text: one number if it is constant, else the range."""
    return f"{found.lowest:g}" if found.lowest == found.highest else f"{found.lowest:g}-{found.highest:g}"
