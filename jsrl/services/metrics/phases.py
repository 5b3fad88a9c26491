"""Time accounting of workers: each thread is always in exactly one activity, and each activity belongs to a phase.

`Phases.enter` is one clock reading and one addition, so accounting is always on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

PHASES = ("simulate", "infer", "train", "transport", "wait", "publish", "other")
REST = "other"
TRACES = "trace"  # folder of a run with the spans of its workers, see jsrl.services.metrics.tracing


@dataclass(frozen=True)
class Activity:
    """An activity of a worker's thread; reported as `worker/NAME_share`.

    Attributes:
      name: as given to `Phases.enter`. phase: one of PHASES. meaning, healthy: for the catalogue of metrics.
      waits_for: of a waiting activity: what it waits for, as text.
    """

    name: str
    phase: str
    meaning: str
    healthy: str = "small"
    waits_for: str = ""


TURN = Activity(
    "wait_turn",
    "wait",
    "share of time in which other workers had their turn (serial)",
    "the rest, if serial",
    "others' turns",
)
REST_ACTIVITY = Activity(REST, "other", "share of time in none of its other activities: the loop, reports, compilation")
SECOND_THREADS = ("prefetch_", "draw_")  # prefixes of activities of a worker's second thread


class Phases:
    """Accounts for all time of one thread: entering an activity ends the one before.

    Attributes:
      tracing: whether spans are kept (see jsrl.services.metrics.tracing), so that `mark` is worth computing a value for.
    """

    tracing = False

    def __init__(self, rest: str = REST, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Begin in `setup`; `rest` is the activity between others; `clock_ns` returns nanoseconds."""
        self._clock_ns, self._rest = clock_ns, rest
        self._totals_ns: defaultdict[str, int] = defaultdict(int, setup=0)
        self._activity, self._since_ns = "setup", clock_ns()
        self._taken_ns: dict[str, int] = {}
        self._taken_at_ns = self._since_ns
        self.used = False

    def enter(self, activity: str) -> None:
        """End the current activity and start another."""
        now_ns = self._clock_ns()
        self._totals_ns[self._activity] += now_ns - self._since_ns
        self._activity = activity
        self._since_ns = now_ns

    def rest(self) -> None:
        self.enter(self._rest)

    def mark(self, name: str, value: float) -> None:
        """Record a value that changes over time (a queue's depth, a version); only in traces."""

    def begin(self) -> None:
        """Start counting shares: the setup is over."""
        self.rest()
        self.used = True
        self.shares()

    def shares(self) -> dict[str, float]:
        """Return activity -> share of the time since the last call, for all seen so far; they add up to 1."""
        now_ns = self._clock_ns()
        totals = dict(self._totals_ns)
        totals[self._activity] = totals.get(self._activity, 0) + now_ns - self._since_ns
        passed_ns = max(now_ns - self._taken_at_ns, 1)
        taken, self._taken_ns, self._taken_at_ns = self._taken_ns, totals, now_ns
        del totals["setup"]
        return {activity: (total - taken.get(activity, 0)) / passed_ns for activity, total in totals.items()}


def by_phase(activities: Iterable[Activity], shares: dict[str, float]) -> dict[str, float]:
    """Return phase -> share of a worker's time, from its activities (those of a second thread are left out)."""
    phases = dict.fromkeys(PHASES, 0.0)
    for activity in of_main_thread(activities):
        phases[activity.phase] += shares.get(activity.name, 0.0)
    return phases


def of_main_thread(activities: Iterable[Activity]) -> tuple[Activity, ...]:
    return tuple(a for a in activities if not a.name.startswith(SECOND_THREADS))
