"""Parallelised Q-learning (PQN): Q(lambda) returns of fresh rows, without replay and target network.

Read `pqn` first: `update` is the algorithm in three steps. Layer normalisation in the network takes the place of the target
network; many environments take that of replay. Feed-forward and recurrent.

Source: Gallici et al., 2024, arXiv 2407.04811, algorithm 1; settings as in purejaxql.
Differs: losses are means over the trained rows of all devices; the optimizer is Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import action_values as av
from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean, mean_gradient
from jsrl.agents.minibatches import check_divides, flat, plan_minibatches, take
from jsrl.agents.off_policy import ActingWeights
from jsrl.agents.returns import Rows, gae
from jsrl.agents.rows import row_margin, row_masks
from jsrl.errors import ConfigError
from jsrl.fields import PositiveFinite, PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat, option, suggesting
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import ValueNetwork, value_network
from jsrl.types import ACTING, FRESH, Array, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class PQNConfig:
    """Hyperparameters of PQN."""

    factory: ClassVar[str] = "jsrl.agents.pqn:pqn"
    learns_from: ClassVar[str] = FRESH
    explorable: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma", "td_lambda", "max_grad_norm")

    # fmt: off
    learning_rate: PositiveFinite = option(2.5e-4, "learning rate of the optimizer.")
    schedule: Any = option("linear", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    adam_eps: PositiveFinite = option(1e-8, "epsilon of Adam.")
    max_grad_norm: PositiveFloat | None = option(10.0, "clip the gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    td_lambda: UnitFloat = option(0.65, "trace decay of the returns.")
    epsilon: UnitFloat = option(0.05, "final chance of a random action; it falls from 1 to this over "
        "`exploration_fraction` of the run.")
    exploration_fraction: PositiveUnitFloat = option(0.1, "share of the run's updates until the final epsilon.")
    num_epochs: PositiveInt = option(2, "passes over the rows of a batch.")
    num_minibatches: PositiveInt = option(32, "gradient steps per pass. Feed-forward networks shuffle rows; recurrent "
        "ones keep sequences together and shuffle environments.")
    normalize_observations: bool = option(False, "normalise observations, except images and flags, by running moments.")
    network: NetworkConfig = option(help="options of the network.",
        factory=lambda: NetworkConfig(hidden=(128, 128), activation="relu", layer_norm=True))
    # fmt: on

    def check_batch(self, rows: int, columns: int) -> None:
        """Check that the minibatches divide a device's batch [rows, columns]."""
        kept = (rows * columns, "rows") if self.network.core == "none" else (columns, "environments")
        check_divides("num_minibatches", self.num_minibatches, *kept)


class Batch(NamedTuple):
    """Inputs of the loss: leaves [T, C, ...], core [C, ...]; minibatches consist of some of the C columns.

    observation is normalised; mask: of the rows whose value is trained.
    """

    observation: Tree
    is_first: Array
    action: Array
    target: Array
    mask: Array
    core: Tree


def pqn(config: PQNConfig, spec: EnvSpec) -> Agent:
    if config.total_updates is None:
        raise ConfigError("PQN's epsilon falls over total_updates, got None; an Experiment sets it, your own loop must")
    agent_spec, total_updates = ac.one_agent(spec), config.total_updates
    network = value_network(config.network, agent_spec)
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)

    def epsilon(updates: Array) -> Array:
        over = max(1, round(config.exploration_fraction * total_updates))
        return av.annealed_epsilon(updates, final=config.epsilon, over=over)

    def init(key: Array) -> AgentState:
        weights, updates = network.init(key), jnp.zeros((), jnp.int32)
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        params = ActParams(ActingWeights(weights, updates), moments)
        return AgentState(params, (), optimizer.init(weights), (), updates)

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        row = jax.tree.map(lambda x: x[None], norm.normalize(params.moments, observation))  # acting is T = 1
        values, core = network.apply(params.weights.network, row, is_first[None], core)
        values = values[0, ..., 0]
        chosen = av.epsilon_greedy(key, values, epsilon(params.weights.updates), observation, greedy=greedy)
        return ActOutput(*chosen, distribution={"values": values}), core

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        trajectory = ac.fold_agents(trajectory, spec.num_agents)
        # 1. Returns, with the weights that acted.
        batch = prepare(config, network, state.params, trajectory, axis_name)
        rate = ac.learning_rate(config, state.updates)

        # 2. Gradient steps over epochs and minibatches.
        def step(carry: tuple[Tree, Tree], columns: Array) -> tuple[tuple[Tree, Tree], dict[str, Array]]:
            weights, opt_state = carry
            part = take(batch, columns)
            gradients, metrics = mean_gradient(
                lambda w, mean: loss(network, w, part, mean), weights, part.mask, axis_name
            )
            metrics["grad_norm"] = optax.tree.norm(gradients)
            return ac.apply_gradients(optimizer, gradients, opt_state, weights, rate), metrics

        sizes = {"num_epochs": config.num_epochs, "num_minibatches": config.num_minibatches}
        plan = plan_minibatches(batch.target.shape[1], **sizes, key=key, axis_name=axis_name)
        (weights, opt_state), metrics = jax.lax.scan(step, (state.params.weights.network, state.opt_state), plan)
        metrics = jax.tree.map(jnp.mean, metrics)
        # 3. The rows enter the observation moments, once.
        raw = jax.tree.map(lambda x: x[:-1], trajectory.observation)
        seen = row_masks(trajectory, row_margin(trajectory, axis_name)).value
        moments = norm.merge_moments(state.params.moments, raw, seen, axis_name)
        params = ActParams(ActingWeights(weights, state.updates + 1), moments)
        metrics |= {"learning_rate": rate, "epsilon": epsilon(state.updates)}
        return AgentState(params, (), opt_state, (), state.updates + 1), UpdateOutput(metrics)

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        weights = params.weights._replace(updates=state.params.weights.updates)  # epsilon starts over
        return state._replace(params=params._replace(weights=weights))

    return ac.for_agents(Agent(init, network.initial_core, act, update, adopt=adopt), spec.num_agents)


def prepare(
    config: PQNConfig, network: ValueNetwork, params: ActParams, trajectory: Trajectory, axis_name: str | None
) -> Batch:
    """Return the batch of an update: rows [T, B] of environments if recurrent, else [1, T * B].

    target_t = r_t + gamma d_t ((1 - lambda) max_a Q(o_t+1, a) + lambda target_t+1), over the actions that o_t+1 allows; a
    truncation and row T bootstrap with the maximum. These are the value targets of GAE. On value-only rows the value is
    Q(o, 0): action 0 stands for none, and only its value is trained there.
    """
    observation = norm.normalize(params.moments, trajectory.observation)
    values, _ = network.apply(params.weights.network, observation, trajectory.is_first, trajectory.core)
    best = jnp.max(ac.mask_outputs(values[..., 0], trajectory.observation), axis=-1)
    value = jnp.where(trajectory.acts == ACTING, best, values[..., 0, 0])
    margin = row_margin(trajectory, axis_name)
    played = jax.tree.map(lambda x: x[:-1], trajectory._replace(observation=observation, core=(), sampling=()))
    rows = Rows(value, played.reward, played.discount, trajectory.acts, trajectory.is_first)
    target = gae(rows, gamma=config.gamma, lambda_=config.td_lambda, margin=margin).target
    mask = row_masks(trajectory, margin).value
    batch = Batch(played.observation, played.is_first, played.action, target, mask, trajectory.core)
    return batch if jax.tree.leaves(trajectory.core) else flat(batch)


def loss(network: ValueNetwork, weights: Tree, batch: Batch, mean: Mean) -> tuple[Array, dict[str, Array]]:
    """Return the mean of (Q(o_t, a_t) - target_t)^2 / 2, and metrics."""
    values, _ = network.apply(weights, batch.observation, batch.is_first, batch.core)
    value = av.pick(values[..., 0], batch.action)
    total = mean(0.5 * jnp.square(value - batch.target))
    return total, {"loss": total, "loss_value": total, "value_mean": mean(value)}
