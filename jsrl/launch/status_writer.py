"""The status of a run in its run folder, written by its controller, and requests to it (jsrl.runs.state).

The controller writes RUN/status.json every two seconds (see `rarity`), and checks as often whether the run must end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from jsrl.metrics.display import Rate
from jsrl.metrics.display_state import DisplayState
from jsrl.runs.identity import ProcessIdentity
from jsrl.runs.state import ControllerStatus, WorkerSummary, is_asked_to_stop, write_status

NEWS_S = 2.0
MANY = 500  # workers
MOST_EVALUATIONS = 200  # the newest, and the best


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
    newest = evaluations[-MOST_EVALUATIONS:]
    older = evaluations[: -len(newest)] if newest else []
    best = max(older, key=lambda point: point[1], default=None)
    return newest if best is None or best[1] <= max(value for _, value in newest) else [best, *newest[1:]]
