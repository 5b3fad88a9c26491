"""Measure replay: bytes per second through a replay worker between processes, the host's sum tree, the ring on the device.

Run: python benchmarks/replay.py [flow|tree|device] [--seconds S] [--output FILE]

`flow`: three processes over shared memory. One writes trajectories, one is the replay worker (insertion and one drawing
thread), one copies batches to a staging buffer, as a learner does. Each direction is measured alone (rows in without draws,
batches out of a full replay) and both at once. In addition to bytes per second of wall clock, bytes per CPU second of the
replay worker are printed, which depend less on other load. `image`: uint8 [84, 84] stored unchanged; `stack`: [84, 84, 4] of
which each frame is stored once (bytes out are those of whole stacks); `vector`: 376 numbers. `tree`: microseconds for drawing
and for changing priorities by fan-out. `device`: microseconds of a compiled add, draw and read, uniform and prioritised.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.experiment import ReplayConfig
from jsrl.replay.host.limiter import Limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.host.tree import HostTree
from jsrl.replay.shared import windows_spec
from jsrl.transport.base import Block, ProducerId, SampleProducer
from jsrl.transport.stream import priorities_spec, replay_batch_spec
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec, map_tree
from jsrl.workers.base import NullReporter
from jsrl.workers.replay.worker import ReplaySettings, ReplayWorker

T, B, M = 20, 8, 64
KINDS = {
    "image": EnvSpec(ArraySpec((84, 84), "uint8"), Discrete(6)),
    "stack": EnvSpec(ArraySpec((84, 84, 4), "uint8"), Discrete(6), frames=4),
    "vector": EnvSpec(ArraySpec((376,), "float32"), Discrete(6)),
}
CAPACITY = 20_000
CONFIG = ReplayConfig(capacity=CAPACITY, batch_size=M, prioritised=True)


def rows_spec(kind: str) -> Trajectory:
    """Return the schema of a trajectory."""
    return make_trajectory_spec(KINDS[kind], (), (), num_rows=T, num_envs=B)


def batch_spec(kind: str) -> Trajectory:
    """Return the schema of a batch of windows of one row."""
    return windows_spec(CONFIG, rows_spec(kind))


def size_bytes(spec: Any) -> int:
    """Return the bytes of all leaves."""
    return sum(leaf.size_bytes for leaf in leaves(spec))


def act(kind: str, folder: str) -> None:
    """Run the process that writes trajectories, as fast as there is room."""
    spec = rows_spec(kind)
    producer = connect_samples(f"shm:{folder}/rows", spec, ProducerId("actor", 0), 1, 30.0)
    try:
        while True:
            block = producer.reserve(30.0)
            for leaf in leaves(block.trajectory):
                leaf[...] = 1
            block.trajectory.is_first[...] = False
            block.commit(0)
    except (StreamClosed, StreamTimeout):
        return


class Batches:
    """The writing end of batches, as a jsrl.workers.ends.SampleWriter; its reader is never replaced."""

    is_lost, renewed = False, 0

    def __init__(self, producer: SampleProducer) -> None:
        self._producer, self.close = producer, producer.close

    def reserve(self, timeout_s: float) -> Block | None:
        """Return memory for a batch; None: there is none now."""
        try:
            return self._producer.reserve(timeout_s)
        except StreamTimeout:
            return None

    def commit(self, block: Block, group: int) -> bool:
        """Commit a batch."""
        block.commit(group)
        return True

    def poll(self) -> None:
        """Do nothing."""


def replay(kind: str, folder: str, mode: str, seconds: float) -> None:
    """Run the replay worker for the given time; print the amounts of data and the CPU seconds used."""
    spec = rows_spec(kind)
    kept = HostReplay(CONFIG, spec, frames=KINDS[kind].frames)
    never = 1 << 60
    limiter = Limiter(never if mode == "in" else CAPACITY, None, 0.0)
    rows = bind_samples(f"shm:{folder}/rows", spec, blocks_per_producer=4)
    back = bind_samples(f"shm:{folder}/back", priorities_spec(M))
    out = connect_samples(
        f"shm:{folder}/batches", replay_batch_spec(batch_spec(kind)), ProducerId("replay", 0), 1, 30.0
    )
    settings = ReplaySettings(0, (0,), 1, 1 << 40, folder, period_s=1e9)
    streams = (rows, cast("Any", Batches(out)), back)
    worker = ReplayWorker("replay", settings, kept, limiter, lambda: streams, NullReporter())
    worker.setup()
    while kept.inserted < CAPACITY:  # full, and every page touched
        worker.step()
    begin = (time.perf_counter(), time.process_time(), kept.inserted, kept.drawn)
    while time.perf_counter() - begin[0] < seconds:
        if mode == "out":
            time.sleep(0.01)
            worker._take_priorities()
        else:
            worker.step()
    wall, cpu, inserted, drawn = (
        now - then
        for now, then in zip((time.perf_counter(), time.process_time(), kept.inserted, kept.drawn), begin, strict=True)
    )
    in_bytes = inserted / (T * B) * size_bytes(spec)
    out_bytes = drawn / M * size_bytes(batch_spec(kind))
    answer = {"in_gb_s": in_bytes / wall / 1e9, "out_gb_s": out_bytes / wall / 1e9, "cpu_cores": cpu / wall}
    answer |= {"gb_per_cpu_s": (in_bytes + out_bytes) / cpu / 1e9}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


def flow(kind: str, mode: str, seconds: float) -> dict[str, float]:
    """Run the three processes (this one copies batches); return the output of the replay worker."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="jsrl-bench-") as folder:
        spec = replay_batch_spec(batch_spec(kind))
        consumer = bind_samples(f"shm:{folder}/batches", spec, blocks_per_producer=3)
        staging = map_tree(lambda leaf: leaf.zeros(), spec)
        command = [
            sys.executable,
            __file__,
            "--kind",
            kind,
            "--folder",
            folder,
            "--mode",
            mode,
            "--seconds",
            str(seconds),
        ]
        worker = subprocess.Popen([*command, "--role", "replay"], stdout=subprocess.PIPE, text=True)
        actor = subprocess.Popen([*command, "--role", "act"])
        while worker.poll() is None:
            try:
                lease = consumer.get(0.2)
            except StreamTimeout:
                continue
            for to, value in zip(leaves(staging), leaves(lease.trajectory), strict=True):
                np.copyto(to, value)
            consumer.release(lease)
        actor.kill()
        actor.wait()
        assert worker.stdout is not None
        answer = json.loads(worker.stdout.read())
        consumer.close()
    return answer


def cpu_us(call: Any, repeats: int) -> float:
    """Return the CPU microseconds of a call."""
    call()
    begin = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - begin) / repeats * 1e6


def tree() -> dict[str, dict[str, float]]:
    """Return CPU microseconds of finding and of setting, by fan-out and number of windows; 1,000,000 weights."""
    rng, found = np.random.default_rng(0), {}
    for fan_out in (2, 4, 8, 16, 32, 64):
        made = HostTree(1_000_000, fan_out)
        made.set(np.arange(1_000_000), rng.random(1_000_000))
        times = {}
        for number in (32, 256, 2048):
            points, at = rng.random(number), rng.integers(0, 1_000_000, number)
            times[f"find_{number}_us"] = cpu_us(lambda p=points, t=made: t.find(p), 100)
            times[f"set_{number}_us"] = cpu_us(lambda a=at, t=made: t.set(a, 0.5), 100)
        found[str(fan_out)] = times
    return found


def device() -> dict[str, dict[str, float]]:
    """Return CPU microseconds of an add of 16 x 16 rows and of a draw and read of 256 windows; 1,000,000 env steps."""
    from functools import partial

    import jax

    from jsrl.replay.device import ring

    found = {}
    env = EnvSpec(ArraySpec((17,), "float32"), Discrete(6))
    spec = make_trajectory_spec(env, (), (), num_rows=16, num_envs=16)
    rows = map_tree(lambda leaf: leaf.zeros() + leaf.zeros().dtype.type(1), spec)._replace(
        is_first=np.zeros((17, 16), bool)
    )
    for prioritised in (False, True):
        shape = ring.ring_shape(ReplayConfig(prioritised=prioritised), spec)
        state = [ring.init_ring(shape, spec)]
        add = jax.jit(partial(ring.add, shape), donate_argnums=0)

        def draw_and_read(state: Any, key: Any, shape: Any = shape) -> Any:
            return ring.read(shape, state, ring.draw(shape, state, key, 256)[0])

        draw = jax.jit(draw_and_read)

        def insert(state: list[Any] = state, add: Any = add) -> None:
            state[0] = jax.block_until_ready(add(state[0], rows))

        for _ in range(10):
            insert()
            found["prioritised" if prioritised else "uniform"] = {
                "add_256_rows_us": cpu_us(insert, 200),
                "draw_256_us": cpu_us(lambda s=state, d=draw: jax.block_until_ready(d(s[0], jax.random.key(0))), 200),
            }
    return found


def main() -> None:
    """Run the requested measurements, print the results and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="flow", choices=("flow", "tree", "device"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--kind", default="")
    parser.add_argument("--role", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--mode", default="")
    options = parser.parse_args()
    if options.role == "act":
        return act(options.kind, options.folder)
    if options.role == "replay":
        return replay(options.kind, options.folder, options.mode, options.seconds)
    if options.what == "flow":
        kinds = [options.kind] if options.kind else list(KINDS)
        modes = [options.mode] if options.mode else ["in", "out", "both"]
        results: dict[str, Any] = {f"{k} {m}": flow(k, m, options.seconds) for k in kinds for m in modes}
    else:
        results = tree() if options.what == "tree" else device()
    for name, values in results.items():
        sys.stdout.write(f"{name:<14}" + "  ".join(f"{k} {v:,.2f}" for k, v in values.items()) + "\n")
    if options.output is not None:
        options.output.write_text(json.dumps({options.what: results, "cpus": os.cpu_count()}, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
