"""Inference servers: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Headline, Kind, Port, Resources, Shown, Travel

ACTIVITIES = (
    Activity("act", "infer", "share of time acting", "below 0.9 (else: another server)"),
    Activity("wait", "wait", "share of time without requests", "0.1-0.7", waits_for="requests"),
    Activity(
        "wait_params",
        "wait",
        "share of time in which all requests waited for newer params",
        "near 0 when async",
        waits_for="params",
    ),
    Activity("transport", "transport", "share of time reading requests, replying and taking new params"),
)

METRICS = (
    Metric("rows_per_s", "observations answered", "1/s", "actor/env_steps_per_s"),
    Metric("batch_rows_mean", "rows per batch, before padding", "rows", "half of the largest size or more"),
    Metric("compilations", "compilations of `act` so far", "count", "one per batch size", "total"),
    Metric("compilations_after_warmup", "compilations after the warm-up", "count", "0", "total"),
    Metric("refused", "rejected connections", "count", "0", "total"),
    Metric("frozen_players", "frozen players kept in memory", "count", "those that are played now", "max"),
    Metric("frozen_mib", "memory of the frozen players kept", "MiB", "below inference.frozen_mb", "max"),
    Metric(
        "frozen_loads",
        "frozen players loaded so far",
        "count",
        "near the number of players (else: raise inference.frozen_mb or lower director.live)",
        "total",
    ),
    Metric("params_updates", "updates that the oldest params in use have seen", "updates", "near updates", "min"),
)

KIND = Kind(
    name="inference",
    plural="inference servers",
    build="jsrl.workers.inference.worker:build_inference",
    ports=(
        Port("inference", "inference", "answers", by_policy=True),
        Port("params", "params", "reads", by_policy=True),
    ),
    resources=Resources(device="serves", threads=lambda e: e.inference.threads),
    shown=Shown(ACTIVITIES, METRICS, Headline("rows_per_s", "rows/s")),
    travel=Travel(needs_folder=""),
)
