"""SBX's PPO (Stable-Baselines in JAX) on a work: `python run_sbx.py JSON`, in its own virtual environment."""

from __future__ import annotations

import os

from measuring import Meter, command, read_request, versions_of

SETTINGS = [
    {"vector": "dummy", "one_thread": True},
    {"vector": "dummy", "threads": 2},
    {"vector": "subprocess", "one_thread": True},
]


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    if request["setting"].get("one_thread"):
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import jax
    from run_sb3 import done, train
    from sbx import PPO

    images = request["network"] == "nature_cnn"
    shape = {"share_features_extractor": True} if images else {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    model = train(PPO, request, meter, shape)
    states = (model.policy.actor_state.params, model.policy.vf_state.params)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(states))
    notes = ("the shared torso is kept, and run, once for the actor and once for the critic",) if images else ()
    packages = versions_of("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")
    meter.report("sbx", done(model, request, parameters, notes), request["setting"], packages)
    model.env.close()


if __name__ == "__main__":
    command(SETTINGS, main)
