"""Memory that workers with bound sockets may use beyond their baseline (see jsrl.runs.memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsrl.runs.memory import MIB, MemoryWatch
from jsrl.transport.transports import transport_of
from jsrl.types import leaves, map_trajectory

if TYPE_CHECKING:
    from jsrl.experiment import Experiment
    from jsrl.workers.jobs import Job, Schemas

STAGING_BUFFERS = 3  # of a batch: one filled, one on its way to the devices, one in use
_COPIES = 4  # of params or state at a time: in use, received, sent, in a snapshot
_COMPILED_BYTES = 50 << 20  # of an update's program
INDEX_BYTES = 9  # of an env step in a replay worker: which windows may be drawn, and with which priority
_BATCHES = 5  # of trajectories: staging buffers, on the device, lent


def make_watch(job: Job, declared_bytes: int | None) -> MemoryWatch | None:
    """Return the memory watch of a worker that binds streams whose messages wait in its memory; None for other workers."""
    bound = [end.address for part in job.by_policy for _, end in part.ends if end.address]
    if declared_bytes is None or job.in_process or not any(transport_of(address).queues for address in bound):
        return None
    return MemoryWatch(declared_bytes, job.experiment.supervision.memory_margin_mb * MIB)


def params_bytes(job: Job) -> int:
    return _COPIES * job.schemas.params_bytes


def frozen_bytes(job: Job) -> int:
    """Return the most bytes of the frozen players that an inference server acts with, one of them being received."""
    e = job.experiment
    return e.inference.frozen_mb * MIB + params_bytes(job) if e.director and not e.inference.frozen_inline else 0


def clients_bytes(job: Job) -> int:
    """Return the most bytes of an inference server's clients: requests and replies of all environments."""
    rows = job.experiment.envs * job.end("inference").clients_per_group
    return _COPIES * rows * sum(leaf.size_bytes for leaf in leaves(job.schemas.act))


def learner_bytes(job: Job) -> int:
    """Return the most bytes of a learner's stream, batches, replay and snapshots."""
    return (
        _COPIES * job.schemas.state_bytes + (1 + _BATCHES) * stream_bytes(job) + replay_bytes(job) + windows_bytes(job)
    )


def stream_bytes(job: Job) -> int:
    """Return the bytes of all blocks of trajectories that may be in flight."""
    block = sum(leaf.size_bytes for leaf in leaves(job.schemas.trajectory))
    streams = [end.stream for _, end in job.ends if end.stream.type == "samples" and end.stream.schema == "trajectory"]
    return block * sum(len(stream.groups) * stream.blocks for stream in streams)


def replay_bytes(job: Job) -> int:
    """Return the most bytes of all rows of replay, twice for a snapshot."""
    e = job.experiment
    return 0 if e.buffer is None else 2 * e.buffer.capacity * _step_bytes(job)


def windows_bytes(job: Job) -> int:
    """Return the most bytes of batches of windows that may be in flight."""
    e = job.experiment
    if e.buffer is None or not e.has_replay_workers:
        return 0
    batch = (e.buffer.window + 1) * e.buffer.batch_size * _step_bytes(job) * (job.schemas.env.frames or 1)
    return batch * _BATCHES * (e.updates_per_call + e.buffer.threads) * e.buffer.num_replays


def _step_bytes(job: Job) -> int:
    block = sum(leaf.size_bytes for leaf in leaves(job.schemas.trajectory))
    return block // (job.experiment.rollout_length * job.experiment.group_size) + 1


def row_bytes(e: Experiment, schemas: Schemas) -> float:
    """Return the bytes that replay keeps of one env step: each frame of a stack once."""
    kept = schemas.trajectory._replace(sampling=())
    block = kept if e.has_replay_workers else kept._replace(version=())
    frames = schemas.env.frames or 1
    whole = map_trajectory(lambda leaf: leaf.size_bytes, lambda leaf: leaf.size_bytes, block)
    observation = sum(leaves(whole.observation))
    rows = sum(leaves(whole._replace(core=()))) - observation + observation / frames
    core = sum(leaves(whole.core))
    return rows / (e.rollout_length + 1) / e.group_size + core / e.rollout_length / e.group_size


def kept_rows(job: Job) -> int:
    """Return the bytes of the rows that replay keeps in one of its workers, or on the learner's devices.

    A snapshot of the rows takes as much again; policy and critics on two devices have a buffer each.
    """
    e, replay = job.experiment, job.experiment.buffer
    if replay is None:
        return 0
    copies = 1 + replay.save + (e.learner.split != "none" and not e.has_replay_workers)
    per_row = row_bytes(e, job.schemas) + (INDEX_BYTES if e.has_replay_workers else 4 * replay.prioritised)
    return int(copies * per_row * replay.capacity / replay.num_replays)


def learner_keeps(job: Job) -> int:
    """Return the approximate memory of a learner besides its libraries: batches, and replay if it is on its devices."""
    batch = STAGING_BUFFERS * stream_bytes(job) // job.experiment.actor.blocks_per_group
    return _COMPILED_BYTES + batch + (0 if job.experiment.has_replay_workers else kept_rows(job))
