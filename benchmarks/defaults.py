"""The defaults of `jsrl run ppo` beside those of Stable-Baselines3: `python benchmarks/defaults.py ppo`, then `--table`.

Runs `jsrl run ALGORITHM --env.id TASK` with seeds 0 to 4 on the tasks of benchmarks/peers/run_sb3_defaults.py, which runs the
other side with equal env steps. A row per task and seed goes to benchmarks/results/ALGORITHM-defaults.json as soon as it is
known; rows that are there are not run again. Scores: mean return of the final params over 100 greedy episodes of fresh seeds,
and of `@best` over 100 others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.scoring import RESULTS, TASKS, fill


def jsrl(*args: str) -> str:
    """Run a command of jsrl, and return what it printed."""
    return subprocess.run([sys.executable, "-m", "jsrl", *args], check=True, capture_output=True, text=True).stdout


def children_cpu_seconds() -> float:
    """Return the CPU time of the programs that this one has run so far."""
    times = os.times()
    return times.children_user + times.children_system


def train(algorithm: str, task: str, seed: int, folder: Path, options: list[str]) -> dict:
    """Train and score one policy, in a serial run."""
    name, started, used = f"{task}-{seed}", time.monotonic(), children_cpu_seconds()
    where = ("--runs-dir", str(folder), "--run-name", name, "--overwrite")
    how = ("--placement", "serial", "--display", "quiet")
    jsrl("run", algorithm, "--env.id", task, "--seed", str(seed), *how, *where, *options)
    seconds, cpu_seconds = time.monotonic() - started, children_cpu_seconds() - used
    run = folder / algorithm / name
    result = json.loads((run / "result.json").read_text())
    jsrl("evaluate", f"{run}@best", "--episodes", "100", "--seed", str(20_000 + seed), "--json", str(run / "best.json"))
    best = json.loads((run / "best.json").read_text()) | {"player": f"{algorithm}/{name}@best"}
    return {
        "task": task, "seed": seed, "env_steps": result["env_steps"], "final": result["final"], "best": best,
        "seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1), "options": options,
    }  # fmt: skip


def table(algorithm: str) -> str:
    """Return both sides as a table: means over seeds, the standard error of their difference, and who is ahead."""
    ours, theirs = (
        json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        for name in (f"{algorithm}-defaults", f"{algorithm}-defaults-sb3")
    )
    lines = ["| task | env steps | jsrl | its `@best` | SB3 | difference | seeds |", "|---|---|---|---|---|---|---|"]
    for task, env_steps in TASKS[algorithm].items():
        final, best = ([row[what]["return_mean"] for row in ours if row["task"] == task] for what in ("final", "best"))
        peer = [row["return_mean"] for row in theirs if row["task"] == task]
        if min(len(final), len(peer)) < 2:
            continue
        error = math.sqrt(sum(statistics.variance(one) / len(one) for one in (final, peer)))
        scores = [f"{statistics.mean(one):.1f}" for one in (final, best, peer)]
        difference = statistics.mean(final) - statistics.mean(peer)
        lines.append(
            f"| {task} | {env_steps:,} | {' | '.join(scores)} | {difference:+.1f} ± {error:.1f} | {len(final)}, {len(peer)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=list(TASKS))
    parser.add_argument("--tasks", nargs="+", help="some of them; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print both sides as a table, and run nothing")
    args, options = parser.parse_known_args()
    if args.table:
        print(table(args.algorithm))
        return
    tasks = TASKS[args.algorithm]

    def one(task: str, seed: int) -> dict:
        how = ["--settings", "none", "--total-env-steps", str(tasks[task])]
        return train(args.algorithm, task, seed, args.folder, [*how, *options])

    out = args.out or RESULTS / f"{args.algorithm}-defaults.json"
    fill(out, itertools.product(args.tasks or tasks, args.seeds), one)


if __name__ == "__main__":
    main()
