"""Measure the round trip of an inference request, and a publish of params, between two processes.

`python benchmarks/inference_stream.py [--rounds N]`: CartPole-sized requests (16 rows of 4 float32) over shared memory
and over ZeroMQ, arms alternating in one run; params of 6.8 MB from `publish` to `wait` returning and to `poll` done.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from jsrl.transport.base import InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.table import bind_inference, bind_params, connect_inference, connect_params
from jsrl.types import ArraySpec

ROWS = 16
SPEC = InferenceSpec(
    ArraySpec((4,), "float32"), ArraySpec((), "int32"), ArraySpec((), "float32"), ArraySpec((), "float32"), ()
)
PARAMS_BYTES = 6_800_000


def serve(address: str) -> None:
    """Answer requests until the client leaves."""
    server = bind_inference(address, SPEC)
    print(server.address, flush=True)
    answer = Reply(np.zeros(ROWS, np.int32), np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32), 1)
    while True:
        requests = server.collect(1024, 0.2)
        for request in requests:
            server.reply(request, answer)
        if not requests and server.departed():
            server.close()
            return


def echo_params(address: str) -> None:
    """Publish back, with a small leaf, when each version was seen and read (monotonic, one clock per host)."""
    there, back = address.split("|")
    subscriber, publisher = connect_params(there), bind_params(back)
    print(publisher.address, flush=True)
    for version in range(1, 1 << 30):
        subscriber.wait(0, version, 60)
        seen_s = time.monotonic()
        if subscriber.poll() is None:
            raise SystemExit("a version was seen and then could not be read")
        publisher.publish(0, version, [np.array([seen_s, time.monotonic()])])


def start(role: str, address: str) -> tuple[subprocess.Popen[str], str]:
    """Start this file as a child; return it and the address it bound."""
    child = subprocess.Popen([sys.executable, __file__, "--role", role, address], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def round_trips_us(client: object, count: int) -> np.ndarray:
    """Return the durations of `count` round trips."""
    request = Request(np.ones((ROWS, 4), np.float32), np.zeros(ROWS, bool))
    times = np.empty(count)
    for i in range(count):
        started = time.perf_counter()
        client.send(0, request)  # type: ignore[attr-defined]
        client.receive(10)  # type: ignore[attr-defined]
        times[i] = time.perf_counter() - started
    return times * 1e6


def describe(times_us: list[np.ndarray]) -> str:
    """Return median over all, p99, and the range of the rounds' medians."""
    medians = [np.median(times) for times in times_us]
    everything = np.concatenate(times_us)
    return (
        f"p50 {np.median(everything):7.1f} us, p99 {np.percentile(everything, 99):7.1f} us, "
        f"rounds' medians {min(medians):.1f} to {max(medians):.1f}"
    )


def measure_inference(folder: Path, rounds: int) -> None:
    """Print the round trips of each transport."""
    addresses = {"shm": f"shm:{folder}/bench", "ipc": f"ipc://{folder}/bench-ipc"}
    clients, children = {}, []
    for name, address in addresses.items():
        child, bound = start("serve", address)
        children.append(child)
        clients[name] = connect_inference(bound, SPEC, ProducerId("bench", 0), {0: ROWS}, 20)
        round_trips_us(clients[name], 100)
    times: dict[str, list[np.ndarray]] = {name: [] for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            times[name].append(round_trips_us(client, 500))
    for name, found in times.items():
        print(f"inference {name}: {describe(found)}")
    for client in clients.values():
        client.close()
    for child in children:
        child.wait(30)


def measure_params(folder: Path, rounds: int) -> None:
    """Print the time from the start of `publish` to the reader's wake-up and to its copy."""
    for name, size_bytes in (("20 kB", 20_000), ("6.8 MB", PARAMS_BYTES)):
        publisher = bind_params(f"shm:{folder}/params-{size_bytes}")
        child, back = start("echo", f"{publisher.address}|shm:{folder}/back-{size_bytes}")
        subscriber = connect_params(back)
        values = [np.ones(size_bytes // 4, np.float32)]
        published, seen, read = [], [], []
        for version in range(1, rounds * 20 + 1):
            started = time.monotonic()
            publisher.publish(0, version, values)
            published.append(time.monotonic() - started)
            subscriber.wait(0, version, 20)
            found = subscriber.poll()
            assert found is not None
            seen.append(found[1][0][0] - started)
            read.append(found[1][0][1] - started)
        idle = [_poll_us(subscriber) for _ in range(1000)]
        published_us, seen_us, read_us = (np.median(np.array(t)) * 1e6 for t in (published, seen, read))
        print(
            f"params shm {name}: publish {published_us:.0f} us, woken after {seen_us:.0f} us, "
            f"read after {read_us:.0f} us (medians); poll with nothing new {np.median(idle):.2f} us"
        )
        child.kill()
        child.wait(10)
        subscriber.close()
        publisher.close()


def _poll_us(subscriber: object) -> float:
    started = time.perf_counter()
    subscriber.poll()  # type: ignore[attr-defined]
    return (time.perf_counter() - started) * 1e6


def main() -> None:
    """Run the benchmarks of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=6, help="alternating rounds of 500 round trips")
    parser.add_argument("--role", choices=["serve", "echo"], help=argparse.SUPPRESS)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        {"serve": serve, "echo": echo_params}[options.role](options.address)
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]}"
    )
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base, prefix="jsrl-bench-") as folder:
        measure_inference(Path(folder), options.rounds)
        measure_params(Path(folder), options.rounds)


if __name__ == "__main__":
    main()
