"""An algorithm of your own: four pure functions in a value. This one is advantage actor-critic (A2C).

`jsrl.extend.Agent` defines the contract of each function; `test_project.py` checks it with `check_agent`.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jsrl.extend import ActOutput, ActParams, Agent, AgentState, Rows, UpdateOutput, gae, mean_gradient, row_mask


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """Options of the algorithm; each is one of the command line, such as `--agent.learning-rate 1e-3`."""

    learning_rate: float = 3e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_coef: float = 0.01

    factory: ClassVar[str] = "algorithm:make_agent"


class Network(nn.Module):
    """Observations [..., S] to logits [..., A] and values [...]."""

    num_actions: int

    @nn.compact
    def __call__(self, observation):
        """Return logits and values."""
        hidden = nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(observation))))
        return nn.Dense(self.num_actions)(hidden), nn.Dense(1)(hidden)[..., 0]


def log_prob_of(logits, action):
    """Return the log-probability of actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def make_agent(config: AgentConfig, spec) -> Agent:
    """Return the agent for an environment with discrete actions."""
    network = Network(spec.action.num_actions)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(config.learning_rate))

    def init(key):
        weights = network.init(key, jnp.zeros(spec.observation.shape))
        return AgentState(ActParams(weights), (), optimizer.init(weights), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        logits, _ = network.apply(params.weights, observation)
        action = jnp.argmax(logits, -1) if greedy else jax.random.categorical(key, logits)
        return ActOutput(action.astype(jnp.int32), log_prob_of(logits, action)), core

    def update(state, trajectory, key, *, axis_name=None):
        weights = state.params.weights
        _, value = network.apply(weights, trajectory.observation)  # [T+1, B]
        reward, discount = trajectory.reward[:-1], trajectory.discount[:-1]
        rows = Rows(value, reward, discount, trajectory.acts, trajectory.is_first)
        advantage, target = gae(rows, gamma=config.gamma, lambda_=config.gae_lambda)
        mask = row_mask(trajectory)  # 0 where the episode was over and the action ignored

        def loss(weights, mean):  # mean(x): over the rows with mask 1, on all devices
            logits, value = network.apply(weights, trajectory.observation[:-1])  # [T, B, A], [T, B]
            loss_policy = -mean(log_prob_of(logits, trajectory.action[:-1]) * (advantage - mean(advantage)))
            loss_value = mean((target - value) ** 2)
            entropy = mean(-jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1))
            metrics = {"loss_policy": loss_policy, "loss_value": loss_value, "entropy": entropy}
            return loss_policy + 0.5 * loss_value - config.entropy_coef * entropy, metrics

        gradients, metrics = mean_gradient(loss, weights, mask, axis_name)
        steps, opt_state = optimizer.update(gradients, state.opt_state, weights)
        params = ActParams(optax.apply_updates(weights, steps))
        return AgentState(params, (), opt_state, (), state.updates + 1), UpdateOutput(metrics)

    return Agent(init, lambda batch_size: (), act, update)
