"""Behaviour cloning: maximise the likelihood of recorded actions, feed-forward and recurrent, for every action spec.

Read `bc` first: `update` is the algorithm in two steps. Its trajectories come from a recording, not from its own acting.

Source: Pomerleau, 1989, "ALVINN: An Autonomous Land Vehicle in a Neural Network" (NeurIPS).
Differs: a recurrent policy reads each window from a fresh core, because the recorded core is another policy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean, mean_gradient
from jsrl.agents.distributions import Distribution, distribution
from jsrl.agents.rows import acting_mask
from jsrl.errors import ConfigError
from jsrl.fields import FiniteFloat, PositiveFinite, PositiveFloat, PositiveInt, option, suggesting
from jsrl.networks.model import ActorCritic, NetworkConfig, actor_critic
from jsrl.types import EITHER, Array, Continuous, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class BCConfig:
    """Hyperparameters of behaviour cloning."""

    factory: ClassVar[str] = "jsrl.agents.bc:bc"
    learns_from: ClassVar[str] = EITHER
    needs_recording: ClassVar[bool] = True

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(1e-3, "learning rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    max_grad_norm: PositiveFloat | None = option(None, "clip the gradient to this global norm; None: no clipping.")
    loss: Literal["log_prob", "mse"] = option("log_prob", "`log_prob`: minus the log-probability of the recorded "
        "action; `mse`: half the squared distance to the most likely action (continuous actions only).")
    entropy_coef: FiniteFloat = option(0.0, "weight of the entropy bonus.")
    normalize_observations: bool = option(False, "normalise observations, except images and flags, by running moments "
        "of the recorded rows.")
    network: NetworkConfig = option(help="options of the network (its value function is not "
        "trained).", factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    # fmt: on


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions."""

    config: BCConfig
    network: ActorCritic
    distribution: Distribution


class Batch(NamedTuple):
    """Rows to imitate [T, B, ...]: normalised observation, is_first, stored action."""

    observation: Tree
    is_first: Array
    action: Array


def bc(config: BCConfig, spec: EnvSpec) -> Agent:
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    if config.loss == "mse" and not isinstance(spec.action, Continuous):
        raise ConfigError(f"loss='mse' needs continuous actions, {spec.name} has {spec.action!r}; use 'log_prob'")
    parts = Components(config, actor_critic(config.network, agent_spec), distribution(agent_spec.action))
    optimizer = ac.make_optimizer(config.optimizer, eps=1e-8, max_grad_norm=config.max_grad_norm)

    def init(key: Array) -> AgentState:
        weights, _ = parts.network.init(key)
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        return AgentState(ActParams(weights, moments), (), optimizer.init(weights), (), jnp.zeros((), jnp.int32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        weights, moments = state.params
        trajectory = ac.fold_agents(trajectory, spec.num_agents)._replace(core=())
        mask = acting_mask(trajectory)
        raw = jax.tree.map(lambda x: x[:-1], trajectory.observation)
        batch = Batch(norm.normalize(moments, raw), trajectory.is_first[:-1], trajectory.action[:-1])
        # 1. The gradient of the loss over the rows of all devices.
        gradients, metrics = mean_gradient(lambda w, mean: loss(parts, w, batch, mean), weights, mask, axis_name)
        # 2. One gradient step.
        rate = ac.learning_rate(config, state.updates)
        weights, opt_state = ac.apply_gradients(optimizer, gradients, state.opt_state, weights, rate)
        metrics |= {"grad_norm": optax.tree.norm(gradients), "learning_rate": rate}
        params = ActParams(weights, norm.merge_moments(moments, raw, mask, axis_name))
        return AgentState(params, (), opt_state, (), state.updates + 1), UpdateOutput(metrics)

    return ac.acting_agent(parts.network, parts.distribution, init, update, spec.num_agents)


def loss(parts: Components, weights: Tree, batch: Batch, mean: Mean) -> tuple[Array, dict[str, Array]]:
    """Return the loss and the metrics; `mean` is over the rows to imitate."""
    config, network, chosen = parts
    core: Any = network.initial_core(batch.is_first.shape[1])
    outputs, _, _ = network.policy(weights, batch.observation, batch.is_first, core)
    outputs = ac.mask_outputs(outputs, batch.observation)

    log_prob, entropy = chosen.log_prob(outputs, batch.action), mean(chosen.entropy(outputs))
    if config.loss == "mse":
        distance = jnp.sum(jnp.square(chosen.mode(outputs) - batch.action), axis=-1)
        loss_policy = mean(0.5 * distance)
    else:
        loss_policy = mean(-log_prob)
    total = loss_policy - config.entropy_coef * entropy
    return total, {"loss": total, "loss_policy": loss_policy, "entropy": entropy}
