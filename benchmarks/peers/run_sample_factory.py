"""Sample Factory's APPO on a work: `python run_sample_factory.py JSON`, in its own virtual environment."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from environments import make_one, notes
from measuring import Meter, command, done_work, leave, read_request, versions_of

SETTINGS = [
    {"mode": "serial", "workers": 1, "splits": 1, "threads": 1},
    {"mode": "async", "workers": 1, "splits": 2, "threads": 1},
    {"mode": "async", "workers": 2, "splits": 2, "threads": 1},
    {"mode": "sync", "workers": 2, "splits": 1, "threads": 1},
]
RECEIVED = json.loads(sys.argv[1]) if sys.argv[1] != "--settings" else {}


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """Make one environment, in the process that needs it."""
    return make_one(RECEIVED)


def arguments(request: dict[str, Any]) -> list[str]:
    """Return its command line; options outside the work keep the library's defaults."""
    setting = {"mode": "async", "workers": 2, "splits": 2} | request["setting"]
    images = request["network"] == "nature_cnn"
    options: dict[str, Any] = {
        "algo": "APPO",
        "env": "work",
        "experiment": "work",
        "train_dir": os.getcwd(),
        "device": "cpu",
        "serial_mode": setting["mode"] == "serial",
        "async_rl": setting["mode"] == "async",
        "num_workers": setting["workers"],
        "num_envs_per_worker": request["num_envs"] // setting["workers"],
        "worker_num_splits": setting["splits"],
        "use_rnn": False,
        "recurrence": 1,
        "rollout": request["rollout"],
        "batch_size": request["minibatch"],
        "num_batches_per_epoch": request["num_envs"] * request["rollout"] // request["minibatch"],
        "num_epochs": request["epochs"],
        "learning_rate": request["learning_rate"],
        "gamma": request["gamma"],
        "gae_lambda": request["gae_lambda"],
        "ppo_clip_ratio": request["clip_ratio"],
        "max_grad_norm": request["max_grad_norm"],
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
        "adaptive_stddev": False,
        "nonlinearity": "relu" if images else "tanh",
        "actor_critic_share_weights": images,
        "obs_scale": 255.0 if images else 1.0,
        "encoder_conv_architecture": "convnet_atari",
        "decorrelate_envs_on_one_worker": False,
        "train_for_env_steps": 10**12,
        "save_every_sec": 10**6,
        "experiment_summaries_interval": 10**6,
        "heartbeat_reporting_interval": 10**4,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return [*words, "--encoder_mlp_layers", "64", "64", "--encoder_conv_mlp_layers", "512"]


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env("work", make_env)
    words = arguments(request)
    parser, _ = parse_sf_args(argv=words)
    cfg, runner = make_runner(parse_full_cfg(parser, words))
    rows = request["num_envs"] * request["rollout"]

    class Watch(AlgoObserver):
        """Called after every training iteration, which is one update of ours."""

        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            if meter.update(training_iteration_since_resume * rows):
                report(meter, request, cfg, runner)
                leave()

    runner.register_observer(Watch())
    runner.init()
    runner.run()


def report(meter: Meter, request: dict[str, Any], cfg: Any, runner: Any) -> None:
    """Print the result, with the number of parameters of the configured network."""
    from sample_factory.model.actor_critic import create_actor_critic

    network = create_actor_critic(cfg, runner.env_info.obs_space, runner.env_info.action_space)
    done = done_work(
        request,
        parameters=sum(p.numel() for p in network.parameters() if p.requires_grad),
        rollout=cfg.rollout,
        num_envs=cfg.num_workers * cfg.num_envs_per_worker,
        minibatch=cfg.batch_size,
        epochs=cfg.num_epochs,
        gradient_steps=cfg.num_batches_per_epoch * cfg.num_epochs,
        notes=notes(request),
    )
    packages = versions_of("sample-factory", "torch", "gymnasium", "numpy")
    meter.report("sample-factory", done, request["setting"], packages)


if __name__ == "__main__":
    command(SETTINGS, main)
