"""What a run shows: stages of its workers, rated players, use of the machine, and its status in the run folder.

The controller writes RUN/status.json every two seconds (see `rarity`), and checks as often whether the run must end.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from jsrl.control.progress import Progress
from jsrl.control.supervised import SupervisedWorker
from jsrl.envs.config import EnvConfig
from jsrl.graph.launcher import Handle
from jsrl.intervals import score_title
from jsrl.services.metrics.display import Rate
from jsrl.services.metrics.display_state import LONG_S, DisplayState, OtherPolicy, PlayerRow, Waiting, WorkerRow
from jsrl.services.metrics.phases import of_main_thread
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.standings import FILE as STANDINGS
from jsrl.services.runs.standings import StandingsTable, read_standings
from jsrl.services.runs.state import ControllerStatus, WorkerSummary, is_asked_to_stop, write_status
from jsrl.workers.kinds import Kind, find_kind

NEWS_S = 2.0
MANY = 500  # workers
MAX_EVALUATIONS = 200  # the newest, and the best


class _Moment(TypedDict):
    metrics: dict[str, Any]
    evaluations: list[tuple[int, Any]]


def rarity(workers: int) -> float:
    """Return the factor by which lines and statuses come less often in a run of many workers, as each then costs more."""
    return max(1.0, workers / MANY)


def moment_of(status: ControllerStatus) -> DisplayState:
    """Return the display at the time of the status; values that were not numbers are left out.

    Raises:
      ValueError: another version of jsrl wrote the status.
    """
    parts = msgspec.convert(status.moment, _Moment)
    metrics = {name: value for name, value in parts["metrics"].items() if isinstance(value, int | float)}
    scores = [pair for pair in parts["evaluations"] if isinstance(pair[1], int | float)]
    return msgspec.convert(status.moment | {"metrics": metrics, "evaluations": scores}, DisplayState)


class StatusWriter:
    """Writes the status of the run in `folder`, whose controller is this process.

    Attributes:
      stop_asked: this process was asked to end the run (`jsrl stop`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._process, self._begun_s = folder, ProcessIdentity.own(), time.time()
        self._rate = Rate()
        self._due_s = 0.0
        self.stop_asked = False

    def update(
        self, state: DisplayState, workers: Callable[[], Sequence[WorkerSummary]], reason: str, *, now: bool = False
    ) -> None:
        """Write the status if the last one is old enough, or `now`.

        Args:
          state: of the run. workers: returns them. reason: why the run ends; empty: it goes on.
        """
        now_s = time.monotonic()
        if not now and now_s < self._due_s:
            return
        found = workers()
        self._due_s = now_s + rarity(len(found)) * NEWS_S
        self.stop_asked = self.stop_asked or is_asked_to_stop(self._folder, self._process)
        moment = dataclasses.asdict(dataclasses.replace(state, evaluations=newest_and_best(state.evaluations)))
        status = ControllerStatus(self._process, self._begun_s, reason, self._rate(state), tuple(found), moment)
        try:
            write_status(self._folder, status)
        except (OSError, TypeError):  # a full disk, or a metric that is not a number: the run continues
            return


def newest_and_best(evaluations: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the newest evaluations, and before them the best one if it is older."""
    newest = evaluations[-MAX_EVALUATIONS:]
    older = evaluations[: -len(newest)] if newest else []
    best = max(older, key=lambda point: point[1], default=None)
    return newest if best is None or best[1] <= max(value for _, value in newest) else [best, *newest[1:]]


READY = "ready"  # the stage that ends a start
MAX_CALLS = 3  # of which the longest are shown


class Stages:
    """The stage of each worker, and since when.

    Args:
      kinds: worker -> its kind; more may be added later.

    Attributes:
      counts: name of a kind -> its workers. rows: name of a kind -> its row in the live display.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._of: dict[str, tuple[str, float]] = {}
        self._starting: dict[str, None] = {}
        self._calls: dict[str, tuple[str, float]] = {}
        self.counts: Counter[str] = Counter()
        self.rows: dict[str, WorkerRow] = {}

    def set(self, worker: str, stage: str, now_s: float) -> None:
        kind = self._kinds[worker]
        if worker not in self._of:
            self.counts[kind.name] += 1
            self.rows.setdefault(kind.name, row_of(kind))
        self._of[worker] = (stage, now_s)
        self._calls.pop(worker, None)
        if stage == READY:
            self._starting.pop(worker, None)
        else:
            self._starting[worker] = None

    def remove(self, worker: str) -> None:
        if self._of.pop(worker, None) is not None:
            self._starting.pop(worker, None)
            self._calls.pop(worker, None)
            self.counts[self._kinds[worker].name] -= 1

    def call(self, worker: str, name: str, for_s: float, now_s: float) -> None:
        """Record the call that a worker is in, and for how long; an empty name: it is in none."""
        if name and for_s >= LONG_S:
            self._calls[worker] = (name.removeprefix(f"{worker}: "), now_s - for_s)
        else:
            self._calls.pop(worker, None)

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return ((worker, stage, since_s) for worker, (stage, since_s) in self._of.items())

    def waiting(self, now_s: float) -> tuple[Waiting, ...]:
        """Return the workers that are not ready, and for how long they have been in their stage."""
        found = ((worker, *self._of[worker]) for worker in self._starting)
        return tuple(Waiting(worker, stage, now_s - since_s) for worker, stage, since_s in found)

    def long_calls(self, now_s: float) -> tuple[Waiting, ...]:
        """Return the workers that have been in one call for over LONG_S, the longest first, at most MAX_CALLS."""
        oldest = sorted(self._calls.items(), key=lambda item: item[1][1])[:MAX_CALLS]
        return tuple(Waiting(worker, name, now_s - since_s) for worker, (name, since_s) in oldest)


def row_of(kind: Kind) -> WorkerRow:
    prefix, headline = kind.prefix, kind.shown.headline
    shown = [a for a in of_main_thread(kind.shown.activities) if a.phase == "wait" or a.name in headline.others]
    return WorkerRow(
        rate=f"{prefix}/{headline.rate}" if headline.rate else "",
        unit=headline.unit,
        queue=f"{prefix}/{headline.queue}" if headline.queue else "",
        waits=tuple((a.waits_for or a.name, f"{prefix}/{a.name}_share") for a in shown),
    )


MAX_PLAYERS = 6  # in the display


def frames_per_step(env: EnvConfig) -> int:
    """Return the game frames per env step: Atari games repeat each action."""
    return env.atari.frame_skip if env.is_atari else 1


def other_policy(progress: Progress) -> OtherPolicy:
    other = OtherPolicy(progress.policy.name, progress.env_steps, progress.updates)
    if not progress.curve:
        return other
    return dataclasses.replace(other, score=progress.curve[-1][1], title=score_title(progress.evaluation))


class RatedPlayers:
    """The rows of the players that a run's director rates, read again when it has written them anew."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._written_ns = folder, 0
        self._rows: tuple[PlayerRow, ...] = ()

    def rows(self) -> tuple[PlayerRow, ...]:
        """Return the newest rows; () before there are any."""
        try:
            written_ns = (self._folder / STANDINGS).stat().st_mtime_ns
        except OSError:
            return ()
        if written_ns != self._written_ns and (table := read_standings(self._folder)) is not None:
            self._written_ns, self._rows = written_ns, player_rows(table.best(MAX_PLAYERS))
        return self._rows


def player_rows(table: StandingsTable) -> tuple[PlayerRow, ...]:
    every = range(len(table.players))
    return tuple(
        PlayerRow(table.players[i], float(table.elo[i]), float(table.half[i]), tuple(table.share(i, j) for j in every))
        for i in every
    )


class Usage:
    """Samples workers; CPU shares refer to the time between two samples.

    Make it before the workers start. Samples must be much more than 10 ms apart, the kernel's resolution of CPU time.

    Args:
      busy_s: of a launcher: CPU seconds of all other programs so far, workers included; None: unknown.
    """

    def __init__(self, busy_s: Callable[[], float | None]) -> None:
        self._cpu_s: dict[Handle, float] = {}
        self._sampled_s = time.monotonic()
        self._ask_busy_s = busy_s
        self._busy_s = busy_s()

    def sample(self, workers: Collection[SupervisedWorker]) -> dict[str, float]:
        """Return `system/KIND_rss_mb` and `system/KIND_cpu_share` (in cores) since the last sample.

        `system/others_cpu_share` is the CPU time of neither workers nor this process, `system/load` the machine's; both are
        absent if the CPU time is unknown.
        """
        now = time.monotonic()
        passed_s, self._sampled_s = max(now - self._sampled_s, 1e-6), now
        metrics: defaultdict[str, float] = defaultdict(float)
        names = {kind: f"system/{find_kind(kind).prefix}" for kind in {worker.job.kind for worker in workers}}
        cpu_s: dict[Handle, float] = {}
        for worker in workers:
            used = worker.handle.usage()
            if used is None:
                if worker.handle in self._cpu_s:
                    cpu_s[worker.handle] = self._cpu_s[worker.handle]
                continue
            name = names[worker.job.kind]
            cpu_s[worker.handle] = used.cpu_s
            spent_s = used.cpu_s - self._cpu_s.get(worker.handle, 0.0)  # a new one started after the last sample
            metrics[f"{name}_rss_mb"] += used.resident_bytes / 1e6
            metrics[f"{name}_cpu_share"] += max(0.0, spent_s) / passed_s
        busy_s = self._ask_busy_s()
        if busy_s is not None and self._busy_s is not None:
            ours_s = sum(spent - self._cpu_s.get(handle, 0.0) for handle, spent in cpu_s.items())
            metrics["system/others_cpu_share"] = max(0.0, busy_s - self._busy_s - ours_s) / passed_s
            metrics["system/load"] = os.getloadavg()[0]
        self._cpu_s, self._busy_s = cpu_s, busy_s
        return metrics
