"""Stable-Baselines3's algorithms on small tasks: `python run_sb3_defaults.py ppo`, in an environment with SB3.

Each task of scoring.py is trained with seeds 0 to 4, one thread each; then the final policy plays 100 greedy
episodes of fresh seeds. A row per task and seed goes to benchmarks/results/ALGORITHM-defaults-sb3.json as soon as it is
known; rows that are there are not run again. benchmarks/defaults.py runs jsrl's on the same tasks and compares.
`--settings zoo` takes the settings of rl-baselines3-zoo (zoo_settings.json) and goes to zoo-ALGORITHM-sb3.json;
benchmarks/zoo.py runs jsrl's.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import platform
import time
from pathlib import Path

import gymnasium
import numpy as np
import stable_baselines3
import torch
from scoring import RESULTS, TASKS, fill
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

ZOO = json.loads(Path(__file__).with_name("zoo_settings.json").read_text())
EPISODES = 100


def make(task: str) -> gymnasium.Env:
    """Return one environment of the task, with its returns recorded."""
    return Monitor(
        gymnasium.make("LunarLander-v3", continuous=True)
        if task == "LunarLanderContinuous-v3"
        else gymnasium.make(task)
    )


def train(algorithm: str, task: str, seed: int, options: dict) -> dict:
    """Train and score one policy; options: of the algorithm, and what the zoo adds (env_steps, n_envs, normalize, linear)."""
    started, cpu = time.monotonic(), time.process_time()
    own = dict(options)
    env_steps, n_envs, normalize = (own.pop(*key) for key in (("env_steps",), ("n_envs", 1), ("normalize", False)))
    for name in own.pop("linear", ()):  # to 0 at the end
        own[name] = LinearSchedule(own[name], 0.0, 1.0)
    envs = DummyVecEnv([functools.partial(make, task)] * n_envs)
    envs = VecNormalize(envs, gamma=own.get("gamma", 0.99)) if normalize else envs
    model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", envs, seed=seed, device="cpu", **own)
    model.learn(env_steps)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
    tests: VecEnv = DummyVecEnv([functools.partial(make, task)])
    tests.seed(10_000 + seed)
    if isinstance(envs, VecNormalize):
        tests = VecNormalize(tests, training=False, norm_reward=False)
        tests.obs_rms = envs.obs_rms
    returns, _ = evaluate_policy(model, tests, n_eval_episodes=EPISODES, return_episode_rewards=True)
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
    parser.add_argument("--settings", choices=("defaults", "zoo"), default="defaults")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    zoo = args.settings == "zoo"
    tasks = ZOO[args.algorithm] if zoo else {task: {"env_steps": n} for task, n in TASKS[args.algorithm].items()}
    out = args.out or RESULTS / (f"zoo-{args.algorithm}-sb3.json" if zoo else f"{args.algorithm}-defaults-sb3.json")
    torch.set_num_threads(1)
    about = {
        "what": f"{args.algorithm.upper()}('MlpPolicy', env), settings: {args.settings}; final policy, greedy",
        "stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__,
        "gymnasium": gymnasium.__version__, "python": platform.python_version(), "threads": 1,
    }  # fmt: skip

    def one(task: str, seed: int) -> dict:
        return train(args.algorithm, task, seed, tasks[task])

    fill(out, itertools.product(args.tasks or tasks, args.seeds), one, about=about)


if __name__ == "__main__":
    main()
