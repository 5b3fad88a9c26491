"""Hide-and-seek, check L3 with larger batches: env steps and CPU seconds until the seeker sees a random hider often enough.

    python benchmarks/hide_and_seek_batches.py [--scales 1,2,4,8] [--env-steps 310000] [--map-scale 1] [--seed 0] [--out FILE]

The quadrant without objects, 1 against 1, the small network of `hide_and_seek`, in one process. Batch k has k times 32 worlds,
and all other settings are equal, so an update has k times the rows, also in each of its minibatches. The seconds are CPU
seconds of the process: what a larger batch gains on more machines, they do not show.
Snapshots are tried in their order until the learned seeker sees a random hider in `--share` of the rewarded steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hide_and_seek_duel import TEAMS, duel, kept_tags, learned_sides, random_side
from jsrl.control.hooks import LiveRun, SavedSnapshot
from jsrl.control.run import run
from jsrl.experiment import EvaluatorConfig, Experiment, SnapshotConfig
from jsrl.experiment.configs.hide_and_seek import config

POINTS, EPISODES, PERIOD_S = 12, 100, 2.0


def experiment_of(scale: int, args: argparse.Namespace) -> Experiment:
    """Return check L3 with `scale` times as many worlds."""
    made = config()
    kwargs = made.env.kwargs | {"n_boxes": 0, "n_ramps": 0, "map_scale": args.map_scale}
    return dataclasses.replace(
        made,
        name="hide_and_seek_batches",
        env=dataclasses.replace(made.env, id="hide_and_seek:quadrant", kwargs=kwargs),
        num_envs=made.envs * scale,
        total_env_steps=args.env_steps,
        placement="serial",
        seed=args.seed,
        evaluator=EvaluatorConfig(enabled=False),
        snapshots=SnapshotConfig(period_s=PERIOD_S, keep=500),
    )


class Clock:
    """A hook: the CPU seconds of this process when each snapshot was written, by its updates."""

    def __init__(self) -> None:
        """Start without snapshots."""
        self.cpu_s: dict[int, float] = {}

    def on_snapshot(self, run: LiveRun, snapshot: SavedSnapshot) -> None:
        """Note the time."""
        self.cpu_s.setdefault(snapshot.updates, time.process_time())

    def since_first(self, updates: int) -> float:
        """Return the seconds between the first snapshot, after programs were compiled, and that of so many updates."""
        return round(self.cpu_s[updates] - min(self.cpu_s.values()), 1)


def measure(scale: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the curve up to the threshold: env steps, CPU seconds, share."""
    experiment, clock, curve = experiment_of(scale, args), Clock(), list[tuple[int, float, float]]()
    random = random_side("hider", np.random.default_rng(args.seed))
    with tempfile.TemporaryDirectory() as runs_dir:
        folder = str(run(experiment, runs_dir=runs_dir, display="plain", hooks=[clock]).folder)
        for tag in kept_tags(folder, runs_dir, POINTS):
            updates = int(tag.rpartition("-")[2])
            sides = dict(zip(TEAMS, (random, learned_sides(folder, tag, runs_dir)["seeker"]), strict=True))
            share = duel(experiment.env, sides, EPISODES, 1_000_000)["seen_share"]
            curve.append((updates * experiment.envs * experiment.rollout_length, clock.since_first(updates), share))
            print(f"x{scale}: {curve[-1][0]:,} env steps, {curve[-1][1]:.0f} CPU s, seen {share:.2f}", flush=True)
            if share >= args.share:
                break
    return {"scale": scale, "reached": curve[-1][2] >= args.share, "curve": curve}


def main() -> None:
    """Measure each batch and print when it reaches the threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", default="1,2,4,8")
    parser.add_argument("--env-steps", type=int, default=310_000)
    parser.add_argument("--map-scale", type=float, default=1.0)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    for scale in args.scales.split(","):
        found.append(measure(int(scale), args))
        env_steps, seconds, share = found[-1]["curve"][-1]
        text = f"{env_steps:,} env steps, {seconds:.0f} CPU s" if found[-1]["reached"] else f"not reached ({share:.2f})"
        print(f"x{scale}: {text}", flush=True)
        if args.out:
            args.out.write_text(
                json.dumps({"share": args.share, "map_scale": args.map_scale, "runs": found}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
