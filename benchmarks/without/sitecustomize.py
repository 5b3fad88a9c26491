"""Remove parts of jsrl from every process of a run, as JSRL_WITHOUT says, to measure their cost by their absence.

Python imports this file at its start if the folder is on PYTHONPATH; only benchmarks/overhead.py puts it there.
"""

from __future__ import annotations

import os
from typing import Any

NEVER_S = 2e6  # 23 days; ZeroMQ waits for no more than 2^31 ms


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def without_heartbeats() -> None:
    """Disable heartbeats of workers (the control connection stays: it carries reports and commands)."""
    from jsrl.services.runs import control

    control.HEARTBEAT_S = NEVER_S


def without_deadlines() -> None:
    """Disable the record of operations that may hang."""
    from jsrl.services.runs.control import ControlClient

    ControlClient.entering = ControlClient.left = nothing  # type: ignore[method-assign]


def without_phases() -> None:
    """Disable time accounting."""
    from jsrl.services.metrics.phases import Phases

    Phases.enter = Phases.rest = Phases.mark = nothing  # type: ignore[method-assign]
    Phases.shares = lambda self: {}  # type: ignore[method-assign]


def without_metrics() -> None:
    """Disable counting inside workers; updates and env steps, which limits need, are still counted."""
    from jsrl.services.metrics.metrics import Meter

    for name in ("count", "rate", "spent", "mean", "means", "last", "maximum", "spread"):
        setattr(Meter, name, nothing)
    Meter.flush = lambda self: {}  # type: ignore[method-assign]


def without_ledger() -> None:
    """Count trajectories in memory, not in the pages that survive a crash."""
    from jsrl.transport.base import Ledger
    from jsrl.transport.ledger.leg_page import LegPage
    from jsrl.transport.ledger.page import PersistedLedger

    for name in ("arrive", "finish", "drop", "mark", "hold"):
        setattr(PersistedLedger, name, getattr(Ledger, name))
    for name in ("begin", "commit", "receive"):
        setattr(LegPage, name, nothing)


PARTS = {
    "heartbeats": without_heartbeats,
    "deadlines": without_deadlines,
    "phases": without_phases,
    "metrics": without_metrics,
    "ledger": without_ledger,
}

for _part in os.environ.get("JSRL_WITHOUT", "").split(","):
    if _part:
        PARTS[_part]()
