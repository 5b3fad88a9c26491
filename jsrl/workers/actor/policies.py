"""The policies of an actor: how each acts in the actor's environments, and where its rows go. Imports no jax."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.seats import SeatView, part_of
from jsrl.errors import StreamTimeout
from jsrl.transport.base import LATEST_VERSION, Block, InferenceClient, Reply, Request, SampleProducer
from jsrl.types import Array, leaves, spread, version_epoch, version_updates
from jsrl.workers.actor.assignments import Cast
from jsrl.workers.actor.streams import ActorStreams


@dataclass(frozen=True)
class PolicySettings:
    """What an actor has to know of a policy.

    Attributes:
      number: by which requests ask for it. view: of the seats that it plays; None: the environments have one agent.
      max_lag: how old the params of trajectory n may be, in updates (None: any). start_updates: where the run stands.
      updates_per_batch: made with one batch. total_updates: after which it is done, and acts with its last params for as long
        as others that play beside it are trained.
    """

    number: int = 0
    view: SeatView | None = None
    max_lag: int | None = None
    start_updates: int = 0
    updates_per_batch: int = 1
    total_updates: int = sys.maxsize

    @property
    def begun(self) -> int:
        """Return how many trajectories of each group the run had when this life began."""
        return self.start_updates // self.updates_per_batch

    def min_updates(self, trajectory: int | None) -> int:
        """Trajectory n waits for the params that its batch may be at most `max_lag` updates ahead of."""
        if self.max_lag is None:
            return -1
        if trajectory is None:
            return self.start_updates
        return max(-1, min(trajectory * self.updates_per_batch - self.max_lag, self.total_updates))


class ActingPolicy:
    """One policy of an actor, with its two streams.

    Args:
      settings: of the policy. connect: group sizes -> (inference client, sample producer), called when the environments
        exist. streams: how both are taken up again when the other end was replaced; None: their end is the actor's.
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
        """Connect; group -> its environments."""
        self.client, self.producer = self._connect(group_sizes)
        self.is_open = True

    def part(self, step: EnvStep | GameStep) -> EnvStep:
        """Return the part of a step of the environments that this policy sees."""
        return part_of(self.settings.view, step)

    def is_outdated(self, reply: Reply) -> bool:
        """Return whether a first trajectory would begin with params of a learner that was replaced."""
        return self.streams is not None and int(np.min(version_epoch(reply.version))) < self.streams.epoch

    def check(self) -> None:
        """See whether the other ends still live. Raises StreamClosed."""
        if self.streams is not None:
            self.streams.check()

    def close(self, lost: str) -> None:
        """Leave the streams; `lost`: why the reader of its rows is gone, where it is."""
        if self.is_open:
            if lost:
                self.producer.lose(lost)
            self.client.close()
            self.producer.close()


@dataclass
class PolicyRows:
    """The rows of one policy in one group of environments, on their way through a trajectory.

    Attributes:
      policy: whose. group: number of the group. latest: the policy's part of what the environments returned last.
      trajectory: number of the trajectory that is being written (None: not known yet).
      made: trajectories committed to the consumer of now. sequence: of the trajectory that is being written, in this life of
        the actor. block: the room for the next. observation, extras, state: its leaves.
      reply: the actions of the row that comes next, once they are there.
      cast: who plays the seats, where a director says so.
    """

    policy: ActingPolicy
    group: int
    latest: EnvStep
    trajectory: int | None = None
    made: int = 0
    sequence: int = 0
    block: Block | None = None
    observation: list[Array] = field(default_factory=list)
    extras: list[Array] = field(default_factory=list)
    state: list[Array] = field(default_factory=list)
    game: list[Array] = field(default_factory=list)
    reply: Reply | None = None
    cast: Cast | None = None

    def ask(self, row: int, num_rows: int) -> None:
        """Ask for the actions of a row of the trajectory."""
        settings = self.policy.settings
        number = settings.begun if self.trajectory is None else self.trajectory
        request = Request(
            observation=self.latest.observation,
            is_first=self.latest.is_first,
            min_updates=settings.min_updates(self.trajectory),
            step=number * num_rows + row,  # of the row in the whole run, resumes included: it makes the row's key
            wants_core=row == 0,
            policy=settings.number,
            version=LATEST_VERSION if self.cast is None else self.cast.asked(self.latest.acts),
        )
        self.policy.client.send(self.group, request)

    def make_room(self, timeout_s: float) -> bool:
        """See that there is a block; its row 0 is the observation that the last trajectory ended with."""
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
        """Write what was decided for a row; return its actions as the environments' own."""
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
        return np.array(reply.action)  # the reply's arrays are only lent, and environments may keep the action

    def _begin(self, reply: Reply) -> None:
        assert self.block is not None
        kept = leaves(self.block.trajectory.core)  # none where only acting reads the core
        for target, source in zip(kept, leaves(reply.core) if kept else (), strict=True):
            target[...] = source
        if self.trajectory is None:
            updates = int(np.min(version_updates(reply.version)))
            self.trajectory = updates // self.policy.settings.updates_per_batch

    def write_outcome(self, row: int, step: EnvStep | GameStep) -> None:
        """Write what came of a row, and the observation of the one after it."""
        assert self.block is not None
        self.latest = self.policy.part(step)
        self.block.trajectory.reward[row] = self.latest.reward
        self.block.trajectory.discount[row] = self.latest.discount
        self.write_observation(row + 1)

    def write_observation(self, row: int) -> None:
        """Write the observation that opens a row, and who acts on it."""
        assert self.block is not None
        for target, source in zip(self.observation, leaves(self.latest.observation), strict=True):
            target[row] = source
        for target, source in zip(self.state, leaves(self.latest.state), strict=True):
            target[row] = source
        self.block.trajectory.is_first[row] = self.latest.is_first
        acts = self.latest.acts
        self.block.trajectory.acts[row] = acts if self.cast is None else self.cast.trained(acts)
        if self.cast is not None and self.game:
            self.game[0][row] = self.cast.game

    def committed(self) -> None:
        """Count a trajectory that was committed."""
        assert self.trajectory is not None
        self.block = None
        self.made += 1
        self.sequence += 1
        self.trajectory += 1

    def abandon(self) -> None:
        """Give the open trajectory's room back, and discard the reply that would have continued it.

        The next one does not follow the last: a number is left out.
        """
        self.sequence += 1
        if self.block is not None:
            self.block.abandon()
        self.block, self.reply = None, None


def write_version(row: Array, version: Array | int) -> None:
    """Write the version of a reply, one for all, [B] or [B, N], into a row [B] or [B, N]."""
    given = np.asarray(version)
    row[...] = spread(given, row)
