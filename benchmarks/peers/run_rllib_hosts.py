"""RLlib's PPO on the nodes of a Ray cluster: `python run_rllib_hosts.py JSON`, in its own virtual environment.

It prints the env steps sampled after each iteration and runs until it is killed; see benchmarks/scale/beside_rllib.py.
Without an address it makes a cluster of this machine alone; see benchmarks/scale/curve.py.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def make_env(request: dict[str, Any]) -> Any:
    """Return one environment; its networks want float32."""
    import gymnasium
    import numpy as np

    module, _, name = request["env"].partition(":")
    env = getattr(importlib.import_module(module), name)(request["step_s"], request["size"])
    space = gymnasium.spaces.Box(0.0, 1.0, (request["size"],), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda row: np.asarray(row, np.float32) / 255.0, space)


def main() -> None:
    """Train."""
    request = json.loads(sys.argv[1])
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    torch.set_num_threads(1)
    if request["address"]:
        ray.init(address=request["address"], _node_ip_address=request["ip"], log_to_driver=False)
    else:  # this machine alone
        own = {"num_cpus": request["actors"] + 1, "resources": {"host": 100}, "object_store_memory": 150 << 20}
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, **own)
    register_env("sleeping", make_env)
    actors, rows = request["actors"], request["rows"]
    hidden = [request["hidden"], request["hidden"]]
    config = (
        PPOConfig()
        .environment("sleeping", env_config=request)
        .env_runners(
            num_env_runners=actors,
            num_envs_per_env_runner=1,
            rollout_fragment_length=rows,
            custom_resources_per_env_runner={"host": 0.01},
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=1.0)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation="tanh", vf_share_layers=False)
        )
        .training(
            train_batch_size_per_learner=actors * rows,
            minibatch_size=actors * rows // request["minibatches"],
            num_epochs=request["epochs"],
            lr=request["learning_rate"],
            use_kl_loss=False,
        )
        .debugging(log_level="ERROR")
    )
    algorithm = config.build_algo()
    while True:
        result = algorithm.train()
        print(json.dumps({"env_steps": int(result["num_env_steps_sampled_lifetime"])}), flush=True)


if __name__ == "__main__":
    main()
