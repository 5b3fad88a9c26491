"""A recurrent PPO with an auxiliary loss. `python examples/recurrent_ppo.py` learns CartPole without its velocities.

A GRU reads the observations; beside policy and value it predicts the next observation. The optimizer is AdamW with a cosine
schedule, and advantages are scaled by the range between two percentiles of the returns of all devices.
Source: PPO is Schulman et al. 2017, the range of percentiles Hafner et al., "DreamerV3" (2023).
"""

import dataclasses
from typing import ClassVar, NamedTuple

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jsrl
from jsrl.extend import (
    GRU,
    ActOutput,
    ActParams,
    Agent,
    AgentState,
    Rows,
    UpdateOutput,
    gae,
    masked_mean,
    masked_percentile,
    mean_gradient,
    row_mask,
)


@dataclasses.dataclass(frozen=True)
class RecurrentPPOConfig:
    """Options of the recurrent PPO. num_updates: of the whole run, for the cosine schedule."""

    learning_rate: float = 2e-3
    num_updates: int = 80
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_coef: float = 0.01
    aux_coef: float = 0.5
    num_epochs: int = 4
    num_minibatches: int = 4
    weight_decay: float = 1e-4
    range_decay: float = 0.9
    hidden: int = 64

    factory: ClassVar[str] = "recurrent_ppo:make_agent"
    learns_from: ClassVar[str] = "fresh"


class Network(nn.Module):
    """Observations [T, B, S], is_first [T, B], core [B, H] to logits, values, predictions [T, B, A, S], next core."""

    num_actions: int
    obs_size: int
    hidden: int

    @nn.compact
    def __call__(self, observation, is_first, core):
        """Run the rows in order; the core begins anew where is_first is 1."""
        hidden, core = GRU(self.hidden)(nn.tanh(nn.Dense(self.hidden)(observation)), is_first, core)
        logits = nn.Dense(self.num_actions)(nn.tanh(nn.Dense(self.hidden)(hidden)))
        value = nn.Dense(1)(nn.tanh(nn.Dense(self.hidden)(hidden)))[..., 0]
        prediction = nn.Dense(self.num_actions * self.obs_size)(hidden)
        return logits, value, prediction.reshape(*value.shape, self.num_actions, self.obs_size), core


class Batch(NamedTuple):
    """What the loss reads. Leaves [T, B, ...]; core [B, H]."""

    observation: jax.Array
    next_observation: jax.Array
    is_first: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    mask: jax.Array
    core: jax.Array

    def take(self, columns):
        """Return the minibatch of these columns."""
        rows = self._replace(core=())
        return jax.tree.map(lambda leaf: leaf[:, columns], rows)._replace(core=self.core[columns])


def log_prob_of(logits, action):
    """Return the log-probability of actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def make_agent(config: RecurrentPPOConfig, spec) -> Agent:
    """Return the agent for discrete actions and flat observations."""
    network = Network(spec.action.num_actions, spec.observation.shape[0], config.hidden)
    steps_per_update = config.num_epochs * config.num_minibatches
    schedule = optax.cosine_decay_schedule(config.learning_rate, config.num_updates * steps_per_update, alpha=0.05)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, weight_decay=config.weight_decay))

    def initial_core(batch_size):
        return jnp.zeros((batch_size, config.hidden))

    def init(key):
        observation = jnp.zeros((1, 1, *spec.observation.shape))
        weights = network.init(key, observation, jnp.ones((1, 1), bool), initial_core(1))
        extra = jnp.zeros(2)  # running 5% and 95% percentile of the returns
        return AgentState(ActParams(weights), (), optimizer.init(weights), extra, jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        logits, _, _, core = network.apply(params.weights, observation[None], is_first[None], core)
        action = jnp.argmax(logits[0], -1) if greedy else jax.random.categorical(key, logits[0])
        action = action.astype(jnp.int32)
        return ActOutput(action, log_prob_of(logits[0], action)), core

    def prepare(state, trajectory, axis_name):
        """Return the batch and the new range of returns."""
        _, value, _, _ = network.apply(
            state.params.weights, trajectory.observation, trajectory.is_first, trajectory.core
        )
        rows = Rows(value, trajectory.reward[:-1], trajectory.discount[:-1], trajectory.acts, trajectory.is_first)
        advantage, target = gae(rows, gamma=config.gamma, lambda_=config.gae_lambda)
        mask = row_mask(trajectory)
        new = masked_percentile(target, mask, jnp.array([5.0, 95.0]), axis_name)
        mixed = jnp.where(state.updates == 0, new, config.range_decay * state.extra + (1 - config.range_decay) * new)
        span = jnp.where(jnp.isnan(new), state.extra, mixed)  # NaN: no row to learn from
        advantage = (advantage - masked_mean(advantage, mask, axis_name)) / jnp.maximum(1.0, span[1] - span[0])
        batch = Batch(
            observation=trajectory.observation[:-1],
            next_observation=trajectory.observation[1:],
            is_first=trajectory.is_first[:-1],
            action=trajectory.action[:-1],
            log_prob=trajectory.log_prob[:-1],
            advantage=advantage,
            target=target,
            mask=mask,
            core=trajectory.core,
        )
        return batch, span

    def loss_of(batch, scale):
        def loss(weights, mean):
            logits, value, prediction, _ = network.apply(weights, batch.observation, batch.is_first, batch.core)
            ratio = jnp.exp(log_prob_of(logits, batch.action) - batch.log_prob)
            surrogate = jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 0.8, 1.2) * batch.advantage)
            predicted = jnp.take_along_axis(prediction, batch.action[..., None, None], axis=-2)[..., 0, :]
            metrics = {
                "loss_policy": -mean(surrogate),
                "loss_value": mean(((batch.target - value) / scale) ** 2),
                "loss_aux": mean(jnp.sum((predicted - batch.next_observation) ** 2, axis=-1)),
                "entropy": mean(-jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1)),
            }
            total = metrics["loss_policy"] + 0.5 * metrics["loss_value"]
            return total + config.aux_coef * metrics["loss_aux"] - config.entropy_coef * metrics["entropy"], metrics

        return loss

    def update(state, trajectory, key, *, axis_name=None):
        batch, span = prepare(state, trajectory, axis_name)
        scale = jnp.maximum(1.0, span[1] - span[0])

        def gradient_step(carry, columns):
            weights, opt_state = carry
            part = batch.take(columns)
            gradients, metrics = mean_gradient(loss_of(part, scale), weights, part.mask, axis_name)
            steps, opt_state = optimizer.update(gradients, opt_state, weights)
            metrics["grad_norm"] = optax.tree.norm(gradients)
            return (optax.apply_updates(weights, steps), opt_state), metrics

        columns = batch.mask.shape[1]
        keys = jax.random.split(key, config.num_epochs)
        orders = jax.vmap(lambda k: jax.random.permutation(k, columns))(keys).reshape(steps_per_update, -1)
        (weights, opt_state), metrics = jax.lax.scan(gradient_step, (state.params.weights, state.opt_state), orders)
        updates = state.updates + 1
        metrics = jax.tree.map(jnp.mean, metrics) | {"learning_rate": schedule(updates * steps_per_update)}
        return AgentState(ActParams(weights), (), opt_state, span, updates), UpdateOutput(metrics)

    return Agent(init, initial_core, act, update)


class WithoutVelocity(gymnasium.ObservationWrapper):
    """CartPole's positions; the velocities must be remembered."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        """Return position and angle."""
        return observation[[0, 2]]


if __name__ == "__main__":
    result = jsrl.run(
        jsrl.Experiment(
            agent=RecurrentPPOConfig(),
            env=jsrl.EnvConfig(id="CartPole-v1", wrappers=(WithoutVelocity,)),
            total_env_steps=80 * 2048,
        )
    )
    print(result)
