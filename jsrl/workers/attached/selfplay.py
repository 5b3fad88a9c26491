"""Self-play in an actor: a director assigns the player of each seat, from the start of an episode to its end.

A few assignments are kept in advance, so that no slot waits for one. Imports no jax.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.envs.base import Episode
from jsrl.envs.seats import NO_SEATS, SeatView, seat_group
from jsrl.errors import ConfigError
from jsrl.experiment.policies import wants_scores
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command, GameLease, Games, GroupStep, Played
from jsrl.transport.base import LATEST_VERSION, NOT_PLAYED
from jsrl.types import ACTING, ONLY_SCORED, WAITING, Array, GameSpec, Trajectory, leaves, spread
from jsrl.workers.actor.environments import Environments
from jsrl.workers.actor.lineup import Lineup, Players, Tap
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job

TELL_S = 0.05  # between messages to the director, if no slot waits
AHEAD_S = 0.25  # time for which an actor keeps assignments in advance, in addition to one for each of its slots
URGE_S = 0.5  # after which a request is repeated
HOLDS_S = 1.0  # between messages that name all assignments that it has
MAX_AHEAD = 4096  # assignments that an actor keeps in addition to one for each of its slots


@dataclass
class SeatPlayers(Players):
    """The players of the seats of one policy in one group of environments.

    Attributes:
      version: int64 [B, N], that acts: a frozen one, LATEST_VERSION, or NOT_PLAYED if another policy plays.
      learns: bool [B, N], whether the seat's rows go to the learner as rows of the policy. game: int32 [B], the number of the
        game, as in Trajectory: in a run with scores, a game in which nobody learns is only scored.
      spares: seats that wait are not acted for; False if cores must advance with every row.
    """

    version: np.ndarray
    learns: np.ndarray
    spares: bool
    game: np.ndarray

    def versions(self, acts: Array) -> Array:
        return np.where(acts != WAITING, self.version, NOT_PLAYED) if self.spares else self.version

    def merged_with(self, others: Array | None, action: Array) -> Array:
        """Return the actions [B, N, ...]: of the seats that the policy plays, and those of `others` for the rest."""
        if others is None:
            return action
        plays = self.version != NOT_PLAYED
        return np.where(spread(plays, action), action, others)

    def kinds(self, acts: Array) -> Array:
        return np.where(self.learns, acts, WAITING).astype(acts.dtype)


@dataclass
class _Slots:
    """A group's slots: the current and next assignment of each, and the players of its policies."""

    leases: list[GameLease | None]
    next: list[GameLease | None]
    seat_players: list[SeatPlayers] = field(default_factory=list)


class PlayedSeats(NamedTuple):
    """The seats of a policy: its number, their places among all sides and their group; `has_core`: of its agent."""

    number: int
    places: tuple[int, ...] = ()
    has_core: bool = False
    group: str = NO_SEATS


class DirectedLineup(Lineup):
    """The lineup that a director assigns; it gets the outcomes.

    Args:
      policies: that play. incarnation: of the actor. reporter: sends messages to the director.
      in_order: request assignments slot by slot, with the step after which they are needed, and none in advance.
      scored: the director chooses by scores of games.
    """

    def __init__(
        self,
        policies: Sequence[PlayedSeats],
        *,
        incarnation: int = 0,
        reporter: Reporter,
        in_order: bool,
        scored: bool = False,
    ) -> None:
        self._policies, self._incarnation, self._reporter = list(policies), incarnation, reporter
        self._in_order, self._scored = in_order, scored
        # Whether several policies may play the same seats, or the environment's only agent.
        self._are_shared = len({policy.group for policy in policies}) < len(policies)
        self._slots: dict[int, _Slots] = {}
        self._sides: tuple[int, ...] = ()
        self._ahead: deque[GameLease] = deque()
        self._needs: list[tuple[int, int]] = []  # (group, slot), in order of request
        self._short: Counter[int] = Counter()  # group -> slots without an assignment
        self._played: list[Played] = []
        self._moments: list[GroupStep] = []  # that were not sent yet
        self._unanswered: list[GroupStep] = []
        self._numbers = itertools.count()
        self._received, self._session = 0, -1  # assignments, of this incarnation of the director
        # State at the last message: time, assignments received, and slots waiting; games that ended since, and per second.
        self._sent_s, self._sent_received, self._asked = 0.0, -1, 0
        self._named_s = 0.0  # when the assignments were named
        self._games, self._per_s = 0, 0.0

    # -- what an actor asks

    def join(self, group: Environments, step: int) -> Sequence[Players]:
        """Take a group, whose slots all need an assignment."""
        spec, num_envs = group.env.spec, group.env.num_envs
        self._sides = spec.sides if isinstance(spec, GameSpec) else (0,)
        slots = self._slots[group.number] = _Slots([None] * num_envs, [None] * num_envs)
        for policy in self._policies:
            shape = (num_envs, len(policy.places)) if policy.places else (num_envs,)
            version, learns = np.full(shape, LATEST_VERSION, np.int64), np.ones(shape, bool)
            players = SeatPlayers(version, learns, not policy.has_core, np.full(num_envs, -1, np.int32))
            slots.seat_players.append(players)
        self._need(group.number, range(num_envs))
        self._note(group.number, step, range(num_envs))
        return slots.seat_players

    @property
    def waits(self) -> bool:  # type: ignore[override]
        return bool(self._needs)

    def poll(self) -> bool:
        self.send()
        return any(not self._short[group] for group in self._slots)

    def ready(self, group: Environments) -> bool:
        """Return whether all slots of a group have an assignment, including those whose episode is over."""
        return not self._short[group.number]

    def begin(self, group: Environments) -> bool:
        if not self.ready(group):
            return False
        over = {episode.slot for episode in group.latest.episodes}  # in the last row before a resume
        slots = [slot for slot in range(group.env.num_envs) if slot not in over]
        tasks = self._tasks(group, slots)
        goes_on = getattr(group.env, "goes_on", False)
        if tasks and group.latest.is_first.all() and not goes_on:  # it was reset before its tasks were known
            self._set_tasks(group, tasks)
            group.reset()
        self.opened(group.number, slots)
        for slot in over:  # the last rows of games that ended before a resume carry their numbers
            upcoming = self._slots[group.number].next[slot]
            if upcoming is not None:
                for players in self._slots[group.number].seat_players:
                    players.game[slot] = upcoming.before
        return True

    def actions(self, group: Environments, chosen: Sequence[tuple[SeatView | None, Array]]) -> Any:
        if not self._are_shared:
            return super().actions(group, chosen)
        actions: dict[str, Array] = {}
        seat_players = self._slots[group.number].seat_players
        for (_, action), policy, players in zip(chosen, self._policies, seat_players, strict=True):
            actions[policy.group] = players.merged_with(actions.get(policy.group), action)
        return actions.get(NO_SEATS, actions)

    def before_step(self, group: Environments) -> None:
        over = [episode.slot for episode in group.latest.episodes]  # slots that this step resets
        if tasks := self._tasks(group, over):
            self._set_tasks(group, tasks)

    def _tasks(self, group: Environments, slots: Iterable[int]) -> dict[int, Any]:
        """Return the tasks of the next assignments of slots, if they have one."""
        upcoming = {slot: self._slots[group.number].next[slot] for slot in slots}
        return {slot: lease.task for slot, lease in upcoming.items() if lease is not None and lease.task is not None}

    def _set_tasks(self, group: Environments, tasks: dict[int, Any]) -> None:
        if not hasattr(group.env, "set_tasks"):
            raise ConfigError(
                f"environment {group.environment!r} takes no tasks, which a director assigns; use one whose reset does."
            )
        group.env.set_tasks(tasks)

    def after_step(self, group: Environments, step: int, *, is_last: bool) -> None:
        self.opened(group.number, np.flatnonzero(group.latest.is_first).tolist())
        self.ended(group.number, group.latest.episodes, step, is_last=is_last)
        self.send()

    def may_commit(self, group: Environments) -> bool:
        return not self._in_order or self.ready(group)  # the director's commands come before the update

    def begin_again(self, group: Environments, step: int) -> None:
        self._discard(group.number, range(group.env.num_envs), "its streams were lost")
        lacking = [slot for slot, lease in enumerate(self._slots[group.number].next) if lease is None]
        self._need(group.number, lacking)
        self._note(group.number, step, lacking)
        self._assign_available()

    def command(self, command: Command) -> None:
        """Take `games`: assignments, unless they are for an earlier incarnation of this actor."""
        facts = command.facts
        if command.name == "games" and facts["incarnation"] == self._incarnation:
            leases = msgspec.convert(facts["leases"], list[GameLease])
            slots = [(group, slot) for group, slot in facts["slots"]]
            self.take(leases, facts["session"], facts["sent"], slots)

    # -- assignments

    def take(self, leases: Iterable[GameLease], session: int, sent: int, slots: Sequence[tuple[int, int]] = ()) -> None:
        """Receive assignments of the director; those that came before, or after others that were lost, are dropped.

        Args:
          sent: number of assignments sent by this incarnation of the director, including these. slots: (group, slot) of each.
        """
        if session < self._session:
            return
        if session > self._session:
            self._session, self._received = session, 0
            self._ahead.clear()  # of an earlier incarnation, whose outcomes would not count
        new, all_leases = sent - self._received, list(leases)
        if not 0 < new <= len(all_leases):
            return
        found, self._received = all_leases[-new:], sent
        if self._in_order:
            self._take_assignments(zip(slots[-new:], found, strict=True))
            return
        self._ahead.extend(found)
        self._assign_available()

    def ended(self, group: int, episodes: Sequence[Episode], step: int = 0, *, is_last: bool = False) -> None:
        """Note how episodes ended, and request the next assignments of their slots.

        Args:
          step: of the group, from the first of the run. is_last: of its trajectory.
        """
        for episode in episodes:
            self._games += 1
            lease = self._slots[group].leases[episode.slot]
            if lease is not None:
                self._slots[group].leases[episode.slot] = None
                returns = side_returns(self._sides, episode.returns or (episode.return_,))
                self._report(lease, length=episode.length, returns=returns)
        over = [episode.slot for episode in episodes]
        self._need(group, over)
        if over or is_last or self._played:
            self._note(group, step, over)
        self._assign_available()

    def opened(self, group: int, slots: Iterable[int]) -> None:
        all_slots = self._slots[group]
        for slot in slots:
            self._discard(group, [slot], "its environment was rebuilt")
            lease, all_slots.next[slot] = all_slots.next[slot], None
            if lease is not None:
                all_slots.leases[slot] = lease
                self._assign_players(all_slots.seat_players, slot, lease)

    def _assign_players(self, seat_players: Sequence[SeatPlayers], slot: int, lease: GameLease) -> None:
        for policy, players in zip(self._policies, seat_players, strict=True):
            sides = [self._sides[place] for place in policy.places] or [0]
            own = np.array([lease.players[side][0] == policy.number for side in sides])
            version = [lease.players[side][1] for side in sides]
            only_scored = self._scored and not any(lease.learns)
            learns = own & [only_scored or lease.learns[side] for side in sides]
            seats = slice(None) if policy.places else 0  # an environment of one agent has no axis of seats
            players.version[slot] = np.where(own, version, NOT_PLAYED)[seats]
            players.learns[slot] = learns[seats]
            players.game[slot] = ONLY_SCORED - lease.id if only_scored else lease.id

    def _discard(self, group: int, slots: Iterable[int], why: str) -> None:
        """Discard the games of some slots: their episodes do not count."""
        leases = self._slots[group].leases
        for slot in slots:
            lease, leases[slot] = leases[slot], None
            if lease is not None:
                self._report(lease, discarded=why)

    def _report(self, lease: GameLease, **facts: Any) -> None:
        self._played.append(Played(lease.id, lease.session, **facts))

    def _need(self, group: int, slots: Iterable[int]) -> None:
        for slot in slots:
            if (group, slot) not in self._needs:
                self._needs.append((group, slot))
                self._short[group] += 1

    def _assign_available(self) -> None:
        while self._ahead and self._needs:
            group, slot = self._needs.pop(0)
            self._short[group] -= 1
            self._asked = min(self._asked, len(self._needs))
            self._slots[group].next[slot] = self._ahead.popleft()

    def _take_assignments(self, dealt: Iterable[tuple[tuple[int, int], GameLease]]) -> None:
        """Give slots their assignments."""
        for (group, slot), lease in dealt:
            if (group, slot) in self._needs:
                self._needs.remove((group, slot))
                self._short[group] -= 1
                self._slots[group].next[slot] = lease

    def _note(self, group: int, step: int, slots: Iterable[int]) -> None:
        """Note the results of a step, which the director processes in order."""
        if self._in_order:
            played, self._played = self._played, []
            self._moments.append(GroupStep(group, step, next(self._numbers), played, list(slots)))

    def _send_in_order(self) -> None:
        """Send the director the results of steps; repeat requests that were not answered for a while."""
        moments, self._moments = self._moments, []
        self._unanswered += [moment for moment in moments if moment.slots]
        if not moments and self._needs and time.monotonic() - self._sent_s >= URGE_S:
            needs = set(self._needs)
            self._unanswered = [m for m in self._unanswered if any((m.group, slot) in needs for slot in m.slots)]
            moments = self._unanswered
        if moments:
            self._sent_s = time.monotonic()
            body = Games([], 0, 0, self._received, self._session, moments)
            self._reporter.event("games", "", **msgspec.to_builtins(body))

    def send(self) -> None:
        """Send the director what was played and what is needed: at once if a slot waits, else from time to time."""
        if self._in_order:
            self._send_in_order()
            return
        now_s, waiting = time.monotonic(), len(self._needs)
        ahead = sum(len(s.leases) for s in self._slots.values()) + int(AHEAD_S * self._per_s)
        runs_low = len(self._ahead) <= ahead // 2 and self._received != self._sent_received
        due = bool(self._played) or waiting > self._asked or runs_low
        pause_s = now_s - self._sent_s
        if not (due and pause_s >= TELL_S) and not (waiting and pause_s >= URGE_S):
            return
        self._per_s += 0.5 * (min(self._games / pause_s, MAX_AHEAD) - self._per_s)
        self._games, self._sent_s, self._sent_received, self._asked = 0, now_s, self._received, waiting
        played, self._played = self._played, []
        body = Games(played, waiting + ahead, len(self._ahead), self._received, self._session)
        if now_s - self._named_s >= HOLDS_S:
            self._named_s, body.holds = now_s, self._held_ids()
        self._reporter.event("games", "", **msgspec.to_builtins(body))

    def _held_ids(self) -> list[int]:
        """Return the ids of the assignments of this session that are kept, come next or are played."""
        slots = (lease for group in self._slots.values() for lease in (*group.leases, *group.next))
        return [lease.id for lease in (*self._ahead, *slots) if lease is not None and lease.session == self._session]


def side_returns(sides: Sequence[int], returns: Sequence[float]) -> list[float]:
    """Return the sum of the seats' returns for each side."""
    totals = [0.0] * (max(sides) + 1)
    for side, value in zip(sides, returns, strict=True):
        totals[side] += float(value)
    return totals


class TrainedShare(Tap):
    """Measures the share of a policy's rows that train it."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def before_commit(self, trajectory: Trajectory) -> None:
        self._meter.mean("trained_rows_share", float(np.mean(trajectory.acts[:-1] == ACTING)))


def directed_lineup(job: Job, reporter: Reporter) -> DirectedLineup:
    e = job.experiment
    policies = [
        PlayedSeats(
            one.policy_number,
            tuple(one.part.seats.values()),
            bool(leaves(one.schemas.act.core)),
            seat_group(one.view),
        )
        for one in job.by_policy
    ]
    return DirectedLineup(
        policies,
        incarnation=job.incarnation,
        reporter=reporter,
        in_order=e.is_deterministic,
        scored=wants_scores(e.director),
    )
