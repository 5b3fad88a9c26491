"""Defaults of Stable-Baselines3's algorithms on small tasks: `python run_sb3_defaults.py ppo`, in an environment with SB3.

Each task of default_tasks.py is trained with seeds 0 to 4, one thread each; then the final policy plays 100 greedy
episodes of fresh seeds. A row per task and seed goes to benchmarks/results/ALGORITHM-defaults-sb3.json as soon as it is
known; rows that are there are not run again. benchmarks/defaults.py runs jsrl's on the same tasks and compares.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import gymnasium
import numpy as np
import stable_baselines3
import torch
from default_tasks import TASKS
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

RESULTS = Path(__file__).resolve().parents[1] / "results"
EPISODES = 100


def make(task: str) -> gymnasium.Env:
    """Return one environment of the task, with its returns recorded."""
    return Monitor(
        gymnasium.make("LunarLander-v3", continuous=True)
        if task == "LunarLanderContinuous-v3"
        else gymnasium.make(task)
    )


def train(algorithm: str, task: str, seed: int) -> dict:
    """Train and score one policy."""
    started, cpu = time.monotonic(), time.process_time()
    model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", make(task), seed=seed, device="cpu")
    model.learn(TASKS[algorithm][task])
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
    envs = make(task)
    envs.reset(seed=10_000 + seed)
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=EPISODES, return_episode_rewards=True)
    return {
        "task": task, "seed": seed, "env_steps": int(model.num_timesteps), "return_mean": float(np.mean(returns)),
        "return_sd": float(np.std(returns, ddof=1)), "episodes": EPISODES, "seconds": seconds, "cpu_seconds": cpu_seconds,
    }  # fmt: skip


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=list(TASKS))
    parser.add_argument("--tasks", nargs="+", help="some of them; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or RESULTS / f"{args.algorithm}-defaults-sb3.json"
    torch.set_num_threads(1)
    for seed in args.seeds:
        for task in args.tasks or TASKS[args.algorithm]:
            rows = json.loads(out.read_text())["rows"] if out.exists() else []
            if any(row["task"] == task and row["seed"] == seed for row in rows):
                continue
            rows.append(train(args.algorithm, task, seed))
            about = {
                "what": f"{args.algorithm.upper()}('MlpPolicy', env) of Stable-Baselines3, its defaults; final policy, greedy",
                "stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__,
                "gymnasium": gymnasium.__version__, "python": platform.python_version(), "threads": 1,
            }  # fmt: skip
            out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
