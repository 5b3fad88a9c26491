"""Compare the transports of the sample stream between two processes, against TCP with pickle and against plain memcpy.

Run: python benchmarks/streams.py [--rounds N] [--output FILE]

Every arm does the same work for a trajectory: one process writes all of its arrays once, the other copies all of them to
a staging buffer, as a learner does. Each arm has its own two processes, so that the state of one arm's memory allocator
does not affect the others; all stay alive and alternate in every round. Shown are medians over the rounds of the rate
and of the CPU seconds of both processes (which depend less on other load). Baselines, all TCP with pickle:
`pickle`, sockets tuned by hand; `stdlib`, multiprocessing.connection; `kept`, as `pickle` but with an allocator that
keeps freed memory, as the ZeroMQ transport sets it. Pickle is used in this file only. `tcp` is encrypted, as always.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import resource
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
from jsrl.transport.door.keys import make_keys
from jsrl.transport.network.sockets import reuse_freed_memory
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec, zeros

TIMEOUT_S = 30.0
GROUPS = 2
WARM_UP = 5  # trajectories before each measurement
ARMS = ("pickle", "stdlib", "kept", "shm", "ipc", "tcp")
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


def cpu_s() -> float:
    """Return the CPU seconds of this process so far, over all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def page_faults() -> int:
    """Return the number of page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def copy_leaves(sources: list[np.ndarray], destinations: list[np.ndarray]) -> None:
    """Copy every array."""
    for source, destination in zip(sources, destinations, strict=True):
        np.copyto(destination, source)


# -- the writing process


def run_producer(arm: str, size: str, address: str) -> None:
    """Write as many trajectories as each line of standard input says; print the CPU seconds."""
    schema = make_schema(size)
    source = filled(schema)
    writers = {"pickle": pickle_writer, "kept": pickle_writer, "stdlib": stdlib_writer}
    put = writers[arm](address, source) if arm in writers else stream_writer(arm, address, schema, source)
    for line in sys.stdin:
        before_s = cpu_s()
        for number in range(int(line)):
            put(number % GROUPS)
        print(cpu_s() - before_s, flush=True)


def stream_writer(arm: str, address: str, schema: Trajectory, source: Trajectory) -> Callable[[int], object]:
    """Return a function that writes one trajectory into a block of the stream and commits it."""
    address, _, keys = address.partition(" ")
    who = ProducerId(f"bench-{arm}", 0)
    producer = connect_samples(address, schema, who, GROUPS, TIMEOUT_S, keys=keys or None)
    arrays = leaves(source)

    def put(group: int) -> None:
        block = producer.reserve(TIMEOUT_S)
        copy_leaves(arrays, leaves(block.trajectory))
        block.commit(group)

    return put


def pickle_writer(address: str, source: Trajectory) -> Callable[[int], object]:
    """Return a function that writes one trajectory into its own arrays, pickles them and sends the bytes over TCP."""
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


class Reader:
    """The reading end of one transport, its writing process, and a function that copies a trajectory to the staging arrays."""

    def __init__(self, name: str, size: str, folder: Path):
        schema = make_schema(size)
        self.staging = [np.zeros_like(leaf) for leaf in leaves(zeros(schema))]
        if name in ("pickle", "kept"):
            if name == "kept":
                reuse_freed_memory()
            listener = socket.create_server(("127.0.0.1", 0))
            self._writer = start("producer", name, size, str(listener.getsockname()[1]))
            self._connection = listener.accept()[0]
            self.take = self._take_pickle
        elif name == "stdlib":
            listener_ = Listener(("127.0.0.1", 0))
            self._writer = start("producer", name, size, str(listener_.address[1]))
            self._pickling = listener_.accept()
            self.take = self._take_stdlib
        else:
            address = {"shm": f"shm:{folder}/{size}", "ipc": f"ipc://{folder}/{size}.ipc"}
            keys = make_keys(folder / "keys") if name == "tcp" else None
            self._consumer = bind_samples(address.get(name, "tcp://127.0.0.1:0"), schema, keys=keys)
            there = self._consumer.address if keys is None else f"{self._consumer.address} {keys}"
            self._writer = start("producer", name, size, there)
            self.take = self._take_stream

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

    def measure(self, count: int) -> dict[str, float]:
        """Return trajectories per second over `count` of them, CPU seconds and page faults of one."""
        request(self._writer, count + WARM_UP)
        for _ in range(WARM_UP):
            self.take()
        before_s, before_faults, started = cpu_s(), page_faults(), time.perf_counter()
        for _ in range(count):
            self.take()
        rate = count / (time.perf_counter() - started)
        reader_s, faults = (cpu_s() - before_s) / count, (page_faults() - before_faults) / count
        writer_s = float(reply(self._writer)) / (count + WARM_UP)
        return {"per_s": rate, "writer_cpu_s": writer_s, "reader_cpu_s": reader_s, "reader_faults": faults}

    def close(self) -> None:
        """End the writing process."""
        self._writer.kill()


def run_reader(name: str, size: str, folder: str) -> None:
    """Measure as many trajectories as each line of standard input says; print the figures as JSON."""
    reader = Reader(name, size, Path(folder))
    try:
        for line in sys.stdin:
            print(json.dumps(reader.measure(int(line))), flush=True)
    finally:
        reader.close()


# -- the comparison


def start(*role: str) -> subprocess.Popen[str]:
    """Start this file in another role, controlled by lines of text."""
    command = [sys.executable, __file__, "--role", *role]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def request(process: subprocess.Popen[str], count: int) -> None:
    """Send a process a number."""
    assert process.stdin is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()


def reply(process: subprocess.Popen[str]) -> str:
    """Return the reply line of a process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} instead of answering.")
    return line


def measure_memcpy(size_bytes: int, count: int) -> float:
    """Return copies per second of one array of this size to another, both in the cache as far as they fit."""
    source, destination = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)
    for _ in range(5):
        np.copyto(destination, source)
    started = time.perf_counter()
    for _ in range(count):
        np.copyto(destination, source)
    return count / (time.perf_counter() - started)


def compare(size: str, rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the figures of every arm and of memcpy, one number per round."""
    size_bytes, count = payload_bytes(make_schema(size)), COUNTS[size]
    readers = {name: start("reader", name, size, str(folder)) for name in ARMS}
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in ("memcpy", *ARMS)}
    try:
        for number in range(rounds + 1):
            measured = {}
            for name in ARMS if number % 2 else ARMS[::-1]:
                request(readers[name], count)
                measured[name] = json.loads(reply(readers[name]))
            measured["memcpy"] = {"per_s": measure_memcpy(size_bytes, count)}
            for name, values in measured.items() if number else ():  # the first round warms up
                for key, value in values.items():
                    figures[name].setdefault(key, []).append(value)
    finally:
        for reader in readers.values():
            assert reader.stdin is not None
            reader.stdin.close()
            reader.wait(TIMEOUT_S)
    return figures


def table(size: str, figures: dict[str, dict[str, list[float]]]) -> str:
    """Return the medians, spreads and ratios as text; ratios are medians of the ratios within a round."""
    size_bytes = payload_bytes(make_schema(size))
    lines = [
        f"{size}: trajectories of {size_bytes} bytes; CPU s per GB of writer and reader; pages the reader was given",
        f"{'':8} {'per second':>12} {'min':>10} {'max':>10} {'GB/s':>7} {'x pickle':>9} {'x kept':>7} {'% memcpy':>9}"
        f" {'writer':>7} {'reader':>7} {'x less CPU than pickle':>23} {'than kept':>9} {'pages':>6}",
    ]
    for name, arm in figures.items():
        rates = arm["per_s"]
        against = {other: ratio(rates, figures[other]["per_s"]) for other in ("pickle", "kept", "memcpy")}
        line = (
            f"{name:8} {statistics.median(rates):12,.0f} {min(rates):10,.0f} {max(rates):10,.0f} "
            f"{statistics.median(rates) * size_bytes / 1e9:7.2f} {against['pickle']:9.2f} {against['kept']:7.2f} "
            f"{100 * against['memcpy']:9.1f}"
        )
        if name != "memcpy":
            writer, reader = (statistics.median(arm[f"{end}_cpu_s"]) * 1e9 / size_bytes for end in ("writer", "reader"))
            less = [ratio(cpu_of(figures[other]), cpu_of(arm)) for other in ("pickle", "kept")]
            pages = statistics.median(arm["reader_faults"])
            line += f" {writer:7.3f} {reader:7.3f} {less[0]:23.2f} {less[1]:9.2f} {pages:6.0f}"
        lines.append(line)
    tcp, ipc = figures["tcp"], figures["ipc"]
    lines.append(
        f"tcp with keys: {ratio(cpu_of(tcp), cpu_of(ipc)):.2f} times the CPU seconds of ipc, "
        f"{ratio(tcp['per_s'], ipc['per_s']):.2f} of its rate"
    )
    return "\n".join(lines) + "\n"


def cpu_of(arm: dict[str, list[float]]) -> list[float]:
    """Return the CPU seconds of both ends per trajectory, one number per round."""
    return [sum(pair) for pair in zip(arm["writer_cpu_s"], arm["reader_cpu_s"], strict=True)]


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def describe_machine() -> dict[str, Any]:
    """Return the properties of the machine that the figures depend on."""
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
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=tuple(SIZES), help="which trajectories")
    parser.add_argument("--role", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        {"producer": run_producer, "reader": run_reader}[options.role[0]](*options.role[1:])
        return
    result: dict[str, Any] = {"machine": describe_machine(), "rounds": options.rounds, "figures": {}}
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="jsrl-bench-", dir=shared) as folder:
            figures = compare(size, options.rounds, Path(folder))
        result["figures"][size] = {"bytes": payload_bytes(make_schema(size)), **figures}
        sys.stdout.write(table(size, figures) + "\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
