"""Where a worker's time goes: at every moment each of its threads is in exactly one activity, and each belongs to a phase.

`Phases.enter` is one look at the clock and one addition, so that the accounting is always on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

PHASES = ("simulate", "infer", "train", "transport", "wait", "publish", "other")
REST = "other"


@dataclass(frozen=True)
class Activity:
    """What a thread of a worker may be doing; reported as `worker/NAME_share`.

    Attributes:
      name: as given to `Phases.enter`. phase: one of PHASES. meaning, healthy: for the catalogue of metrics.
    """

    name: str
    phase: str
    meaning: str
    healthy: str = "small"


_TURN = Activity(
    "wait_turn", "wait", "share of time in which other workers had their turn (serial)", "the rest, if serial"
)
_REST = Activity(REST, "other", "share of time in none of its other activities: the loop, reports, compilation")

SECOND_THREADS = ("prefetch_", "draw_")  # how activities of a worker's second thread begin

# Kind of worker -> what it may be doing. The shares of each thread add up to 1.
ACTIVITIES: dict[str, tuple[Activity, ...]] = {
    "actor": (
        Activity("env", "simulate", "share of time inside environments", "above 0.5"),
        Activity("act", "infer", "share of time acting (inline placement)", "below env_share"),
        Activity("wait_inference", "wait", "share of time waiting for actions", "below 0.3 (else: larger ring)"),
        Activity(
            "wait_params", "wait", "share of time waiting for newer params (inline placement)", "near 0 when async"
        ),
        Activity("wait_block", "wait", "share of time waiting for room in the sample stream", "near 0 when async"),
        Activity("transport", "transport", "share of time writing rows, committing them and asking for actions"),
        _TURN,
        _REST,
    ),
    "inference": (
        Activity("act", "infer", "share of time acting", "below 0.9 (else: another server)"),
        Activity("wait", "wait", "share of time without requests", "0.1-0.7"),
        Activity(
            "wait_params", "wait", "share of time in which all requests waited for newer params", "near 0 when async"
        ),
        Activity("transport", "transport", "share of time reading requests, replying and taking new params"),
        _TURN,
        _REST,
    ),
    "learner": (
        Activity("wait_batch", "wait", "share of time waiting for a batch", "below 0.2 (else: more actors)"),
        Activity("update", "train", "share of time in updates", "above 0.7"),
        Activity("publish", "publish", "share of time publishing params", "below 0.05"),
        Activity("snapshot", "publish", "share of time copying the state for a snapshot", "near 0"),
        Activity("transport", "transport", "share of time joining rows into batches in the main thread (serial)"),
        _TURN,
        _REST,
        Activity("prefetch_wait_batch", "wait", "share of the joining thread's time waiting for rows", "above 0.2"),
        Activity("prefetch_transport", "transport", "share of the joining thread's time joining rows", "below 0.5"),
        Activity("prefetch_wait_learner", "wait", "share of the joining thread's time with a batch ready", "depends"),
        Activity("prefetch_other", "other", "share of the joining thread's time in none of these", "near 0"),
    ),
    "replay": (
        Activity("insert", "transport", "share of time writing rows and priorities", "below 0.7 (else: num_replays)"),
        Activity("wait_rows", "wait", "share of time waiting for trajectories", "depends"),
        Activity("wait_learner", "wait", "share of time in which samples_per_insert held insertions", "depends"),
        Activity("draw", "transport", "share of time drawing batches in the main thread (serial)"),
        Activity("snapshot", "publish", "share of time writing counters and rows", "near 0"),
        _TURN,
        _REST,
        Activity("draw_draw", "transport", "share of the drawing thread's time writing batches", "below 0.8"),
        Activity(
            "draw_wait_rows", "wait", "share of the drawing thread's time in which nothing may be drawn", "depends"
        ),
        Activity(
            "draw_wait_learner", "wait", "share of the drawing thread's time without room for a batch", "above 0.2"
        ),
        Activity("draw_other", "other", "share of the drawing thread's time in none of these", "near 0"),
    ),
    "evaluator": (
        Activity("env", "simulate", "share of time inside environments", "depends"),
        Activity("act", "infer", "share of time acting", "depends"),
        Activity("wait", "wait", "share of time with nothing to score", "above 0.5 (else: score less often)"),
        Activity("publish", "publish", "share of time writing the best params", "near 0"),
        _TURN,
        _REST,
    ),
    "recorder": (
        Activity("env", "simulate", "share of time inside environments", "small"),
        Activity("act", "infer", "share of time acting", "small"),
        Activity("render", "publish", "share of time drawing pictures", "depends"),
        Activity("encode", "publish", "share of time handing pictures to the encoder and finishing videos", "depends"),
        Activity("wait", "wait", "share of time with nothing to film", "above 0.5 (else: film less often)"),
        _TURN,
        _REST,
    ),
    "parameter_server": (
        Activity("publish", "publish", "share of time passing params on", "below 0.5"),
        Activity("wait", "wait", "share of time without new params", "above 0.5"),
        Activity("snapshot", "publish", "share of time copying params for a snapshot", "near 0"),
        _TURN,
        _REST,
    ),
}
PHASE_OF = {activity.name: activity.phase for activities in ACTIVITIES.values() for activity in activities}
PHASE_OF["setup"] = "other"  # seen in traces only: shares are counted from the end of the setup


class Phases:
    """Accounts for all time of one thread: it leaves one activity by entering another.

    Attributes:
      tracing: whether spans are kept (see jsrl.services.tracing), so that `mark` is worth computing a value for.
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
        """Leave the present activity for another."""
        now_ns = self._clock_ns()
        self._totals_ns[self._activity] += now_ns - self._since_ns
        self._activity = activity
        self._since_ns = now_ns

    def rest(self) -> None:
        """Leave the present activity for what lies between all others."""
        self.enter(self._rest)

    def mark(self, name: str, value: float) -> None:
        """Note a value that changes over time (a queue's depth, a version); kept in traces only."""

    def begin(self) -> None:
        """Let shares count from now on: the setup is over."""
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


def by_phase(kind: str, shares: dict[str, float]) -> dict[str, float]:
    """Return phase -> share of a worker's time, from its activities' (a second thread's are left out)."""
    phases = dict.fromkeys(PHASES, 0.0)
    for activity in of_main_thread(kind):
        phases[activity.phase] += shares.get(activity.name, 0.0)
    return phases


def of_main_thread(kind: str) -> tuple[Activity, ...]:
    """Return what the main thread of a kind of worker may be doing."""
    return tuple(a for a in ACTIVITIES.get(kind, ()) if not a.name.startswith(SECOND_THREADS))
