"""A rank of a learner: makes the same updates as the learner, on its own devices, with its own share of each batch."""

from __future__ import annotations

from typing import Any

from jsrl.runs.control import Command
from jsrl.workers.learner.ranks import Follower
from jsrl.workers.learner.sources import SynchronizedSource
from jsrl.workers.learner.worker import Learner


class Rank(Learner):
    """Trains like the learner; only the learner publishes params, writes snapshots and reports the updates' metrics."""

    _counts_rows = False  # the learner counts the rows of all ranks
    _source: SynchronizedSource
    _ranks: Follower

    def _publish(self, params: Any) -> None:
        pass

    def _note(self, metrics: dict[str, float]) -> None:
        pass

    def _report_finished(self) -> None:
        pass

    def save(self, *, wait: bool, tags: tuple[str, ...] = ()) -> None:
        """Write nothing."""

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        self._meter.last("queue_depth", self._source.pending())
        for name, count in self._source.counts.items():
            self._meter.last(name, count)
        return self._meter.flush(), {}

    def command(self, command: Command) -> None:
        """Execute `absent`: the other commands are for the learner."""
        if command.name == "absent":
            super().command(command)

    def close(self) -> dict[str, Any]:
        """Leave the learner, after the update that may be running."""
        while (batch := self._source.last()) is not None:
            self._train_on(batch)
        self._ranks.leave()
        self._updater.close()
        self._open.close()
        return {}
