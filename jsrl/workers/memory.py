"""Estimates of the memory that replay and learners keep, for the plan of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsrl.types import leaves, map_trajectory

if TYPE_CHECKING:
    from jsrl.experiment import Experiment
    from jsrl.workers.jobs import Job, Schemas

STAGING_BUFFERS = 3  # of a batch: one filled, one on its way to the devices, one in use
_COMPILED_BYTES = 50 << 20  # of an update's program
INDEX_BYTES = 9  # of an env step in a replay worker: which windows may be drawn, and with which priority


def stream_bytes(job: Job) -> int:
    """Return the bytes of all blocks of trajectories that may be in flight."""
    block = sum(leaf.size_bytes for leaf in leaves(job.schemas.trajectory))
    streams = [end.stream for _, end in job.ends if end.stream.type == "samples" and end.stream.schema == "trajectory"]
    return block * sum(len(stream.groups) * stream.blocks for stream in streams)


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


def batch_bytes(e: Experiment, schemas: Schemas) -> int:
    """Return the bytes of one batch of windows."""
    assert e.buffer is not None
    return int((e.buffer.window + 1) * e.buffer.batch_size * row_bytes(e, schemas) * (schemas.env.frames or 1))


def replay_stream_bytes(e: Experiment, schemas: Schemas) -> int:
    """Return the bytes of all batches of windows that may be in flight to the learner."""
    if e.buffer is None or not e.has_replay_workers:
        return 0
    return batch_bytes(e, schemas) * (2 * e.updates_per_call + e.buffer.threads) * e.buffer.num_replays
