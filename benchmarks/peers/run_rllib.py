"""RLlib's PPO (its new stack, torch) on a work: `python run_rllib.py JSON`, in its own virtual environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from environments import make_one
from measuring import Meter, command, count_steps, done_work, leave, read_request, versions_of

SETTINGS = [
    {"runners": 0, "threads": 1},
    {"runners": 0, "threads": 2},
    {"runners": 1, "threads": 1},
    {"runners": 2, "threads": 1},
]


def make_env(request: dict[str, Any]) -> Any:
    """Return one environment; images in the format of its networks: [84, 84, 4] float32."""
    env = make_one(request)
    if request["network"] != "nature_cnn":
        return env
    import gymnasium
    import numpy as np

    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    return gymnasium.wrappers.TransformObservation(
        env, lambda image: np.asarray(image, np.float32).transpose(1, 2, 0) / 255.0, space
    )


def configuration(request: dict[str, Any]) -> Any:
    """Return its configuration; options outside the work keep the library's defaults."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    runners = request["setting"].get("runners", 0)
    if request["network"] == "nature_cnn":
        model = DefaultModelConfig(
            conv_filters=[(32, 8, 4), (64, 4, 2), (64, 3, 1)],
            conv_activation="relu",
            head_fcnet_hiddens=[512],
            head_fcnet_activation="relu",
            vf_share_layers=True,
        )
    else:
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment("work", env_config=request)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=request["num_envs"] // max(runners, 1),
            rollout_fragment_length=request["rollout"],
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=request["num_envs"] * request["rollout"],
            minibatch_size=request["minibatch"],
            num_epochs=request["epochs"],
            lr=request["learning_rate"],
            gamma=request["gamma"],
            lambda_=request["gae_lambda"],
            clip_param=request["clip_ratio"],
            grad_clip=request["max_grad_norm"],
            use_kl_loss=False,
        )
        .debugging(log_level="ERROR")
    )


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = here  # its workers import this file again
    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(request["setting"].get("threads", 1))
    # Loopback only. Its processes are descendants of this one, and are counted with it.
    ray.init(include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    register_env("work", make_env)
    algorithm = configuration(request).build_algo()
    learner = algorithm.learner_group._learner
    steps = count_steps(*learner._named_optimizers.values())
    full, env_steps, updates = False, 0, 0
    while not full:
        result = algorithm.train()
        env_steps = int(result["num_env_steps_sampled_lifetime"])
        updates += 1
        full = meter.update(env_steps)
    done = done_work(
        request,
        parameters=sum(p.numel() for p in learner.module["default_policy"].parameters()),
        gradient_steps=round(steps() / updates),
        notes=notes(env_steps / updates, request),
    )
    meter.report("rllib", done, request["setting"], versions_of("ray", "torch", "gymnasium", "numpy"))
    leave()


def notes(rows_per_update: float, request: dict[str, Any]) -> list[str]:
    """Return the differences: how many rows an update really had."""
    rows = request["num_envs"] * request["rollout"]
    found = [f"{rows_per_update:.0f} rows an update for {rows}"] if abs(rows_per_update / rows - 1) > 0.02 else []
    return found + (["images as float32"] if request["network"] == "nature_cnn" else [])


if __name__ == "__main__":
    command(SETTINGS, main)
