"""Supervision: when a worker is replaced, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from jsrl.errors import counted
from jsrl.rate_limit import RateLimit


@dataclass(frozen=True)
class Rules:
    """What the supervision knows about a worker from the start.

    Attributes:
      kind: of its metrics, for counts. restarts: that it may have within the window of the limits.
    """

    kind: str
    restarts: int


@dataclass(frozen=True)
class Limits:
    """Of all workers.

    Attributes:
      window_s: in which restarts count. backoff_s: before the first restart, doubled for each further one up to
        `max_backoff_s`.
    """

    window_s: float
    backoff_s: float
    max_backoff_s: float


class Budgets:
    """The restarts that workers may still have.

    Attributes:
      counts: kind -> restarts of its workers so far.
    """

    def __init__(self, rules: Mapping[str, Rules], limits: Limits) -> None:
        self._rules, self._limits = rules, limits
        self._used = {worker: RateLimit(rule.restarts, limits.window_s) for worker, rule in rules.items()}
        self.counts: Counter[str] = Counter()

    def used(self, worker: str, now: float) -> int:
        """Return the restarts of a worker within the window that ends now."""
        return self._used[worker].used(now)

    def allows(self, worker: str) -> bool:
        """Return whether a worker may be restarted at all."""
        return self._rules[worker].restarts > 0

    def take(self, worker: str, now: float, *, is_free: bool = False) -> float | None:
        """Use one restart: return the seconds to wait before it, or None when the budget is exhausted.

        `is_free`: it is not charged to the budget, if the worker may be restarted at all.
        """
        used = self.used(worker, now)
        if not (self.allows(worker) and (is_free or self._used[worker].spend(now))):
            return None
        self.counts[self._rules[worker].kind] += 1
        return min(self._limits.backoff_s * 2.0 ** min(used, 60), self._limits.max_backoff_s)

    def text(self, worker: str, now: float) -> str:
        return f"restart {self.used(worker, now)} of {self._rules[worker].restarts} within {self._limits.window_s:g} s"

    def used_up(self, worker: str, now: float) -> str:
        """Return why a worker is not restarted any more, as text; empty: it never was restarted."""
        if not self.used(worker, now):
            return ""
        return (
            f"{worker} has used its {counted(self._rules[worker].restarts, 'restart')} within {self._limits.window_s:g} s. "
            "Restarts do not repair it: see the reason above, or allow more with --restart."
        )
