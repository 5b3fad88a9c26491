"""The outlet of a learner: params to actors, snapshots to disk, reports to the controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from jsrl.errors import SnapshotError
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger, ParamsPublisher
from jsrl.types import Tree
from jsrl.workers.base import Reporter
from jsrl.workers.learner.seams import Snapshot


class Outlet:
    """Publishes, saves and reports what a learner makes.

    Args:
      bind: () -> the stream of the params. store: of snapshots.
    """

    def __init__(
        self, bind: Callable[[], ParamsPublisher], store: SnapshotStore, reporter: Reporter, meter: Meter
    ) -> None:
        self.meter, self._bind, self._store, self._reporter = meter, bind, store, reporter
        self._phases = meter.phases
        self._replay_metrics: dict[str, float] = {}
        self._trained_s = 0.0
        self._unsaved = ""  # why the final snapshot was not written

    def open(self) -> None:
        self._publisher = self._bind()

    def event(self, name: str, **facts: Any) -> None:
        self._reporter.event(name, **facts)

    def publish(self, version: int, params: Tree) -> None:
        self._phases.enter("publish")
        self._publisher.publish(0, version, jax.tree.leaves(params))
        self._phases.enter("other")

    def learned(self, metrics: dict[str, float], replay: dict[str, float]) -> None:
        """Note the metrics of an update, and those of the replay with their full names."""
        self.meter.means(metrics)
        self._replay_metrics, self._trained_s = replay, time.monotonic()

    def trained(self, rows: int) -> None:
        """Note how many rows a batch was trained on."""
        if rows:
            self.meter.rate("rows", rows)

    def save(self, version: int, snapshot: Callable[[], Snapshot], tags: tuple[str, ...], *, wait: bool) -> None:
        """Write a snapshot; training continues without it if the disk fails."""
        self._phases.enter("snapshot")
        self._reporter.event("saving", version=version)
        state, meta = snapshot()
        try:
            self._store.save(version, {"state": state}, meta=meta, tags=tags, wait=wait)
        except SnapshotError as error:
            last = "final" in tags  # shown even if an earlier one failed: nothing newer will be written
            which, once = ("the final snapshot", "final snapshot") if last else ("snapshot", "snapshots")
            failed = f"{which} of update {meta['updates']} failed"
            self._unsaved = f"{failed}: {str(error).partition('. ')[0]}" if last else ""
            self._reporter.event("warning", f"{failed}: {error}", once=once)
        self._phases.rest()

    def report(self, ledger: Ledger, facts: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        if self._trained_s:
            self.meter.last("trained_s", self._trained_s)
        queue = self._store.queue
        last: dict[str, float] = {
            "ledger/received": ledger.received,
            "ledger/consumed": ledger.consumed,
            "ledger/dropped": sum((ledger.dropped or {}).values()),
            "ledger/in_flight": ledger.in_flight,
            "snapshots/written": queue.written,
            "snapshots/failed": queue.failed,
            "snapshots/superseded": queue.superseded,
        }
        if queue.written:
            last["snapshots/last_write_s"] = queue.last_write_s
        return self._replay_metrics | self.meter.flush() | {name: float(value) for name, value in last.items()}, facts

    def close(self, facts: dict[str, Any]) -> dict[str, Any]:
        self._publisher.close()
        self._store.close()
        return facts | ({"unsaved": self._unsaved} if self._unsaved else {})
