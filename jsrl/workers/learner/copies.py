"""Copying whole states between learners: a member of a population continues from a better one's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jsrl.agents.base import AgentState
from jsrl.agents.hyperparameters import set_hyperparameters
from jsrl.snapshots.store import SnapshotStore
from jsrl.workers.learner.updaters import Updater

FOLDER = "handed-over"  # of a policy's snapshots; reserved: no policy may have this name


class Copies:
    """Copied states, each in the folder of the policy that receives it.

    Args:
      snapshots: folder of a policy's snapshots, by its name. own: name of this learner's policy.
      updater: of this learner. fresh: returns the snapshot of a new state.
    """

    def __init__(
        self, snapshots: Mapping[str, Path], own: str, updater: Updater, fresh: Callable[[], AgentState]
    ) -> None:
        self._snapshots, self._own, self._updater, self._fresh = dict(snapshots), own, updater, fresh

    def hand_over(self, policy: str, version: int, state: Any) -> None:
        """Write this learner's state for the learner of another policy; it is on disk when this returns."""
        store = SnapshotStore(self._snapshots[policy] / FOLDER)
        store.save(version, {"state": self._updater.saved(state)}, meta={"policy": self._own}, wait=True)

    def load(self, version: int, hyperparameters: Mapping[str, float]) -> Any:
        """Return the state copied to this learner, on its devices, with other hyperparameters."""
        template = {"state": jax.eval_shape(self._fresh)}
        saved = SnapshotStore(self._snapshots[self._own] / FOLDER).load(version, template).tree["state"]
        return self._updater.place(set_hyperparameters(saved, hyperparameters))
