"""A learning curve of SBX (Stable-Baselines in JAX): `python run_curve.py ppo_cartpole --seed 0`, in its own environment.

Each task has the environment, networks and hyperparameters of the jsrl experiment of the same name, as far as SBX supports
them (`note` lists the differences). Greedy episodes are played at a fixed interval of env steps. The points go to
benchmarks/results/TASK-sbx-seedN.json, and benchmarks/curves.py draws them with jsrl's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
from environments import make_ale_vector, make_one

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Task:
    """A learning task and its settings.

    Attributes:
      algorithm: class of SBX. settings: its arguments. env_steps: in total. every: env steps between evaluations.
      episodes: greedy ones of an evaluation. goal: mean return that ends the run, if any. hidden: layers of every network.
      relu: their activation; else tanh. noise: standard deviation of the noise on played actions. normalize: normalise
        observations and rewards by running moments. updates_per_step: gradient steps per env step, with replay. images: a
        game from pixels, with the Nature CNN. note: the differences from jsrl's settings.
    """

    algorithm: str
    env: str
    settings: dict[str, Any]
    env_steps: int
    every: int
    num_envs: int = 8
    episodes: int = 20
    goal: float | None = None
    hidden: tuple[int, ...] = (256, 256)
    relu: bool = True
    note: str = ""
    noise: float | None = None
    normalize: bool = False
    updates_per_step: float = 1.0
    images: bool = False


PENDULUM = {"batch_size": 256, "buffer_size": 1_000_000, "learning_starts": 1_000, "gamma": 0.99, "tau": 0.005}
PPO = {"clip_range": 0.2, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
TASKS = {
    "ppo_cartpole": Task(
        "PPO",
        "CartPole-v1",
        {"n_steps": 64, "batch_size": 256, "n_epochs": 8, "gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 3e-3}
        | PPO,
        env_steps=100_000,
        every=5_000,
        num_envs=16,
        goal=490.0,
        hidden=(64, 64),
        relu=False,
        note="advantages are normalised per minibatch",
    ),
    "ppo_halfcheetah": Task(
        "PPO",
        "HalfCheetah-v5",
        {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4}
        | PPO,
        env_steps=1_000_000,
        every=100_000,
        num_envs=16,
        episodes=10,
        hidden=(64, 64),
        relu=False,
        normalize=True,
        note="advantages are normalised per minibatch; rewards are normalised, not values",
    ),
    "ppo_pong": Task(
        "PPO",
        "ALE/Pong-v5",
        {"n_steps": 128, "batch_size": 128, "n_epochs": 2, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 5e-4}
        | PPO
        | {"ent_coef": 0.01},
        env_steps=4_000_000,
        every=100_000,
        num_envs=16,
        episodes=10,
        goal=18.0,
        images=True,
        note="advantages are normalised per minibatch; the shared torso is run once for the actor and once for the critic",
    ),
    "dqn_cartpole": Task(
        "DQN",
        "CartPole-v1",
        {"batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99, "learning_rate": 1e-3}
        | {"target_update_interval": 200, "exploration_fraction": 0.08, "exploration_final_eps": 0.04, "n_steps": 3},
        env_steps=100_000,
        every=5_000,
        num_envs=16,
        episodes=100,
        goal=490.0,
        hidden=(128, 128),
        updates_per_step=0.5,
        note="neither double Q-learning nor a duelling head",
    ),
    "sac_pendulum": Task(
        "SAC",
        "Pendulum-v1",
        PENDULUM | {"learning_rate": 1e-3, "tau": 0.01, "gamma": 0.98, "batch_size": 128, "buffer_size": 20_000},
        env_steps=8_000,
        every=1_000,
        hidden=(64, 64),
    ),
    "td3-pendulum": Task(
        "TD3",
        "Pendulum-v1",
        PENDULUM | {"learning_rate": 3e-4, "policy_delay": 2},
        10_000,
        1_000,
        noise=0.1,
        note="targets move at every update, not at every second; the policy learns from the smaller critic",
    ),
    "ddpg-pendulum": Task("DDPG", "Pendulum-v1", PENDULUM | {"learning_rate": 3e-4}, 10_000, 1_000, noise=0.1),
}


def linear(first: float) -> Callable[[float], float]:
    """Return a learning rate that decreases linearly to 0."""
    return lambda left: left * first


def make_envs(task: Task, number: int, *, training: bool) -> Any:
    """Return environments that are stepped together, with their own running moments if the task normalises."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    if task.images:
        from sb3_ale import AleVecEnv

        return AleVecEnv(make_ale_vector({"env": task.env, "num_envs": number, "frames_per_step": 4}, threads=1))
    envs: Any = DummyVecEnv([lambda: make_one({"env": task.env}) for _ in range(number)])
    if task.normalize:
        gamma = task.settings["gamma"]
        return VecNormalize(envs, training=training, norm_reward=training, gamma=gamma)
    return envs


def model_of(task: Task, seed: int) -> Any:
    """Return SBX's model of a task."""
    import jax
    import numpy as np
    import sbx
    from stable_baselines3.common.noise import NormalActionNoise

    env = make_envs(task, task.num_envs, training=True)
    settings = dict(task.settings)
    if task.algorithm == "PPO":
        settings["learning_rate"] = linear(settings["learning_rate"])
    else:
        settings |= {"train_freq": 1, "gradient_steps": round(task.num_envs * task.updates_per_step)}
    if task.noise is not None:
        size = env.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, task.noise))
    if task.algorithm == "SAC":
        settings["qf_learning_rate"] = settings["learning_rate"]
    layers: Any = {"pi": list(task.hidden), "vf" if task.algorithm == "PPO" else "qf": list(task.hidden)}
    if task.algorithm == "DQN":
        layers = list(task.hidden)
    shape = {"net_arch": layers, "activation_fn": jax.nn.relu if task.relu else jax.numpy.tanh}
    policy, shape = ("CnnPolicy", {"share_features_extractor": True}) if task.images else ("MlpPolicy", shape)
    return getattr(sbx, task.algorithm)(policy, env, seed=seed, device="cpu", policy_kwargs=shape, **settings)


def learn(
    model: Any, task: Task, stop_after: int, points: list[list[float]], keep: Callable[[list[list[float]]], None]
) -> None:
    """Learn until the goal or `stop_after` env steps; add evaluations to `points`, and keep them after each.

    An evaluation is (env steps, mean return, half of its 95% interval).
    """
    import numpy as np
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import sync_envs_normalization

    env = make_envs(task, task.episodes, training=False)

    def evaluate() -> float:
        sync_envs_normalization(model.get_env(), env)
        returns, _ = evaluate_policy(
            model, env, task.episodes, deterministic=True, return_episode_rewards=True, warn=False
        )
        half = 1.96 * float(np.std(returns, ddof=1)) / len(returns) ** 0.5
        points.append([model.num_timesteps, round(float(np.mean(returns)), 2), round(half, 2)])
        print(*points[-1], flush=True)
        keep(points)
        return float(np.mean(returns))

    class Watch(BaseCallback):
        """Evaluates between rollouts."""

        next_steps, going = len(points) * task.every, True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= self.next_steps:
                self.next_steps += task.every
                mean = evaluate()
                self.going = (task.goal is None or mean < task.goal) and self.num_timesteps < stop_after

        def _on_step(self) -> bool:
            return self.going

    more = task.env_steps - model.num_timesteps
    model.learn(total_timesteps=more, callback=Watch(), log_interval=10**9, reset_num_timesteps=not points)
    if points[-1][0] != model.num_timesteps and model.num_timesteps >= task.env_steps:
        evaluate()


def main() -> None:
    """Learn, and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--stop-after", type=int, help="env steps; schedules stay those of the whole run (default: all)"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--state", type=Path, help="file of the model: written after each evaluation, continued from")
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    task = TASKS[given.task]
    packages = measuring.versions_of("sbx-rl", "stable-baselines3", "jax", "gymnasium")
    command = f"python benchmarks/peers/run_curve.py {given.task} --seed {given.seed}"
    command += f" --stop-after {given.stop_after}" if given.stop_after else ""

    def keep(points: list[list[float]]) -> None:
        kept = {"command": command, "packages": packages, "task": dataclasses.asdict(task), "points": points}
        path.write_text(json.dumps(kept) + "\n")
        if given.state:
            model.save(given.state)

    path, points = given.to / f"{given.task}-sbx-seed{given.seed}.json", list[list[float]]()
    model = model_of(task, given.seed)
    if given.state and given.state.exists():  # its environments begin again
        model = type(model).load(given.state, env=model.get_env(), device="cpu")
        points = json.loads(path.read_text())["points"]
    learn(model, task, given.stop_after or task.env_steps, points, keep)


if __name__ == "__main__":
    main()
