"""IMPALA: an actor-critic that corrects for policy lag with V-trace; one gradient step per trajectory batch.

Read `impala` first: `update` is the algorithm. Feed-forward and recurrent, for every action spec and number of devices.

Source: Espeholt et al., 2018, arXiv 1802.01561.
Differs: losses are means over the unmasked rows of all devices, not sums (so learning rates do not depend on the batch size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.actor_critic import Weights
from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Means, mean_gradient
from jsrl.agents.distributions import Distribution, distribution
from jsrl.agents.losses import approximate_kl, value_loss
from jsrl.agents.returns import Rows, vtrace
from jsrl.agents.rows import RowMasks, row_margin, row_masks, row_scores, train_only
from jsrl.fields import (
    FiniteFloat,
    NonNegativeFinite,
    NonNegativeFloat,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.networks.model import ActorCritic, NetworkConfig, actor_critic
from jsrl.types import FRESH, Array, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class IMPALAConfig:
    """Hyperparameters of IMPALA."""

    factory: ClassVar[str] = "jsrl.agents.impala:impala"
    learns_from: ClassVar[str] = FRESH
    scores_rows: ClassVar[bool] = True
    explorable: ClassVar[tuple[str, ...]] = (
        "learning_rate", "gamma", "vtrace_lambda", "rho_clip", "c_clip", "value_coef", "entropy_coef", "max_grad_norm",
    )  # fmt: skip

    # fmt: off
    learning_rate: PositiveFinite = option(6e-4, "learning rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    optimizer: Any = option("rmsprop", ac.OPTIMIZER_HELP)
    optimizer_eps: PositiveFinite = option(1e-5, "epsilon of the optimizer.")
    max_grad_norm: PositiveFloat | None = option(0.5, "clip the gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    vtrace_lambda: UnitFloat = option(1.0, "trace decay of V-trace.")
    rho_clip: PositiveFloat = option(1.0, "ceiling of the importance ratio rho.")
    c_clip: NonNegativeFloat = option(1.0, "ceiling of the importance ratio c.")
    value_coef: NonNegativeFinite = option(0.5, "weight of the value loss; that of a library with the whole squared "
        "error is half as large.")
    entropy_coef: FiniteFloat = option(0.01, "weight of the entropy bonus.")
    normalize_observations: bool = option(False, "normalise observations, except images and flags, by running moments.")
    normalize_values: bool = option(False, "normalise the value function by PopArt.")
    network: NetworkConfig = option(help="options of the network.", factory=NetworkConfig)
    # fmt: on


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions."""

    config: IMPALAConfig
    network: ActorCritic
    distribution: Distribution


class Batch(NamedTuple):
    """One update's rows. value moments: at the start of the update, () when values are not normalised.

    observation: normalised [T+1, B, ...]. masks: [T, B] each. scored: [T, B], the policy's mask with rows that are only
      scored.
    margin: from `row_margin`.
    """

    trajectory: Trajectory
    observation: Tree
    value_moments: Tree
    masks: RowMasks
    scored: Array
    margin: Array


def impala(config: IMPALAConfig, spec: EnvSpec) -> Agent:
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    parts = Components(config, actor_critic(config.network, agent_spec), distribution(agent_spec.action))
    optimizer = ac.make_optimizer(config.optimizer, eps=config.optimizer_eps, max_grad_norm=config.max_grad_norm)

    def init(key: Array) -> AgentState:
        weights = Weights(*parts.network.init(key))
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        value_moments = norm.init_value_moments() if config.normalize_values else ()
        params = ActParams(weights.policy, moments)
        return AgentState(params, weights.value, optimizer.init(weights), value_moments, jnp.zeros((), jnp.int32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        weights = Weights(state.params.weights, state.learner_params)
        trajectory = ac.fold_agents(trajectory, spec.num_agents)
        margin = row_margin(trajectory, axis_name)
        scored = row_masks(trajectory, margin)
        masks = train_only(scored, trajectory)
        observation = norm.normalize(state.params.moments, trajectory.observation)
        batch = Batch(trajectory, observation, state.extra, masks, scored.policy, margin)
        # 1. The gradient of the loss over the rows of all devices.
        gradients, (metrics, value, target) = mean_gradient(
            lambda w, mean: loss(parts, w, batch, mean), weights, masks, axis_name
        )
        # 2. One gradient step.
        rate = ac.learning_rate(config, state.updates)
        weights, opt_state = ac.apply_gradients(optimizer, gradients, state.opt_state, weights, rate)
        # 3. The value function moves to the targets' units (PopArt), and the rows enter the observation moments.
        value_moments = state.extra
        if config.normalize_values:
            value_moments = norm.merge_value_moments(state.extra, target, masks.value, axis_name=axis_name)
            head = norm.rescale_head(weights.value, parts.network.value_head, state.extra, value_moments)
            weights = weights._replace(value=head)
        raw = jax.tree.map(lambda x: x[:-1], trajectory.observation)
        params = ActParams(weights.policy, norm.merge_moments(state.params.moments, raw, masks.value, axis_name))
        metrics["explained_variance"] = ac.explained_variance(target, value, masks.value, axis_name)
        metrics["grad_norm"] = optax.tree.norm(gradients)
        metrics["learning_rate"] = rate
        scores = row_scores(trajectory, target, value, scored.policy, spec.num_agents)
        new = AgentState(params, weights.value, opt_state, value_moments, state.updates + 1)
        return new, UpdateOutput(metrics, scores)

    return ac.acting_agent(parts.network, parts.distribution, init, update, spec.num_agents)


def loss(
    parts: Components, weights: Weights, batch: Batch, mean: Means
) -> tuple[Array, tuple[dict[str, Array], Array, Array]]:
    """Return the loss, and (metrics, values [T, B], targets [T, B], raw units)."""
    config, network, chosen = parts
    trajectory = batch.trajectory
    outputs, features, _ = network.policy(weights.policy, batch.observation, trajectory.is_first, trajectory.core)
    value = network.value(weights.value, batch.observation, features)
    played, played_observation, outputs = jax.tree.map(
        lambda x: x[:-1], (trajectory._replace(core=(), sampling=()), batch.observation, outputs)
    )
    outputs = ac.mask_outputs(outputs, played_observation)
    chex.assert_equal_shape([value[:-1], played.reward, played.discount, played.acts, played.log_prob])
    log_prob = jnp.where(batch.scored > 0, chosen.log_prob(outputs, played.action), 0.0)
    log_rho = jax.lax.stop_gradient(jnp.where(batch.scored > 0, log_prob - played.log_prob, 0.0))

    raw = jax.lax.stop_gradient(value)
    if config.normalize_values:
        raw = norm.denormalize_value(batch.value_moments, raw)
    advantage, target = vtrace(
        Rows(raw, played.reward, played.discount, trajectory.acts, trajectory.is_first),
        log_rho,
        gamma=config.gamma,
        lambda_=config.vtrace_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        margin=batch.margin,
    )
    goal = norm.normalize_value(batch.value_moments, target) if config.normalize_values else target
    if config.normalize_values:
        advantage = advantage / batch.value_moments.std

    loss_policy = mean.policy(-log_prob * advantage)
    loss_value = mean.value(value_loss(value[:-1], goal, goal))
    entropy = mean.policy(chosen.entropy(outputs))
    total = loss_policy + config.value_coef * loss_value - config.entropy_coef * entropy
    metrics = {
        "loss": total,
        "loss_policy": loss_policy,
        "loss_value": loss_value,
        "entropy": entropy,
        "approx_kl": mean.policy(approximate_kl(log_rho)),
        "clip_fraction": mean.policy(jnp.exp(log_rho) > config.rho_clip),
    }
    return total, (metrics, raw[:-1], target)
