"""Stable-Baselines3's PPO on a work: `python run_sb3.py JSON`, in its own virtual environment."""

from __future__ import annotations

import json
import sys
from typing import Any

from environments import make_ale_vector, make_one
from measuring import Meter, done_work, orders, versions_of

SETTINGS = [
    {"vector": "dummy", "threads": 1},
    {"vector": "dummy", "threads": 2},
    {"vector": "subprocess", "threads": 1},
]


def vector(asked: dict[str, Any]) -> Any:
    """Return the vector environment: one process or one per environment; Atari's games step in ale-py's own vector."""
    if asked["network"] == "nature_cnn":
        from sb3_ale import AleVecEnv

        return AleVecEnv(make_ale_vector(asked, asked["setting"].get("env_threads", 1)))
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    kind = SubprocVecEnv if asked["setting"].get("vector") == "subprocess" else DummyVecEnv
    return kind([lambda: make_one(asked) for _ in range(asked["num_envs"])])


def main() -> None:
    """Train until the window is full."""
    asked = orders()
    meter = Meter(seconds=asked["seconds"], warm_up_s=asked["warm_up_s"])
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        """Tells the meter: the update before a rollout has ended."""

        full = False

        def _on_rollout_start(self) -> None:
            self.full = self.num_timesteps > 0 and meter.update(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.full

    torch.set_num_threads(asked["setting"].get("threads", 1))
    images = asked["network"] == "nature_cnn"
    env = vector(asked)
    model = PPO(
        "CnnPolicy" if images else "MlpPolicy",
        env,
        n_steps=asked["rollout"],
        batch_size=asked["minibatch"],
        n_epochs=asked["epochs"],
        learning_rate=asked["learning_rate"],
        gamma=asked["gamma"],
        gae_lambda=asked["gae_lambda"],
        clip_range=asked["clip_ratio"],
        max_grad_norm=asked["max_grad_norm"],
        policy_kwargs=None if images else {"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        device="cpu",
    )
    taken = count_steps(model.policy.optimizer)
    model.learn(total_timesteps=10**12, callback=Watch())
    updates = model.num_timesteps // (asked["num_envs"] * asked["rollout"])
    done = done_work(
        asked,
        parameters=sum(p.numel() for p in model.policy.parameters()),
        minibatch=model.batch_size,
        epochs=model.n_epochs,
        rollout=model.n_steps,
        num_envs=model.n_envs,
        gradient_steps=taken[0] // updates,
    )
    meter.report("sb3", done, asked["setting"], versions_of("stable-baselines3", "torch", "gymnasium", "numpy"))
    env.close()


def count_steps(optimizer: Any) -> list[int]:
    """Return a list whose first element counts an optimizer's steps."""
    taken = [0]

    def count(*_: Any) -> None:
        taken[0] += 1

    optimizer.register_step_post_hook(count)
    return taken


if __name__ == "__main__":
    if sys.argv[1] == "--settings":
        print(json.dumps(SETTINGS))
    else:
        main()
