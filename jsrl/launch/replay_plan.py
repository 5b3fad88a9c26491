"""Replay in the plan: the memory of its batches and its rows, as text."""

from __future__ import annotations

from jsrl.counted import counted
from jsrl.experiment import Experiment
from jsrl.workers.jobs import Schemas
from jsrl.workers.memory import row_bytes


def batch_bytes(e: Experiment, schemas: Schemas) -> int:
    """Return the bytes of one batch of windows."""
    assert e.buffer is not None
    return int((e.buffer.window + 1) * e.buffer.batch_size * row_bytes(e, schemas) * (schemas.env.frames or 1))


def replay_stream_bytes(e: Experiment, schemas: Schemas) -> int:
    """Return the bytes of all batches of windows that may be in flight to the learner."""
    if e.buffer is None or not e.has_replay_workers:
        return 0
    return batch_bytes(e, schemas) * (2 * e.updates_per_call + e.buffer.threads) * e.buffer.num_replays


def replay_lines(e: Experiment, schemas: Schemas) -> list[str]:
    r = e.buffer
    if r is None:
        return []
    how = "prioritised" if r.prioritised else "uniform"
    if e.is_free_running:
        ratio = "free-running"
    else:
        made = r.samples_per_insert if e.has_replay_workers else e.windows_per_env_step
        ratio = f"{made:g} windows per env step"
    per_row = row_bytes(e, schemas)
    kept = (
        f"replay ({r.kind}): {r.capacity:,} env steps of {per_row:,.0f} B = {r.capacity * per_row / 2**20:,.0f} MiB; {how}; "
        f"batches of {r.batch_size} windows of {counted(r.window, 'row')}, {counted(e.updates_per_call, 'update')} per call; "
        f"{ratio}, from {r.min_size:,} env steps on"
    )
    return [kept]
