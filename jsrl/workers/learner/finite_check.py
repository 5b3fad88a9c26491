"""Refuse updates with NaN or infinity, and keep their inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jsrl.agents.finite import describe_non_finite, non_finite_metrics
from jsrl.errors import NonFiniteUpdate
from jsrl.references.importing import spawn_environment
from jsrl.snapshots.store import SnapshotStore
from jsrl.types import Trajectory
from jsrl.workers.jobs import FAILED_UPDATE
from jsrl.workers.learner.updaters import OwnUpdate


class Refused(NamedTuple):
    """A refused update: the state to continue from, and the error to raise."""

    state: Any
    error: NonFiniteUpdate


class Check(Protocol):
    """Checks each update before it is published."""

    def __call__(
        self, counts: tuple[int, int], before: Any, after: Any, batch: Trajectory, metrics: dict[str, float]
    ) -> Refused | None:
        """Return None, or why the update that made `after` and `metrics` is refused.

        counts: the number of the version before it, and the updates made before it.
        """
        ...


def no_check(counts: tuple[int, int], before: Any, after: Any, batch: Trajectory, metrics: dict[str, float]) -> None:
    """Refuse nothing."""


def only_finite(
    counts: tuple[int, int], before: Any, after: Any, batch: Trajectory, metrics: dict[str, float]
) -> Refused | None:
    """Refuse non-finite updates, and keep nothing: the batch is spread over several ranks."""
    bad = non_finite_metrics(metrics)
    if not bad:
        return None
    return Refused(
        before,
        NonFiniteUpdate(
            f"update {counts[1] + 1} made {describe_non_finite(bad, metrics)}; nothing of it was published. Its batch was "
            "spread over several ranks and is not kept: with learner.num_ranks 1 it would be."
        ),
    )


class FiniteCheck:
    """Refuses non-finite updates; keeps the state before and the batch in the run folder, for jsrl.cli.replay_update.

    Args:
      updater: of the learner. run: the folder. policy: subfolder of the policy in folders of the run, see Job.
    """

    def __init__(self, updater: OwnUpdate, run: Path, policy: str = "") -> None:
        self._updater, self._folder = updater, run / FAILED_UPDATE / policy
        self._command = f"jsrl dev replay-update {run}" + (f" --policy {policy}" if policy else "")

    def __call__(
        self, counts: tuple[int, int], before: Any, after: Any, batch: Trajectory, metrics: dict[str, float]
    ) -> Refused | None:
        """Return None where all metrics are finite (the check of the state is one of them)."""
        bad = non_finite_metrics(metrics)
        if not bad:
            return None
        failed = self._updater.failed(before, after, batch)
        updates = counts[1] + failed.facts.get("number", 0)
        meta = {"version_number": counts[0], "updates": updates, "bad_metric": bad[0]} | failed.facts
        meta["python_path"] = spawn_environment().variables["PYTHONPATH"].split(os.pathsep)
        SnapshotStore(self._folder).save(counts[0], failed.tree, meta=meta, wait=True)
        error = NonFiniteUpdate(
            f"update {updates + 1} made {describe_non_finite(bad, metrics)}; nothing of it was published. The state "
            f"before it and its batch lie in {self._folder}. Replay it with: {self._command}"
        )
        return Refused(failed.state, error)
