"""The actor: steps groups of environments, requests actions, writes trajectories in place. Never imports jax.

The groups of one actor are its environment ring: one steps while the others wait for their actions.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from jsrl.envs.base import Episode, VectorEnv, VectorGame
from jsrl.envs.faults import foreign
from jsrl.envs.seats import seat_group
from jsrl.errors import ConfigError, JsrlError, StreamClosed, StreamTimeout
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command, Lease
from jsrl.transport.base import Origin, ProducerId
from jsrl.types import ACTING
from jsrl.workers.actor.policies import ActingPolicy, Group, PolicyRows
from jsrl.workers.base import EnvCall, Reporter

if TYPE_CHECKING:
    from jsrl.workers.attached.recording import RecordingWriter
    from jsrl.workers.attached.selfplay import Assignments

SHORT_WAIT_S = 0.002  # timeout for one policy, while another's actions may arrive
OUTDATED_S = 0.01  # between retries while params of the new learner are on their way


@dataclass(frozen=True)
class ActorSettings:
    """Settings of an actor besides its policies: T rows, and timeouts.

    `environment`: its name, for messages. `makes`: environments of a group, which share the time to make them.
    `most_ahead`: trajectories by which a group may be ahead of another if batches take one of every group (None: any
    number). `connects`: the stage in which its policies connect to streams, or in one process compile. `mean_over`: the
    newest episodes of which it reports means; None: all.
    """

    num_rows: int
    incarnation: int = 0
    step_deadline_s: float = 60.0
    poll_s: float = 0.1
    environment: str = ""
    makes: int = 1
    most_ahead: int | None = None
    connects: str = "connecting to streams"
    mean_over: int | None = 100


class Actor:
    """A worker that produces trajectories.

    Args:
      name: `actor-0`. environments: group number -> the function that makes its vector environment.
      policies: that act in them, with their streams: one, or several where the environments have seats.
      writer: of the recording of the first policy; None: no recording.
      assignments: of a director; None: the newest params play every seat.
    """

    def __init__(
        self,
        name: str,
        settings: ActorSettings,
        environments: Mapping[int, Callable[[], VectorEnv | VectorGame]],
        policies: Sequence[ActingPolicy],
        reporter: Reporter,
        meter: Meter | None = None,
        writer: RecordingWriter | None = None,
        assignments: Assignments | None = None,
    ) -> None:
        self.name, self._settings, self._reporter = name, settings, reporter
        self._policies, self._writer, self._assignments = list(policies), writer, assignments
        self._lost: StreamClosed | None = None
        self._to_renew: list[ActingPolicy] = []  # policies whose streams are lost
        self._environments = environments
        self._groups: dict[int, Group] = {}
        self._returns: deque[float] = deque(maxlen=settings.mean_over)
        self._lengths: deque[int] = deque(maxlen=settings.mean_over)
        self._custom: dict[str, deque[float]] = {}
        self.meter = self._meter = meter or Meter("actor")
        self._phases = self.meter.phases
        self._counts = {"env_steps": 0, "episodes": 0, "trajectories": 0}

    def setup(self) -> None:
        """Make and reset the environments, connect, and request the first actions."""
        self._reporter.stage("making environments")
        for number, make_vector in self._environments.items():
            with self._watched(self._named("making", number) + ",", number, self._settings.makes):
                env = make_vector()
            with self._watched(EnvCall(self._named("reset", number), env), number):
                latest = env.reset()
            rows = [PolicyRows(p, number, p.part(latest), sequence=p.settings.begun) for p in self._policies]
            group = self._groups[number] = Group(number, env, latest, EnvCall(self._named("step", number), env), rows)
            self._join(group)
        self._reporter.stage(self._settings.connects)
        for policy in self._policies:
            policy.open({n: g.env.num_envs for n, g in self._groups.items()})
        for group in self._groups.values():
            self._begin(group)

    def _join(self, group: Group) -> None:
        if self._assignments is not None:
            step = group.step(self._settings.num_rows)
            seat_players = self._assignments.join(group.number, group.env.spec, group.env.num_envs, step)
            for rows, players in zip(group.rows, seat_players, strict=True):
                rows.seat_players = players
            groups = {seat_group(policy.settings.view) for policy in self._policies}
            group.shared = len(groups) < len(self._policies)

    def _begin(self, group: Group) -> None:
        """Request a group's next actions, once all its slots have their players."""
        if self._assignments is None:
            group.ask(self._settings.num_rows)
        elif not self._assignments.is_ready(group.number):
            group.park()
        else:
            over = {episode.slot for episode in group.latest.episodes}  # in the last row before a resume
            slots = [slot for slot in range(group.env.num_envs) if slot not in over]
            tasks = self._assignments.tasks(group.number, slots)
            goes_on = getattr(group.env, "goes_on", False)
            if tasks and group.latest.is_first.all() and not goes_on:  # it was reset before its tasks were known
                self._set_tasks(group, tasks)
                self._reset(group)
            self._assignments.opened(group.number, slots)
            self._assignments.show_ended(group.number, over)
            group.ask(self._settings.num_rows)

    def _set_tasks(self, group: Group, tasks: dict[int, Any]) -> None:
        if not hasattr(group.env, "set_tasks"):
            name = self._settings.environment
            raise ConfigError(
                f"environment {name!r} takes no tasks, which a director assigns; use one whose reset does."
            )
        group.env.set_tasks(tasks)

    def _restart_environments(self, group: Group) -> None:
        self._reset(group)
        if self._assignments is not None:
            self._assignments.begin_again(group.number, group.step(self._settings.num_rows))

    def _reset(self, group: Group) -> None:
        with self._watched(EnvCall(self._named("reset", group.number), group.env), group.number):
            group.restart(group.env.reset())

    @contextlib.contextmanager
    def _watched(self, activity: object, number: int, makes: int = 1) -> Iterator[None]:
        """Have the control thread watch that the environment returns in time; name the environment in exceptions."""
        self._reporter.entering(activity, makes * self._settings.step_deadline_s)
        try:
            yield
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise self._foreign(number, error) from error
        self._reporter.left()

    def step(self) -> int:
        """Give one group its actions and step it; return the env steps made (0: no actions arrived in time)."""
        try:
            made = self._advance_one() if self._lost is None else self._resume(self._lost)
        except StreamClosed as error:
            made = self._lose(error)
        self._phases.rest()
        return made

    def _lose(self, error: StreamClosed) -> int:
        """Discard the open trajectories; the next steps reconnect the streams of all policies."""
        if self._lost is not None or any(policy.streams is None for policy in self._policies):
            raise error
        self._lost, self._to_renew = error, list(self._policies)
        for group in self._groups.values():
            group.abandon()
        return 0

    def _resume(self, lost: StreamClosed) -> int:
        """Continue with the restarted peers, in new episodes: the cores at the old peers are lost."""
        self._phases.enter("wait_inference")
        if not self._renew(lost):
            return 0
        self._lost = None
        for group in self._groups.values():
            self._restart_environments(group)
            for rows in group.rows:
                if rows.policy.streams is not None and rows.policy.streams.new_consumer:
                    rows.begin_again(rows.policy.streams.epoch)
            self._begin(group)
        for policy in self._policies:
            assert policy.streams is not None
            policy.streams.new_consumer = False
            self._reporter.event("note", f"reconnected its streams{policy.streams.server_text}, with new episodes")
        return 0

    def _renew(self, lost: StreamClosed) -> bool:
        """Reconnect the streams of all policies, once a peer has changed; return whether all are connected."""
        streams = [(policy, policy.streams) for policy in self._to_renew if policy.streams is not None]
        looks = [found.look(self._settings.poll_s) for _, found in streams]
        if None in looks:
            return False
        if not any(looks) and len(streams) == len(self._policies):
            streams[0][1].wait(lost)
            return False
        for policy, found in streams:
            ends = found.renew()
            if ends is not None:
                policy.client, policy.producer = ends
                self._to_renew.remove(policy)
        return not self._to_renew

    def _take_seats(self) -> bool:
        """Start the groups whose slots have got their players; return whether any group can be stepped."""
        assert self._assignments is not None
        self._assignments.send()
        for group in self._groups.values():
            if group.parked and self._assignments.is_ready(group.number):
                group.parked = False
                self._begin(group)
            elif group.held and self._assignments.is_ready(group.number):
                group.held = False
                self._complete(group)
        return any(self._has_players(group) for group in self._groups.values())

    def _has_players(self, group: Group) -> bool:
        """Return whether a group can be stepped: every slot whose episode is over has its next players."""
        if self._assignments is None:
            return True
        return not (group.parked or group.held) and self._assignments.is_ready(group.number)

    def _advance_one(self) -> int:
        if self._assignments is not None and not self._take_seats():
            self._phases.enter("wait_games")
            self._check_peers()
            time.sleep(min(SHORT_WAIT_S, self._settings.poll_s))
            return 0
        stalled = sorted((g for g in self._groups.values() if not g.missing), key=lambda g: g.made)
        for group in stalled:
            if self._has_players(group) and self._make_room(
                group, 0.0 if len(stalled) < len(self._groups) else self._settings.poll_s
            ):
                return self._advance(group)
        if stalled and len(stalled) == len(self._groups):
            self._check_peers()
            return 0
        self._phases.enter("wait_inference")
        answered = self._receive()
        if answered is None:
            return 0
        ready = not answered.missing and self._has_players(answered)
        return self._advance(answered) if ready and self._make_room(answered, 0.0) else 0

    def _receive(self) -> Group | None:
        """Take the next actions of a policy that still owes some; return their group."""
        poll_s = self._settings.poll_s
        if self._assignments is not None and self._assignments.waits:
            poll_s = min(poll_s, SHORT_WAIT_S)
        if len(self._policies) == 1:
            group = self._receive_of(0, poll_s)
            if group is None:
                self._check_peers()
            return group
        owing = [i for i in range(len(self._policies)) if any(g.rows[i].reply is None for g in self._groups.values())]
        for place in owing:
            if (group := self._receive_of(place, 0.0)) is not None:
                return group
        # One wait cannot cover all streams: wait shortly for a policy that the group nearest to its step lacks.
        nearest = min((g for g in self._groups.values() if g.missing), key=lambda g: g.missing)
        place = next(i for i, rows in enumerate(nearest.rows) if rows.reply is None)
        group = self._receive_of(place, min(poll_s, SHORT_WAIT_S))
        if group is None:
            self._check_peers()
        return group

    def _receive_of(self, place: int, timeout_s: float) -> Group | None:
        policy = self._policies[place]
        try:
            number, reply = policy.client.receive(timeout_s)
        except StreamTimeout:
            return None
        self._phases.enter("transport")
        group = self._groups[number]
        rows = group.rows[place]
        if rows.trajectory is None and policy.is_outdated(reply):
            time.sleep(OUTDATED_S)
            rows.ask(group.row, self._settings.num_rows)
            return None
        rows.reply = reply
        group.missing -= 1
        return group

    def _check_peers(self) -> None:
        """Nothing arrived: check that the other ends are alive. Raises StreamClosed."""
        if self._settings.poll_s > 0:
            for policy in self._policies:
                policy.check()

    def _make_room(self, group: Group, timeout_s: float) -> bool:
        """Reserve a block for the group at every policy.

        All groups share the blocks: one group far ahead would take all, and the batch would wait for a group without a block.
        """
        for place, rows in enumerate(group.rows):
            if rows.block is not None:
                continue
            most = self._settings.most_ahead
            ahead = rows.made - min(g.rows[place].made for g in self._groups.values())
            if most is not None and ahead > most // rows.pace.each:
                return False
            self._phases.enter("wait_block")
            if not rows.make_room(timeout_s):
                return False
            self._phases.enter("transport")
        return True

    def _advance(self, group: Group) -> int:
        """Write row t's actions, step the environments, write the outcome and the observations of row t+1."""
        decisions, t = group.write_decisions(), group.row
        if self._assignments is not None:
            over = [episode.slot for episode in group.latest.episodes]  # slots that this step resets
            if tasks := self._assignments.tasks(group.number, over):
                self._set_tasks(group, tasks)
        self._step_environments(group, decisions)
        if self._assignments is not None:
            self._assignments.opened(group.number, np.flatnonzero(group.latest.is_first).tolist())
            step = group.step(self._settings.num_rows) + 1
            is_last = t + 1 == self._settings.num_rows
            self._assignments.ended(group.number, group.latest.episodes, step, is_last=is_last)
            self._assignments.send()
        for rows in group.rows:
            rows.write_outcome(t, group.latest)
        group.row = t + 1
        self._counts["env_steps"] += group.env.num_envs
        self._meter.rate("env_steps", group.env.num_envs)
        is_full = group.row == self._settings.num_rows
        if is_full and self._assignments is not None and self._assignments.holds(group.number):
            group.hold()
        else:
            self._complete(group)
        return group.env.num_envs

    def _complete(self, group: Group) -> None:
        """Commit a full trajectory, and request the next actions."""
        if group.row == self._settings.num_rows:
            self._commit(group)
        group.ask(self._settings.num_rows)
        if group.row == 0:
            for policy in self._policies:
                if policy.streams is not None:
                    policy.streams.check_home()

    def _step_environments(self, group: Group, action: Any) -> None:
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
        return f"{self.name}: {what} of environment {self._settings.environment!r}, group {number}"

    def _commit(self, group: Group) -> None:
        maker = ProducerId(self.name, self._settings.incarnation)
        for rows in group.rows:
            assert rows.block is not None
            if rows.seat_players is not None:
                self._meter.mean("trained_rows_share", float(np.mean(rows.block.trajectory.acts[:-1] == ACTING)))
            writer = self._writer if rows.policy is self._policies[0] else None
            copied = None if writer is None else writer.copy(rows.block.trajectory)
            entry = rows.block.commit(group.number, Origin(maker, rows.sequence))
            if writer is not None:
                writer.put(entry, copied)
            rows.committed()
        group.row = 0
        self._counts["trajectories"] += 1

    def _count_episodes(self, episodes: list[Episode]) -> None:
        view = self._policies[0].settings.view
        for episode in episodes:
            self._counts["episodes"] += 1
            self._meter.count("episodes")
            self._returns.append(episode.return_ if view is None else view.return_of(episode))
            self._lengths.append(episode.length)
            for name, value in episode.metrics.items():
                self._custom.setdefault(name, deque(maxlen=self._settings.mean_over)).append(value)

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        if self._returns:
            self._meter.last("return_mean", float(np.mean(self._returns)))
            self._meter.last("length_mean", float(np.mean(self._lengths)))
        for name, values in self._custom.items():
            self._meter.last(f"episode_{name}_mean", float(np.mean(values)))
        return self._meter.flush(), dict(self._counts)

    def command(self, command: Command) -> None:
        """Take `games`: a director's assignments, unless they are for an earlier incarnation of this actor; and `stand_in`."""
        facts = command.facts
        if command.name == "stand_in":
            self._stand_in(facts["policy"], facts["epoch"], facts["batch"], dict(facts["each"]))
        if (
            command.name == "games"
            and self._assignments is not None
            and facts["incarnation"] == self._settings.incarnation
        ):
            leases = msgspec.convert(facts["leases"], list[Lease])
            slots = [(group, slot) for group, slot in facts["slots"]]
            self._assignments.take(leases, facts["session"], facts["sent"], slots)

    def _stand_in(self, policy: int, epoch: int, batch: int, each: Mapping[int, int]) -> None:
        """Make another number of trajectories for every batch of a policy's learner from this one on: group -> number.

        A group that waits for the params of a later batch requests its actions again, with those of its batch now.
        """
        for group in (self._groups[number] for number in each if number in self._groups):
            for rows in group.rows:
                if rows.policy.settings.number == policy and rows.policy.settings.acts_here:
                    rows.stand_in(epoch, batch, each[group.number])
                    waits = rows.reply is None and not (group.parked or group.held or self._lost)
                    if waits:
                        rows.ask(group.row, self._settings.num_rows)

    def close(self) -> dict[str, Any]:
        for group in self._groups.values():
            group.abandon()
        for policy in self._policies:
            policy.close("" if self._lost is None else str(self._lost))
        if self._writer is not None:
            self._writer.close()
            self._reporter.event("note", self._writer.summary)
        for group in self._groups.values():
            group.env.close()
        return dict(self._counts)
