"""The stages of a run's workers, counted as they change: there may be thousands of workers, and displays ask often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from jsrl.metrics.display_state import LONG_S, Waiting, WorkerRow
from jsrl.metrics.phases import of_main_thread
from jsrl.workers.kinds import Kind

READY = "ready"  # the stage that ends a start
MOST_CALLS = 3  # of which the longest are shown


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
        """Return the workers that have been in one call for over LONG_S, the longest first, at most MOST_CALLS."""
        oldest = sorted(self._calls.items(), key=lambda item: item[1][1])[:MOST_CALLS]
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
