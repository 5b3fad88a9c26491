"""The policies of an actor, how each acts in groups of environments, and where its rows go. Imports no jax."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jsrl.envs.base import EnvStep, GameStep, VectorEnv, VectorGame
from jsrl.envs.seats import NO_SEATS, SeatView, actions_of, finite_actions, part_of, seat_group
from jsrl.errors import StreamTimeout
from jsrl.transport.base import LATEST_VERSION, Block, InferenceClient, Reply, Request, SampleProducer
from jsrl.types import Array, leaves, spread, version_epoch, version_updates
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.base import EnvCall

if TYPE_CHECKING:
    from jsrl.workers.attached.selfplay import SeatPlayers


class Pace(NamedTuple):
    """How the trajectories of a group belong to batches: from `first` on, `each` of them to every batch from `batch` on.

    A group makes several for each batch while it stands in for groups that nobody steps. `epoch`: of the learner.
    """

    first: int = 0
    batch: int = 0
    each: int = 1
    epoch: int = 0

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
        return Pace(first, batch, each, self.epoch)


@dataclass(frozen=True)
class PolicySettings:
    """Settings of one policy in an actor.

    Attributes:
      number: of the policy in requests. view: of its seats; None: the environments have one agent.
      max_lag: most updates by which the params of trajectory n may be old (None: any). start_updates: updates at this
        start of the run. updates_per_batch: updates made with one batch. total_updates: the policy's end; it then acts
        with its last params while other policies in its environments are still trained.
      acts_here: it acts in this process, where a group's request may be replaced by another.
    """

    number: int = 0
    view: SeatView | None = None
    max_lag: int | None = None
    start_updates: int = 0
    updates_per_batch: int = 1
    total_updates: int = sys.maxsize
    acts_here: bool = False

    @property
    def begun(self) -> int:
        """Return how many trajectories of each group existed when this process started."""
        return self.start_updates // self.updates_per_batch

    def min_updates(self, batch: int | None) -> int:
        """Return the updates that params must have for a trajectory of this batch: it is at most `max_lag` ahead of them."""
        if self.max_lag is None:
            return -1
        if batch is None:
            return self.start_updates
        return max(-1, min(batch * self.updates_per_batch - self.max_lag, self.total_updates))


class ActingPolicy:
    """One policy of an actor, with its two streams.

    Args:
      settings: of the policy. connect: group sizes -> (inference client, sample producer), called when the environments
        exist. streams: reconnects both after the other end was replaced; None: the actor ends with them.
    """

    def __init__(
        self,
        settings: PolicySettings,
        connect: Callable[[dict[int, int]], tuple[InferenceClient, SampleProducer]],
        streams: ActorStreams | None = None,
    ) -> None:
        self.settings, self.streams, self._connect = settings, streams, connect
        self.is_open = False

    def open(self, group_sizes: dict[int, int]) -> None:
        """Connect; `group_sizes`: group -> its number of environments."""
        self.client, self.producer = self._connect(group_sizes)
        self.is_open = True

    def part(self, step: EnvStep | GameStep) -> EnvStep:
        return part_of(self.settings.view, step)

    def is_outdated(self, reply: Reply) -> bool:
        """Return whether a first trajectory would start with params of a replaced learner."""
        return self.streams is not None and int(np.min(version_epoch(reply.version))) < self.streams.epoch

    def check(self) -> None:
        """Check that the other ends are alive. Raises StreamClosed."""
        if self.streams is not None:
            self.streams.check()

    def close(self, lost: str) -> None:
        """Close the streams; `lost`: why the reader of its rows is gone, else empty."""
        if self.is_open:
            if lost:
                self.producer.mark_lost(lost)
            self.client.close()
            self.producer.close()


@dataclass
class PolicyRows:
    """The rows of one policy in one group of environments: its open trajectory.

    Attributes:
      policy: of the rows. group: number of the group. latest: the policy's part of the environments' last step.
      trajectory: number of the open trajectory (None: not known yet).
      pace: which batches its trajectories are for. begun: the first batch of the current consumer. sequence: number of the
        open trajectory, counted by this process. block: memory of the open trajectory. observation, extras, state: its leaves.
      reply: the actions of the next row, once they have arrived.
      seat_players: which player plays each seat, if a director assigns them.
    """

    policy: ActingPolicy
    group: int
    latest: EnvStep
    trajectory: int | None = None
    pace: Pace = field(default_factory=Pace)
    begun: int = 0
    sequence: int = 0
    block: Block | None = None
    observation: list[Array] = field(default_factory=list)
    extras: list[Array] = field(default_factory=list)
    state: list[Array] = field(default_factory=list)
    game: list[Array] = field(default_factory=list)
    reply: Reply | None = None
    seat_players: SeatPlayers | None = None

    @property
    def batch(self) -> int | None:
        return None if self.trajectory is None else self.pace.batch_of(self.trajectory)

    @property
    def made(self) -> int:
        """Return the batches of the current consumer for which all trajectories are committed."""
        return 0 if self.batch is None else self.batch - self.begun

    def begin_again(self, epoch: int) -> None:
        """Continue with a new learner, which may have made fewer updates than the trajectories' numbers assume."""
        self.trajectory = None
        if self.pace.epoch < epoch:  # else the new learner has already set it
            self.pace = Pace(epoch=epoch)

    def stand_in(self, epoch: int, batch: int, each: int) -> None:
        """Make another number of trajectories for every batch of a learner from this one on."""
        if self.pace.epoch < epoch:
            self.pace = Pace(epoch=epoch).changed(batch, each, None)
        else:
            self.pace = self.pace.changed(batch, each, self.trajectory)

    def ask(self, row: int, num_rows: int) -> None:
        settings = self.policy.settings
        number = settings.begun if self.trajectory is None else self.trajectory
        request = Request(
            observation=self.latest.observation,
            is_first=self.latest.is_first,
            min_updates=settings.min_updates(self.batch),
            step=number * num_rows + row,  # of the row in the whole run, resumes included: the row's key depends on it
            wants_core=row == 0,
            policy=settings.number,
            version=LATEST_VERSION if self.seat_players is None else self.seat_players.asked(self.latest.acts),
        )
        self.policy.client.send(self.group, request)

    def make_room(self, timeout_s: float) -> bool:
        """Reserve a block if there is none; its row 0 is the last trajectory's final observation."""
        if self.block is not None:
            return True
        try:
            self.block = self.policy.producer.reserve(timeout_s)
        except StreamTimeout:
            return False
        self.observation = leaves(self.block.trajectory.observation)
        self.extras = leaves(self.block.trajectory.extras)
        self.state = leaves(self.block.trajectory.state)
        self.game = leaves(self.block.trajectory.game)
        self.write_observation(0)
        return True

    def write_decision(self, row: int) -> Array:
        """Write the actions of a row; return them as arrays that the environments may keep."""
        assert self.block is not None and self.reply is not None
        rows, reply = self.block.trajectory, self.reply
        self.reply = None
        rows.action[row] = reply.action
        rows.log_prob[row] = reply.log_prob
        write_version(rows.version[row], reply.version)
        for target, source in zip(self.extras, leaves(reply.extras), strict=True):
            target[row] = source
        if row == 0:
            self._begin(reply)
        # a copy: the reply's arrays are only lent, and environments may keep the action
        return finite_actions(np.array(reply.action), self.latest)

    def _begin(self, reply: Reply) -> None:
        assert self.block is not None
        kept = leaves(self.block.trajectory.core)  # empty if only acting reads the core
        for target, source in zip(kept, leaves(reply.core) if kept else (), strict=True):
            target[...] = source
        if self.trajectory is None:
            updates = int(np.min(version_updates(reply.version)))
            self.trajectory = updates // self.policy.settings.updates_per_batch
            self.begun = self.pace.batch_of(self.trajectory)

    def write_outcome(self, row: int, step: EnvStep | GameStep) -> None:
        """Write the outcome of a row, and the observation of the next row."""
        assert self.block is not None
        self.latest = self.policy.part(step)
        self.block.trajectory.reward[row] = self.latest.reward
        self.block.trajectory.discount[row] = self.latest.discount
        self.write_observation(row + 1)

    def write_observation(self, row: int) -> None:
        """Write the observation of a row, and which agents act on it."""
        assert self.block is not None
        for target, source in zip(self.observation, leaves(self.latest.observation), strict=True):
            target[row] = source
        for target, source in zip(self.state, leaves(self.latest.state), strict=True):
            target[row] = source
        self.block.trajectory.is_first[row] = self.latest.is_first
        acts = self.latest.acts
        self.block.trajectory.acts[row] = acts if self.seat_players is None else self.seat_players.trained(acts)
        if self.seat_players is not None and self.game:
            self.game[0][row] = self.seat_players.game

    def committed(self) -> None:
        assert self.trajectory is not None
        self.block = None
        self.sequence += 1
        self.trajectory += 1

    def abandon(self) -> None:
        """Return the open trajectory's block, and discard the reply that would have continued it.

        The next trajectory does not follow the last one: its number skips one.
        """
        self.sequence += 1
        if self.block is not None:
            self.block.abandon()
        self.block, self.reply = None, None


def write_version(row: Array, version: Array | int) -> None:
    """Write the version of a reply (a scalar, [B] or [B, N]) into a row [B] or [B, N]."""
    given = np.asarray(version)
    row[...] = spread(given, row)


@dataclass
class Group:
    """One group of environments and its open trajectory.

    Attributes:
      number: of the group in the experiment. env: its vector. latest: result of its last step (or reset).
      stepping: text about a step that does not return. rows: of each policy. row: the row that waits for its actions.
      missing: policies whose actions have not arrived.
      shared: several policies may play the same seats, or the environment's only agent.
      parked: it waits for assignments before its first request. held: its trajectory is full and waits for assignments.
    """

    number: int
    env: VectorEnv | VectorGame
    latest: EnvStep | GameStep
    stepping: EnvCall
    rows: list[PolicyRows]
    row: int = 0
    missing: int = 0
    parked: bool = False
    held: bool = False
    shared: bool = False

    @property
    def made(self) -> int:
        """Return the trajectories committed so far."""
        return self.rows[0].made

    def ask(self, num_rows: int) -> None:
        """Request the actions of the next row."""
        self.missing = len(self.rows)
        for rows in self.rows:
            rows.ask(self.row, num_rows)

    def park(self) -> None:
        """Wait for assignments before the first request."""
        self.parked, self.missing = True, len(self.rows) + 1

    def hold(self) -> None:
        """Wait for assignments before the full trajectory is handed over."""
        self.held, self.missing = True, len(self.rows) + 1

    def step(self, num_rows: int) -> int:
        """Return the number of the group's next step, counted from the start of the run."""
        first = self.rows[0]
        return (first.policy.settings.begun if first.trajectory is None else first.trajectory) * num_rows + self.row

    def write_decisions(self) -> Any:
        """Write the actions of the next row; return them, by group of seats where there are seats."""
        chosen = [(rows.policy.settings.view, rows.write_decision(self.row)) for rows in self.rows]
        if not self.shared:
            return actions_of(chosen)
        actions: dict[str, Array] = {}
        for (view, action), rows in zip(chosen, self.rows, strict=True):
            assert rows.seat_players is not None
            group = seat_group(view)
            actions[group] = rows.seat_players.laid_over(actions.get(group), action)
        return actions.get(NO_SEATS, actions)

    def restart(self, latest: EnvStep | GameStep) -> None:
        """Continue from a reset."""
        self.latest = latest
        for rows in self.rows:
            rows.latest = rows.policy.part(latest)

    def abandon(self) -> None:
        """Discard the open trajectory."""
        for rows in self.rows:
            rows.abandon()
        self.row, self.missing, self.parked, self.held = 0, len(self.rows), False, False
