"""What a director commands a learner: to freeze its params, and to go on from another state.

A reset or copy takes the place of the next update, so that params change where updates change them. Until then the meta of
snapshots has it, and a later life makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jsrl.agents.base import UpdateOutput
from jsrl.directors.messages import INITIAL
from jsrl.errors import SnapshotError
from jsrl.snapshots.players import PlayerStore
from jsrl.workers.base import Reporter
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.copies import Copies
from jsrl.workers.learner.scores import Scores
from jsrl.workers.learner.updaters import Updater


class Now(NamedTuple):
    """A learner between two updates."""

    version: int
    updates: int
    state: Any


class Directed:
    """What a learner asks about its director; this one is of a learner that has none."""

    def begin(self, now: Now) -> None:
        """Take note of how this life begins."""

    def next_state(self, updates: int) -> Any:
        """Return the state that takes the place of the next update; None: there is none."""
        return None

    def trains(self, batch: Batch) -> bool:
        """Return whether the rows of a batch may train."""
        return True

    def trained(self, batch: Batch, output: UpdateOutput, batches: int) -> None:
        """Take note of a batch and of its last update; `batches`: that the learner has had so far, this one included."""

    def meta(self) -> dict[str, Any]:
        """Return what a snapshot has to tell a later life."""
        return {}

    def obey(self, name: str, facts: dict[str, Any], now: Now, save: Callable[[], None]) -> None:
        """Carry out a command, where it is one of a director; `save` writes a snapshot."""


UNDIRECTED = Directed()


class ByDirector(Directed):
    """A learner's that can be directed.

    Args:
      players: its frozen players. again: (leaves of params, updates) -> a state that begins with these params.
      copies: states from and for the learners of other policies. scores: of the games in its batches; None: nobody wants them.
      freezes: its first params are frozen as `initial`. on_policy: rows that params chose from before a reset or copy train
        nothing (replay keeps them). told: the reset or copy that a director told before this life, and that was not made.
    """

    def __init__(
        self,
        updater: Updater,
        players: PlayerStore,
        again: Callable[[list[Any], int], Any],
        copies: Copies,
        scores: Scores | None,
        reporter: Reporter,
        *,
        freezes: bool,
        on_policy: bool,
        told: dict[str, Any] | None,
    ) -> None:
        self._updater, self._players, self._again, self._copies = updater, players, again, copies
        self._scores, self._reporter, self._freezes, self._on_policy = scores, reporter, freezes, on_policy
        self._told = told  # what takes the place of the next update: as it was told, and the state
        self._next: Any = None
        self._reset_at = -1  # updates by which a director reset or copied the state last
        self._done: dict[str, Any] = {}  # what the director was told last

    def begin(self, now: Now) -> None:
        """Load the state that was told before this life, and freeze the first params."""
        self._next = None if self._told is None else self._state_told(self._told)
        if self._freezes and INITIAL not in self._players.names():
            self._freeze(INITIAL, now)

    def next_state(self, updates: int) -> Any:
        """Return the state that was told, once; see Directed."""
        found = self._next
        if found is not None:
            self._next, self._told, self._reset_at = None, None, updates
        return found

    def trains(self, batch: Batch) -> bool:
        """Return whether params of since the last reset or copy chose all rows of a batch."""
        if self._reset_at < 0 or not self._on_policy:
            return True
        made = np.asarray(batch.trajectory.version)[:, :-1] & 0x7FFFFFFF
        return int(made.min()) > self._reset_at

    def trained(self, batch: Batch, output: UpdateOutput, batches: int) -> None:
        """Count the scores of the games in a batch, where somebody wants them."""
        if self._scores is not None:
            rows = None if output.priorities is None else np.asarray(output.priorities)
            self._scores.add(batch.trajectory.game, rows, batches)

    def meta(self) -> dict[str, Any]:
        """Return what was told and is not made yet, and the scores of games that go on."""
        told = {} if self._told is None else {"told": self._told}
        return told if self._scores is None else told | {"open_games": self._scores.open_games}

    def obey(self, name: str, facts: dict[str, Any], now: Now, save: Callable[[], None]) -> None:
        """Carry out a command, once, and say so, or why not."""
        if name not in ("freeze", "reset", "hand_over", "copy"):
            return
        if self._done.get("ticket") == facts["ticket"]:
            self._reporter.event("done", **self._done)
            return
        done: dict[str, Any] = {"ticket": facts["ticket"], "version": now.version}
        try:
            if name == "freeze":
                self._freeze(facts["name"], now)
            elif name == "hand_over":
                self._copies.hand_over(facts["to"], now.version, now.state if self._next is None else self._next)
            else:
                told = facts | {"updates": now.updates}
                self._next, self._told = self._state_told(told), told
                save()  # a later life knows of it
        except SnapshotError as error:
            done["error"] = str(error)
        self._done = done
        self._reporter.event("done", **done)

    def _freeze(self, name: str, now: Now) -> None:
        params = self._updater.fetch(now.state.params)
        self._players.freeze(name, now.version, jax.tree.leaves(params))

    def _state_told(self, told: dict[str, Any]) -> Any:
        """Return the state of a reset or copy, on its devices.

        Raises:
          SnapshotError: it cannot be read.
        """
        if "hyperparameters" in told:
            return self._copies.load(told["version"], told["hyperparameters"])
        return self._again(self._players.load(told["version"]), told["updates"])
