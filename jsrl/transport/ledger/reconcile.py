"""The ledger of one leg, reconciled: the producers' counts compared with the consumer's.

produced = consumed + dropped by reason + in flight + unknown, where each term is counted on its own:

* produced: the producers' counts of commits.
* consumed, dropped: the consumer's counts of outcomes. Dropped as `lost`: what was in a dead consumer's queue, and what no
  consumer took out of the stream, both counted directly.
* in flight: what is in the stream and in the consumer's queue, both counted directly.
* unknown: cannot be determined, such as the last messages of a killed producer over ZeroMQ: at most a connection's blocks.

Three comparisons must hold. Each connection: commits = received + left in the stream. The consumer: received over all
connections = outcomes + its queue. The whole: the sum above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from jsrl.transport.base import Ledger
from jsrl.transport.ledger.leg_page import ZEROMQ, Connection

_MAX_FAULTS = 3  # shown in the text


@dataclass(frozen=True)
class LegLedger:
    """Outcomes of all trajectories of one leg.

    Attributes:
      unknown: produced trajectories whose outcome cannot be determined. uncounted: upper bound of further ones
        from producers whose counts cannot be read. faults: counts that contradict each other.
      lost_at: how many of both belong to each producer (with its incarnation), or to where and when it ended.
    """

    produced: int = 0
    consumed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    unknown: int = 0
    uncounted: int = 0
    faults: tuple[str, ...] = ()
    lost_at: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether no counts contradict each other: all trajectories are accounted for, or unknown."""
        accounted = self.consumed + sum(self.dropped.values()) + self.in_flight + self.unknown
        none_negative = min(self.in_flight, self.unknown, self.uncounted, *self.dropped.values(), 0) == 0
        return self.produced == accounted and none_negative and not self.faults

    @property
    def balanced(self) -> bool:
        """Return whether every trajectory is accounted for."""
        return self.holds and not self.unknown and not self.uncounted

    @property
    def verdict(self) -> str:
        if not self.holds:
            more = f" and {len(self.faults) - _MAX_FAULTS} more" if len(self.faults) > _MAX_FAULTS else ""
            return "; ".join(["NOT BALANCED", *self.faults[:_MAX_FAULTS]]) + more
        if self.balanced:
            return "balanced"
        where = "; ".join(f"{count} of {place}" for place, count in sorted(self.lost_at.items()))
        return f"balanced except {self.unknown + self.uncounted} unknown" + (f" ({where})" if where else "")

    def placed(self, place: Callable[[str], str]) -> LegLedger:
        """Return it with what `place` returns for a producer (`actor-0.1`: its incarnation 1) in the place of producers."""
        found = Counter[str]()
        for producer, count in self.lost_at.items():
            found[place(producer)] += count
        return replace(self, lost_at=dict(found))

    @property
    def counts(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("produced", "consumed", "in_flight", "unknown", "uncounted")}
        return counts | {"dropped": dict(self.dropped), "faults": list(self.faults), "lost_at": dict(self.lost_at)}

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items()))
        dropped = f"({reasons})" if reasons else "0"
        unknown = f" + unknown {self.unknown}" if self.unknown else ""
        uncounted = f" (and at most {self.uncounted} that could not be counted)" if self.uncounted else ""
        return (
            f"produced {self.produced}{uncounted} = consumed {self.consumed} + dropped {dropped} + in flight "
            f"{self.in_flight}{unknown}: {self.verdict}"
        )


def leg_ledger(counts: dict[str, Any]) -> LegLedger:
    """Return a ledger from plain values; missing ones are 0."""
    return msgspec.convert(counts, LegLedger)


def reconcile(
    ledger: Ledger,
    connections: Iterable[Connection],
    *,
    carried: int = 0,
    joined: int | None = None,
    uncertain: int = 0,
) -> LegLedger:
    """Compare the counts of a leg.

    Args:
      ledger: the consumer's, over all incarnations; `in_flight` is the length of its queue when last counted.
      connections: of all incarnations. carried: counts at the ledger's start that are in no page.
      joined: number of connections; if pages are missing, their producers are uncounted. None: do not compare.
      uncertain: incarnations of the consumer killed between two stores; each may be wrong by one trajectory.
    """
    compared, lost_at = list[_Compared](), Counter[str]()
    for connection in connections:
        compared.append(one := _compare(connection))
        lost_at[connection.name] += one.unknown + one.uncounted
    faults = [one.fault for one in compared if one.fault]
    dropped = dict(ledger.dropped or {})
    finished, in_queue = ledger.consumed + sum(dropped.values()), ledger.in_flight
    received = carried + sum(one.received for one in compared)
    missing = max(0, (joined or 0) - len(compared))
    absent = max(0, finished + in_queue - received) if missing else 0  # from connections without a page
    odd = received + absent - finished - in_queue
    if abs(odd) > uncertain:
        faults.append(f"the consumer received {received}, but accounts for {finished} and {in_queue} in its queue")
        odd = 0
    twice = max(-odd, 0)  # an outcome was counted, but the shorter queue was not yet
    still = max(0, in_queue - twice)
    half = max(odd, 0)  # a connection counted it, but the consumer died before its queue did
    lost = sum(one.lost for one in compared) + half - twice + in_queue - still
    dropped |= {"lost": dropped.get("lost", 0) + lost} if lost else {}
    return LegLedger(
        produced=carried + absent + sum(one.produced for one in compared),
        consumed=ledger.consumed,
        dropped=dropped,
        in_flight=still + sum(one.in_stream for one in compared),
        unknown=sum(one.unknown for one in compared),
        uncounted=sum(one.uncounted for one in compared) + (max(1, absent) if missing else 0),
        faults=tuple(faults),
        lost_at={name: count for name, count in lost_at.items() if count},
    )


class _Compared(NamedTuple):
    """One connection: commits, received ones, and where the others are."""

    produced: int
    received: int
    lost: int = 0
    in_stream: int = 0
    unknown: int = 0
    uncounted: int = 0
    fault: str = ""


def _compare(c: Connection) -> _Compared:
    if not c.attached and c.counted < 0 and c.transport == ZEROMQ:
        return _Compared(c.received, c.received, uncounted=c.blocks)  # the counts of another host cannot be read
    low, high = (c.committed, c.started) if c.attached else (max(c.counted, 0), max(c.counted, 0))
    high = max(low, min(high, low + 1))
    lost = in_stream = unknown = 0
    if c.left >= 0:
        lost = c.left
    elif not c.has_left and c.here:
        in_stream = max(0, c.started - c.received)
    elif not c.has_left or c.transport == ZEROMQ:  # killed: its last messages may be lost
        unknown = max(0, min(_nearest(c.received, low, high) - c.received, c.blocks))
    accounted = c.received + lost + in_stream + unknown
    produced, fault = _nearest(accounted, low, high), ""
    if produced != accounted:
        fault = f"{c.name} committed {produced}, but {c.received} were received and {accounted - c.received} were left"
    return _Compared(produced, c.received, lost, in_stream, unknown, 0, fault)


def _nearest(count: int, low: int, high: int) -> int:
    return max(low, min(high, count))
