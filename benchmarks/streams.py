"""Compare the roads of the sample stream between two processes, against TCP with pickle and against plain memcpy.

Run: python benchmarks/streams.py [--rounds N] [--output FILE]

Every arm does the same work for a trajectory: one process writes all of its arrays once, the other copies all of them to
a staging buffer, as a learner does. The arms take turns in every round, all processes stay alive, and medians over the
rounds are shown. Two yardsticks, both TCP with pickle: `pickle`, sockets tuned by hand, and `stdlib`,
multiprocessing.connection. Pickle is used in this file only.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.transport.base import ProducerId
from jsrl.transport.samples import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec, zeros

TIMEOUT_S = 30.0
GROUPS = 2
ARMS = ("pickle", "stdlib", "shm", "tcp", "ipc")
SIZES = {"large": (ArraySpec((84, 84), "uint8"), 20, 16), "small": (ArraySpec((4,), "float32"), 15, 8)}
COUNTS = {"large": 150, "small": 3000}


def make_schema(size: str) -> Trajectory:
    """Return the schema of a trajectory of about 2.3 MB (`large`) or 6 KB (`small`)."""
    observation, num_rows, num_envs = SIZES[size]
    env = EnvSpec(observation, Discrete(6))
    return make_trajectory_spec(env, {"value": ArraySpec((), "float32")}, (), num_rows=num_rows, num_envs=num_envs)


def payload_bytes(schema: Trajectory) -> int:
    """Return the bytes of one trajectory."""
    return sum(leaf.size_bytes for leaf in leaves(schema))


def filled(schema: Trajectory) -> Trajectory:
    """Return a trajectory of arbitrary bytes."""
    rng = np.random.default_rng(0)
    trajectory = zeros(schema)
    for array in leaves(trajectory):
        array[...] = rng.integers(0, 2, array.shape).astype(array.dtype)
    return trajectory


def copy_leaves(sources: list[np.ndarray], destinations: list[np.ndarray]) -> None:
    """Copy every array."""
    for source, destination in zip(sources, destinations, strict=True):
        np.copyto(destination, source)


# -- the writing process


def run_producer(arm: str, size: str, address: str) -> None:
    """Write as many trajectories as each line of standard input says."""
    schema = make_schema(size)
    source = filled(schema)
    writers = {"pickle": pickle_writer, "stdlib": stdlib_writer}
    put = writers[arm](address, source) if arm in writers else stream_writer(arm, address, schema, source)
    for line in sys.stdin:
        for number in range(int(line)):
            put(number % GROUPS)


def stream_writer(arm: str, address: str, schema: Trajectory, source: Trajectory) -> Callable[[int], object]:
    """Return a function that writes one trajectory into a block of the stream and commits it."""
    producer = connect_samples(address, schema, ProducerId(f"bench-{arm}", 0), GROUPS, TIMEOUT_S)
    arrays = leaves(source)

    def put(group: int) -> None:
        block = producer.reserve(TIMEOUT_S)
        copy_leaves(arrays, leaves(block.trajectory))
        block.commit(group)

    return put


def pickle_writer(address: str, source: Trajectory) -> Callable[[int], object]:
    """Return a function that writes one trajectory into arrays of its own, pickles them and sends the bytes over TCP."""
    connection = socket.create_connection(("127.0.0.1", int(address)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    arrays = leaves(source)
    own = [np.zeros_like(array) for array in arrays]

    def put(group: int) -> None:
        copy_leaves(arrays, own)
        message = pickle.dumps((group, own), protocol=5)
        connection.sendall(struct.pack("<Q", len(message)))
        connection.sendall(message)

    return put


def stdlib_writer(address: str, source: Trajectory) -> Callable[[int], object]:
    """Return a function that writes one trajectory and sends it through the standard library's pickling connection."""
    connection = Client(("127.0.0.1", int(address)))
    arrays = leaves(source)
    own = [np.zeros_like(array) for array in arrays]

    def put(group: int) -> None:
        copy_leaves(arrays, own)
        connection.send((group, own))

    return put


# -- the reading process


class Arm:
    """One road, its producer process, and the function that takes a trajectory to the staging arrays."""

    def __init__(self, name: str, size: str, folder: Path):
        self.name = name
        schema = make_schema(size)
        self.staging = [np.zeros_like(leaf) for leaf in leaves(zeros(schema))]
        if name == "pickle":
            listener = socket.create_server(("127.0.0.1", 0))
            self._start(size, str(listener.getsockname()[1]))
            self._connection = listener.accept()[0]
            listener.close()
            self.take = self._take_pickle
        elif name == "stdlib":
            listener_ = Listener(("127.0.0.1", 0))
            self._start(size, str(listener_.address[1]))
            self._pickling = listener_.accept()
            listener_.close()
            self.take = self._take_stdlib
        else:
            address = {"tcp": "tcp://127.0.0.1:0", "shm": f"shm:{folder}/{size}", "ipc": f"ipc://{folder}/{size}.ipc"}
            self._consumer = bind_samples(address[name], schema)
            self._start(size, self._consumer.address)
            self.take = self._take_stream

    def _start(self, size: str, address: str) -> None:
        command = [sys.executable, __file__, "--role", "producer", self.name, size, address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def _take_stream(self) -> None:
        lease = self._consumer.get(TIMEOUT_S)
        copy_leaves(leaves(lease.trajectory), self.staging)
        self._consumer.release(lease)

    def _take_pickle(self) -> None:
        (size_bytes,) = struct.unpack("<Q", self._receive(8))
        _, arrays = pickle.loads(self._receive(size_bytes))  # noqa: S301 the yardstick, fed by this file's own process
        copy_leaves(arrays, self.staging)

    def _take_stdlib(self) -> None:
        copy_leaves(self._pickling.recv()[1], self.staging)

    def _receive(self, size_bytes: int) -> bytearray:
        message = bytearray(size_bytes)
        view, filled_bytes = memoryview(message), 0
        while filled_bytes < size_bytes:
            filled_bytes += self._connection.recv_into(view[filled_bytes:])
        return message

    def measure(self, count: int) -> float:
        """Return trajectories per second over `count` of them, the first few not counted."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count + 5}\n")
        self._process.stdin.flush()
        for _ in range(5):
            self.take()
        started = time.perf_counter()
        for _ in range(count):
            self.take()
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        """End the producer and free the memory."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.name == "pickle":
            self._connection.close()
        elif self.name == "stdlib":
            self._pickling.close()
        else:
            self._consumer.close()


def measure_memcpy(size_bytes: int, count: int) -> float:
    """Return copies per second of one array of this size to another, both in the cache as far as it goes."""
    source, destination = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)
    for _ in range(5):
        np.copyto(destination, source)
    started = time.perf_counter()
    for _ in range(count):
        np.copyto(destination, source)
    return count / (time.perf_counter() - started)


def compare(size: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return trajectories per second of every arm and of memcpy, one number per round."""
    size_bytes, count = payload_bytes(make_schema(size)), COUNTS[size]
    arms = [Arm(name, size, folder) for name in ARMS]
    rates: dict[str, list[float]] = {name: [] for name in ("memcpy", *ARMS)}
    try:
        for number in range(rounds + 1):
            order = arms if number % 2 else arms[::-1]
            measured = {arm.name: arm.measure(count) for arm in order}
            measured["memcpy"] = measure_memcpy(size_bytes, count)
            if number:  # the first round warms up
                for name, rate in measured.items():
                    rates[name].append(rate)
    finally:
        for arm in arms:
            arm.close()
    return rates


def table(size: str, rates: dict[str, list[float]]) -> str:
    """Return the medians, spreads and ratios as text; ratios are medians of the ratios within a round."""
    size_bytes = payload_bytes(make_schema(size))
    lines = [
        f"{size}: trajectories of {size_bytes} bytes",
        f"{'':8} {'per second':>12} {'min':>10} {'max':>10} {'GB/s':>7} {'x pickle':>9} {'% memcpy':>9}",
    ]
    for name, values in rates.items():
        median = statistics.median(values)
        against_pickle = statistics.median(a / b for a, b in zip(values, rates["pickle"], strict=True))
        against_memcpy = statistics.median(a / b for a, b in zip(values, rates["memcpy"], strict=True))
        lines.append(
            f"{name:8} {median:12,.0f} {min(values):10,.0f} {max(values):10,.0f} {median * size_bytes / 1e9:7.2f} "
            f"{against_pickle:9.2f} {100 * against_memcpy:9.1f}"
        )
    return "\n".join(lines) + "\n"


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "commit": commit,
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=11, help="how often every arm is measured")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "streams.json")
    parser.add_argument("--role", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        run_producer(*options.role[1:])
        return
    result: dict[str, Any] = {"machine": describe_machine(), "rounds": options.rounds, "trajectories_per_s": {}}
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="jsrl-bench-", dir=shared) as folder:
            rates = compare(size, options.rounds, Path(folder))
        result["trajectories_per_s"][size] = {"bytes": payload_bytes(make_schema(size)), **rates}
        sys.stdout.write(table(size, rates) + "\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
