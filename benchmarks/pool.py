"""PPO self-play on connect four: a pool of 50 frozen opponents, few live at a time, against one opponent.

    python benchmarks/pool.py [--pairs 5] [--seconds 60] [--live 4] [--out FILE]

The runs alternate; each has actors, an inference server, a learner and a director in separate processes. Measured after the
pool is full: env steps per second, CPU seconds of all workers per 1,000 env steps, and the number of games with each
opponent. Both arms train the same share of their rows, so ratios of env steps equal those of trained rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.control.run import run
from jsrl.directors.pools import DeltaUniform
from jsrl.experiment.configs.ppo_connect_four import config


@dataclass(frozen=True)
class FullPool(DeltaUniform):
    """Freezes until the pool is full, and counts the opponents of the games since then."""

    size: int = 50

    def _start(self) -> dict[str, Any]:
        return super()._start() | {"full_at": 0, "met": {}}

    def _freeze(self, state: dict[str, Any], policy: str) -> Any:
        pool = state["pools"][policy]
        command = super()._freeze(state, policy)
        if len(pool["frozen"]) >= self.size:
            pool["env_steps"] = -(10**15)
            state["full_at"] = state["assigned"]
        return command

    def _ended(self, state: dict[str, Any], record: dict[str, Any], outcome: Any) -> Any:
        if state["full_at"] and outcome.assignment >= state["full_at"] and not outcome.discarded:
            away = record["players"][1]
            state["met"][away] = state["met"].get(away, 0) + 1
        return super()._ended(state, record, outcome)


def measure(size: int, live: int, seconds: float, folder: Path, name: str) -> dict[str, Any]:
    """Return the figures of one run after its pool was full."""
    director = FullPool(size=size, live=live, freeze_env_steps=400, renew_games=50)
    experiment = replace(
        config(), director=director, placement="served", num_actors=2, total_env_steps=10**9, max_minutes=seconds / 60
    )
    result = run(experiment, runs_dir=folder, name=name, display="quiet")
    state = json.loads((Path(result.folder) / "director" / "newest.json").read_text())["state"]
    lines = [json.loads(line) for line in (Path(result.folder) / "metrics.jsonl").read_text().splitlines()]
    full = [line for line in lines if line.get("director/players", 0) > size]
    assert len(full) > 5, f"the pool of {size} was not full in {seconds} s; give more --seconds"
    steps = full[-1]["env_steps"] - full[0]["env_steps"]
    wall = np.diff([line["wall_s"] for line in full])
    names = {name for line in full for name in line if name.endswith("_cpu_share") and "others" not in name}
    cpu = sum(float(np.dot(wall, [line.get(name, 0.0) for line in full[1:]])) for name in names)
    return {
        "env_steps_per_s": steps / float(wall.sum()),
        "cpu_s_per_1000": 1000 * cpu / steps,
        "share": float(
            np.mean([line["actor/trained_rows_share"] for line in full if "actor/trained_rows_share" in line])
        ),
        "met": len(state["met"]),
        "least_met": min(state["met"].values()),
        "games": sum(state["met"].values()),
    }


def main() -> None:
    """Run the pairs and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--live", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            arms = {"one": (1, 0), "pool": (50, options.live)}
            order = list(arms) if pair % 2 else list(arms)[::-1]
            row = {arm: measure(*arms[arm], options.seconds, Path(folder), f"{arm}-{pair}") for arm in order}
            found.append(row)
            print(json.dumps(row), flush=True)
    for name in ("env_steps_per_s", "cpu_s_per_1000"):
        ratios = np.array([row["pool"][name] / row["one"][name] for row in found])
        half = 1.96 * ratios.std(ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else float("nan")
        print(f"pool / one, {name}: {ratios.mean():.3f} +- {half:.3f}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
