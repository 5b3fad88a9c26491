"""Scores of the tuned settings: `python benchmarks/zoo.py ppo --envs CartPole-v1 Pendulum-v1`.

Runs `jsrl run ALGORITHM --env.id ID` with seeds 0 to 2 for the rows of tuned.toml, those of few env steps first.
A row per environment and seed goes to benchmarks/results/zoo-ALGORITHM.json as soon as it is known; rows that are there are
not run again. Scores: mean return of the final params over 100 greedy episodes of fresh seeds, and of `@best` over 100 others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from benchmarks.defaults import RESULTS, train
from jsrl.cli.experiments import load
from jsrl.cli.tuned import Row, applied, rows
from jsrl.intervals import mean_interval
from jsrl.linux import processor

HEADS = "environment | algorithm | env steps | score | each seed | `@best` | published"


def env_steps(row: Row) -> int:
    return applied(row, load(row.algorithm)).total_env_steps


def cells(row: Row) -> list[str]:
    """Return the cells of a row of the table; those without a run are empty."""
    file = RESULTS / f"zoo-{row.algorithm}.json"
    runs = [run for run in json.loads(file.read_text())["rows"] if run["task"] == row.env] if file.exists() else []
    final, best = ([run[what]["return_mean"] for run in runs] for what in ("final", "best"))
    score = f"{statistics.mean(final):,.1f}" if final else ""
    if len(final) > 1:
        score += f" ± {mean_interval(final)[1]:,.1f}"
    each = "; ".join(f"{value:,.1f}" for value in final)
    best_score = f"{statistics.mean(best):,.1f}" if best else ""
    return [row.env, row.algorithm, f"{env_steps(row):,}", score, each, best_score, row.published]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm")
    parser.add_argument("--envs", nargs="+", help="some of them; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args, options = parser.parse_known_args()
    out = RESULTS / f"zoo-{args.algorithm}.json"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    for row in sorted((row for row in rows() if row.algorithm == args.algorithm), key=env_steps):
        for seed in args.seeds if not args.envs or row.env in args.envs else ():
            done = json.loads(out.read_text())["rows"] if out.exists() else []
            if any(run["task"] == row.env and run["seed"] == seed for run in done):
                continue
            run = train(row.algorithm, row.env, seed, args.folder, options)
            done.append({**run, "commit": commit, "machine": processor()})
            print(row.env, seed, run["final"]["return_mean"], run["best"]["return_mean"], run["seconds"], flush=True)
            out.write_text(json.dumps({"rows": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
