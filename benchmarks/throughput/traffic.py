"""Bytes per row on each stream, from the schemas, and the number of copies of its observation, by construction."""

from __future__ import annotations

from typing import Any

from jsrl.experiment import Experiment
from jsrl.types import leaves

SERVED = ("served", "apart")
# The copies of an observation in user space; a socket adds two copies by the kernel.
ALWAYS = ("environment into the block", "block into the batch")
ON_REQUEST = ("environment into the request", "request into the batch of act")
IN_KERNEL = 2


def copies(placement: str, transport: str) -> int:
    """Return how often one observation is copied between its environment and the update that learns from it."""
    asked = placement in SERVED
    sockets = transport == "zeromq" and placement != "serial"
    streams = 1 + asked
    return len(ALWAYS) + asked * len(ON_REQUEST) + sockets * streams * IN_KERNEL


def size_bytes(schema: Any) -> int:
    """Return the bytes of one instance of a schema."""
    return sum(leaf.size_bytes for leaf in leaves(schema))


def traffic(experiment: Experiment, schemas: Any) -> dict[str, float]:
    """Return bytes per env step: of samples (bootstrap row included), of requests and replies, of published params."""
    rows = experiment.rollout_length * experiment.group_size
    act = schemas.act
    asked = size_bytes(act.observation) + 1  # is_first
    answered = size_bytes(act.action) + size_bytes(act.log_prob) + size_bytes(act.extras)
    return {
        "sample_bytes_per_row": size_bytes(schemas.trajectory) / rows,
        "inference_bytes_per_row": float(asked + answered),
        "params_bytes_per_row": schemas.params_bytes / experiment.rows_per_update,
    }


def bytes_per_row(sizes: dict[str, float], placement: str) -> float:
    """Return the bytes that cross streams per env step in a placement."""
    asked = sizes["inference_bytes_per_row"] if placement in SERVED else 0.0
    return sizes["sample_bytes_per_row"] + asked + sizes["params_bytes_per_row"]
