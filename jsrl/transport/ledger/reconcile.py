"""The ledger of one hop, reconciled: what producers counted against what consumers counted.

produced = consumed + dropped by reason + in flight + unknown, where each term is counted on its own:

* produced: the producers' counts of commits.
* consumed, dropped: the consumer's counts of outcomes. Dropped as `lost`: what a dead consumer's queue held, and what no
  consumer took out of the stream, each by a look at it.
* in flight: what the stream and the consumer's queue hold, by a look at both.
* unknown: cannot be determined, such as the last messages of a killed producer over ZeroMQ: at most a connection's blocks.

Three comparisons must hold. Each connection: commits = taken in + left in the stream. The consumer: taken in over all
connections = outcomes + what its queue holds. The whole: the sum above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jsrl.transport.base import Ledger
from jsrl.transport.ledger.hop_page import LOCAL, ZEROMQ, Connection

_MOST_FAULTS = 3  # that the text shows


@dataclass(frozen=True)
class HopLedger:
    """What became of every trajectory of one hop.

    Attributes:
      unknown: trajectories that were produced and whose fate cannot be determined. uncounted: at most so many more
        were produced by producers whose counts cannot be read. faults: counts that contradict each other.
    """

    produced: int = 0
    consumed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    unknown: int = 0
    uncounted: int = 0
    faults: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether no count contradicts another: all is accounted for, except what is unknown."""
        accounted = self.consumed + sum(self.dropped.values()) + self.in_flight + self.unknown
        none_negative = min(self.in_flight, self.unknown, self.uncounted, *self.dropped.values(), 0) == 0
        return self.produced == accounted and none_negative and not self.faults

    @property
    def balanced(self) -> bool:
        """Return whether every trajectory is accounted for."""
        return self.holds and not self.unknown and not self.uncounted

    @property
    def verdict(self) -> str:
        """Return the balance in words."""
        if not self.holds:
            more = f" and {len(self.faults) - _MOST_FAULTS} more" if len(self.faults) > _MOST_FAULTS else ""
            return "; ".join(["NOT BALANCED", *self.faults[:_MOST_FAULTS]]) + more
        if self.balanced:
            return "balanced"
        return f"balanced except {self.unknown + self.uncounted} unknown"

    @property
    def counts(self) -> dict[str, Any]:
        """Return the ledger as plain values."""
        counts = {name: getattr(self, name) for name in ("produced", "consumed", "in_flight", "unknown", "uncounted")}
        return counts | {"dropped": dict(self.dropped), "faults": list(self.faults)}

    def __str__(self) -> str:
        """Return one line for people."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "0"
        unknown = f" + unknown {self.unknown}" if self.unknown else ""
        uncounted = f" (and at most {self.uncounted} that could not be counted)" if self.uncounted else ""
        return (
            f"produced {self.produced}{uncounted} = consumed {self.consumed} + dropped ({dropped}) + in flight "
            f"{self.in_flight}{unknown}: {self.verdict}"
        )


def hop_ledger(counts: dict[str, Any]) -> HopLedger:
    """Return a ledger from plain values; what they do not name is 0."""
    return HopLedger(**counts | {"faults": tuple(counts.get("faults", ()))})


def reconcile(
    ledger: Ledger,
    connections: Iterable[Connection],
    *,
    carried: int = 0,
    joined: int | None = None,
    uncertain: int = 0,
) -> HopLedger:
    """Compare the counts of a hop.

    Args:
      ledger: the consumer's, over all its lives; `in_flight` is what its queue held when it was last looked at.
      connections: of all lives. carried: trajectories that the consumer's ledger began with, and that no page knows.
      joined: connections that there were; where pages are missing, their producers are uncounted. None: do not compare.
      uncertain: lives of the consumer that were killed between two stores; each may mislead by one trajectory.
    """
    compared = [_compare(connection) for connection in connections]
    faults = [one.fault for one in compared if one.fault]
    dropped = dict(ledger.dropped or {})
    settled, in_queue = ledger.consumed + sum(dropped.values()), ledger.in_flight
    received = carried + sum(one.received for one in compared)
    missing = max(0, (joined or 0) - len(compared))
    absent = max(0, settled + in_queue - received) if missing else 0  # came over connections without a page
    odd = received + absent - settled - in_queue
    if abs(odd) > uncertain:
        faults.append(f"the consumer took in {received}, but accounts for {settled} and {in_queue} in its queue")
        odd = 0
    twice = max(-odd, 0)  # an outcome was counted, and the queue was not yet noted to be shorter by one
    still = max(0, in_queue - twice)
    half = max(odd, 0)  # a connection counted it, and the consumer died before its queue had it
    lost = sum(one.lost for one in compared) + half - twice + in_queue - still
    dropped |= {"lost": dropped.get("lost", 0) + lost} if lost else {}
    return HopLedger(
        produced=carried + absent + sum(one.produced for one in compared),
        consumed=ledger.consumed,
        dropped=dropped,
        in_flight=still + sum(one.in_ring for one in compared),
        unknown=sum(one.unknown for one in compared),
        uncounted=sum(one.uncounted for one in compared) + (max(1, absent) if missing else 0),
        faults=tuple(faults),
    )


class _Compared(NamedTuple):
    """One connection: commits, how many the consumer took in, and where the others are."""

    produced: int
    received: int
    lost: int = 0
    in_ring: int = 0
    unknown: int = 0
    uncounted: int = 0
    fault: str = ""


def _compare(c: Connection) -> _Compared:
    """Compare what the two ends of a connection counted."""
    if not c.attached and c.told < 0 and c.road == ZEROMQ:
        return _Compared(c.received, c.received, uncounted=c.blocks)  # a host whose counts nobody can read
    low, high = (c.committed, c.begun) if c.attached else (max(c.told, 0), max(c.told, 0))
    high = max(low, min(high, low + 1))
    lost = in_ring = unknown = 0
    if c.left >= 0:
        lost = c.left
    elif not c.parted and c.ring >= 0:
        in_ring = max(0, c.ring - c.received)
    elif c.road != LOCAL and (not c.parted or c.road == ZEROMQ):  # killed: what it sent last may have gone with it
        unknown = max(0, min(_nearest(c.received, low, high) - c.received, c.blocks))
    accounted = c.received + lost + in_ring + unknown
    produced, fault = _nearest(accounted, low, high), ""
    if produced != accounted:
        fault = f"{c.name} committed {produced}, but {c.received} were taken in and {accounted - c.received} were left"
    return _Compared(produced, c.received, lost, in_ring, unknown, 0, fault)


def _nearest(count: int, low: int, high: int) -> int:
    return max(low, min(high, count))
