"""Hide-and-seek: does a policy that learned to play learn the task lock and return sooner than a new one?

    python benchmarks/hide_and_seek_transfer.py [--env-steps 300000] [--task-steps 300000] [--seeds 2] [--out FILE]

First a hider and a seeker learn against each other in the quadrant with a box and a ramp. Then three agents learn the task:
one begins with the params of the hider, one with those of the seeker, one with new params. The paper re-initialises the last
layer of a trained policy; here all params are kept. The table has the mean return and the share of episodes that end with
the box locked, in up to ten parts of the training. Runs that are in `--runs-dir` already are not trained again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.configs.hide_and_seek_league import config
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.launch.run import run
from jsrl.runs.runs import load_runs

PARTS = 10
SHARED = {"relative": True, "hide_unseen": True, "n_boxes": 1, "n_ramps": 1, "lock_ramp": False}
NAME = "hide_and_seek_transfer"
STARTS = {"hider": "@final", "seeker": "@seekers/final", "new": ""}
METRICS = ("hider_return", "num_box_lock")


def game_of(env_steps: int, seed: int) -> Experiment:
    """Return two policies that learn against each other."""
    league = config()
    agent = league.policies["main"].agent
    kwargs = SHARED | {"n_hiders": 1, "n_seekers": 1, "seekers_wait": True, "reward_range": 6.0, "reward_falls": True}
    return dataclasses.replace(
        league,
        name=NAME,
        env=EnvConfig("hide_and_seek:quadrant", kwargs=kwargs, episode_metrics=league.env.episode_metrics),
        policies={"hiders": PolicyConfig(agent, seats="hider_*"), "seekers": PolicyConfig(agent, seats="seeker_*")},
        director=None,
        total_env_steps=env_steps,
        seed=seed,
        placement="serial",
    )


def task_of(env_steps: int, seed: int) -> Experiment:
    """Return one agent that learns the task."""
    made = game_of(env_steps, seed)
    return dataclasses.replace(
        made,
        env=EnvConfig("hide_and_seek:lock_and_return", kwargs=SHARED, episode_metrics=METRICS),
        agent=dataclasses.replace(made.policies["hiders"].agent, gamma=0.99),
        policies={},
        rollout_length=121,
    )


def train(experiment: Experiment, name: str, runs_dir: Path, init_from: str | None = None) -> None:
    """Train a run unless it is there."""
    if not (runs_dir / NAME / name).exists():
        run(experiment, runs_dir=runs_dir, name=name, init_from=init_from, display="plain")


def parts_of(name: str, runs_dir: Path) -> dict[str, list[float]]:
    """Return the means of the metrics in each part of a run of the task."""
    (trained,) = load_runs(f"{NAME}/{name}", runs_dir=runs_dir)
    found = {}
    for metric in METRICS:
        _, values = trained.curve(f"actor/episode_{metric}_mean")
        found[metric] = [round(float(np.mean(part)), 3) for part in np.array_split(values, PARTS) if len(part)]
    return found


def main() -> None:
    """Train all runs, and print a line for each part of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--task-steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"env_steps": args.env_steps, "task_steps": args.task_steps, "runs": {}}
    for seed in range(args.seeds):
        pair = f"pair-{seed}"
        train(game_of(args.env_steps, seed), pair, args.runs_dir)
        for start, tag in STARTS.items():
            name = f"{start}-{seed}"
            train(task_of(args.task_steps, seed), name, args.runs_dir, f"{NAME}/{pair}{tag}" if tag else None)
            found["runs"][name] = parts_of(name, args.runs_dir)
            for metric, values in found["runs"][name].items():
                print(f"{name}, {metric}: {values}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
