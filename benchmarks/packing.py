"""The effect of omitting old frames and of LZ4 on links of several speeds: messages/s, bytes sent, CPU seconds.

Run: python benchmarks/packing.py [--what trajectories|requests] [--seconds S] [--rates 100 1000] [--output FILE]

A producer sends trajectories of Pong (84x84, stacks of 4 frames, 20 rows of 16 games, random play) over TCP with keys to a
consumer, which copies all arrays, as a learner does. Or a client requests actions for the 16 games, and a server reads
each request and answers at once. Each runs in its own network namespace (root is needed) on a link
limited to the given Mbit/s (tbf; 0: unshaped). All arms alternate in rounds; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.transport.base import InferenceSpec, Lease, ProducerId, Reply, Request
from jsrl.transport.door.keys import make_keys
from jsrl.transport.ends.packing import Packing
from jsrl.transport.table import bind_inference, bind_samples, connect_inference, connect_samples
from jsrl.types import ArraySpec, Trajectory, leaves, make_trajectory_spec, zeros

ROWS, GAMES, VARIANTS = 20, 16, 8
SIDES = {"trajectories": ("consume", "produce"), "requests": ("answer", "ask")}
ARMS = {"whole": Packing(), "newest": Packing(4), "newest + lz4": Packing(4, True), "whole + lz4": Packing(None, True)}


def recorded() -> tuple[Trajectory, list[Trajectory]]:
    """Return the schema of trajectories, and some from random play."""
    env = make(EnvConfig("ALE/Pong-v5"), GAMES, 0, group=0)
    spec, rng = env.spec, np.random.default_rng(0)
    schema = make_trajectory_spec(spec, {"value": ArraySpec((), "float32")}, (), num_rows=ROWS, num_envs=GAMES)
    latest, found = env.reset(), []
    for _ in range(VARIANTS):
        trajectory = zeros(schema)
        for t in range(ROWS + 1):
            trajectory.observation[t], trajectory.is_first[t] = latest.observation, latest.is_first
            if t < ROWS:
                latest = env.step(rng.integers(0, 6, GAMES))
                trajectory.reward[t] = latest.reward
        found.append(trajectory)
    env.close()
    return schema, found


def cpu_s() -> float:
    """Return the CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sent_bytes() -> int:
    """Return the bytes that this network namespace has sent, loopback included."""
    lines = [line.split(":")[1].split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(counts[8]) for counts in lines)


def produce(address: str, keys: str, seconds: float) -> dict[str, float]:
    """Send trajectories for the given time; return their number and cost."""
    schema, trajectories = recorded()
    producer = connect_samples(address, schema, ProducerId("actor-0", 0), 2, 30.0, keys=keys)
    count, begin_s, begin_cpu, begin_bytes = 0, 0.0, 0.0, 0
    while count < 4 or time.monotonic() - begin_s < seconds:
        if count == 3:  # after a warm-up
            begin_s, begin_cpu, begin_bytes = time.monotonic(), cpu_s(), sent_bytes()
        block = producer.reserve(60.0)
        for target, leaf in zip(leaves(block.trajectory), leaves(trajectories[count % VARIANTS]), strict=True):
            target[...] = leaf
        block.commit(count % 2)
        count += 1
    producer.close()
    took_s = time.monotonic() - begin_s
    return {"count": count - 3, "s": took_s, "cpu_s": cpu_s() - begin_cpu, "bytes": sent_bytes() - begin_bytes}


def consume(address: str, keys: str, arm: str) -> dict[str, float]:
    """Print the address, and copy trajectories until the end; return the CPU seconds per trajectory."""
    schema, trajectories = recorded()
    consumer = bind_samples(address, schema, keys=keys, packing=ARMS[arm])
    print(json.dumps(consumer.address), flush=True)
    staging, count, begin_cpu = zeros(schema), 0, cpu_s()
    lease: Lease | None = consumer.get(60.0)
    while lease is not None:
        for target, leaf in zip(leaves(staging), leaves(lease.trajectory), strict=True):
            target[...] = leaf
        if count < VARIANTS:
            assert np.array_equal(staging.observation, trajectories[count].observation)
        consumer.release(lease)
        begin_cpu = cpu_s() if count == VARIANTS else begin_cpu
        count += 1
        try:
            lease = consumer.get(3.0)
        except Exception:
            lease = None
    consumer.close()
    return {"count": count - VARIANTS - 1, "cpu_s": cpu_s() - begin_cpu}


def request_schema(schema: Trajectory) -> InferenceSpec:
    """Return the schema of requests and replies for the environments of a trajectory."""
    seen, number = schema.observation, ArraySpec((), "float32")
    return InferenceSpec(ArraySpec(seen.shape[2:], seen.dtype), ArraySpec((), "int32"), number, {"value": number}, ())


def ask(address: str, keys: str, seconds: float) -> dict[str, float]:
    """Send requests, each after the reply to the last one, for the given time; return their number and cost."""
    schema, trajectories = recorded()
    client = connect_inference(address, request_schema(schema), ProducerId("actor-0", 0), {0: GAMES}, 30.0, keys=keys)
    step, begin_s, begin_cpu, begin_bytes = 0, 0.0, 0.0, 0
    while step < 8 or time.monotonic() - begin_s < seconds:
        if step == 4:  # after a warm-up
            begin_s, begin_cpu, begin_bytes = time.monotonic(), cpu_s(), sent_bytes()
        played = trajectories[step // ROWS % VARIANTS]
        row = step % ROWS
        client.send(0, Request(played.observation[row], played.is_first[row], step=step))
        client.receive(60.0)
        step += 1
    took_s = time.monotonic() - begin_s
    cost = {"count": step - 4, "s": took_s, "cpu_s": cpu_s() - begin_cpu, "bytes": sent_bytes() - begin_bytes}
    client.close()
    return cost


def answer(address: str, keys: str, arm: str) -> dict[str, float]:
    """Print the address, and answer requests until the client has left; return the CPU seconds per request."""
    schema, trajectories = recorded()
    spec = request_schema(schema)
    server = bind_inference(address, spec, keys=keys, packing=ARMS[arm])
    print(json.dumps(server.address), flush=True)
    zero = np.zeros(GAMES, np.float32)
    reply, count, begin_cpu = Reply(np.zeros(GAMES, np.int32), zero, {"value": zero}, 0), 0, 0.0
    while not server.departed():
        for asked in server.collect(GAMES, 1.0):
            if count < ROWS:
                assert np.array_equal(asked.request.observation, trajectories[0].observation[count])
            count += 1
            begin_cpu = cpu_s() if count == ROWS else begin_cpu
            server.reply(asked, reply)
    server.close()
    return {"count": count - ROWS, "cpu_s": cpu_s() - begin_cpu}


def shape(namespace: str, link: str, rate: int) -> None:
    """Limit the link of a namespace to the given Mbit/s (0: no limit)."""
    inside = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
    subprocess.run([*inside, "del", "dev", link, "root"], check=False, stderr=subprocess.DEVNULL)
    if rate:
        limits = ["rate", f"{rate}mbit", "burst", "256kb", "latency", "100ms"]
        subprocess.run([*inside, "add", "dev", link, "root", "tbf", *limits], check=True)


def measure(what: str, names: list[str], net: str, keys: str, arm: str, seconds: float) -> dict[str, float]:
    """Return the figures of an arm between two namespaces."""
    reads, writes = SIDES[what]
    reader = start(names[0], reads, f"tcp://{net}.2:0", keys, arm)
    assert reader.stdout is not None
    writer = start(names[1], writes, json.loads(reader.stdout.readline()), keys, str(seconds))
    made, took = (json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in (writer, reader))
    return {
        f"{what}_per_s": made["count"] / made["s"],
        "mb_each": made["bytes"] / made["count"] / 1e6,
        "cpu_ms_each": 1e3 * (made["cpu_s"] / made["count"] + took["cpu_s"] / max(took["count"], 1)),
    }


def start(namespace: str, *words: str) -> subprocess.Popen[str]:
    """Start a side of the stream in a namespace."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    command = ["ip", "netns", "exec", namespace, sys.executable, __file__, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    """Measure all arms on all links, and print a table."""
    if len(sys.argv) > 1 and sys.argv[1] in sum(SIDES.values(), ()):
        side, address, keys, last = sys.argv[1:]
        writes, reads = {"produce": produce, "ask": ask}, {"consume": consume, "answer": answer}
        found = writes[side](address, keys, float(last)) if side in writes else reads[side](address, keys, last)
        print(json.dumps(found), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=list(SIDES), default="trajectories")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1000, 0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output")
    options = parser.parse_args()
    sys.path.insert(0, os.getcwd())
    from tests.cluster.agents import namespaces

    results: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count(), "rounds": {}}
    with namespaces(2) as (address, names), tempfile.TemporaryDirectory() as folder:
        if not names:
            raise SystemExit("network namespaces are not allowed here; run this as root")
        net, keys = address.rpartition(".")[0], str(make_keys(Path(folder, "keys")))
        for _ in range(options.rounds):
            for rate in options.rates:
                for i, name in enumerate(names):
                    shape(name, f"ji{os.getpid() % 100_000}{i}", rate)
                for arm in ARMS:
                    found = measure(options.what, names, net, keys, arm, options.seconds)
                    results["rounds"].setdefault(f"{rate} {arm}", []).append(found)
    for name, rounds in results["rounds"].items():
        row = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        print(f"{name:>20}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
