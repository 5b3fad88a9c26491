"""The legs of a run: the paths of their pages, and their reconciled ledgers.

A leg is one sample stream: `samples` goes to the learner, from the actors or from the replay workers (in batches);
`samples.replay-0` goes from actors to the first replay worker. The learner's own counts are in the run folder; all others
are in its `legs/NAME`: a page for each connection, and a replay worker's counts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jsrl.errors import SnapshotError, StreamError
from jsrl.transport.ledger.leg_page import count_unread, read_connections
from jsrl.transport.ledger.page import LEDGER, PageContent, read_page
from jsrl.transport.ledger.reconcile import LegLedger, reconcile

LEGS = "legs"  # in a run folder
SAMPLES = "samples"
_READS, _READ_S = 50, 1.0  # retries for pages that change while they are read; a thousand always do


def leg_folder(run: Path, leg: str) -> Path:
    return run / LEGS / leg


def recorded_leg(policy_folder: str) -> str:
    """Return the name under which a learner's recorded trajectories are counted; policy_folder: empty for the first policy."""
    return f"{SAMPLES}-{policy_folder}" if policy_folder else SAMPLES


def ledger_path(run: Path, leg: str) -> Path:
    return run / LEDGER if leg == SAMPLES else leg_folder(run, leg) / LEDGER


def read_leg(run: Path, leg: str = SAMPLES) -> LegLedger | None:
    """Return the ledger of a leg; None: its consumer never counted.

    While the run goes on, the pages are read again until two readings agree, for a second at most; trajectories in flight
    over ZeroMQ are then unknown. A broken page is a fault of the ledger.
    """
    before, until_s = None, time.monotonic() + _READ_S
    try:
        reading = _read(run, leg)
        for _ in range(_READS):
            if reading == before or time.monotonic() > until_s:
                break
            reading, before = _read(run, leg), reading
    except (SnapshotError, StreamError, OSError) as error:
        return LegLedger(faults=(str(error),))
    content, connections = reading
    if content is None:
        return None
    counts = {"carried": content.carried, "joined": content.joined, "uncertain": content.uncertain}
    return reconcile(content.ledger, connections, **counts)


def _read(run: Path, leg: str) -> tuple[PageContent | None, list[Any]]:
    return read_page(ledger_path(run, leg)), read_connections(leg_folder(run, leg))


def read_legs(run: Path) -> dict[str, LegLedger]:
    """Return the ledger of every leg of a run, the learner's first."""
    names = [SAMPLES, *sorted(path.parent.name for path in (run / LEGS).glob(f"*/{LEDGER}"))]
    found = {name: read_leg(run, name) for name in names}
    return {name: ledger for name, ledger in found.items() if ledger is not None}


def close_legs(run: Path) -> None:
    """Count what no reader took, before the run's shared memory is removed; all its processes have ended."""
    for folder in (run / LEGS).glob("*"):
        count_unread(folder)
