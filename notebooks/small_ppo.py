"""A small PPO for discrete actions."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jsrl.extend import (
    ActOutput,
    ActParams,
    Agent,
    AgentState,
    Rows,
    UpdateOutput,
    gae,
    masked_mean,
    mean_gradient,
    orthogonal,
    row_mask,
)


class Network(nn.Module):
    """Observations [..., S] to logits [..., A] and values [...]."""

    num_actions: int

    @nn.compact
    def __call__(self, observation):
        def torso():
            return nn.Sequential([nn.Dense(64), nn.tanh, nn.Dense(64), nn.tanh])(observation)

        logits = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))(torso())
        return logits, nn.Dense(1)(torso())[..., 0]


def log_prob_of(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def small_ppo(spec, learning_rate=3e-3, num_updates=60, gamma=0.98, gae_lambda=0.9, entropy_coef=0.01, num_epochs=16):
    """Return a small PPO for discrete actions: a value made of four pure functions."""
    network = Network(spec.action.num_actions)
    schedule = optax.linear_schedule(learning_rate, 0.0, num_updates * num_epochs)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule))

    def init(key):
        weights = network.init(key, jnp.zeros(spec.observation.shape))
        return AgentState(ActParams(weights), (), optimizer.init(weights), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        logits, _ = network.apply(params.weights, observation)
        action = jnp.argmax(logits, -1) if greedy else jax.random.categorical(key, logits)
        return ActOutput(action.astype(jnp.int32), log_prob_of(logits, action)), core

    def update(state, trajectory, key, *, axis_name=None):
        _, value = network.apply(state.params.weights, trajectory.observation)  # [T+1, B]
        reward, discount = trajectory.reward[:-1], trajectory.discount[:-1]
        rows = Rows(value, reward, discount, trajectory.acts, trajectory.is_first)
        advantage, target = gae(rows, gamma=gamma, lambda_=gae_lambda)
        mask = row_mask(trajectory)  # 0 where the episode was over and the action ignored
        advantage -= masked_mean(advantage, mask, axis_name)
        advantage /= jnp.sqrt(masked_mean(advantage**2, mask, axis_name)) + 1e-8

        def loss(weights, mean):  # mean(x): over the rows that count, on all devices
            logits, value = network.apply(weights, trajectory.observation[:-1])  # [T, B, A], [T, B]
            ratio = jnp.exp(log_prob_of(logits, trajectory.action[:-1]) - trajectory.log_prob[:-1])
            surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
            loss_policy, loss_value = -mean(surrogate), mean((target - value) ** 2)
            entropy = mean(-jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1))
            metrics = {"loss_policy": loss_policy, "loss_value": loss_value, "entropy": entropy}
            return loss_policy + 0.5 * loss_value - entropy_coef * entropy, metrics

        def gradient_step(carry, _):
            weights, opt_state = carry
            gradients, metrics = mean_gradient(loss, weights, mask, axis_name)
            steps, opt_state = optimizer.update(gradients, opt_state, weights)
            return (optax.apply_updates(weights, steps), opt_state), metrics

        carry = (state.params.weights, state.opt_state)
        (weights, opt_state), metrics = jax.lax.scan(gradient_step, carry, length=num_epochs)
        metrics = jax.tree.map(jnp.mean, metrics)
        return AgentState(ActParams(weights), (), opt_state, (), state.updates + 1), UpdateOutput(metrics)

    return Agent(init, lambda batch_size: (), act, update)
