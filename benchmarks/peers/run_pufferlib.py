"""PufferLib's PPO on a work: `python run_pufferlib.py JSON`, in its own virtual environment."""

from __future__ import annotations

from typing import Any

from environments import make_ale_vector, make_one
from measuring import Meter, command, count_steps, done_work, leave, read_request, versions_of

SETTINGS = [
    {"backend": "Serial", "threads": 1},
    {"backend": "Serial", "threads": 2},
    {"backend": "Multiprocessing", "workers": 2, "threads": 1},
]


def make_vector(request: dict[str, Any]) -> Any:
    """Return its vector environment; games step in ale-py's vector, wrapped as a native environment."""
    import pufferlib.emulation
    import pufferlib.vector

    setting = request["setting"]
    backend, workers = setting.get("backend", "Serial"), setting.get("workers", 1)
    if request["network"] == "nature_cnn":
        from pufferlib_ale import games

        return games(make_ale_vector(request, workers))

    def make(buf: Any = None, seed: int = 0) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(env=make_one(request), buf=buf, seed=seed)

    options = {"num_workers": workers, "batch_size": request["num_envs"], "overwork": True} if workers > 1 else {}
    return pufferlib.vector.make(
        make, num_envs=request["num_envs"], backend=getattr(pufferlib.vector, backend), **options
    )


def trainer_options(request: dict[str, Any]) -> dict[str, Any]:
    """Return the trainer's configuration; options outside the work keep the library's defaults."""
    return {
        "env": request["env"],
        "device": "cpu",
        "seed": 0,
        "torch_deterministic": True,
        "cpu_offload": False,
        "optimizer": "adam",
        "anneal_lr": False,
        "precision": "float32",
        "total_timesteps": 10**12,
        "learning_rate": request["learning_rate"],
        "gamma": request["gamma"],
        "gae_lambda": request["gae_lambda"],
        "update_epochs": request["epochs"],
        "clip_coef": request["clip_ratio"],
        "vf_coef": 0.5,
        "vf_clip_coef": 0.2,
        "max_grad_norm": request["max_grad_norm"],
        "ent_coef": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "data_dir": "experiments",
        "checkpoint_interval": 10**9,
        "batch_size": "auto",
        "minibatch_size": request["minibatch"],
        "max_minibatch_size": request["minibatch"],
        "bptt_horizon": request["rollout"],
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": False,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
        "use_rnn": False,
    }


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    import torch

    torch.set_num_threads(request["setting"].get("threads", 1))
    from pufferlib import pufferl
    from torch_networks import policy

    vector = make_vector(request)
    network = policy(request["network"], vector.single_observation_space, vector.single_action_space)

    class Quiet(pufferl.PuffeRL):
        """Its trainer without the picture that it draws on the terminal several times a second."""

        def print_dashboard(self, *_: Any, **__: Any) -> None:
            pass

    trainer = Quiet(trainer_options(request), vector, network)
    steps = count_steps(trainer.optimizer)
    updates = 0
    full = False
    while not full:
        trainer.evaluate()
        trainer.train()
        updates += 1
        full = meter.update(trainer.global_step)
    done = done_work(
        request,
        parameters=sum(p.numel() for p in network.parameters()),
        rollout=trainer.config["bptt_horizon"],
        num_envs=trainer.total_agents,
        minibatch=trainer.minibatch_size,
        epochs=trainer.config["update_epochs"],
        gradient_steps=steps() // updates,
        notes=["minibatches are whole environments"],
    )
    meter.report("pufferlib", done, request["setting"], versions_of("pufferlib", "torch", "gymnasium", "numpy"))
    vector.close()
    leave()  # its thread that monitors the machine's load never ends


if __name__ == "__main__":
    command(SETTINGS, main)
