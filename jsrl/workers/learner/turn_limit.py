"""The time limit of one turn of a learner's loop, if other ranks wait for it."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import deque
from collections.abc import Iterator

from jsrl.experiment.settings import DeadlineConfig
from jsrl.workers.base import Reporter

_MEASURED, _TIMES = 5, 10  # updates before their median counts, and the limit in medians


class TurnLimit:
    """Time limit of one turn of a rank's loop: ten times its median update, at least `rank_s`.

    Before it has measured five updates, ten times the longest one, at most `stuck_s`: the first one includes compilation.
    """

    def __init__(self, deadlines: DeadlineConfig) -> None:
        self._deadlines = deadlines
        self._took: deque[float] = deque(maxlen=101)

    def note(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        if len(self._took) < _MEASURED:
            usual_s = min(self._deadlines.stuck_s, _TIMES * max(self._took, default=math.inf))
        else:
            usual_s = _TIMES * statistics.median(self._took)
        return max(self._deadlines.rank_s, usual_s)

    @contextlib.contextmanager
    def lifted(self, reporter: Reporter) -> Iterator[None]:
        """Lift the limit while a snapshot is written."""
        reporter.entering("writing a snapshot", math.inf)
        try:
            yield
        finally:
            reporter.left()


class NoLimit:
    """No limit but that of any worker: no other rank waits."""

    seconds = None

    def note(self, seconds: float) -> None:
        """Do nothing."""

    def lifted(self, reporter: Reporter) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()
