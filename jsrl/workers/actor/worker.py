"""The actor: steps groups of environments, asks for actions, writes trajectories in place. Never imports jax.

The groups of one actor are its environment ring: one steps while the others wait for their actions.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsrl.envs.base import Episode, VectorEnv
from jsrl.envs.faults import foreign
from jsrl.errors import JsrlError, StreamClosed, StreamTimeout
from jsrl.metrics.metrics import Recorder
from jsrl.runs.control import Command
from jsrl.transport.base import InferenceClient, Origin, ProducerId, Reply, Request, SampleProducer
from jsrl.types import Array, leaves, version_epoch, version_updates
from jsrl.workers.actor.group import EnvCall, Group
from jsrl.workers.actor.recording import RecordingWriter
from jsrl.workers.actor.streams import ActorStreams
from jsrl.workers.base import Reporter

OUTDATED_S = 0.01  # between questions while params of the new learner are on their way


@dataclass(frozen=True)
class ActorSettings:
    """What an actor has to know: T rows, the lag that trajectory n may have (None: any), where the run stands.

    `environment` is what messages call the environment. `most_ahead`: trajectories by which a group may be ahead of another
    where batches take one of every group (None: any number). `policy`: number of the one that acts.
    """

    num_rows: int
    max_lag: int | None
    start_updates: int = 0
    incarnation: int = 0
    updates_per_batch: int = 1
    step_deadline_s: float = 60.0
    poll_s: float = 0.1
    environment: str = ""
    most_ahead: int | None = None
    policy: int = 0


class Actor:
    """A worker that produces trajectories.

    Args:
      name: `actor-0`. environments: group number -> the function that makes its vector environment.
      connect: group sizes -> (inference client, sample producer), called when the environments exist.
      streams: how both are taken up again when the other end was replaced; None: their end is this worker's.
      writer: of the recording, where one is made.
    """

    def __init__(
        self,
        name: str,
        settings: ActorSettings,
        environments: Mapping[int, Callable[[], VectorEnv]],
        connect: Callable[[dict[int, int]], tuple[InferenceClient, SampleProducer]],
        reporter: Reporter,
        recorder: Recorder | None = None,
        streams: ActorStreams | None = None,
        writer: RecordingWriter | None = None,
    ) -> None:
        self.name, self._settings, self._reporter = name, settings, reporter
        self._streams, self._writer = streams, writer
        self._lost: StreamClosed | None = None
        self._environments, self._connect = environments, connect
        self._groups: dict[int, Group] = {}
        self._returns: deque[float] = deque(maxlen=100)
        self._lengths: deque[int] = deque(maxlen=100)
        self._custom: dict[str, deque[float]] = {}
        self.recorder = self._recorder = recorder or Recorder("actor")
        self._phases = self.recorder.phases
        self._counts = {"env_steps": 0, "episodes": 0, "trajectories": 0}

    def setup(self) -> None:
        """Make and reset the environments, connect, and ask for the first actions."""
        self._reporter.stage("making environments")
        for number, make_vector in self._environments.items():
            with self._watched(self._named("making", number) + ",", number):
                env = make_vector()
            with self._watched(EnvCall(self._named("reset", number), env), number):
                stepping = EnvCall(self._named("step", number), env)
                self._groups[number] = Group(number, env, env.reset(), stepping, sequence=self._begun)
        self._reporter.stage("connecting to streams")
        self._client, self._producer = self._connect({n: g.env.num_envs for n, g in self._groups.items()})
        for group in self._groups.values():
            self._ask(group)

    def _restart_environments(self, group: Group) -> None:
        with self._watched(EnvCall(self._named("reset", group.number), group.env), group.number):
            group.latest = group.env.reset()

    @contextlib.contextmanager
    def _watched(self, activity: object, number: int) -> Iterator[None]:
        """Have the control road watch that the environment returns in time; name it in what it raises."""
        self._reporter.entering(activity, self._settings.step_deadline_s)
        try:
            yield
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise self._foreign(number, error) from error
        self._reporter.left()

    def step(self) -> int:
        """Give one group its actions and step it; return the env steps made (0: nobody was answered in time)."""
        try:
            made = self._advance_one() if self._lost is None else self._take_up(self._lost)
        except StreamClosed as error:
            made = self._lose(error)
        self._phases.rest()
        return made

    def _lose(self, error: StreamClosed) -> int:
        """Give up the open trajectories; the streams are taken up again in the next steps."""
        if self._streams is None or self._lost is not None:
            raise error
        self._lost = error
        for group in self._groups.values():
            group.abandon()
        return 0

    def _take_up(self, lost: StreamClosed) -> int:
        """Go on with the other ends' next lives, in new episodes: what their cores had seen is gone."""
        assert self._streams is not None
        self._phases.enter("wait_inference")
        ends = self._streams.again(lost, self._settings.poll_s)
        if ends is None:
            return 0
        (self._client, self._producer), self._lost = ends, None
        for group in self._groups.values():
            self._restart_environments(group)
            if self._streams.new_consumer:
                group.made = 0
                group.trajectory = None  # its updates may be fewer than those that trajectories were numbered by
            self._ask(group)
        self._streams.new_consumer = False
        self._reporter.event("note", f"reconnected its streams{self._streams.with_whom}, with new episodes")
        return 0

    def _is_outdated(self, reply: Reply) -> bool:
        """Return whether a first trajectory would begin with params of a learner that was replaced."""
        return self._streams is not None and int(np.min(version_epoch(reply.version))) < self._streams.epoch

    def _advance_one(self) -> int:
        stalled = sorted((g for g in self._groups.values() if g.waiting is not None), key=lambda g: g.made)
        for group in stalled:
            if self._make_room(group, 0.0 if len(stalled) < len(self._groups) else self._settings.poll_s):
                return self._advance(group)
        if stalled and len(stalled) == len(self._groups):
            self._check_peers()
            return 0
        self._phases.enter("wait_inference")
        try:
            number, reply = self._client.receive(self._settings.poll_s)
        except StreamTimeout:
            self._check_peers()
            return 0
        self._phases.enter("transport")
        group = self._groups[number]
        if group.trajectory is None and self._is_outdated(reply):
            time.sleep(OUTDATED_S)
            self._ask(group)
            return 0
        group.waiting = reply
        return self._advance(group) if self._make_room(group, 0.0) else 0

    def _check_peers(self) -> None:
        """Nothing came: see whether the other ends still live. Raises StreamClosed."""
        if self._streams is not None and self._settings.poll_s > 0:
            self._streams.check()

    def _make_room(self, group: Group, timeout_s: float) -> bool:
        """See that the group has a block; its row 0 is the observation that the last trajectory ended with.

        The blocks are everybody's: one group far ahead would take all, and the batch waits for another that has none.
        """
        if group.block is not None:
            return True
        most = self._settings.most_ahead
        if most is not None and group.made - min(g.made for g in self._groups.values()) > most:
            return False
        self._phases.enter("wait_block")
        try:
            group.block = self._producer.reserve(timeout_s)
        except StreamTimeout:
            return False
        self._phases.enter("transport")
        group.observation = leaves(group.block.trajectory.observation)
        group.extras = leaves(group.block.trajectory.extras)
        self._write_observation(group, 0)
        return True

    def _advance(self, group: Group) -> int:
        """Write row t's decision, step the environments, write what came of it and the observation of row t+1."""
        assert group.block is not None and group.waiting is not None
        rows, reply, t = group.block.trajectory, group.waiting, group.row
        group.waiting = None
        rows.action[t] = reply.action
        rows.log_prob[t] = reply.log_prob
        rows.version[t] = reply.version
        for target, source in zip(group.extras, leaves(reply.extras), strict=True):
            target[t] = source
        if t == 0:
            self._begin(group, reply)
        action = np.array(reply.action)  # the reply's arrays are only lent, and environments may keep the action
        self._step_environments(group, action)
        rows.reward[t] = group.latest.reward
        rows.discount[t] = group.latest.discount
        group.row = t + 1
        self._write_observation(group, t + 1)
        if group.row == self._settings.num_rows:
            self._commit(group)
        self._ask(group)
        self._counts["env_steps"] += group.env.num_envs
        self._recorder.rate("env_steps", group.env.num_envs)
        if group.row == 0 and self._streams is not None:
            self._streams.check_home()
        return group.env.num_envs

    def _begin(self, group: Group, reply: Reply) -> None:
        assert group.block is not None
        kept = leaves(group.block.trajectory.core)  # none where only acting reads the core
        for target, source in zip(kept, leaves(reply.core) if kept else (), strict=True):
            target[...] = source
        if group.trajectory is None:
            group.trajectory = int(np.min(version_updates(reply.version))) // self._settings.updates_per_batch

    def _step_environments(self, group: Group, action: Array) -> None:
        self._reporter.entering(group.stepping, self._settings.step_deadline_s)
        self._phases.enter("env")
        try:
            group.latest = group.env.step(action)
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise self._foreign(group.number, error) from error
        self._phases.enter("transport")
        self._reporter.left()
        self._count_episodes(group.latest.episodes)

    def _foreign(self, number: int, error: BaseException) -> Exception:
        where = f"{self.name}: environment {self._settings.environment!r}, group {number},"
        return foreign(where, error)

    def _named(self, what: str, number: int) -> str:
        """Return what the control road says of an environment that does not return in time."""
        return f"{self.name}: {what} of environment {self._settings.environment!r}, group {number}"

    def _write_observation(self, group: Group, row: int) -> None:
        assert group.block is not None
        for target, source in zip(group.observation, leaves(group.latest.observation), strict=True):
            target[row] = source
        group.block.trajectory.is_first[row] = group.latest.is_first
        group.block.trajectory.acts[row] = group.latest.acts

    def _commit(self, group: Group) -> None:
        assert group.block is not None and group.trajectory is not None
        copied = None if self._writer is None else self._writer.copy(group.block.trajectory)
        maker = ProducerId(self.name, self._settings.incarnation)
        entry = group.block.commit(group.number, Origin(maker, group.sequence))
        if self._writer is not None:
            self._writer.put(entry, copied)
        group.block, group.row = None, 0
        group.made += 1
        group.sequence += 1
        group.trajectory += 1
        self._counts["trajectories"] += 1

    def _ask(self, group: Group) -> None:
        request = Request(
            observation=group.latest.observation,
            is_first=group.latest.is_first,
            min_updates=self._min_updates(group),
            step=self._step_number(group),
            wants_core=group.row == 0,
            policy=self._settings.policy,
        )
        self._client.send(group.number, request)

    def _step_number(self, group: Group) -> int:
        """Return the number of the group's row in the whole run (resumes included): it makes the row's key."""
        trajectory = self._begun if group.trajectory is None else group.trajectory
        return trajectory * self._settings.num_rows + group.row

    @property
    def _begun(self) -> int:
        """Return how many trajectories of each group the run had when this life began."""
        return self._settings.start_updates // self._settings.updates_per_batch

    def _min_updates(self, group: Group) -> int:
        """Trajectory n waits for the params that its batch may be at most `max_lag` updates ahead of."""
        if self._settings.max_lag is None:
            return -1
        if group.trajectory is None:
            return self._settings.start_updates
        return max(-1, group.trajectory * self._settings.updates_per_batch - self._settings.max_lag)

    def _count_episodes(self, episodes: list[Episode]) -> None:
        for episode in episodes:
            self._counts["episodes"] += 1
            self._recorder.count("episodes")
            self._returns.append(episode.return_)
            self._lengths.append(episode.length)
            for name, value in episode.metrics.items():
                self._custom.setdefault(name, deque(maxlen=100)).append(value)

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return rates and shares of time since the last report, and the last 100 episodes' means."""
        if self._returns:
            self._recorder.last("return_mean", float(np.mean(self._returns)))
            self._recorder.last("length_mean", float(np.mean(self._lengths)))
        for name, values in self._custom.items():
            self._recorder.last(f"episode_{name}_mean", float(np.mean(values)))
        return self._recorder.flush(), dict(self._counts)

    def command(self, command: Command) -> None:
        """Actors take no commands but stop."""

    def close(self) -> dict[str, Any]:
        """Abandon open trajectories, leave the streams, close the environments."""
        for group in self._groups.values():
            group.abandon()
        if hasattr(self, "_client"):
            if self._lost is not None:
                self._producer.lose(str(self._lost))
            self._client.close()
            self._producer.close()
        if self._writer is not None:
            self._writer.close()
            self._reporter.event("note", self._writer.summary)
        for group in self._groups.values():
            group.env.close()
        return dict(self._counts)
