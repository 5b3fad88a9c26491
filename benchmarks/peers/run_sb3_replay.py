"""Stable-Baselines3's SAC and TD3 on a work of replay: `python run_sb3_replay.py JSON`, in its own virtual environment."""

from __future__ import annotations

from typing import Any

from environments import make_one
from measuring import Meter, command, count_steps, read_request, versions_of
from replay_works import seen

SETTINGS = [{"threads": 1}, {"threads": 2}]


def make_model(algorithm: type, request: dict[str, Any], **further: Any) -> Any:
    """Return a model of SB3 or SBX: one vector step, then as many gradient steps as there are environments."""
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv

    number = request["num_envs"] if request["part"] == "learning" else 1
    td3 = request["algorithm"] == "td3"
    noise = {"action_noise": NormalActionNoise(np.zeros(6), np.full(6, 0.1))} if td3 else {}
    return algorithm(
        "MlpPolicy",
        DummyVecEnv([lambda: make_one(request) for _ in range(number)]),
        buffer_size=request["rows"],
        batch_size=request["batch"],
        learning_rate=request["learning_rate"],
        gamma=request["gamma"],
        tau=request["tau"],
        learning_starts=request["learning_starts"],
        train_freq=1,
        gradient_steps=-1 if request["updates_per_step"] == 1 else max(1, round(number * request["updates_per_step"])),
        device="cpu",
        **({"policy_delay": request["policy_delay"]} if td3 else {}),
        **noise,
        **further,
    )


def fill(buffer: Any) -> None:
    """Fill a replay buffer with random rows."""
    import numpy as np

    rng = np.random.default_rng(0)
    for leaf in (buffer.observations, buffer.next_observations, buffer.rewards):
        leaf[...] = rng.normal(size=leaf.shape)
    buffer.actions[...] = rng.uniform(-1, 1, size=buffer.actions.shape)
    buffer.pos, buffer.full = 0, True


def train_alone(model: Any, request: dict[str, Any], meter: Meter) -> None:
    """Make gradient steps from random rows until the window is full."""
    model._setup_learn(total_timesteps=1)
    fill(model.replay_buffer)
    made, full = 0, False
    while not full:
        model.train(gradient_steps=request["updates_per_call"], batch_size=request["batch"])
        made += request["updates_per_call"]
        full = meter.update(made)


def learn(model: Any, request: dict[str, Any], meter: Meter) -> float:
    """Step environments and learn until the window is full; return the gradient steps per env step since the first ones."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        """Calls the meter with env steps once updates are made; rows before the last rollout have been learned from."""

        full = False

        def _init_callback(self) -> None:
            self.counts: list[tuple[int, int]] = []

        def _on_rollout_start(self) -> None:
            if self.model._n_updates:
                self.counts[1:] = []  # keep the first
                self.counts.append((self.num_timesteps, self.model._n_updates))
                self.full = meter.update(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.full

    watch = Watch()
    model.learn(total_timesteps=10**12, callback=watch, log_interval=10**9)
    (begin_steps, begin_updates), (env_steps, updates) = watch.counts[0], watch.counts[-1]
    return (updates - begin_updates) / (env_steps - begin_steps)


def drive(model: Any, request: dict[str, Any], meter: Meter) -> float | None:
    """Run the work; return the gradient steps per env step, only for the part `learning`."""
    if request["part"] == "updates":
        train_alone(model, request, meter)
        return None
    return learn(model, request, meter)


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    import torch
    from stable_baselines3 import SAC, TD3

    torch.set_num_threads(request["setting"].get("threads", 1))
    shape = {"net_arch": [request["width"], request["width"]]}
    model = make_model({"sac": SAC, "td3": TD3}[request["algorithm"]], request, policy_kwargs=shape)
    steps = count_steps(model.critic.optimizer)
    ratio = drive(model, request, meter)
    if steps() != model._n_updates:
        raise SystemExit(
            f"the critics' optimizer made {steps()} steps where the model counts {model._n_updates} updates"
        )
    parameters = sum(p.numel() for network in (model.actor, model.critic) for p in network.parameters())
    found = {"updates_per_step": round(ratio, 2)} if ratio is not None else {}
    done = seen(request, parameters=parameters, batch=model.batch_size, num_envs=model.n_envs, **found)
    packages = versions_of("stable-baselines3", "torch", "gymnasium", "numpy")
    meter.report("sb3", done, request["setting"], packages)
    model.env.close()


if __name__ == "__main__":
    command(SETTINGS, main)
