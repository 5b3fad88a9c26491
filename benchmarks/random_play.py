"""The return of random play: legal actions drawn uniformly, the first episodes of each slot.

    python benchmarks/random_play.py ppo_coinrun [--episodes 100] [--num-envs 10] [--seed 0] [--json FILE]

Env steps per second use the process's CPU time; engines in separate processes, such as ViZDoom's, are not included.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.envs.check import random_actions
from jsrl.envs.make import make


def play(name: str, episodes: int, num_envs: int, seed: int) -> dict[str, Any]:
    """Play the environment of an experiment; return the content of the file. A game's return is the mean over its seats."""
    env: Any = make(import_module(f"jsrl.experiment.configs.{name}").config().env, num_envs, seed)
    rng, each = np.random.default_rng(0), -(-episodes // num_envs)
    ended: list[list[Any]] = [[] for _ in range(num_envs)]
    step, count, begun = env.reset(), 0, time.process_time()
    while min(map(len, ended)) < each:
        step = env.step(random_actions(env, step.observation, rng))
        count += num_envs
        for episode in step.episodes:
            ended[episode.slot].append(episode)
    rate = count / (time.process_time() - begun)
    env.close()
    played = [episode for slot in ended for episode in slot[:each]]
    returns = np.array([e.return_ for e in played])
    return {
        "experiment": name,
        "seed": seed,
        "num_envs": num_envs,
        "episodes": len(played),
        "return_mean": float(returns.mean()),
        "return_ci95": float(1.96 * returns.std(ddof=1) / len(returns) ** 0.5),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(np.mean([e.length for e in played])),
        "env_steps_per_cpu_s": rate,
    }


def main() -> None:
    """Play, print and write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiment")
    made.add_argument("--episodes", type=int, default=100)
    made.add_argument("--num-envs", type=int, default=10)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, help="file to which the line is added")
    options = made.parse_args()
    line = json.dumps(play(options.experiment, options.episodes, options.num_envs, options.seed))
    print(line)
    if options.json:
        with options.json.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
