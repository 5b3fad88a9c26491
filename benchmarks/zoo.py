"""Scores of the tuned settings: `python benchmarks/zoo.py ppo --envs CartPole-v1 Pendulum-v1`.

Runs `jsrl run ALGORITHM --env.id ID` with seeds 0 to 2 for the rows of tuned.toml, those of few env steps first.
A row per environment and seed goes to benchmarks/results/zoo-ALGORITHM.json as soon as it is known; rows that are there are
not run again. Scores: mean return of the final params over 100 greedy episodes of fresh seeds, and of `@best` over 100 others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

from benchmarks.defaults import train
from benchmarks.peers.scoring import RESULTS, fill
from jsrl.cli.experiments import load
from jsrl.cli.tuned import Row, applied, rows
from jsrl.intervals import mean_interval

HEADS = "environment | algorithm | env steps | score | each seed | `@best` | SB3 here | published"


def env_steps(row: Row) -> int:
    return applied(row, load(row.algorithm)).total_env_steps


def runs(file: str, env: str) -> list[dict]:
    path = RESULTS / f"{file}.json"
    return [run for run in json.loads(path.read_text())["rows"] if run["task"] == env] if path.exists() else []


def cells(row: Row) -> list[str]:
    """Return the cells of a row of the table; those without a run are empty."""
    ours, theirs = runs(f"zoo-{row.algorithm}", row.env), runs(f"zoo-{row.algorithm}-sb3", row.env)
    final, best = ([run[what]["return_mean"] for run in ours] for what in ("final", "best"))
    score = f"{statistics.mean(final):,.1f}" if final else ""
    if len(final) > 1:
        score += f" ± {mean_interval(final)[1]:,.1f}"
    best_score = f"{statistics.mean(best):,.1f}" if best else ""
    each, peer = (
        "; ".join(f"{value:,.1f}" for value in values) for values in (final, [run["return_mean"] for run in theirs])
    )
    return [row.env, row.algorithm, f"{env_steps(row):,}", score, each, best_score, peer, row.published]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm")
    parser.add_argument("--envs", nargs="+", help="some of them; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args, options = parser.parse_known_args()
    known = sorted((row for row in rows() if row.algorithm == args.algorithm), key=env_steps)
    envs = [row.env for row in known if not args.envs or row.env in args.envs]

    def one(env: str, seed: int) -> dict:
        return train(args.algorithm, env, seed, args.folder, options)

    fill(RESULTS / f"zoo-{args.algorithm}.json", itertools.product(envs, args.seeds), one)


if __name__ == "__main__":
    main()
