"""SAC of Stable-Baselines3 or SBX until a greedy return: `python run_replay_curve.py sbx --goal 5000`, in its own environment.

HalfCheetah-v5 with the libraries' defaults, which are those of their published curves (10,000 env steps first, one update of
256 rows per env step, 256 x 256, Adam at 3e-4), or with `--num-envs` environments stepped together, other numbers of updates
and learning rates. Every `--every` env steps 10 greedy episodes are played; the clock is paused meanwhile, and starts with
the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import measuring
from environments import make_one
from measuring import process_tree
from replay_works import ReplayWork
from run_sb3_replay import make_model

EPISODES = 10


def model_of(given: argparse.Namespace) -> Any:
    """Return the library's model."""
    if given.library == "sbx":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"  # the faster of both settings in bench.py
        from sbx import SAC

        shape: dict[str, Any] = {"net_arch": {"pi": [256, 256], "qf": [256, 256]}}
    else:
        import torch
        from stable_baselines3 import SAC

        torch.set_num_threads(given.threads)
        shape = {"net_arch": [256, 256]}
    work = ReplayWork(
        "sac",
        "learning",
        batch=256,
        parameters=0,
        num_envs=given.num_envs,
        updates_per_step=given.updates_per_step,
        rows=1_000_000,
        learning_starts=10_000,
    )
    critics = {"qf_learning_rate": given.critic_learning_rate} if given.critic_learning_rate else {}
    return make_model(SAC, dataclasses.asdict(work), seed=given.seed, policy_kwargs=shape, **critics)


def learn(model: Any, given: argparse.Namespace, began_s: float) -> list[list[float]]:
    """Learn until the goal or the end of env steps or time; return (env steps, seconds, mean return) of each evaluation."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    env, points = make_one({"env": "HalfCheetah-v5"}), []

    class Watch(BaseCallback):
        """Evaluates between rollouts."""

        paused_s, next_steps, going = 0.0, given.every, True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps < self.next_steps:
                return
            self.next_steps += given.every
            seconds, begin_s = time.time() - began_s - self.paused_s, time.time()
            mean, _ = evaluate_policy(self.model, env, EPISODES, deterministic=True, warn=False)
            self.paused_s += time.time() - begin_s
            points.append([self.num_timesteps, round(seconds, 1), round(float(mean), 1)])
            print(*points[-1], flush=True)
            self.going = mean < given.goal and seconds < given.seconds

        def _on_step(self) -> bool:
            return self.going

    model.learn(total_timesteps=given.env_steps, callback=Watch(), log_interval=10**9)
    return points


def main() -> None:
    """Learn, and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("sb3", "sbx"))
    parser.add_argument("--goal", type=float, default=5_000.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--updates-per-step", type=float, default=1.0, help="gradient steps per env step")
    parser.add_argument("--critic-learning-rate", type=float, help="of SBX's critics, where it is not the policy's")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--every", type=int, default=20_000, help="env steps between evaluations")
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3_600.0, help="end then at the latest")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = model_of(given)
    points = learn(model, given, process_tree.start_time_s(os.getpid()))
    own = ("sbx-rl", "jax") if given.library == "sbx" else ("torch",)
    packages = measuring.versions_of("stable-baselines3", *own, "gymnasium", "mujoco")
    kept = {**vars(given), "json": None, "packages": packages, "points": points}
    if given.json:
        given.json.write_text(json.dumps(kept) + "\n")
    print(json.dumps(kept))


if __name__ == "__main__":
    main()
