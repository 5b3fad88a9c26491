"""The ledger of a leg: counts of producers against counts of consumers, and the effect of a wrong count."""

from __future__ import annotations

import pytest

from jsrl.control.result import ledger_lines
from jsrl.transport.base import Ledger
from jsrl.transport.ledger.leg_page import LOCAL, SHARED, ZEROMQ, Connection
from jsrl.transport.ledger.reconcile import LegLedger, leg_ledger, reconcile

TRANSPORTS = [LOCAL, SHARED, ZEROMQ]


def connection(transport: int = SHARED, committed: int = 7, received: int = 7, **others: int) -> Connection:
    """A connection that both ends left in order."""
    counts = {"blocks": 4, "started": committed, "left": 0 if transport == ZEROMQ else -1, **others}
    return Connection("actor-0.0", transport, committed=committed, received=received, **counts)


def accounted(count: int = 7, in_flight: int = 0) -> Ledger:
    return Ledger(count, count - in_flight - 1, {"stale": 1}, in_flight)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_counts_that_agree_balance(transport: int) -> None:
    found = reconcile(accounted(14, in_flight=2), [connection(transport), connection(transport)], joined=2)
    assert found == LegLedger(14, 11, {"stale": 1}, in_flight=2)
    assert found.balanced and found.verdict == "balanced"
    assert str(found) == "produced 14 = consumed 11 + dropped (stale 1) + in flight 2: balanced"
    assert leg_ledger(found.counts) == found
    assert ledger_lines(found.counts, {"windows": {}}) == [f"ledger: {found}"]  # nothing went over the other leg


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("committed", "received", "outcomes"),
    [
        (8, 7, 7),  # the producer counted one too many
        (6, 7, 7),  # or one too few
        (7, 8, 7),  # the consumer took one in twice
        (7, 6, 7),  # or did not count one
        (7, 7, 8),  # the consumer counted an outcome twice
        (7, 7, 6),  # or not at all
        (3, 100, 100),
    ],
)
def test_a_miscount_on_either_side_never_balances(transport: int, committed: int, received: int, outcomes: int) -> None:
    found = reconcile(accounted(outcomes), [connection(transport, committed, received)])
    assert not found.balanced and not found.holds and found.faults
    assert "NOT BALANCED; " in str(found)


def test_in_flight_is_counted_and_not_inferred() -> None:
    assert not reconcile(accounted(7, in_flight=0), [connection(committed=9)]).holds
    in_stream = reconcile(accounted(), [connection(committed=9, has_left=False, here=True)])
    assert in_stream.balanced and in_stream.in_flight == 2
    assert not reconcile(accounted(), [connection(committed=9, started=8, has_left=False, here=True)]).holds
    assert not LegLedger(produced=3, consumed=100, in_flight=-97).holds


def test_rest_of_a_dead_consumers_stream_is_lost() -> None:
    found = reconcile(accounted(), [connection(committed=9, has_left=False, left=2)])
    assert found.balanced and found.dropped == {"stale": 1, "lost": 2}
    assert not reconcile(accounted(), [connection(committed=9, has_left=False, left=3)]).holds


@pytest.mark.parametrize(("committed", "unknown", "holds"), [(7, 0, True), (9, 2, True), (11, 4, True), (12, 4, False)])
def test_sends_of_a_killed_producer_are_unknown_up_to_its_blocks(committed: int, unknown: int, holds: bool) -> None:
    for parted in (True, False):  # the consumer outlived it, or did not
        found = reconcile(accounted(), [connection(ZEROMQ, committed, left=-1, has_left=parted)])
        assert (found.unknown, found.holds) == (unknown, holds)
        assert found.balanced == (unknown == 0)
        if holds and unknown:
            assert str(found).endswith(f": balanced except {unknown} unknown ({unknown} of actor-0.0)")


def test_lost_memory_is_unknown() -> None:
    found = reconcile(accounted(), [connection(SHARED, 9, has_left=False)])
    assert found.holds and found.unknown == 2 and not found.balanced


def test_remote_producer_is_counted_from_its_last_report() -> None:
    told = reconcile(accounted(), [connection(ZEROMQ, 0, attached=False, counted=7, left=-1)])
    assert told.balanced and told.produced == 7
    silent = reconcile(accounted(), [connection(ZEROMQ, 0, attached=False, left=-1)])
    assert silent.holds and not silent.balanced and (silent.produced, silent.uncounted) == (7, 4)
    assert silent.verdict == "balanced except 4 unknown (4 of actor-0.0)"


def test_the_verdict_says_where_unknown_trajectories_were_lost() -> None:
    """Two actors of a lost host, one of them twice connected, and a killed one elsewhere."""
    lost = [connection(ZEROMQ, 9, left=-1)._replace(name=name) for name in ("a.0", "b.2", "b.2", "c.1")]
    found = reconcile(accounted(28), lost)
    assert found.lost_at == {"a.0": 2, "b.2": 4, "c.1": 2}
    ends = {"a.0": "host n1, 2026-11-28 14:03", "b.2": "host n1, 2026-11-28 14:03"}
    placed = found.placed(lambda producer: ends.get(producer, "c"))
    assert placed.verdict == "balanced except 8 unknown (2 of c; 6 of host n1, 2026-11-28 14:03)"
    assert leg_ledger(placed.counts) == placed


@pytest.mark.parametrize("received", [7, 8])
def test_producer_killed_inside_a_commit_is_off_by_one(received: int) -> None:
    found = reconcile(accounted(received), [connection(SHARED, 7, received, started=8)])
    assert found.balanced and found.produced == received
    assert not reconcile(accounted(9), [connection(SHARED, 7, 9, started=8)]).holds
    assert not reconcile(accounted(9), [connection(SHARED, 7, 9, started=9)]).holds  # two cannot be in progress


def test_consumer_killed_between_two_stores_is_off_by_one() -> None:
    after_outcome = Ledger(7, 6, {"stale": 1}, in_flight=1)  # the queue still shows what was released
    assert not reconcile(after_outcome, [connection()]).holds
    assert reconcile(after_outcome, [connection()], uncertain=1) == LegLedger(7, 6, {"stale": 1})
    after = reconcile(Ledger(7, 6, {"stale": 1, "lost": 1}), [connection()], uncertain=1)
    assert after.balanced and after.dropped == {"stale": 1, "lost": 0}
    before = reconcile(accounted(6), [connection()], uncertain=1)  # received, but not in the queue yet
    assert before.balanced and before.dropped == {"stale": 1, "lost": 1}
    assert not reconcile(accounted(5), [connection()], uncertain=1).holds


def test_missing_pages_are_detected() -> None:
    found = reconcile(accounted(10), [connection()], joined=2)
    assert found.holds and not found.balanced and found.uncounted == 3
    assert reconcile(accounted(10), [connection()], carried=3).balanced
