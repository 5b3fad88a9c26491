"""The tasks on which each algorithm's defaults are compared, with their env steps, and the files of their scores.

Used by jsrl's side and by its peer's, in whose environment jsrl is not installed: standard library only.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"

TASKS = {
    "ppo": {
        "CartPole-v1": 200_000,
        "Acrobot-v1": 200_000,
        "Pendulum-v1": 200_000,
        "MountainCar-v0": 200_000,
        "LunarLander-v3": 300_000,
        "LunarLanderContinuous-v3": 300_000,
        "Hopper-v5": 300_000,
    },
    "dqn": {
        "CartPole-v1": 50_000,
        "Acrobot-v1": 100_000,
        "MountainCar-v0": 120_000,
        "LunarLander-v3": 100_000,
    },
    "sac": {
        "Pendulum-v1": 20_000,
        "MountainCarContinuous-v0": 50_000,
        "LunarLanderContinuous-v3": 100_000,
    },
}


def fill(out: Path, wanted: Iterable[tuple[str, int]], train: Callable[[str, int], dict], **about: dict) -> None:
    """Train each (task, seed) that has no row in `out`, and write its row as soon as it is known."""
    head = ["git", "-C", str(RESULTS), "rev-parse", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    where = {"commit": commit, "machine": cpu.partition(":")[2].strip()}
    for task, seed in wanted:
        rows = json.loads(out.read_text())["rows"] if out.exists() else []
        if any(row["task"] == task and row["seed"] == seed for row in rows):
            continue
        row = train(task, seed) | where
        out.write_text(json.dumps({**about, "rows": [*rows, row]}, indent=1) + "\n")
        print(f"{task} seed {seed}: {row.get('final', row)['return_mean']:.1f}, {row['seconds']:.0f} s", flush=True)
