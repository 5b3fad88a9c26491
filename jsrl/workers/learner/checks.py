"""Gates that check each update before it is published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.agents.base import MADE, AgentState
from jsrl.agents.finite import describe_non_finite, non_finite_metrics
from jsrl.errors import AgentFault, NonFiniteUpdate
from jsrl.references.importing import spawn_environment
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.workers.jobs import FAILED_UPDATE
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.seams import Gate, LearnerState, Refused
from jsrl.workers.learner.updaters import OwnUpdate


class FiniteCheck(Gate):
    """Refuses non-finite updates; keeps the state before and the batch in the run folder, for jsrl.cli.replay_update.

    Args:
      updater: of the learner. run: the folder. policy: subfolder of the policy in folders of the run, see Job.
    """

    def __init__(self, updater: OwnUpdate, run: Path, policy: str = "") -> None:
        self._updater, self._folder = updater, run / FAILED_UPDATE / policy
        self._command = f"jsrl dev replay-update {run}" + (f" --policy {policy}" if policy else "")

    def after(self, before: LearnerState, state: Any, batch: Batch, metrics: dict[str, float]) -> Refused | None:
        """Return None where all metrics are finite (the check of the state is one of them)."""
        bad = non_finite_metrics(metrics)
        if not bad:
            return None
        failed = self._updater.failed(before.state, state, batch.trajectory)
        updates = before.updates + failed.facts.get("number", 0)
        meta = {"version_number": before.number, "updates": updates, "bad_metric": bad[0]} | failed.facts
        meta["python_path"] = spawn_environment().variables["PYTHONPATH"].split(os.pathsep)
        SnapshotStore(self._folder).save(before.number, failed.tree, meta=meta, wait=True)
        kept = f"The state before it and its batch lie in {self._folder}. Replay it with: {self._command}"
        return Refused(failed.state, non_finite(updates, bad, metrics, kept))


def non_finite(updates: int, bad: list[str], metrics: dict[str, float], kept: str) -> NonFiniteUpdate:
    """Return the error about an update after `updates` others; `kept`: what became of its batch."""
    return NonFiniteUpdate(
        f"update {updates + 1} made {describe_non_finite(bad, metrics)}; nothing of it was published. {kept}"
    )


class CountsItself(Gate):
    """Checks, at the first update, that an update counts itself: schedules and exploration follow this count."""

    def __init__(self, updates_per_call: int) -> None:
        self._per_call, self._checked = updates_per_call, False

    def before(self, now: LearnerState, batch: Batch) -> Any:
        """Note the count; the update may delete the state."""
        self._before = None if self._checked else own_updates(now.state)
        return now.state

    def after(self, before: LearnerState, state: Any, batch: Batch, metrics: dict[str, float]) -> None:
        made = int(metrics.get(MADE, self._per_call))
        if self._before is None or not made:
            return
        counted, expected = own_updates(state), self._before + made
        if counted != expected:
            raise AgentFault(
                f"update returned a state with updates={counted}, expected {expected}: return updates=state.updates + 1, "
                "which schedules and resumes follow"
            )
        self._checked = True


def own_updates(state: Any) -> int | None:
    """Return the updates that an agent has counted in its state; None: they are spread over two devices."""
    return int(np.ravel(state.updates)[0]) if isinstance(state, AgentState) else None
