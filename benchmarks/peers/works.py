"""Works: what every library runs in a comparison, as plain values, and the options with which jsrl runs the same.

A row below is one env step. Two systems run the same work when environment, network, rows per update, minibatch and epochs
agree; `differences` lists the deviations.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

PEERS = ("sb3", "sbx", "rllib", "sample-factory", "pufferlib")


@dataclass(frozen=True)
class Work:
    """One update: rows from `num_envs` environments, `rollout` each, learned from in minibatches, `epochs` times.

    Attributes:
      network: `mlp` (separate actor and critic, 64 and 64 units, tanh) or `nature_cnn` (one torso of 512 features for both).
      parameters: of that network and its heads; compared with a driver's real model.
      frames_per_step: game frames of one env step.
    """

    env: str
    network: str
    parameters: int
    num_envs: int = 16
    rollout: int = 128
    minibatch: int = 512
    epochs: int = 1
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_ratio: float = 0.2
    max_grad_norm: float = 0.5
    frames_per_step: int = 1

    @property
    def rows_per_update(self) -> int:
        """Return the env steps of one update."""
        return self.num_envs * self.rollout

    @property
    def gradient_steps(self) -> int:
        """Return the optimizer's steps of one update."""
        return self.rows_per_update // self.minibatch * self.epochs


def mlp_parameters(observation: int, actions: int, *, continuous: bool) -> int:
    """Return the parameters of two 64-64 networks with a policy and a value head."""
    torso = observation * 64 + 64 + 64 * 64 + 64
    return 2 * torso + 64 * actions + actions + 64 + 1 + (actions if continuous else 0)


def nature_parameters(channels: int, actions: int) -> int:
    """Return the parameters of a Nature CNN on 84x84 images with a policy and a value head."""
    convolutions = (8 * 8 * channels * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (3 * 3 * 64 * 64 + 64)
    return convolutions + 7 * 7 * 64 * 512 + 512 + 512 * actions + actions + 512 + 1


WORKS: dict[str, Work] = {
    "ppo_cartpole": Work("CartPole-v1", "mlp", mlp_parameters(4, 2, continuous=False)),
    "ppo_halfcheetah": Work("HalfCheetah-v5", "mlp", mlp_parameters(17, 6, continuous=True)),
    "ppo_pong": Work("ALE/Pong-v5", "nature_cnn", nature_parameters(4, 6), frames_per_step=4),
}


def jsrl_options(work: Work) -> list[str]:
    """Return the options of run.py with which an experiment on PPOConfig runs exactly this work."""
    options: dict[str, Any] = {
        "num-envs": work.num_envs,
        "rollout-length": work.rollout,
        "agent.num-epochs": work.epochs,
        "agent.num-minibatches": work.rows_per_update // work.minibatch,
        "agent.learning-rate": work.learning_rate,
        "agent.schedule": "constant",
        "agent.gamma": work.gamma,
        "agent.gae-lambda": work.gae_lambda,
        "agent.clip-ratio": work.clip_ratio,
        "agent.max-grad-norm": work.max_grad_norm,
        "agent.normalize-observations": "false",
        "agent.normalize-values": "false",
        "agent.target-kl": "none",
        "agent.values": "acting",  # as in all other libraries: the old values are those of acting
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def jsrl_work(experiment: Any, parameters: int) -> dict[str, Any]:
    """Return the work of a jsrl experiment, in the form of a driver's `work`."""
    rows, agent = experiment.rows_per_update, experiment.agent
    return {
        "env": experiment.env.id,
        "num_envs": experiment.num_envs,
        "rollout": experiment.rollout_length,
        "minibatch": rows // agent.num_minibatches,
        "epochs": agent.num_epochs * experiment.learner.reuse,
        "gradient_steps": agent.num_minibatches * agent.num_epochs * experiment.learner.reuse,
        "learning_rate": agent.learning_rate,
        "parameters": parameters,
    }


def differences(work: Work, done: dict[str, Any]) -> list[str]:
    """Return the differences between a system's run and this work, each in a few words."""
    expected = {**dataclasses.asdict(work), "gradient_steps": work.gradient_steps}
    names = ("env", "num_envs", "rollout", "minibatch", "epochs", "gradient_steps", "parameters", "learning_rate")
    found = [f"{n} {done.get(n)} for {expected[n]}" for n in names if not same(done.get(n), expected[n])]
    return found + list(done.get("notes", ()))


def same(value: Any, expected: Any) -> bool:
    """Return whether two values of a work agree; numbers to a thousandth."""
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return abs(value - expected) <= 1e-3 * abs(expected)
    return bool(value == expected)
