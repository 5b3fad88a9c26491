"""What workers whose sockets others connect to may take of memory beyond their baseline (see jsrl.runs.memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsrl.runs.memory import MIB, MemoryWatch
from jsrl.types import leaves

if TYPE_CHECKING:
    from jsrl.workers.jobs import Job

_COPIES = 4  # of params or state at a time: in use, on the way in, on the way out, in a snapshot
_BATCHES = 5  # of trajectories: staging buffers, on the device, lent


def make_watch(job: Job, declared_bytes: int | None) -> MemoryWatch | None:
    """Return the watch of a worker that binds streams over ZeroMQ, given what it declares; else None."""
    e = job.experiment
    if declared_bytes is None or e.road != "zeromq" or job.in_process:
        return None
    return MemoryWatch(declared_bytes, e.supervision.memory_margin_mb * MIB)


def params_bytes(job: Job) -> int:
    """Return what the params that are taken in and handed out may take."""
    return _COPIES * job.schemas.params_bytes


def clients_bytes(job: Job) -> int:
    """Return what the clients of an inference server may take: requests and replies of all environments."""
    return _COPIES * job.experiment.num_envs * sum(leaf.size_bytes for leaf in leaves(job.schemas.act))


def learner_bytes(job: Job) -> int:
    """Return what a learner's stream, batches, replay and snapshots may take."""
    return (
        _COPIES * job.schemas.state_bytes + (1 + _BATCHES) * stream_bytes(job) + replay_bytes(job) + windows_bytes(job)
    )


def stream_bytes(job: Job) -> int:
    """Return what all blocks of trajectories that may be on their way take."""
    block = sum(leaf.size_bytes for leaf in leaves(job.schemas.trajectory))
    streams = [end.stream for _, end in job.ends if end.stream.sort == "samples" and end.stream.schema == "trajectory"]
    return block * sum(len(stream.groups) * stream.blocks for stream in streams)


def replay_bytes(job: Job) -> int:
    """Return at most what all rows of replay take, twice for a snapshot."""
    e = job.experiment
    return 0 if e.replay is None else 2 * e.replay.capacity * _step_bytes(job)


def windows_bytes(job: Job) -> int:
    """Return at most what the batches of windows that may be on their way take."""
    e = job.experiment
    if e.replay is None or not e.has_replay_workers:
        return 0
    batch = (e.replay.window + 1) * e.replay.batch_size * _step_bytes(job) * (job.schemas.env.frames or 1)
    return batch * _BATCHES * (e.updates_per_call + e.replay.threads) * e.replay.num_replays


def _step_bytes(job: Job) -> int:
    block = sum(leaf.size_bytes for leaf in leaves(job.schemas.trajectory))
    return block // (job.experiment.rollout_length * job.experiment.group_size) + 1
