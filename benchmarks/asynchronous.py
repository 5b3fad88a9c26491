"""Seconds to a goal, as a synchronous loop and with asynchronous roles: `python benchmarks/asynchronous.py sac_pendulum`.

synchronous: acting, learning and evaluating in turn in one process (`--placement serial`). asynchronous: actors, learner and
evaluator as processes, each at its own rate (`--placement inline`); how old rows may be is the experiment's lag.
Arms alternate. A row per arm and seed goes to benchmarks/results/asynchronous-NAME.json as soon as it is known; rows that are
there are not run again. Seconds: from the command to the end of training (`command_s` includes the final evaluation).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import time
from pathlib import Path

from benchmarks.defaults import children_cpu_seconds, jsrl
from benchmarks.peers.scoring import RESULTS, fill
from jsrl.intervals import mean_interval

ARMS = {"synchronous": ["--placement", "serial"], "asynchronous": ["--placement", "inline"]}


def run(name: str, arm: str, seed: int, folder: Path, options: list[str]) -> dict:
    """Train until the goal; return what it took."""
    started, used = time.monotonic(), children_cpu_seconds()
    where = ["--runs-dir", str(folder), "--run-name", f"{arm}-{seed}", "--overwrite", "--display", "quiet"]
    jsrl("run", name, "--seed", str(seed), *ARMS[arm], *where, *options)
    command_s, cpu_s = time.monotonic() - started, children_cpu_seconds() - used
    result = json.loads((folder / name / f"{arm}-{seed}" / "result.json").read_text())
    kept = {key: result[key] for key in ("ended", "env_steps", "updates", "final")}
    times = {"seconds": result["wall_s"], "command_s": round(command_s, 1), "cpu_seconds": round(cpu_s, 1)}
    return {"task": arm, "seed": seed, **times, **kept, "load": os.getloadavg()[0], "options": options}


def table(path: Path) -> str:
    """Return means of both arms, and the ratio of their seconds over the seeds of both, with its 95% interval."""
    rows = {(row["task"], row["seed"]): row for row in json.loads(path.read_text())["rows"]}
    lines = ["arm | seconds | CPU-seconds | env steps | updates | score", "--- | --- | --- | --- | --- | ---"]
    for arm in ARMS:
        of_arm = [row for (its, _), row in rows.items() if its == arm]
        means = [
            statistics.mean(row[key] for row in of_arm) for key in ("seconds", "cpu_seconds", "env_steps", "updates")
        ]
        score = statistics.mean(row["final"]["return_mean"] for row in of_arm)
        lines.append(f"{arm} | {' | '.join(f'{mean:,.0f}' for mean in means)} | {score:,.1f}")
    seeds = [seed for arm, seed in rows if arm == "synchronous" and ("asynchronous", seed) in rows]
    for what in ("seconds", "cpu_seconds") if len(seeds) > 1 else ():
        logs = [math.log(rows["asynchronous", seed][what] / rows["synchronous", seed][what]) for seed in seeds]
        mean, half = mean_interval(logs)
        assert half is not None
        low, middle, high = (math.exp(value) for value in (mean - half, mean, mean + half))
        lines.append(f"{what}, asynchronous / synchronous: {middle:.2f} ({low:.2f} to {high:.2f}), {len(seeds)} seeds")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args, options = parser.parse_known_args()
    out = RESULTS / f"asynchronous-{args.experiment}.json"
    wanted = [(arm, seed) for seed, arm in itertools.product(args.seeds, ARMS)]
    fill(out, wanted, lambda arm, seed: run(args.experiment, arm, seed, args.folder, options))
    print(table(out))


if __name__ == "__main__":
    main()
