"""SBX's SAC and TD3 (Stable-Baselines in JAX) on a work of replay: `python run_sbx_replay.py JSON`, in its own environment."""

from __future__ import annotations

import os

from measuring import Meter, command, read_request, versions_of
from replay_works import seen

SETTINGS = [{"one_thread": True}, {"threads": 2}]


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    if request["setting"].get("one_thread"):
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import jax
    from run_sb3_replay import drive, make_model
    from sbx import SAC, TD3

    shape = {"net_arch": {"pi": [request["width"]] * 2, "qf": [request["width"]] * 2}}
    model = make_model({"sac": SAC, "td3": TD3}[request["algorithm"]], request, policy_kwargs=shape)
    ratio = drive(model, request, meter)
    states = (model.policy.actor_state.params, model.policy.qf_state.params)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(states))
    made = int(model.policy.qf_state.step)
    if made != model._n_updates:
        raise SystemExit(f"the critics' optimizer made {made} steps where the model counts {model._n_updates} updates")
    found = {"updates_per_step": round(ratio, 2)} if ratio is not None else {}
    done = seen(request, parameters=parameters, batch=model.batch_size, num_envs=model.n_envs, **found)
    packages = versions_of("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")
    meter.report("sbx", done, request["setting"], packages)
    model.env.close()


if __name__ == "__main__":
    command(SETTINGS, main)
