"""Replay workers: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Kind, Lifecycle, Port, Resources, Shown, Travel
from jsrl.workers.memory import kept_rows

ACTIVITIES = (
    Activity("insert", "transport", "share of time writing rows and priorities", "below 0.7 (else: num_replays)"),
    Activity("wait_rows", "wait", "share of time waiting for trajectories", "depends", waits_for="rows"),
    Activity(
        "wait_learner",
        "wait",
        "share of time in which insertions waited for the learner",
        "depends",
        waits_for="the learner",
    ),
    Activity("draw", "transport", "share of time drawing batches in the main thread (serial)"),
    Activity("snapshot", "publish", "share of time writing counters and rows", "near 0"),
    Activity("draw_draw", "transport", "share of the drawing thread's time writing batches", "below 0.8"),
    Activity("draw_wait_rows", "wait", "share of the drawing thread's time in which nothing may be drawn", "depends"),
    Activity("draw_wait_learner", "wait", "share of the drawing thread's time without room for a batch", "above 0.2"),
    Activity("draw_other", "other", "share of the drawing thread's time in none of these", "near 0"),
)

METRICS = (
    Metric("inserts_per_s", "env steps inserted", "1/s", "actor/env_steps_per_s"),
    Metric("samples_per_s", "windows drawn", "1/s", "learner/rows_per_s"),
    Metric(
        "samples_per_insert", "windows drawn per env step inserted, except while replay fills", "-", "as configured"
    ),
    Metric("inserted", "env steps inserted so far, over all resumes", "steps", "rises", "sum"),
    Metric("drawn", "windows drawn so far, over all resumes", "count", "rises", "sum"),
    Metric("evicted", "env steps overwritten so far", "steps", "0 until the replay is full", "sum"),
    Metric("priorities_late", "priorities whose window was overwritten meanwhile", "count", "few", "sum"),
    Metric("trajectories_received", "trajectories that replay received", "count", "sum of the next three", "sum"),
    Metric("trajectories_inserted", "trajectories inserted", "count", "near received", "sum"),
    Metric("trajectories_dropped", "trajectories dropped, all reasons", "count", "0", "sum"),
    Metric("trajectories_in_flight", "trajectories waiting in the replay worker", "count", "level", "sum"),
    Metric("refused", "rejected connections and messages", "count", "0", "total"),
    Metric("size", "env steps that replay holds", "steps", "rises to replay.capacity", "sum"),
    Metric("updates_made", "updates of the last call of a replay on the device", "count", "0 below replay.min_size"),
)

KIND = Kind(
    name="replay",
    plural="replay workers",
    build="jsrl.workers.replay.worker:build_replay",
    ports=(
        Port("samples", "samples", "reads", schemas=("trajectory",)),
        Port("batches", "samples", "writes", schemas=("batches",)),
        Port("priorities", "samples", "reads", schemas=("priorities",)),
    ),
    loads_jax=False,
    resources=Resources(memory_bytes=kept_rows),
    lifecycle=Lifecycle(state="snapshot"),
    shown=Shown(ACTIVITIES, METRICS),
    travel=Travel(
        needs_folder=lambda e: "it keeps its rows there" if e.buffer is not None and e.buffer.save else "",
        keeps_files=lambda job: tuple(f"replay/{number}" for number in job.end("batches").groups),
    ),
)
