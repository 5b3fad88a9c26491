"""PPO solves CartPole-v1 in a plain loop, with the settings recommended for wall-clock time."""

from typing import NamedTuple

import gymnasium
import jax
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.types import ArraySpec, Discrete, EnvSpec
from tests.marks import nightly

SPEC = EnvSpec(ArraySpec((4,), "float32"), Discrete(2), "CartPole-v1")
SOLVED = PPOConfig(
    learning_rate=4e-3,
    schedule="linear",
    total_updates=58,
    gamma=0.98,
    gae_lambda=0.9,
    num_epochs=8,
    num_minibatches=4,
    normalize_values=True,
)


class Row(NamedTuple):
    observation: np.ndarray
    is_first: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    acts: np.ndarray


class CartPole:
    """Gymnasium's native vector environment (next-step auto-reset) as rows."""

    def __init__(self, num_envs: int):
        self.spec, self.num_envs = SPEC, num_envs
        self.env = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")

    def reset(self, seed: int) -> Row:
        observation, _ = self.env.reset(seed=seed)
        self.over, ones = np.zeros(self.num_envs, bool), np.ones(self.num_envs, np.float32)
        return Row(observation, ones > 0, 0 * ones, ones, ones.astype(np.uint8))

    def step(self, action: np.ndarray) -> Row:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        is_first, self.over = self.over, (terminated | truncated) & ~self.over
        discount = np.where(terminated & ~is_first, 0, 1).astype(np.float32)
        reward = np.where(is_first, 0, reward).astype(np.float32)
        return Row(observation, is_first, reward, discount, np.ones(self.num_envs, np.uint8))


def greedy_return(agent, params, *, episodes: int, seed: int) -> float:
    """Mean return of the first episode of each slot."""
    env = CartPole(episodes)
    row, total, alive = env.reset(seed), np.zeros(episodes), np.ones(episodes, bool)
    act = jax.jit(agent.act, static_argnames="greedy")
    while alive.any():
        reply, _ = act(params, jax.random.key(0), row.observation, row.is_first, (), greedy=True)
        row = env.step(np.asarray(reply.action))
        total += row.reward * alive
        alive &= ~env.over
    return float(total.mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(nightly(seed) for seed in (1, 2))])
def test_ppo_solves_cartpole_within_60k_env_steps(play, seed):
    agent = ppo(SOLVED, SPEC)
    played = play(agent, CartPole(16), num_updates=58, num_rows=64, seed=seed)
    assert greedy_return(agent, played.state.params, episodes=20, seed=1000 + seed) >= 475
