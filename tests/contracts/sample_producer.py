"""A producer for the contract of sample streams: a separate process, or a thread for the in-process transport."""

from __future__ import annotations

import json
import sys
import time
import zlib

import numpy as np

from jsrl.transport.base import ProducerId, SampleProducer
from jsrl.transport.table import connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec

TIMEOUT_S = 30.0


def make_schema(image_bytes: int = 1024) -> Trajectory:
    """Return the schema of a trajectory of 4 rows of 2 environments, `image_bytes` per image."""
    env = EnvSpec({"image": ArraySpec((image_bytes,), "uint8"), "speed": ArraySpec((), "float32")}, Discrete(3))
    return make_trajectory_spec(
        env, {"checksum": ArraySpec((), "int64")}, (ArraySpec((2,), "float32"),), num_rows=3, num_envs=2
    )


def fill(trajectory: Trajectory, seed: int) -> None:
    """Write a trajectory that depends on `seed`, in place, and its checksum."""
    rng = np.random.default_rng(seed)
    for array in leaves(trajectory):
        raw = rng.integers(0, 2 if array.dtype == bool else 256, array.nbytes, dtype=np.uint8)
        array[...] = raw.view(array.dtype).reshape(array.shape)
    trajectory.version[:] = seed
    trajectory.extras["checksum"][:] = 0
    trajectory.extras["checksum"][0, 0] = checksum(trajectory)


def checksum(trajectory: Trajectory) -> int:
    """Return the checksum of everything but the checksum."""
    total = 0
    for array in leaves(trajectory._replace(extras=())):
        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8), total)
    return total


def produce(producer: SampleProducer, num_groups: int, count: int, seed: int = 0) -> int:
    """Write `count` trajectories per group, one open block per group at a time; return how many were committed.

    Trajectory `sequence` of `group` is filled from `seed + sequence * num_groups + group`.
    """
    for sequence in range(count):
        blocks = [producer.reserve(TIMEOUT_S) for _ in range(num_groups)]
        for group, block in enumerate(blocks):
            fill(block.trajectory, seed + sequence * num_groups + group)
        for group in reversed(range(num_groups)):
            assert blocks[group].commit(group).sequence == sequence
    return count * num_groups


def say(report: dict) -> None:
    """Print one JSON line."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run with the command line arguments; print one JSON line once connected."""
    options = json.loads(sys.argv[1])
    producer_id = ProducerId(options["name"], options["incarnation"])
    schema = make_schema(options.get("image_bytes", 1024))
    try:
        groups, keys = options["groups"], options.get("keys")
        producer = connect_samples(options["address"], schema, producer_id, groups, TIMEOUT_S, keys=keys)
        committed = produce(producer, options["groups"], options["count"], options.get("seed", 0))
        if options.get("then") == "hang":
            block = producer.reserve(TIMEOUT_S)
            fill(block.trajectory, 666)  # written, never committed
            say({"committed": committed})
            time.sleep(600)
        producer.close()
        say({"committed": committed, "modules": sorted(sys.modules)})
    except Exception as error:
        say({"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
