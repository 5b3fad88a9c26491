"""One experiment, compiled with its environment and on two hosts, inline and served: `python benchmarks/one_curve.py`.

PPO on CartPole in JAX (examples/jax_cartpole.py) with one changed option: `--placement fused`, `inline` and `served`. inline
and served run on two hosts: this one, and a network namespace with its own file system, whose host agent has joined. A point
of the curve is the final evaluation (100 greedy episodes) of runs that end after so many env steps. A row per point,
placement and seed goes to benchmarks/results/one-curve.json as soon as it is known; rows that are there are not run again.

The table has the mean score at each point with its 95% interval over seeds, and the difference of each seed's mean over all
points from those of `fused`, with its 95% interval and the p of a permutation test.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import numpy as np

import jsrl
from benchmarks.peers.scoring import RESULTS, fill
from jsrl.intervals import mean_interval
from tests.cluster.agents import Agent, namespaces

PLACEMENTS = ("fused", "inline", "served")
POINTS = (8_192, 16_384, 32_768, 65_536)
OPTIONS = [
    *("--env.id", "examples.jax_cartpole:CartPole", "--env.backend", "jax", "--settings", "none"),
    *("--num-envs", "32", "--rollout-length", "64", "--agent.num-epochs", "4", "--agent.num-minibatches", "4"),
    *("--agent.learning-rate", "5e-4", "--stop-at-return", "none", "--display", "quiet"),
]


def train(task: str, seed: int, folder: Path) -> dict:
    """Train once, and return the score; task: PLACEMENT ENV_STEPS."""
    placement, env_steps = task.split()
    name, started = f"{placement}-{env_steps}-{seed}", time.monotonic()
    words = [sys.executable, "-m", "jsrl", "run", "ppo", *OPTIONS, "--placement", placement, "--seed", str(seed)]
    words += ["--total-env-steps", env_steps, "--runs-dir", str(folder), "--run-name", name]
    with (folder / f"{name}.log").open("w") as log:
        if placement == "fused":
            status = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        else:
            status = run_on_two_hosts(words, folder / f"{name}.key", log)
    if status != 0:
        raise SystemExit(f"{' '.join(words)} ended with exit status {status}; see {log.name}")
    result = json.loads((folder / "ppo" / name / "result.json").read_text())
    taken = {"seconds": round(time.monotonic() - started, 1), "load": os.getloadavg()[0]}
    return {"task": task, "seed": seed, **taken, "env_steps": result["env_steps"], "final": result["final"]}


def run_on_two_hosts(words: list[str], key: Path, log: IO[str]) -> int:
    """Run a command with a second host; return its exit status."""
    with namespaces(1) as (address, (host,)):
        words = [*words, "--num-actors", "2", "--listen", f"{address}:7000", "--num-hosts", "1", "--join-key", str(key)]
        run = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        while not key.exists() and run.poll() is None:
            time.sleep(0.1)
        agent = Agent(key, host, key.with_suffix(".host"), host)
        status = run.wait()
        agent.close()
    return status


def table(path: Path) -> str:
    """Return the scores of all placements, and how their means differ."""
    rows = {(row["task"], row["seed"]): row["final"]["return_mean"] for row in json.loads(path.read_text())["rows"]}
    seeds = sorted({seed for _, seed in rows})
    lines = [f"env steps | {' | '.join(f'{point:,}' for point in POINTS)} | mean", "--- | " * (len(POINTS) + 1) + "---"]
    whole = {}
    for placement in PLACEMENTS:
        scores = np.array([[rows[f"{placement} {point}", seed] for point in POINTS] for seed in seeds])
        whole[placement] = scores.mean(axis=1)
        cells = [f"{mean:.0f} ± {half or 0:.0f}" for mean, half in map(mean_interval, [*scores.T, whole[placement]])]
        lines.append(f"{placement} | {' | '.join(cells)}")
    for placement in PLACEMENTS[1:]:
        d = jsrl.difference(whole[placement], whole["fused"])
        lines.append(f"{placement} - fused: {d.mean:.1f} ({d.interval[0]:.1f} to {d.interval[1]:.1f}), p {d.p:.2f}")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    args = parser.parse_args()
    out = RESULTS / "one-curve.json"
    wanted = [(f"{how} {point}", seed) for seed, point, how in itertools.product(args.seeds, POINTS, PLACEMENTS)]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        fill(out, wanted, lambda task, seed: train(task, seed, Path(folder)), options={"command": OPTIONS})
    print(table(out))


if __name__ == "__main__":
    main()
