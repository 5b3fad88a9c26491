"""Inference batching: one real server process and 1 to 16 separate client processes, each with one request at a time.

On: the server acts once for all waiting requests. Off: once for each request (`inference.max_rows` of one client's rows).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.srl.acting import ActingSystem
from jsrl.experiment import Experiment, InferenceConfig
from jsrl.transport.base import ProducerId, Request
from jsrl.types import map_tree

SAMPLE = 4000  # the largest number of latencies that a client returns, evenly spaced


def client(name: str, jobs: list[str]) -> None:
    """Run a client of several servers: for each input line `SERVER SECONDS` send requests, then print the figures."""
    from jsrl.references.reference import from_json
    from jsrl.transport.table import connect_inference
    from jsrl.workers.ends import names_of_peers

    ends = []
    for path in jobs:
        job = from_json(json.loads(Path(path).read_text()))
        rows = job.experiment.group_size
        address = job.find(names_of_peers(job.end("inference"))[0]).address
        ends.append(connect_inference(address, job.schemas.act, ProducerId(name, 0), {0: rows}, timeout_s=60.0))
        observation = map_tree(lambda leaf, n=rows: leaf.batched(n).zeros(), job.schemas.act.observation)
        request = Request(observation, np.zeros(rows, bool))
    print("ready", flush=True)
    for line in sys.stdin:
        server, seconds = line.split()
        print(json.dumps(send_requests(ends[int(server)], request, float(seconds))), flush=True)


def send_requests(end: Any, request: Request, seconds: float) -> dict[str, Any]:
    """Send requests one after another for the given time; return the count, the time, and a sample of the latencies (us)."""
    latencies = []
    begin = time.perf_counter()
    while (sent := time.perf_counter()) - begin < seconds:
        end.send(0, request)
        end.receive(30.0)
        latencies.append(time.perf_counter() - sent)
    passed_s = time.perf_counter() - begin
    sample = latencies[:: max(1, len(latencies) // SAMPLE)]
    return {"count": len(latencies), "seconds": passed_s, "latencies_us": [round(1e6 * s, 1) for s in sample]}


class Crowd:
    """Client processes that are connected to the same servers; a context manager."""

    def __init__(self, systems: list[ActingSystem], number: int, rows: int) -> None:
        self._rows = rows
        jobs = [system.write_jobs()[0] for system in systems]
        script = str(Path(__file__).parents[1] / "levers.py")
        self._clients = [
            subprocess.Popen(
                [sys.executable, script, "--client", f"client-{i}", *map(str, jobs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(number)
        ]

    def __enter__(self) -> Crowd:
        for one in self._clients:
            self._read(one)
        return self

    def __exit__(self, *_: object) -> None:
        """End every client."""
        for one in self._clients:
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()

    def _read(self, one: subprocess.Popen[str]) -> str:
        assert one.stdout is not None
        line = one.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended with status {one.wait()}")
        return line

    def measure(
        self, server: int, clients: int, seconds: float, cpu_s: Callable[[], float] = lambda: 0.0
    ) -> dict[str, float]:
        """Let the first `clients` query one server; return rows per second, and per CPU-second of the server, and latency."""
        asking = self._clients[:clients]
        before_s = cpu_s()
        for one in asking:
            assert one.stdin is not None
            one.stdin.write(f"{server} {seconds}\n")
            one.stdin.flush()
        answers = [json.loads(self._read(one)) for one in asking]
        latencies = np.concatenate([answer["latencies_us"] for answer in answers])
        p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
        rows = sum(answer["count"] / answer["seconds"] for answer in answers) * self._rows
        figures = {"rows_per_s": rows, "p50_us": float(p50), "p95_us": float(p95), "p99_us": float(p99)}
        used_s = cpu_s() - before_s
        count = sum(answer["count"] for answer in answers) * self._rows
        return figures | ({"rows_per_cpu_s": count / used_s} if used_s > 0 else {})


def servers(experiment: Experiment, clients: int, rows: int) -> dict[str, Experiment]:
    """Return the experiments whose servers answer with and without batching."""
    base = dataclasses.replace(
        experiment, placement="served", num_envs=clients * rows, num_actors=clients, num_groups=clients, batch_envs=None,
        max_policy_lag=None,
    )  # fmt: skip
    off = dataclasses.replace(base, inference=dataclasses.replace(base.inference, max_rows=rows))
    on = dataclasses.replace(base, inference=InferenceConfig(max_rows=clients * rows, threads=base.inference.threads))
    return {"on": on, "off": off}
