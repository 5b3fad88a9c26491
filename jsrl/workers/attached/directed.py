"""The gate of a director's commands to a learner: freeze the params, or continue from another state.

A reset or copy replaces the next update, so that params change only where updates change them. With replay on the device it
comes just before that update, which adds its batch to the rows. Until then the snapshots' metadata holds the command, so that
a restarted learner executes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from jsrl.agents.base import AgentState, ReplayExtra, UpdateOutput, adopt
from jsrl.agents.hyperparameters import set_hyperparameters
from jsrl.directors.messages import INITIAL
from jsrl.errors import SnapshotError
from jsrl.experiment.policies import wants_scores
from jsrl.services.runs.control_bodies import CommandDone
from jsrl.services.snapshots.players import PlayerStore
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ONLY_SCORED, Array
from jsrl.workers.acting import INIT_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.director.tickets import ExecutedTickets
from jsrl.workers.frozen import players_of
from jsrl.workers.jobs import Job
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.build import LearnerStart
from jsrl.workers.learner.seams import Gate, LearnerState, Skip
from jsrl.workers.learner.updaters import Updater

SUMS = 5  # of a row, see jsrl.agents.rows.row_scores
MOST_OPEN = 10_000  # unfinished games kept: some never end, because their rows were dropped


class Scores:
    """Scores of the games in a learner's batches, reported when a game ends (see jsrl.directors.messages.Score).

    A game's rows come in several batches. Snapshots keep the scores of unfinished games for a restart.

    Source: Jiang et al., "Prioritized Level Replay" (2021), section 3.1: averages over the rows of an episode. Differs: the
    rows of an episode that is longer than one batch are scored with the value functions of their own updates.

    Args:
      reporter: reports to the director. policy: number of the learner's policy.
      always: report every batch, even if no game ended, because the director waits for it.
      known: scores of games that were unfinished at the restart, see `open_games`.
    """

    def __init__(
        self, reporter: Reporter, policy: int = 0, *, always: bool = False, known: Sequence[Sequence[float]] = ()
    ) -> None:
        self._reporter, self._policy, self._always = reporter, policy, always
        self._open = {int(game): np.array(sums, np.float64) for game, *sums in known}  # the sums of its rows so far

    @property
    def open_games(self) -> list[tuple[float, ...]]:
        """Return each unfinished game, with the sums of its rows so far."""
        return [(game, *sums.tolist()) for game, sums in self._open.items()]

    def add(self, game: Array, rows: Array | None, batches: int = 0) -> None:
        """Count the rows of a batch, and report the games that ended in it.

        Args:
          game: int32 [D, T+1, B/D], see Trajectory. rows: [D, B/D, T, 5], see jsrl.agents.rows.row_scores;
            None: nothing was trained. batches: number of batches so far.
        """
        if rows is None:
            self._report((), batches)
            return
        games = np.moveaxis(np.asarray(game), 1, 2)  # [D, B/D, T+1]
        games = np.where(games <= ONLY_SCORED, ONLY_SCORED - games, games)
        own, values = games[..., :-1].ravel(), np.asarray(rows, np.float64).reshape(-1, SUMS)
        found, index = np.unique(own, return_inverse=True)
        sums = np.stack([np.bincount(index, column, len(found)) for column in values.T], axis=1)
        for number, total in zip(found.tolist(), sums, strict=True):
            self._open[number] = self._open.pop(number, 0.0) + total
        ended = np.unique(games[..., :-1][games[..., :-1] != games[..., 1:]]).tolist()
        self._report(ended, batches)
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _report(self, ended: Sequence[int], batches: int) -> None:
        scores = []
        for number in ended:
            error, positive, value, count, reward = self._open.pop(number).tolist()
            if number >= 0 and count and math.isfinite(error + reward):
                scores.append((number, error / count, positive / count, value / count, reward))
        if scores or self._always:
            self._reporter.event("scores", scores=scores, policy=self._policy, batches=batches)


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


class DirectorGate(Gate):
    """The gate of a learner that has a director.

    Args:
      players: its frozen players. again: (leaves of params, updates) -> a state that begins with these params.
      copies: states from and for the learners of other policies. scores: of the games in its batches; None: not wanted.
      freezes: its first params are frozen as `initial`. on_policy: rows of params from before a reset or copy are not
        trained on (replay keeps them). meta: of the snapshot that it starts from, see `meta`.
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
        meta: Mapping[str, Any],
    ) -> None:
        self._updater, self._players, self._again, self._copies = updater, players, again, copies
        self._scores, self._reporter, self._freezes, self._on_policy = scores, reporter, freezes, on_policy
        self._pending = meta.get("told")  # the command that replaces the next update, and its state
        self._next: Any = None
        self._reset_at = -1  # updates at the director's last reset or copy
        self._tickets = ExecutedTickets(msgspec.convert(meta["done"], CommandDone) if "done" in meta else None)

    def begin(self, now: LearnerState) -> None:
        """Load the state of a pending command, and freeze the first params."""
        self._next = None if self._pending is None else self._pending_state(self._pending)
        if self._freezes and INITIAL not in self._players.names():
            self._freeze(INITIAL, now)

    def before(self, now: LearnerState, batch: Batch) -> Any:
        """Take the state of a pending command, or skip rows from before it.

        Rows in replay on the device stay: the new state takes them over, and learns from them and this batch.
        """
        found = self._next
        if found is None:
            return now.state if self._trains(batch) else Skip(now.state)
        self._next, self._pending, self._reset_at = None, None, now.number
        if not isinstance(getattr(now.state, "extra", None), ReplayExtra):
            return Skip(found)
        return found._replace(extra=found.extra._replace(ring=now.state.extra.ring))

    def _trains(self, batch: Batch) -> bool:
        """Return whether all rows of a batch come from params since the last reset or copy."""
        if self._reset_at < 0 or not self._on_policy:
            return True
        made = np.asarray(batch.trajectory.version)[:, :-1] & 0x7FFFFFFF
        return int(made.min()) > self._reset_at

    def trained(self, batch: Batch, output: UpdateOutput, batches: int) -> None:
        if self._scores is not None:
            rows = None if output.priorities is None else np.asarray(output.priorities)
            self._scores.add(batch.trajectory.game, rows, batches)

    def meta(self) -> dict[str, Any]:
        meta = {"done": msgspec.to_builtins(self._tickets.done)} | ({"told": self._pending} if self._pending else {})
        return meta if self._scores is None else meta | {"open_games": self._scores.open_games}

    def command(self, name: str, facts: dict[str, Any], now: LearnerState, save: Callable[[], None]) -> None:
        """Execute a command once, and confirm it."""
        if name not in ("freeze", "reset", "hand_over", "copy"):
            return
        for action in self._tickets.handle(facts["ticket"]):
            if not isinstance(action, CommandDone):
                (action,) = self._tickets.handle(self._carried_out(name, facts, now))
                if name in ("reset", "copy") and not self._tickets.done.error:
                    save()  # so that a restart knows of it
            self._reporter.event("done", **msgspec.to_builtins(action))

    def _carried_out(self, name: str, facts: dict[str, Any], now: LearnerState) -> CommandDone:
        try:
            if name == "freeze":
                self._freeze(facts["name"], now)
            elif name == "hand_over":
                self._copies.hand_over(facts["to"], now.version, now.state if self._next is None else self._next)
            else:
                pending = facts | {"updates": now.number}
                self._next, self._pending = self._pending_state(pending), pending
        except SnapshotError as error:
            return CommandDone(facts["ticket"], version=now.version, error=str(error))
        return CommandDone(facts["ticket"], version=now.version)

    def _freeze(self, name: str, now: LearnerState) -> None:
        params = self._updater.fetch(now.state.params)
        self._players.freeze(name, now.version, jax.tree.leaves(params))

    def _pending_state(self, pending: dict[str, Any]) -> Any:
        """Return the state of a reset or copy, on its devices."""
        if "hyperparameters" in pending:
            return self._copies.load(pending["version"], pending["hyperparameters"])
        return self._again(self._players.load(pending["version"]), pending["updates"])


def director_gate(job: Job, start: LearnerStart, updater: Updater, reporter: Reporter) -> DirectorGate:
    e, key = job.experiment, stream_key(job.experiment.seed, INIT_STREAM)
    scores = None
    if wants_scores(e.director):
        known = start.meta.get("open_games", ())
        scores = Scores(reporter, job.policy_number, always=e.is_deterministic, known=known)

    def again(values: list[Any], updates: int) -> Any:
        state = jax.device_get(jax.jit(functools.partial(updater.fresh, jax.random.fold_in(key, updates)))())
        return updater.place(adopt(updater.agent, state, jax.tree.unflatten(jax.tree.structure(state.params), values)))

    return DirectorGate(
        updater,
        players_of(job),
        again,
        Copies(job.snapshots_of, job.policy, updater, functools.partial(updater.fresh, key)),
        scores,
        reporter,
        freezes=e.director is not None or (job.run.keeps_initial and not job.start_point.updates),
        on_policy=e.buffer is None,
        meta=start.meta,
    )
