"""CrossQ: SAC without target networks, with batch renormalisation in the critics. `python examples/crossq.py` learns Pendulum.

Source: Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning" (ICLR 2024). Differs: smaller networks, as
the task is small, and none of the policy's layers is normalised.
"""

import dataclasses
import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jsrl
from jsrl.extend import (
    ActOutput,
    ActParams,
    Agent,
    AgentState,
    UpdateOutput,
    action_box,
    every,
    masked_mean,
    mean_gradient,
    normal_columns,
    squashed_gaussian,
    transition,
)


@dataclasses.dataclass(frozen=True)
class CrossQConfig:
    """Options of CrossQ."""

    learning_rate: float = 1e-3
    gamma: float = 0.99
    policy_hidden: int = 64
    critic_hidden: int = 128
    policy_delay: int = 3
    adam_b1: float = 0.5
    momentum: float = 0.99
    renorm_warmup: int = 2_000

    factory: ClassVar[str] = "crossq:make_agent"
    learns_from: ClassVar[str] = "replay"
    usual_replay: ClassVar[dict] = {
        "min_size": 1_000,
        "updates_per_env_step": 1.0,
    }


class BatchRenorm(nn.Module):
    """Batch renormalisation of [B, F] over the rows with mask 1 of all devices."""

    momentum: float
    warmup: int
    axis_name: str | None

    @nn.compact
    def __call__(self, x, mask, train):
        """Normalise with the batch's statistics, or with the running ones."""
        size = x.shape[-1:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        running_var = self.variable("batch_stats", "var", jnp.ones, size)
        steps = self.variable("batch_stats", "steps", jnp.zeros, (), jnp.int32)
        scale = self.param("scale", nn.initializers.ones, size)
        bias = self.param("bias", nn.initializers.zeros, size)
        running_std = jnp.sqrt(running_var.value + 1e-3)
        if not train:
            return (x - running_mean.value) / running_std * scale + bias
        mean_of = jax.vmap(lambda column: masked_mean(column, mask, self.axis_name), in_axes=1)
        mean = mean_of(x)
        var = mean_of((x - mean) ** 2)
        std = jnp.sqrt(var + 1e-3)
        warm = steps.value >= self.warmup
        r = jnp.where(warm, jnp.clip(std / running_std, 1 / 3, 3.0), 1.0)
        d = jnp.where(warm, jnp.clip((mean - running_mean.value) / running_std, -5.0, 5.0), 0.0)
        if not self.is_initializing():
            learns = mean_of(jnp.ones_like(x))  # 0 where the whole batch is masked
            keep = 1.0 - (1.0 - self.momentum) * learns
            running_mean.value = keep * running_mean.value + (1.0 - keep) * jax.lax.stop_gradient(mean)
            running_var.value = keep * running_var.value + (1.0 - keep) * jax.lax.stop_gradient(var)
            steps.value = steps.value + learns[0].astype(jnp.int32)
        return ((x - mean) / std * jax.lax.stop_gradient(r) + jax.lax.stop_gradient(d)) * scale + bias


class Critic(nn.Module):
    """Observations [B, S] and unit actions [B, A] to values [B]."""

    hidden: int
    norm: functools.partial  # makes a BatchRenorm

    @nn.compact
    def __call__(self, observation, action, mask, train):
        """Return the values."""
        x = self.norm()(jnp.concatenate([observation, action], -1), mask, train)
        for _ in range(2):
            x = self.norm()(nn.relu(nn.Dense(self.hidden)(x)), mask, train)
        return nn.Dense(1)(x)[..., 0]


class Policy(nn.Module):
    """Observations [B, S] to mean and log_std [B, A]."""

    hidden: int
    action_size: int

    @nn.compact
    def __call__(self, observation):
        """Return mean and log_std of the Gaussian before tanh."""
        x = nn.relu(nn.Dense(self.hidden)(nn.relu(nn.Dense(self.hidden)(observation))))
        return nn.Dense(self.action_size)(x), jnp.clip(nn.Dense(self.action_size)(x), -10.0, 2.0)


Critics = nn.vmap(  # two critics, their parameters and statistics stacked along axis 0
    Critic, variable_axes={"params": 0, "batch_stats": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2
)


def make_agent(config: CrossQConfig, spec) -> Agent:
    """Return the agent for continuous actions with finite bounds."""
    box = action_box(spec)
    size = len(spec.action.low)
    gaussian = squashed_gaussian()
    optimizer = optax.adam(config.learning_rate, b1=config.adam_b1)
    policy = Policy(config.policy_hidden, size)

    def critics(axis_name=None):
        return Critics(
            config.critic_hidden, functools.partial(BatchRenorm, config.momentum, config.renorm_warmup, axis_name)
        )

    def init(key):
        key_policy, key_critics = jax.random.split(key)
        observation, action = jnp.zeros((1, *spec.observation.shape)), jnp.zeros((1, size))
        weights = {"policy": policy.init(key_policy, observation), "updates": jnp.zeros((), jnp.int32)}
        critic = critics().init(key_critics, observation, action, jnp.ones(1), False)
        log_alpha = jnp.zeros(())
        opt_state = {
            "critic": optimizer.init(critic["params"]),
            "policy": optimizer.init(weights["policy"]),
            "alpha": optimizer.init(log_alpha),
        }
        extra = {"log_alpha": log_alpha, "loss_policy": jnp.zeros(()), "entropy": jnp.zeros(())}
        return AgentState(ActParams(weights), critic, opt_state, extra, jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        outputs = policy.apply(params.weights["policy"], observation)
        u = gaussian.mode(outputs) if greedy else gaussian.sample(key, outputs)
        unit, log_prob = jnp.tanh(u), gaussian.log_prob(outputs, u)
        if not greedy:  # before the first update: uniformly random
            begins = params.weights["updates"] == 0
            uniform = jax.random.uniform(jax.random.fold_in(key, 1), unit.shape, minval=-1.0, maxval=1.0)
            unit = jnp.where(begins, uniform, unit)
            log_prob = jnp.where(begins, -size * jnp.log(2.0), log_prob)
        return ActOutput(box.from_unit(unit), log_prob), core

    def sample(key, outputs, axis_name):
        mean, log_std = outputs
        u = mean + jnp.exp(log_std) * normal_columns(key, mean.shape, axis_name)
        return jnp.tanh(u), gaussian.log_prob(outputs, u)

    def learn_critic(state, batch, key, axis_name):
        critic, weights = state.learner_params, state.params.weights
        next_action, next_log_prob = sample(key, policy.apply(weights["policy"], batch.next_observation), axis_name)
        joint = (
            jnp.concatenate([batch.observation, batch.next_observation]),
            jnp.concatenate([box.to_unit(batch.action), next_action]),
            jnp.concatenate([batch.mask, batch.mask]),
        )

        def loss(params, mean):
            variables = {"params": params, "batch_stats": critic["batch_stats"]}
            q, new = critics(axis_name).apply(variables, *joint, True, mutable=["batch_stats"])
            q, q_next = jnp.split(q, 2, axis=1)  # [2, B] each
            value = q_next.min(0) - jnp.exp(state.extra["log_alpha"]) * next_log_prob
            error = q - jax.lax.stop_gradient(batch.reward + batch.discount * value)
            loss_value = mean((error**2).sum(0) * batch.weight)  # weight: the importance weights of prioritised replay
            metrics = {"loss_value": loss_value, "value_mean": mean(q.mean(0))}
            return loss_value, (metrics, new["batch_stats"], jnp.abs(error).mean(0))

        gradients, (metrics, stats, error) = mean_gradient(loss, critic["params"], batch.mask, axis_name)
        steps, opt_state = optimizer.update(gradients, state.opt_state["critic"], critic["params"])
        return {"params": optax.apply_updates(critic["params"], steps), "batch_stats": stats}, opt_state, metrics, error

    def update(state, trajectory, key, *, axis_name=None):
        batch = transition(trajectory, config.gamma, axis_name)
        key_next, key_policy = jax.random.split(key)
        critic, opt_critic, metrics, error = learn_critic(state, batch, key_next, axis_name)

        def loss(weights, mean):
            action, log_prob = sample(key_policy, policy.apply(weights, batch.observation), axis_name)
            q = critics().apply(critic, batch.observation, action, batch.mask, False).min(0)
            alpha = jnp.exp(state.extra["log_alpha"])
            loss_policy, entropy = mean(alpha * log_prob - q), -mean(log_prob)
            return loss_policy, {"loss_policy": loss_policy, "entropy": entropy}

        def learn_policy(kept):
            weights, log_alpha, opt_policy, opt_alpha = kept
            gradients, reported = mean_gradient(loss, weights, batch.acting, axis_name)
            steps, opt_policy = optimizer.update(gradients, opt_policy, weights)
            any_row = masked_mean(jnp.ones_like(batch.acting), batch.acting, axis_name)  # 0: nothing to learn from
            slope = any_row * (reported["entropy"] + size)  # the target entropy is -A
            step, opt_alpha = optimizer.update(slope, opt_alpha)
            return (optax.apply_updates(weights, steps), log_alpha + step, opt_policy, opt_alpha), reported

        kept = (
            state.params.weights["policy"],
            state.extra["log_alpha"],
            state.opt_state["policy"],
            state.opt_state["alpha"],
        )
        last = {name: state.extra[name] for name in ("loss_policy", "entropy")}
        kept, reported = every(config.policy_delay, state.updates, learn_policy, kept, last)
        weights, log_alpha, opt_policy, opt_alpha = kept
        updates = state.updates + 1
        new = AgentState(
            ActParams({"policy": weights, "updates": updates}),
            critic,
            {"critic": opt_critic, "policy": opt_policy, "alpha": opt_alpha},
            {"log_alpha": log_alpha, **reported},
            updates,
        )
        metrics |= {"temperature": jnp.exp(log_alpha), **reported}
        return new, UpdateOutput(metrics, error * batch.mask)

    return Agent(init, lambda batch_size: (), act, update)


if __name__ == "__main__":
    result = jsrl.run(
        jsrl.Experiment(agent=CrossQConfig(), env=jsrl.EnvConfig(id="Pendulum-v1"), total_env_steps=20_000)
    )
    print(result)
