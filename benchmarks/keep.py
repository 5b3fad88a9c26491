"""Keep the results of a finished run: `python benchmarks/keep.py RUN ...` writes benchmarks/results/EXPERIMENT-RUN.json.

Each file holds the outcome, the command, commit, versions and hardware, the configuration, and the evaluation curve: the raw
numbers behind docs/scores.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from jsrl.errors import JsrlError
from jsrl.services.runs.runs import RunFolder, read_metrics

CURVES = ("evaluator/return_mean", "evaluator/return_ci95", "actor/return_mean")


def keep(run: str, runs_dir: str, results: Path) -> Path:
    """Write one run's file and return its path."""
    folder = RunFolder.open(run, runs_dir)
    outcome = json.loads((folder.path / "result.json").read_text())
    outcome["folder"] = folder.name
    metrics = read_metrics(folder.metrics_path)
    curves = {}
    for name in CURVES:
        if name in metrics:
            columns = zip(metrics["env_steps"], metrics["wall_s"], metrics[name], strict=True)
            points = [[int(s), round(w, 2), round(v, 3)] for s, w, v in columns if not math.isnan(v)]
            curves[name] = points[:: max(1, len(points) // 200)]
    environment = {name: fact for name, fact in folder.environment.items() if name != "working_directory"}
    kept = {"outcome": outcome, "environment": environment, "config": folder.config, "curves": curves}
    path = results / f"{folder.path.parent.name}-{folder.path.name}.json"
    # the command, and what to load
    path.write_text(json.dumps(kept, indent=None, separators=(",", ":")).replace(runs_dir, "runs") + "\n")
    return path


def main() -> int:
    """Keep every given run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="paths, EXPERIMENT/NAME or NAME")
    parser.add_argument("--runs-dir", default="runs")
    options = parser.parse_args()
    results = Path(__file__).with_name("results")
    results.mkdir(exist_ok=True)
    try:
        for run in options.runs:
            print(keep(run, options.runs_dir, results))
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
