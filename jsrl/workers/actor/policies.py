"""The policies of an actor, how each acts in groups of environments, and where its rows go. Imports no jax."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.seats import SeatView, finite_actions, part_of
from jsrl.errors import StreamTimeout
from jsrl.transport.base import Block, Origin, ProducerId, Reply, Request
from jsrl.types import Array, leaves, spread, version_generation, version_updates
from jsrl.workers.actor.lineup import Players, Tap
from jsrl.workers.actor.streams import Ends, Streams


class Pace(NamedTuple):
    """How the trajectories of a group belong to batches: from `first` on, `each` of them to every batch from `batch` on.

    A group makes several for each batch while it stands in for groups that nobody steps. `generation`: of the learner.
    """

    first: int = 0
    batch: int = 0
    each: int = 1
    generation: int = 0

    def batch_of(self, trajectory: int) -> int:
        further = trajectory - self.first
        return self.batch + (further // self.each if further > 0 else further)

    def changed(self, batch: int, each: int, trajectory: int | None) -> Pace:
        """Return the pace with `each` trajectories for every batch from this one on.

        Args:
          trajectory: the open one; None: its number is not known yet. Its batch still gets the larger number of both paces: a
            trajectory too many is dropped, for one too few the learner would wait.
        """
        if each < self.each and trajectory is not None:
            batch = max(batch, self.batch_of(trajectory) + 1)
        further = batch - self.batch
        first = self.first + (further * self.each if further > 0 else further)
        return Pace(first, batch, each, self.generation)


@dataclass(frozen=True)
class ActingPolicy:
    """One policy of an actor, and its two streams.

    Attributes:
      number: of the policy in requests. view: of its seats; None: the environments have one agent.
      max_lag: most updates by which the params of trajectory n may be old (None: any). start_updates: updates at this
        start of the run. updates_per_batch: updates made with one batch. total_updates: the policy's end; it then acts
        with its last params while other policies in its environments are still trained.
      acts_here: it acts in this process, where a group's request may be replaced by another.
      taps: see its trajectories.
    """

    streams: Streams
    number: int = 0
    view: SeatView | None = None
    max_lag: int | None = None
    start_updates: int = 0
    updates_per_batch: int = 1
    total_updates: int = sys.maxsize
    acts_here: bool = False
    taps: Sequence[Tap] = ()

    @property
    def started(self) -> int:
        """Return how many trajectories of each group existed when this process started."""
        return self.start_updates // self.updates_per_batch

    def min_updates(self, batch: int | None) -> int:
        """Return the updates that params must have for a trajectory of this batch: it is at most `max_lag` ahead of them."""
        if self.max_lag is None:
            return -1
        if batch is None:
            return self.start_updates
        return max(-1, min(batch * self.updates_per_batch - self.max_lag, self.total_updates))


@dataclass
class Progress:
    """How far a policy is in a group of environments, over all sessions.

    Attributes:
      trajectory: number of the open one (None: not known yet). pace: which batches its trajectories are for.
      first_batch: of the present learner. sequence: number of the open trajectory, counted by this process.
    """

    policy: ActingPolicy
    trajectory: int | None = None
    pace: Pace = field(default_factory=Pace)
    first_batch: int = 0
    sequence: int = 0

    @property
    def batch(self) -> int | None:
        return None if self.trajectory is None else self.pace.batch_of(self.trajectory)

    @property
    def made(self) -> int:
        """Return the batches of the present learner for which all trajectories are committed."""
        return 0 if self.batch is None else self.batch - self.first_batch

    def step(self, row: int, num_rows: int) -> int:
        """Return the number of a row in the whole run, resumes included: the key of its actions depends on it."""
        return (self.policy.started if self.trajectory is None else self.trajectory) * num_rows + row

    def start(self, version: Array | int) -> None:
        """Number the first trajectory, by the params that it starts with."""
        if self.trajectory is None:
            self.trajectory = int(np.min(version_updates(version))) // self.policy.updates_per_batch
            self.first_batch = self.pace.batch_of(self.trajectory)

    def committed(self) -> None:
        assert self.trajectory is not None
        self.sequence += 1
        self.trajectory += 1

    def for_new_learner(self, generation: int) -> None:
        """Number trajectories anew: the learner may have made fewer updates than the numbers assume."""
        self.trajectory = None
        if self.pace.generation < generation:  # else the new learner has already set it
            self.pace = Pace(generation=generation)

    def stand_in(self, generation: int, batch: int, each: int) -> None:
        """Make another number of trajectories for every batch of a learner from this one on."""
        if self.pace.generation < generation:
            self.pace = Pace(generation=generation).changed(batch, each, None)
        else:
            self.pace = self.pace.changed(batch, each, self.trajectory)


class PolicyRows:
    """The rows of one policy in one group of environments, in one session: its open trajectory.

    Args:
      group: number of the group. num_rows: T.

    Attributes:
      latest: the policy's part of the environments' last step. block: memory of the open trajectory.
      reply: the actions of the next row, once they have arrived.
    """

    latest: EnvStep

    def __init__(self, ends: Ends, progress: Progress, players: Players, group: int, num_rows: int) -> None:
        self._ends, self._group, self._num_rows = ends, group, num_rows
        self.policy, self.progress, self._players = progress.policy, progress, players
        self.block: Block | None = None
        self.reply: Reply | None = None
        self._observation: list[Array] = []  # leaves of the block, as the next ones
        self._extras: list[Array] = []
        self._state: list[Array] = []
        self._game: list[Array] = []

    def ask(self, row: int) -> None:
        policy = self.policy
        request = Request(
            observation=self.latest.observation,
            is_first=self.latest.is_first,
            min_updates=policy.min_updates(self.progress.batch),
            step=self.progress.step(row, self._num_rows),
            wants_core=row == 0,
            policy=policy.number,
            version=self._players.versions(self.latest.acts),
        )
        self._ends.client.send(self._group, request)

    def is_outdated(self, reply: Reply) -> bool:
        """Return whether the first trajectory would start with params of a replaced learner."""
        return (
            self.progress.trajectory is None and int(np.min(version_generation(reply.version))) < self._ends.generation
        )

    def make_room(self, timeout_s: float) -> bool:
        """Reserve a block if there is none; its row 0 is the last trajectory's final observation."""
        if self.block is not None:
            return True
        try:
            self.block = self._ends.producer.reserve(timeout_s)
        except StreamTimeout:
            return False
        self._observation = leaves(self.block.trajectory.observation)
        self._extras = leaves(self.block.trajectory.extras)
        self._state = leaves(self.block.trajectory.state)
        self._game = leaves(self.block.trajectory.game)
        self._write_observation(0)
        return True

    def write_decision(self, row: int) -> Array:
        """Write the actions of a row; return them as arrays that the environments may keep."""
        assert self.block is not None and self.reply is not None
        rows, reply = self.block.trajectory, self.reply
        self.reply = None
        rows.action[row] = reply.action
        rows.log_prob[row] = reply.log_prob
        write_version(rows.version[row], reply.version)
        for target, source in zip(self._extras, leaves(reply.extras), strict=True):
            target[row] = source
        if row == 0:
            core = leaves(rows.core)  # empty if only acting reads the core
            for target, source in zip(core, leaves(reply.core) if core else (), strict=True):
                target[...] = source
            self.progress.start(reply.version)
        # a copy: the reply's arrays are only lent, and environments may keep the action
        return finite_actions(np.array(reply.action), self.latest)

    def take(self, step: EnvStep | GameStep) -> None:
        self.latest = part_of(self.policy.view, step)

    def write_outcome(self, row: int, step: EnvStep | GameStep) -> None:
        """Write the outcome of a row, and the observation of the next row."""
        assert self.block is not None
        self.take(step)
        self.block.trajectory.reward[row] = self.latest.reward
        self.block.trajectory.discount[row] = self.latest.discount
        self._write_observation(row + 1)

    def _write_observation(self, row: int) -> None:
        """Write the observation of a row, and which agents act on it."""
        assert self.block is not None
        for target, source in zip(self._observation, leaves(self.latest.observation), strict=True):
            target[row] = source
        for target, source in zip(self._state, leaves(self.latest.state), strict=True):
            target[row] = source
        self.block.trajectory.is_first[row] = self.latest.is_first
        self.block.trajectory.acts[row] = self._players.kinds(self.latest.acts)
        if self._game:
            self._game[0][row] = self._players.game

    def commit(self, maker: ProducerId) -> None:
        assert self.block is not None
        for tap in self.policy.taps:
            tap.before_commit(self.block.trajectory)
        entry = self.block.commit(self._group, Origin(maker, self.progress.sequence))
        for tap in self.policy.taps:
            tap.after_commit(entry)
        self.block = None
        self.progress.committed()

    def abandon(self) -> None:
        """Return the open trajectory's block.

        The next trajectory does not follow the last one: its number skips one.
        """
        self.progress.sequence += 1
        if self.block is not None:
            self.block.abandon()
            self.block = None


def write_version(row: Array, version: Array | int) -> None:
    """Write the version of a reply (a scalar, [B] or [B, N]) into a row [B] or [B, N]."""
    given = np.asarray(version)
    row[...] = spread(given, row)
