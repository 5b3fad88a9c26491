"""Invariants under any message or producer failure: each trajectory arrives once, intact, from one incarnation, counted."""

from __future__ import annotations

import time
from collections import Counter

from jsrl.errors import StreamTimeout
from jsrl.transport.base import Lease, ProducerId, SampleConsumer
from tests.contracts.sample_producer import checksum

SEED_STRIDE = 1_000_000  # between the incarnations of a producer


class Tally:
    """Takes trajectories from a consumer and finds violations.

    Attributes:
      faults: duplicates, unknown (of no producer, or altered), mixed (content of another incarnation), gaps.
      counts: trajectories taken per (producer, group). known: existing producers.
    """

    def __init__(self, consumer: SampleConsumer, num_groups: int, *, drop_every: int = 7) -> None:
        self._consumer, self._num_groups, self._drop_every = consumer, num_groups, drop_every
        self.faults: Counter[str] = Counter()
        self.counts: dict[tuple[ProducerId, int], int] = {}
        self.known: set[ProducerId] = set()
        self.taken = self.dropped = 0

    def take(self, timeout_s: float) -> bool:
        """Take one trajectory; return whether one arrived."""
        try:
            lease = self._consumer.get(timeout_s)
        except StreamTimeout:
            return False
        self._judge(lease)
        self.taken += 1
        drop = self.taken % self._drop_every == 0
        self.dropped += drop
        self._consumer.release(lease, "stale" if drop else "consumed")
        return True

    def _judge(self, lease: Lease) -> None:
        trajectory, entry = lease.trajectory, lease.entry
        if entry.producer not in self.known or trajectory.extras["checksum"][0, 0] != checksum(trajectory):
            self.faults["unknown"] += 1
            return
        key = (entry.producer, entry.group)
        expected = self.counts.get(key, 0)
        if entry.sequence != expected:
            self.faults["duplicates" if entry.sequence < expected else "gaps"] += 1
            return
        self.counts[key] = expected + 1
        seed = entry.producer.incarnation * SEED_STRIDE + entry.sequence * self._num_groups + entry.group
        if not (trajectory.version == seed).all():
            self.faults["mixed"] += 1

    def settle(self, seconds: float) -> None:
        """Take the remaining trajectories until none arrives for `seconds`; then the counts must balance."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.take(0.05):
                until = time.monotonic() + seconds
        ledger = self._consumer.ledger
        assert not self.faults, dict(self.faults)
        assert ledger.balanced and ledger.in_flight == 0, str(ledger)
        assert ledger.received == self.taken == sum(self.counts.values()), (str(ledger), self.taken)
        assert (ledger.consumed, ledger.dropped or {}) == (
            self.taken - self.dropped,
            {"stale": self.dropped} if self.dropped else {},
        )
