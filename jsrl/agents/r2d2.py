"""Recurrent replay distributed DQN (R2D2): sequences with their stored core, burn-in and value rescaling.

Read `r2d2` first: `update` is the algorithm in four steps.

Source: Kapturowski et al., 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (ICLR); value
rescaling: Pohlen et al., 2018, arXiv 1805.11593; a ladder of epsilons: Horgan et al., 2018, arXiv 1803.00933.
Differs: losses are means over the trained rows, not sums; n-step returns near a window's end are as long as the window
allows; the network does not read the previous action and reward; the place on the ladder is drawn at the start of each episode
and kept in the core, because `act` does not know the number of its actor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents import action_values as av
from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import Act, ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean, mean_gradient
from jsrl.agents.off_policy import ActingWeights
from jsrl.agents.returns import Rows, n_step_returns
from jsrl.agents.rows import row_margin, row_masks
from jsrl.errors import ConfigError
from jsrl.fields import (
    NonNegativeInt,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    PositiveUnitFloat,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import ValueNetwork, value_network
from jsrl.types import ACTING, REPLAY, Array, EnvSpec, Trajectory, Tree

ETA = 0.9  # weight of the largest error of a window in its priority


@suggesting
@dataclass(frozen=True)
class R2D2Config:
    """Hyperparameters of R2D2."""

    factory: ClassVar[str] = "jsrl.agents.r2d2:r2d2"
    learns_from: ClassVar[str] = REPLAY
    explorable: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma", "tau", "max_grad_norm")

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(1e-4, "learning rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    adam_eps: PositiveFinite = option(1e-3, "epsilon of Adam.")
    max_grad_norm: PositiveFloat | None = option(40.0, "clip the gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.997, "discount factor.")
    n_step: PositiveInt = option(5, "most rows of an n-step return.")
    burn_in: NonNegativeInt = option(40, "first rows of each window that only update the recurrent state; the others "
        "are trained on.")
    tau: PositiveUnitFloat = option(1.0, "share of the online network in each step of the target network; 1 replaces "
        "it.")
    target_period: PositiveInt = option(2500, "updates between steps of the target network.")
    double: bool = option(True, "double Q-learning: the online network chooses the action that the target network "
        "values.")
    dueling: bool = option(True, "separate streams for state value and advantages.")
    rescale_values: bool = option(True, "learn h(value), h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000, in place of "
        "clipped rewards.")
    epsilon: UnitFloat = option(0.4, "an episode is played with epsilon^(1 + 7 x), x uniform in [0, 1].")
    normalize_observations: bool = option(False, off.NORMALIZE_HELP)
    network: NetworkConfig = option(help="options of the network; "
        "recurrent.", factory=lambda: NetworkConfig(hidden=(128,), activation="relu", core="lstm", core_size=256))
    # fmt: on

    @property
    def usual_replay(self) -> dict[str, Any]:
        """Return the settings of replay: 20 rows of each window are trained on."""
        return {
            "capacity": 100_000, "batch_size": 32, "window": self.burn_in + 20, "min_size": 5_000,
            "updates_per_env_step": 0.00625, "prioritised": True, "alpha": 0.9,
        }  # fmt: skip

    def __post_init__(self) -> None:
        if self.network.core == "none":
            raise ConfigError("r2d2 is recurrent, got a network with core='none'; choose gru or lstm, or use dqn")


class Core(NamedTuple):
    """network: the network's core. epsilon: float32 [B], of the current episode."""

    network: Tree
    epsilon: Array


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions."""

    config: R2D2Config
    network: ValueNetwork


class TrainedRows(NamedTuple):
    """Rows [T+1, B] after burn-in. mask: [T, B], of the value function. weight: mask times the window's importance weight.

    margin: from `row_margin`. `trajectory` has no observation.
    """

    trajectory: Trajectory
    mask: Array
    weight: Array
    margin: Array


class Sequences(NamedTuple):
    """Windows after burn-in, observations [T+1, B, ...]; online and target: the core of each network at row 0."""

    observation: Tree
    online: Tree
    target: Tree
    rows: TrainedRows


def r2d2(config: R2D2Config, spec: EnvSpec) -> Agent:
    agent_spec = ac.one_agent(spec)
    parts = Components(config, value_network(config.network, agent_spec, dueling=config.dueling))
    network = parts.network
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)

    def init(key: Array) -> AgentState:
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        return av.fresh_state(network.init(key), optimizer, moments)

    def initial_core(batch_size: int) -> Tree:
        return Core(network.initial_core(batch_size), jnp.zeros(batch_size, jnp.float32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        weights = state.params.weights.network
        target = state.learner_params.target
        trajectory = ac.fold_agents(trajectory, spec.num_agents)
        # 1. Burn-in: both networks read the first rows from the stored core, which brings their cores up to date.
        sequences = burn_in(parts, weights, target, state.params.moments, trajectory, axis_name)
        # 2. The gradient of the loss over the remaining rows.
        gradients, (metrics, error) = mean_gradient(
            lambda w, mean: loss(parts, w, target, sequences, mean), weights, sequences.rows.mask, axis_name
        )
        # 3. One gradient step.
        rate = ac.learning_rate(config, state.updates)
        weights, opt_state = ac.apply_gradients(optimizer, gradients, state.opt_state, weights, rate)
        # 4. The target network follows.
        when: Any = {"tau": config.tau, "period": config.target_period, "updates": state.updates}
        learned = av.LearnerWeights(off.move_targets(target, weights, **when))
        raw = jax.tree.map(lambda x: x[:-1], trajectory.observation)
        seen = row_masks(trajectory, sequences.rows.margin).value
        moments = norm.merge_moments(state.params.moments, raw, seen, axis_name)
        params = ActParams(ActingWeights(weights, state.updates + 1), moments)
        priorities = window_priorities(error, sequences.rows.mask, spec.num_agents)
        return AgentState(params, learned, opt_state, (), state.updates + 1), UpdateOutput(metrics, priorities)

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        return state._replace(params=params, learner_params=av.LearnerWeights(params.weights.network))

    return ac.for_agents(Agent(init, initial_core, make_act(parts), update, adopt=adopt), spec.num_agents)


def make_act(parts: Components) -> Act:
    config = parts.config

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        rung_key, action_key = jax.random.split(key)
        epsilon = av.episode_epsilon(rung_key, is_first, core.epsilon, base=config.epsilon)
        row = jax.tree.map(lambda x: x[None], norm.normalize(params.moments, observation))
        values, inside = parts.network.apply(params.weights.network, row, is_first[None], core.network)
        chance = jnp.where(params.weights.updates > 0, epsilon, 1.0)
        chosen = av.epsilon_greedy(action_key, values[0, ..., 0], chance, observation, greedy=greedy)
        return ActOutput(*chosen, distribution={"values": values[0, ..., 0]}), Core(inside, epsilon)

    return act


# -- learning ---------------------------------------------------------------------------------------------------------


def burn_in(
    parts: Components, weights: Tree, target: Tree, moments: Tree, trajectory: Trajectory, axis_name: str | None
) -> Sequences:
    """Return the windows without their first `burn_in` rows, and both networks' cores after these rows."""
    rows, num_rows = parts.config.burn_in, trajectory.is_first.shape[0] - 1
    if num_rows <= rows:
        raise ConfigError(
            f"windows of {num_rows} rows leave nothing to learn from after burn_in={rows}; make replay's windows longer "
            "(burn-in + rows to train on), or burn_in smaller"
        )
    observation = norm.normalize(moments, trajectory.observation)
    online = fixed = trajectory.core.network
    if rows:
        seen, first = jax.tree.map(lambda x: x[:rows], (observation, trajectory.is_first))
        cores = (parts.network.apply(w, seen, first, trajectory.core.network)[1] for w in (weights, target))
        online, fixed = jax.lax.stop_gradient(tuple(cores))
    late = jax.tree.map(lambda x: x[rows:], observation)
    return Sequences(late, online, fixed, trained_rows(parts.config, trajectory, axis_name))


def trained_rows(config: R2D2Config, trajectory: Trajectory, axis_name: str | None) -> TrainedRows:
    margin = row_margin(trajectory, axis_name)
    mask = row_masks(trajectory, margin).value[config.burn_in :]
    weighted = mask if isinstance(trajectory.sampling, tuple) else mask * trajectory.sampling
    late = jax.tree.map(lambda x: x[config.burn_in :], trajectory._replace(core=(), sampling=(), observation=()))
    return TrainedRows(late, mask, weighted, margin)


def loss(
    parts: Components, weights: Tree, target: Tree, sequences: Sequences, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the loss, and (metrics, error [T, B]).

    y_t = h(n-step return that bootstraps with h^-1(Q'(o, argmax_a Q(o, a)))); loss: (Q(o_t, a_t) - y_t)^2 / 2. On
    value-only rows the return bootstraps with Q'(o, 0): action 0 stands for none, and only its value is trained there.

    Args:
      weights: what the gradient is for. target: weights of the target network.
      sequences: from `burn_in`. mean: over the trained rows.
    """
    rows = sequences.rows.trajectory
    value, bootstrap = values_of(parts, weights, target, sequences, rows)
    return n_step_loss(parts.config, value, bootstrap, sequences.rows, mean)


def values_of(
    parts: Components, weights: Tree, target: Tree, sequences: Sequences, rows: Trajectory
) -> tuple[Array, Array]:
    """Return the values [T, B] of the actions taken, and the target network's values [T+1, B] of the best actions.

    The best action is 0 on rows on which the agent does not act.
    """
    observation = sequences.observation
    online, _ = parts.network.apply(weights, observation, rows.is_first, sequences.online)
    fixed, _ = parts.network.apply(target, observation, rows.is_first, sequences.target)
    online, fixed = online[..., 0], fixed[..., 0]
    best = jnp.argmax(ac.mask_outputs(online if parts.config.double else fixed, observation), axis=-1)
    best = jnp.where(rows.acts == ACTING, best, 0)
    return av.pick(online[:-1], rows.action[:-1]), av.pick(fixed, best)


def n_step_loss(
    config: R2D2Config, value: Array, bootstrap: Array, rows: TrainedRows, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the results of `loss` for values [T, B] and bootstrap values [T+1, B], both rescaled if the config says so."""
    if config.rescale_values:
        bootstrap = av.unscale(bootstrap)
    played = jax.tree.map(lambda x: x[:-1], rows.trajectory)
    steps = Rows(bootstrap, played.reward, played.discount, rows.trajectory.acts, rows.trajectory.is_first)
    goal = n_step_returns(steps, gamma=config.gamma, n=config.n_step, margin=rows.margin)
    goal = jax.lax.stop_gradient(av.rescale(goal) if config.rescale_values else goal)
    error = jnp.where(rows.mask > 0, value - goal, 0.0)
    total = mean(0.5 * jnp.square(error) * rows.weight)
    return total, ({"loss": total, "loss_value": total, "value_mean": mean(value)}, error)


def window_priorities(error: Array, mask: Array, num_agents: int | None) -> Array:
    """Return priorities [B] of windows with errors [T, B]: eta max |e| + (1 - eta) mean |e|.

    Source: Kapturowski et al., 2019, section 2.3.
    """
    distance = jnp.abs(error) * mask
    mean = jnp.sum(distance, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1.0)
    priority = ETA * jnp.max(distance, axis=0) + (1.0 - ETA) * mean
    return off.priorities(priority, jnp.max(mask, axis=0), num_agents)
