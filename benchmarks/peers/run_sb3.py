"""Stable-Baselines3's PPO on a work: `python run_sb3.py JSON`, in its own virtual environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from environments import make_ale_vector, make_one
from measuring import Meter, command, count_steps, done_work, read_request, versions_of

SETTINGS = [
    {"vector": "dummy", "threads": 1},
    {"vector": "dummy", "threads": 2},
    {"vector": "subprocess", "threads": 1},
]


def make_vector(request: dict[str, Any]) -> Any:
    """Return all environments in this process or each in its own; games in ale-py's vector (with separate threads)."""
    if request["network"] == "nature_cnn":
        from sb3_ale import AleVecEnv

        return AleVecEnv(make_ale_vector(request, 2 if request["setting"].get("vector") == "subprocess" else 1))
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    kind = SubprocVecEnv if request["setting"].get("vector") == "subprocess" else DummyVecEnv
    return kind([lambda: make_one(request) for _ in range(request["num_envs"])])


def train(ppo: type, request: dict[str, Any], meter: Meter, policy_kwargs: dict[str, Any] | None) -> Any:
    """Train until the window is full and return the model; SB3 and SBX share this interface."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        """Calls the meter at the start of a rollout, when the previous update has ended."""

        full = False

        def _on_rollout_start(self) -> None:
            self.full = self.num_timesteps > 0 and meter.update(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.full

    model = ppo(
        "CnnPolicy" if request["network"] == "nature_cnn" else "MlpPolicy",
        make_vector(request),
        n_steps=request["rollout"],
        batch_size=request["minibatch"],
        n_epochs=request["epochs"],
        learning_rate=request["learning_rate"],
        gamma=request["gamma"],
        gae_lambda=request["gae_lambda"],
        clip_range=request["clip_ratio"],
        max_grad_norm=request["max_grad_norm"],
        policy_kwargs=policy_kwargs,
        device="cpu",
    )
    model.steps_before = counted(model)
    model.learn(total_timesteps=10**12, callback=Watch())
    return model


def counted(model: Any) -> Callable[[], int]:
    """Return a function that returns the number of gradient steps of a model, in torch or JAX."""
    if hasattr(model.policy, "actor_state"):
        return lambda: int(model.policy.actor_state.step)
    return count_steps(model.policy.optimizer)


def done(model: Any, request: dict[str, Any], parameters: int, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what the model really ran, per update."""
    updates = model.num_timesteps // (model.n_envs * model.n_steps)
    return done_work(
        request,
        parameters=parameters,
        minibatch=model.batch_size,
        epochs=model.n_epochs,
        rollout=model.n_steps,
        num_envs=model.n_envs,
        gradient_steps=model.steps_before() // updates,
        notes=list(notes),
    )


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(request["setting"].get("threads", 1))
    shape = None if request["network"] == "nature_cnn" else {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    model = train(PPO, request, meter, shape)
    parameters = sum(p.numel() for p in model.policy.parameters())
    packages = versions_of("stable-baselines3", "torch", "gymnasium", "numpy")
    meter.report("sb3", done(model, request, parameters), request["setting"], packages)
    model.env.close()


if __name__ == "__main__":
    command(SETTINGS, main)
