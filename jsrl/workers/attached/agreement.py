"""What the ranks of a learner decide: all make an update or none does, and they stop and leave together.

No rank starts an update before all have reported a batch for it, so that none waits inside a collective for a batch that never
comes. The loop of a rank makes one request at a time, which ends with GO or PASS. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from jsrl.errors import StreamTimeout

if TYPE_CHECKING:
    from jsrl.experiment.settings import DeadlineConfig

SEND_S, LEAVE_S = 0.5, 5.0
Word: TypeAlias = Literal["joins", "waits", "has", "leaves"]
_IN_ORDER: tuple[Word, ...] = ("joins", "waits", "has", "leaves")  # of a rank's messages with the same number


class RankMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A rank's message: it joins, waits for the batch of this number or has it, or leaves."""

    worker: str
    incarnation: int
    number: int
    what: Word


class RankStart(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """The answer to a joining rank: its number, how many there are, where processes meet, and where the learner starts."""

    rank: int
    count: int
    coordinator: str
    generation: int
    updates: int
    trained: int
    saved_generation: int | None
    unmade: int = 0
    env_steps: int = 0


class RankReply(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """Make the update with the batch of this number (`go`), wait (`wait`), make no more (`stop`), leave now (`end`)."""

    number: int
    what: Literal["go", "wait", "stop", "end"]


class FromRank(NamedTuple):
    """Message to rank 0: a rank's message, and where the answer goes."""

    sender: bytes
    message: RankMessage


class Turn(NamedTuple):
    """Request: make the next update, if all ranks have a batch within `timeout_s`."""

    has_batch: bool
    timeout_s: float


class Last(Enum):
    """The last requests."""

    HALT = "make no more updates, but the one that was promised"
    LEAVE = "leave the group; the learner has its snapshot"


class Send(NamedTuple):
    """Action: send a message; rank 0 also says to whom."""

    message: RankMessage | RankStart | RankReply
    receiver: bytes = b""


class Do(Enum):
    """Actions that have no values."""

    GO = "all ranks are there: meet, or make the update"
    PASS = "the request has ended without an update"
    DEPART = "leave the group of processes"


Action: TypeAlias = Send | Do


class LeaderAgreement:
    """The decisions of rank 0. Its first request is to wait for the others.

    Raises StreamTimeout if another rank does not join, is silent for too long, or has left during the run.

    Args:
      others: the other ranks, in order. begins: the message for each of them; its number is filled in.

    Attributes:
      dropped: messages of other incarnations, and those that came after a later one of the same rank.
    """

    def __init__(
        self, others: Sequence[str], incarnation: int, begins: RankStart, deadlines: DeadlineConfig, now: float
    ) -> None:
        self._numbers = {worker: number for number, worker in enumerate(others, 1)}
        self._incarnation, self._begins, self._deadlines = incarnation, begins, deadlines
        self._newest: dict[str, RankMessage] = {}
        self._senders: dict[str, bytes] = {}
        self._received_s: dict[str, float] = {}
        self._request: Turn | Last | None = None
        self._until_s = now + deadlines.ready_s
        self._number, self._stopped_s = 0, None  # type: int, float | None
        self.dropped = 0

    def wait_s(self, now: float) -> float:
        """Return how long to wait for a message before the next `tick`."""
        return max(0.0, self._until_s - now)

    def handle(self, message: FromRank | Turn | Last, now: float) -> list[Action]:
        """Take a message, or a request."""
        if isinstance(message, FromRank):
            return self._take(*message, now)
        self._request = message
        self._until_s = now + (message.timeout_s if isinstance(message, Turn) else LEAVE_S)
        if message is Last.HALT:
            return [*self._stop(now), Do.PASS]
        return self._to_all("end") if message is Last.LEAVE else []

    def tick(self, now: float) -> list[Action]:
        """Decide, once all messages that have arrived are taken."""
        over = now >= self._until_s
        if self._request is None:
            missing = sorted(self._numbers.keys() - self._newest.keys())
            if missing and over:
                raise StreamTimeout(
                    f"{', '.join(missing)} did not join this learner within {self._deadlines.ready_s:g} s "
                    "(deadlines.ready_s); look at its log."
                )
            return [] if missing else self._go(now)
        if self._request is Last.LEAVE and len(self._gone()) == len(self._numbers):
            return [Do.DEPART, Do.PASS]
        if isinstance(self._request, Turn):
            if self._request.has_batch and self._all_have():
                actions = self._to_all("go")
                self._number += 1
                return actions + self._go(now)
            if over:
                self._check_silence(now)
        return [Do.PASS] if over else []

    def _go(self, now: float) -> list[Action]:
        """End the request; while all make their updates, no messages are expected."""
        self._received_s = dict.fromkeys(self._numbers, now)
        return [Do.GO]

    def _take(self, sender: bytes, message: RankMessage, now: float) -> list[Action]:
        worker, before = message.worker, self._newest.get(message.worker)
        known = worker in self._numbers and message.incarnation == self._incarnation
        if not known or (before is not None and _place(message) < _place(before)):
            self.dropped += 1
            return []
        self._newest[worker], self._senders[worker], self._received_s[worker] = message, sender, now
        if message.what == "joins":
            return [Send(msgspec.structs.replace(self._begins, rank=self._numbers[worker]), sender)]
        if message.what == "leaves":
            return self._stop(now)
        return [Send(RankReply(self._number, "wait" if self._stopped_s is None else "stop"), sender)]

    def _stop(self, now: float) -> list[Action]:
        self._stopped_s = now if self._stopped_s is None else self._stopped_s
        return self._to_all("stop")

    def _to_all(self, what: Literal["go", "stop", "end"]) -> list[Action]:
        return [Send(RankReply(self._number, what), sender) for sender in self._senders.values()]

    def _all_have(self) -> bool:
        """Return whether all ranks have a batch for this update; one that leaves has none any more."""
        return all(newest.what == "has" and newest.number == self._number for newest in self._newest.values())

    def _gone(self) -> list[str]:
        return [worker for worker in self._numbers if self._newest[worker].what == "leaves"]

    def _check_silence(self, now: float) -> None:
        if self._stopped_s is not None:
            if now > self._stopped_s + LEAVE_S:
                raise StreamTimeout(f"{', '.join(self._gone())} left during the run (a SIGTERM from elsewhere?).")
            return
        for worker, received_s in self._received_s.items():
            silent_s = now - received_s
            compiles = self._newest[worker].what == "joins"  # it sends nothing until it is ready
            if silent_s > (self._deadlines.ready_s if compiles else 2 * self._deadlines.rank_s):
                raise StreamTimeout(
                    f"{worker} has sent nothing for {silent_s:.0f} s, so no update can start; expected a message every "
                    f"{SEND_S:g} s. It is stuck, or the network between the hosts is broken (deadlines.rank_s)."
                )


def _place(message: RankMessage) -> tuple[int, int]:
    return message.number, _IN_ORDER.index(message.what)


class FollowerAgreement:
    """The decisions of any other rank. Its first request is to join; it ends with PASS if rank 0 does not answer.

    Raises StreamTimeout if rank 0 is silent for too long.

    Args:
      worker, incarnation: of this rank. leader: name of rank 0.

    Attributes:
      begins: the answer to joining.
    """

    def __init__(self, worker: str, incarnation: int, leader: str, deadlines: DeadlineConfig, now: float) -> None:
        self._worker, self._incarnation, self._leader, self._deadlines = worker, incarnation, leader, deadlines
        self.begins: RankStart | None = None
        self._request: Turn | Last | None = None
        self._number, self._what = 0, "joins"  # type: int, Word
        self._sent: tuple[RankMessage, float] | None = None
        self._until_s, self._received_s = now + deadlines.ready_s, now
        self._stopped = self._parted = False

    def wait_s(self, now: float) -> float:
        """Return how long to wait for a message before the next `tick`."""
        return max(0.0, min(SEND_S, self._until_s - now))

    def handle(self, message: RankStart | RankReply | Turn | Last, now: float) -> list[Action]:
        """Take an answer of rank 0, or a request."""
        if isinstance(message, RankStart | RankReply):
            self._received_s = now
            return self._take(message)
        self._request = message
        if isinstance(message, Turn):
            self._what, self._until_s = ("has" if message.has_batch else "waits"), now + message.timeout_s
        else:
            patience_s = LEAVE_S if message is Last.HALT else self._deadlines.snapshot_s
            self._what, self._until_s = "leaves", now + patience_s
        return []

    def tick(self, now: float) -> list[Action]:
        """Decide, once all messages that have arrived are taken; repeat a message that may be lost."""
        is_turn, silent_s = isinstance(self._request, Turn), now - self._received_s
        ended = (self._request is Last.HALT and self._stopped) or (self._request is Last.LEAVE and self._parted)
        actions = [] if ended or (is_turn and self._stopped) else self._send(now)
        if not ended and now < self._until_s:
            return actions
        if is_turn and silent_s > self._deadlines.stuck_s and not self._stopped:  # it may be writing a snapshot
            raise StreamTimeout(f"{self._leader} has sent nothing for {silent_s:.0f} s, so no update can start.")
        return [*actions, Do.PASS]

    def _send(self, now: float) -> list[Action]:
        """Send the message of this request if it is new, or was not sent for a while."""
        message = RankMessage(self._worker, self._incarnation, self._number, self._what)
        if self._sent is not None and self._sent[0] == message and now < self._sent[1] + SEND_S:
            return []
        self._sent = message, now
        return [Send(message)]

    def _take(self, answer: RankStart | RankReply) -> list[Action]:
        if isinstance(answer, RankStart):
            joins, self.begins = self.begins is None, answer
            return [Do.GO] if joins else []
        if answer.what == "go" and answer.number == self._number:
            self._number += 1
            return [Do.GO]
        self._stopped = self._stopped or answer.what in ("stop", "end")
        if answer.what != "end" or self._parted:
            return []
        self._parted = True
        return [Send(RankMessage(self._worker, self._incarnation, self._number, "leaves")), Do.DEPART]
