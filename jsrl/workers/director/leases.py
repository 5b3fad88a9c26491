"""The assignments that actors play: each ends once, with an outcome, or discarded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jsrl.directors.messages import Assignment, Outcome
from jsrl.errors import ConfigError
from jsrl.services.runs.control_bodies import GameLease, Games, Played

GONE = "its actor was replaced"
LEFT_OPEN = "the run went on from a snapshot"
LOST = "its outcome was lost with a connection"
AGAIN_S = 2.0  # time after which what has not arrived is sent again


@dataclass
class ActorAssignments:
    """An actor that plays: its incarnation, the number of assignments sent to it, and those that are still open, in order."""

    incarnation: int
    sent: int = 0
    sent_s: float = 0.0
    open: dict[int, GameLease] = field(default_factory=dict)
    slot_of: dict[int, tuple[int, int]] = field(default_factory=dict)  # of an assignment, if known


class Leases:
    """The open assignments of all actors.

    Args:
      session: incarnation of the director, which assignments carry; an outcome of an earlier one does not count.
    """

    def __init__(self, session: int) -> None:
        self.session = session
        self._holders: dict[str, ActorAssignments] = {}
        self._returning: dict[tuple[int, int], GameLease] = {}  # (group, slot) -> what it played before a resume
        self._ended: dict[tuple[int, int], int] = {}  # (group, slot) -> what ended there last

    def outcomes(self, worker: str, incarnation: int, ended: Sequence[Played]) -> list[Outcome]:
        """Return the outcomes of an actor's games; those still open in an earlier incarnation are discarded."""
        found: list[Outcome] = []
        holder = self._holders.get(worker)
        if holder is None or holder.incarnation < incarnation:
            found += [Outcome(game, discarded=GONE) for game in holder.open] if holder is not None else []
            holder = self._holders[worker] = ActorAssignments(incarnation)
        if incarnation < holder.incarnation:
            return found  # from an incarnation that was replaced
        for played in ended:
            lease = holder.open.pop(played.id, None) if played.session == self.session else None
            slot = holder.slot_of.pop(played.id, None)
            if lease is not None:
                found.append(outcome_of(played, len(lease.players)))
                if slot is not None:
                    self._ended[slot] = played.id
        return found

    def lost(self, worker: str, body: Games) -> list[Outcome]:
        """Return the games that an actor has received, and neither has nor has reported."""
        holder = self._holders[worker]
        if body.holds is None or body.session != self.session:
            return []
        received = list(holder.open)[: max(0, len(holder.open) - self._on_the_way(worker, body))]
        lost = set(received) - set(body.holds)
        return [Outcome(game, discarded=LOST) for game in received if game in lost and holder.open.pop(game)]

    def _on_the_way(self, worker: str, body: Games) -> int:
        return self._holders[worker].sent - (body.received if body.session == self.session else 0)

    def short(self, worker: str, body: Games) -> int:
        """Return how many assignments an actor still lacks; those on their way count as received."""
        held = body.held if body.session == self.session else 0
        return max(0, body.want - held - self._on_the_way(worker, body))

    def again(self, worker: str, body: Games, now: float) -> list[GameLease]:
        """Return the assignments that have been on their way to an actor for too long."""
        holder, count = self._holders[worker], self._on_the_way(worker, body)
        return list(holder.open.values())[-count:] if count and now - holder.sent_s >= AGAIN_S else []

    def returning(self, group: int, slot: int) -> GameLease | None:
        """Return the assignment that a slot played before a resume, once; None: it needs a new one."""
        return self._returning.pop((group, slot), None)

    def give(self, worker: str, leases: Sequence[GameLease], now: float, slots: Sequence[tuple[int, int]] = ()) -> int:
        """Note assignments as an actor's, with their (group, slot) if known; return how many were sent to it so far."""
        holder = self._holders[worker]
        for lease in leases:
            holder.open[lease.id] = lease
        for lease, slot in zip(leases, slots, strict=False):
            holder.slot_of[lease.id] = slot
            lease.before = self._ended.pop(slot, lease.before)
        holder.sent, holder.sent_s = holder.sent + len(leases), now
        return holder.sent

    def incarnation_of(self, worker: str) -> int:
        return self._holders[worker].incarnation

    def is_of(self, worker: str, incarnation: int) -> bool:
        holder = self._holders.get(worker)
        return holder is not None and holder.incarnation == incarnation

    def saved(self) -> list[Any]:
        """Return the assignments whose slots are known, as JSON values for `restore`."""
        saved = [
            [*holder.slot_of[game], msgspec.to_builtins(lease)]
            for holder in self._holders.values()
            for game, lease in holder.open.items()
            if game in holder.slot_of
        ]
        return sorted(saved, key=lambda entry: entry[:2])

    def restore(self, saved: Sequence[Any]) -> set[int]:
        """Let slots continue their assignments of before a resume; return the ids of these."""
        for group, slot, values in saved:
            lease = msgspec.convert(values, GameLease)
            lease.session = self.session
            self._returning[group, slot] = lease
        return {lease.id for lease in self._returning.values()}


def outcome_of(played: Played, sides: int) -> Outcome:
    """Return the outcome of a game: the sides with the highest return win, one alone or several as a draw."""
    if played.discarded:
        return Outcome(played.id, discarded=played.discarded)
    returns = tuple(played.returns)
    if len(returns) != sides:
        return Outcome(played.id, discarded=f"it reported {len(returns)} returns for {sides} sides")
    return Outcome(played.id, played.length, returns, result_of(returns))


def result_of(returns: Sequence[float]) -> tuple[float, ...] | None:
    """Return 1 for the side with the highest return, 0.5 for several with the same, 0 for the others; None: one side."""
    if len(returns) < 2:
        return None
    best = max(returns)
    share = 1.0 if sum(value == best for value in returns) == 1 else 0.5
    return tuple(share if value == best else 0.0 for value in returns)


def leases_of(
    assignments: Sequence[Assignment], session: int, numbers: dict[str, int], version_of: Any
) -> Iterator[GameLease]:
    """Yield assignments in the format for actors: the players of each side by number and version.

    Args:
      numbers: policy -> its number. version_of: player -> version of its params.
    """
    for one in assignments:
        players = [(0, 0)] * len(one.sides)
        learns = [False] * len(one.sides)
        for player, trains, side in zip(one.players, one.learns, one.sides, strict=True):
            if player.policy not in numbers:
                raise unknown_policy(f"assigns {player} in game {one.id}", player.policy, numbers)
            players[side], learns[side] = (numbers[player.policy], version_of(player)), trains
        yield GameLease(one.id, session, players, learns, one.task)


def unknown_policy(does: str, policy: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"the director {does}, but the run has no policy {policy!r}; it has: {', '.join(known)}. Name one of these."
    )
