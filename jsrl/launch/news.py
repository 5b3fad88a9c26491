"""What a controller tells others of its run, and hears of them, through the run folder (jsrl.runs.state).

It writes RUN/status.json anew every two seconds, and looks as often whether somebody asks it to end the run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jsrl.metrics.display import Rate
from jsrl.metrics.display_state import DisplayState
from jsrl.runs.identity import ProcessIdentity
from jsrl.runs.state import News, WorkerNews, is_asked_to_stop, write_news

NEWS_S = 2.0
MOST_EVALUATIONS = 200  # the newest


def moment_of(news: News) -> DisplayState:
    """Return what a display showed when the news were written; what was no number then is left out.

    Raises:
      ValueError: another version of jsrl wrote them.
    """
    metrics = {name: value for name, value in news.moment.get("metrics", {}).items() if isinstance(value, int | float)}
    scores = [pair for pair in news.moment.get("evaluations", ()) if isinstance(pair[1], int | float)]
    return msgspec.convert(news.moment | {"metrics": metrics, "evaluations": scores}, DisplayState)


class NewsWriter:
    """Writes the news of the run in `folder`, whose controller is this process.

    Attributes:
      stop_asked: somebody has asked this process to end the run (`jsrl stop`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._process, self._begun_s = folder, ProcessIdentity.own(), time.time()
        self._rate = Rate()
        self._due_s = 0.0
        self.stop_asked = False

    def update(
        self, state: DisplayState, workers: Callable[[], Sequence[WorkerNews]], reason: str, *, now: bool = False
    ) -> None:
        """Write the news where the last ones are old enough, or `now`.

        Args:
          state: of the run. workers: returns them. reason: why the run ends; empty: it goes on.
        """
        now_s = time.monotonic()
        if not now and now_s < self._due_s:
            return
        self._due_s = now_s + NEWS_S
        self.stop_asked = self.stop_asked or is_asked_to_stop(self._folder, self._process)
        moment = dataclasses.asdict(dataclasses.replace(state, evaluations=state.evaluations[-MOST_EVALUATIONS:]))
        news = News(self._process, self._begun_s, reason, self._rate(state), tuple(workers()), moment)
        try:
            write_news(self._folder, news)
        except (OSError, TypeError):  # a full disk, or a metric that is no number: the run goes on
            return
