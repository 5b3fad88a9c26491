"""The actor: steps groups of environments, requests actions, writes trajectories in place. Never imports jax.

Its loop is a session of its streams, which ends when one of them is lost; the next one begins with the same environments, in
new episodes. The groups of one actor are its environment ring: one steps while the others wait for their actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import ProducerId
from jsrl.workers.actor.environments import Environments, Tally
from jsrl.workers.actor.lineup import Lineup
from jsrl.workers.actor.policies import ActingPolicy, PolicyRows, Progress
from jsrl.workers.actor.streams import Ends
from jsrl.workers.base import Reporter

SHORT_WAIT_S = 0.002  # timeout for one policy, while another's actions may arrive
OUTDATED_S = 0.01  # between retries while params of the new learner are on their way


@dataclass(frozen=True)
class ActorSettings:
    """Settings of an actor besides its policies.

    `num_rows`: T of a trajectory. `environment`: its name, for messages. `makes`: environments of a group, which share the
    time to make them.
    `max_ahead`: trajectories by which a group may be ahead of another if batches take one of every group (None: any
    number). `connects`: the stage in which its policies connect to streams, or in one process compile. `mean_over`: the
    newest episodes of which it reports means; None: all.
    """

    num_rows: int
    incarnation: int = 0
    poll_s: float = 0.1
    environment: str = ""
    makes: int = 1
    max_ahead: int | None = None
    connects: str = "connecting to streams"
    mean_over: int | None = 100


class Actor:
    """A worker that produces trajectories.

    Args:
      name: `actor-0`. environments: group number -> the function that makes its vector environment.
      policies: that act in them. lineup: who plays; None: the newest params.

    Attributes:
      groups: number -> its environments.
    """

    def __init__(
        self,
        name: str,
        settings: ActorSettings,
        environments: Mapping[int, Callable[[], VectorEnv | VectorGame]],
        policies: Sequence[ActingPolicy],
        reporter: Reporter,
        meter: Meter | None = None,
        lineup: Lineup | None = None,
    ) -> None:
        self.name, self._settings, self._reporter = name, settings, reporter
        self._policies, self._lineup = list(policies), lineup or Lineup()
        self._environments = environments
        self.groups: dict[int, Environments] = {}
        self.meter = meter or Meter("actor")
        self._tally = Tally(self.meter, policies[0].view, settings.mean_over)
        self._session: Session | None = None  # None: a stream was lost, and not all are connected again
        self._lost = StreamClosed("no session has begun")  # why it ended
        self._ends: list[Ends] = []  # of the first policies, connected for the next session

    def setup(self) -> None:
        """Make and reset the environments, connect, and request the first actions."""
        settings = self._settings
        self._reporter.stage("making environments")
        for number, make_vector in self._environments.items():
            group = Environments(self.name, number, settings.environment, self._reporter)
            group.make(make_vector, settings.makes)
            group.progress = [Progress(policy, sequence=policy.started) for policy in self._policies]
            group.players = self._lineup.join(group, self._next_step(group))
            self.groups[number] = group
        self._reporter.stage(settings.connects)
        sizes = {number: group.env.num_envs for number, group in self.groups.items()}
        self._ends = [policy.streams.open(sizes) for policy in self._policies]
        self._begin()

    def _next_step(self, group: Environments) -> int:
        """Return the number of the first step of a new trajectory, counted from the start of the run."""
        return group.progress[0].step(0, self._settings.num_rows)

    def _begin(self) -> None:
        ends, self._ends = self._ends, []
        session = Session(self.name, self._settings, self.groups, self._policies, ends, self._lineup, self._tally)
        self._session = session
        session.begin()

    def step(self) -> int:
        """Give one group its actions and step it; return the env steps made (0: no actions arrived in time)."""
        made = 0
        try:
            if self._session is not None:
                made = self._session.step()
            else:
                self._begin_anew()
        except StreamClosed as error:
            if self._session is None:
                raise
            self._session.end()
            self._session, self._lost = None, error
        self.meter.phases.rest()
        return made

    def _begin_anew(self) -> None:
        """Once all streams are connected again, reset the environments and begin: the cores at the old peers are lost."""
        self.meter.phases.enter("wait_inference")
        for policy in self._policies[len(self._ends) :]:
            ends = policy.streams.connect(self._settings.poll_s, self._lost)
            if ends is None:
                return
            self._ends.append(ends)
        for group in self.groups.values():
            group.reset()
            self._lineup.begin_again(group, self._next_step(group))
            for progress, ends in zip(group.progress, self._ends, strict=True):
                if ends.new_learner:
                    progress.for_new_learner(ends.generation)
        self._begin()
        for policy in self._policies:
            self._reporter.event("note", f"reconnected its streams{policy.streams.server_text}, with new episodes")

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        return self._tally.report()

    def command(self, command: Command) -> None:
        """Take `stand_in`: make another number of trajectories for every batch of a policy's learner; others concern the rows.

        A group that waits for the params of a later batch requests its actions again, with those of its batch now.
        """
        if command.name != "stand_in":
            self._lineup.command(command)
            return
        facts = command.facts
        for place, policy in enumerate(self._policies):
            if policy.number != facts["policy"] or not policy.acts_here:
                continue
            for number, each in facts["each"]:
                if number in self.groups:
                    self.groups[number].progress[place].stand_in(facts["generation"], facts["batch"], each)
                    if self._session is not None:
                        self._session.ask_again(number, place)

    def close(self) -> dict[str, Any]:
        if self._session is not None:
            self._session.end()
        for policy in self._policies:
            policy.streams.close()
        for policy in self._policies:
            for tap in policy.taps:
                tap.close()
        for group in self.groups.values():
            group.env.close()
        return self._tally.counts


class OpenTrajectory:
    """The open trajectory of a group of environments.

    Attributes:
      rows: of each policy. row: the row that waits for its actions. missing: policies whose actions have not arrived.
    """

    def __init__(self, group: Environments, rows: list[PolicyRows]) -> None:
        self.group, self.rows, self.row, self.missing = group, rows, 0, len(rows)

    @property
    def made(self) -> int:
        """Return the trajectories committed so far."""
        return self.group.progress[0].made

    def ask(self) -> None:
        """Request the actions of the next row."""
        self.missing = len(self.rows)
        for rows in self.rows:
            rows.ask(self.row)


class Session:
    """One life of an actor's streams. Everything that it has is dropped when one of them is lost.

    Args:
      name: of the actor. groups: number -> environments, just reset. policies, ends: of each policy.
    """

    def __init__(
        self,
        name: str,
        settings: ActorSettings,
        groups: Mapping[int, Environments],
        policies: Sequence[ActingPolicy],
        ends: Sequence[Ends],
        lineup: Lineup,
        tally: Tally,
    ) -> None:
        self._settings, self._policies, self._ends, self._lineup, self._tally = settings, policies, ends, lineup, tally
        self._maker, self._phases = ProducerId(name, settings.incarnation), tally.meter.phases
        self._open = {number: OpenTrajectory(group, self._rows_of(group)) for number, group in groups.items()}
        # Groups that are not ready -> how to go on with them once they are.
        self._waiting: dict[int, Callable[[OpenTrajectory], None]] = {}

    def _rows_of(self, group: Environments) -> list[PolicyRows]:
        parts = zip(self._ends, group.progress, group.players, strict=True)
        return [PolicyRows(*part, group.number, self._settings.num_rows) for part in parts]

    def begin(self) -> None:
        """Request the first actions of all groups that are ready."""
        for trajectory in self._open.values():
            self._start(trajectory)

    def _start(self, trajectory: OpenTrajectory) -> None:
        if not self._lineup.begin(trajectory.group):
            self._wait(trajectory, self._start)
            return
        for rows in trajectory.rows:
            rows.take(trajectory.group.latest)
        trajectory.ask()

    def _wait(self, trajectory: OpenTrajectory, go_on: Callable[[OpenTrajectory], None]) -> None:
        self._waiting[trajectory.group.number] = go_on
        trajectory.missing = len(trajectory.rows) + 1  # one more than can arrive, so that it is not stepped meanwhile

    def step(self) -> int:
        """Give one group its actions and step it; return the env steps made (0: no actions arrived in time)."""
        if not self._lineup.poll():
            self._phases.enter("wait_games")
            self._check_peers()
            time.sleep(min(SHORT_WAIT_S, self._settings.poll_s))
            return 0
        for number in [number for number in self._waiting if self._lineup.ready(self._open[number].group)]:
            self._waiting.pop(number)(self._open[number])
        stalled = sorted((one for one in self._open.values() if not one.missing), key=lambda one: one.made)
        for trajectory in stalled:
            timeout_s = 0.0 if len(stalled) < len(self._open) else self._settings.poll_s
            if self._lineup.ready(trajectory.group) and self._make_room(trajectory, timeout_s):
                return self._advance(trajectory)
        if stalled and len(stalled) == len(self._open):
            self._check_peers()
            return 0
        self._phases.enter("wait_inference")
        answered = self._receive()
        if answered is None or answered.missing or not self._lineup.ready(answered.group):
            return 0
        return self._advance(answered) if self._make_room(answered, 0.0) else 0

    def _receive(self) -> OpenTrajectory | None:
        """Take the next actions of a policy that still owes some; return their trajectory."""
        poll_s = min(self._settings.poll_s, SHORT_WAIT_S) if self._lineup.waits else self._settings.poll_s
        place = 0
        if len(self._policies) > 1:
            owing = [i for i in range(len(self._policies)) if any(t.rows[i].reply is None for t in self._open.values())]
            for place in owing:
                if (trajectory := self._receive_of(place, 0.0)) is not None:
                    return trajectory
            # One wait cannot cover all streams: wait shortly for a policy that the group nearest to its step lacks.
            nearest = min((one for one in self._open.values() if one.missing), key=lambda one: one.missing)
            place = next(i for i, rows in enumerate(nearest.rows) if rows.reply is None)
            poll_s = min(poll_s, SHORT_WAIT_S)
        trajectory = self._receive_of(place, poll_s)
        if trajectory is None:
            self._check_peers()
        return trajectory

    def _receive_of(self, place: int, timeout_s: float) -> OpenTrajectory | None:
        try:
            number, reply = self._ends[place].client.receive(timeout_s)
        except StreamTimeout:
            return None
        self._phases.enter("transport")
        trajectory = self._open[number]
        rows = trajectory.rows[place]
        if rows.is_outdated(reply):
            time.sleep(OUTDATED_S)
            rows.ask(trajectory.row)
            return None
        rows.reply = reply
        trajectory.missing -= 1
        return trajectory

    def _check_peers(self) -> None:
        """Nothing arrived: check that the other ends are alive. Raises StreamClosed."""
        if self._settings.poll_s > 0:
            for policy in self._policies:
                policy.streams.check()

    def _make_room(self, trajectory: OpenTrajectory, timeout_s: float) -> bool:
        """Reserve a block for the group at every policy.

        All groups share the blocks: one group far ahead would take all, and the batch would wait for a group without a block.
        """
        for place, rows in enumerate(trajectory.rows):
            if rows.block is not None:
                continue
            max_ahead = self._settings.max_ahead
            ahead = rows.progress.made - min(one.group.progress[place].made for one in self._open.values())
            if max_ahead is not None and ahead > max_ahead // rows.progress.pace.each:
                return False
            self._phases.enter("wait_block")
            if not rows.make_room(timeout_s):
                return False
            self._phases.enter("transport")
        return True

    def _advance(self, trajectory: OpenTrajectory) -> int:
        """Write row t's actions, step the environments, write the outcome and the observations of row t+1."""
        group, t = trajectory.group, trajectory.row
        chosen = [(rows.policy.view, rows.write_decision(t)) for rows in trajectory.rows]
        action = self._lineup.actions(group, chosen)
        self._lineup.before_step(group)
        self._phases.enter("env")
        group.step(action)
        self._phases.enter("transport")
        self._tally.stepped(group.env.num_envs, group.latest.episodes)
        trajectory.row = t + 1
        is_last = trajectory.row == self._settings.num_rows
        self._lineup.after_step(group, group.progress[0].step(t + 1, self._settings.num_rows), is_last=is_last)
        for rows in trajectory.rows:
            rows.write_outcome(t, group.latest)
        if is_last and not self._lineup.may_commit(group):
            self._wait(trajectory, self._complete)
        else:
            self._complete(trajectory)
        return group.env.num_envs

    def _complete(self, trajectory: OpenTrajectory) -> None:
        """Commit a full trajectory, and request the next actions."""
        is_full = trajectory.row == self._settings.num_rows
        if is_full:
            for rows in trajectory.rows:
                rows.commit(self._maker)
            trajectory.row = 0
            self._tally.trajectories += 1
        trajectory.ask()
        if is_full:
            for policy in self._policies:
                policy.streams.check_home()

    def ask_again(self, number: int, place: int) -> None:
        """Request a group's actions of one policy anew, if it waits for them: its params are wanted sooner or later."""
        trajectory = self._open[number]
        if trajectory.rows[place].reply is None and number not in self._waiting:
            trajectory.rows[place].ask(trajectory.row)

    def end(self) -> None:
        """Drop the open trajectories."""
        for trajectory in self._open.values():
            for rows in trajectory.rows:
                rows.abandon()
