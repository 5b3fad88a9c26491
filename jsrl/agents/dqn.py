"""Deep Q-learning: double, duelling, n-step, prioritised, and with distributions over values (C51, QR), each an option.

Read `dqn` first: `update` is the algorithm in three steps.

Source: Mnih et al., 2015 (DQN); van Hasselt et al., 2016, arXiv 1509.06461 (double); Wang et al., 2016, arXiv 1511.06581
(duelling); Schaul et al., 2016, arXiv 1511.05952 (prioritised); Bellemare et al., 2017, arXiv 1707.06887 (C51); Hessel et
al., 2018, arXiv 1710.02298 (all together); Horgan et al., 2018, arXiv 1803.00933 (a ladder of epsilons); Dabney et al.,
2018, arXiv 1710.10044 (QR).
Differs: the length of replay's windows is the number of steps of a return; the place on the ladder is drawn at the start
of each episode and kept in a core for acting alone, because `act` does not know the number of its actor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents import action_values as av
from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import Act, ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean
from jsrl.agents.losses import ValueLoss, value_loss
from jsrl.agents.off_policy import ActingWeights, Transition
from jsrl.errors import ConfigError
from jsrl.fields import (
    FiniteFloat,
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
from jsrl.types import REPLAY, Array, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class DQNConfig:
    """Hyperparameters of DQN."""

    factory: ClassVar[str] = "jsrl.agents.dqn:dqn"
    learns_from: ClassVar[str] = REPLAY
    usual_replay: ClassVar[dict[str, Any]] = {
        "capacity": 100_000, "batch_size": 32, "window": 3, "min_size": 5_000, "updates_per_env_step": 0.25
    }  # fmt: skip
    explorable: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma", "tau", "max_grad_norm")

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(1e-4, "learning rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    adam_eps: PositiveFinite = option(1e-8, "epsilon of Adam.")
    max_grad_norm: PositiveFloat | None = option(10.0, "clip the gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    tau: PositiveUnitFloat = option(1.0, "share of the online network in each step of the target network; 1 replaces "
        "it.")
    target_period: PositiveInt = option(1000, "updates between steps of the target network.")
    target_env_steps: PositiveInt | None = option(None, "env steps between steps of the target network, in place of "
        "target_period, which an Experiment fills in.", instead_of="target_period")
    double: bool = option(True, "double Q-learning: the online network chooses the action that the target network "
        "values.")
    dueling: bool = option(True, "separate streams for state value and advantages.")
    num_atoms: PositiveInt = option(1, "1, or the number of atoms of the value distribution (C51).")
    value_min: FiniteFloat = option(-10.0, "lowest atom.", needs=("num-atoms",))
    value_max: FiniteFloat = option(10.0, "highest atom.", needs=("num-atoms",))
    quantiles: bool = option(False, "the atoms are equally likely, and their places are learned, without bounds (QR-DQN).")
    loss: ValueLoss = option("huber", "huber (linear from an error of 1) or mse, half the squared error (one atom).")
    exploration: Literal["linear", "ladder"] = option("linear", "`linear`: epsilon falls from 1 to `epsilon` over "
        "`exploration_fraction` of the run; `ladder`: an episode is played with epsilon^(1 + 7 x), x uniform "
        "in [0, 1] (1 before the first update).")
    epsilon: UnitFloat = option(0.05, "final epsilon (linear), or base of the ladder.")
    exploration_fraction: PositiveUnitFloat = option(0.1, "share of the run's updates until the final epsilon.",
        needs=("exploration linear",))
    normalize_observations: bool = option(False, off.NORMALIZE_HELP)
    network: NetworkConfig = option(help="options of the network; "
        "feed-forward.", factory=lambda: NetworkConfig(hidden=(128, 128), activation="relu"))
    # fmt: on

    def __post_init__(self) -> None:
        if self.quantiles and self.num_atoms == 1:
            raise ConfigError("quantiles=True needs num_atoms above 1; 50 to 200 are usual")
        if self.num_atoms > 1 and not self.value_min < self.value_max:
            raise ConfigError(f"value_min must be below value_max, got {self.value_min} and {self.value_max}")
        if self.network.core != "none":
            raise ConfigError(f"dqn is feed-forward, got a network with core={self.network.core!r}; r2d2 is recurrent")


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions. support: values of the atoms [Z]."""

    config: DQNConfig
    network: ValueNetwork
    support: Array


class Core(NamedTuple):
    """The core of acting on the ladder. epsilon: float32 [B], of the current episode."""

    epsilon: Array


Loss = Callable[[Components, Tree, Tree, Transition, Mean], tuple[Array, tuple[dict[str, Array], Array]]]  # as dqn_loss


def dqn(config: DQNConfig, spec: EnvSpec, *, loss: Loss | None = None) -> Agent:
    """`loss` replaces `dqn_loss`."""
    agent_spec = ac.one_agent(spec)
    options: Any = {"dueling": config.dueling, "num_atoms": config.num_atoms}
    network = value_network(config.network, agent_spec, **options)
    parts = Components(config, network, jnp.linspace(config.value_min, config.value_max, config.num_atoms))
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)

    def init(key: Array) -> AgentState:
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        return av.fresh_state(network.init(key), optimizer, moments)

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        weights = state.params.weights.network
        target = state.learner_params.target
        options: Any = {"gamma": config.gamma, "num_agents": spec.num_agents, "axis_name": axis_name}
        batch, moments = off.prepare(state.params.moments, trajectory, **options)

        def of_network(weights: Tree, columns: Transition, mean: Mean) -> Any:
            return (loss or dqn_loss)(parts, weights, target, columns, mean)

        # 1. The gradient of the loss, with targets from the target network.
        gradients, metrics, error = off.gradient(of_network, weights, batch, batch.mask, axis_name)
        # 2. One gradient step.
        rate = ac.learning_rate(config, state.updates)
        weights, opt_state = ac.apply_gradients(optimizer, gradients, state.opt_state, weights, rate)
        # 3. The target network follows.
        when: Any = {"tau": config.tau, "period": config.target_period, "updates": state.updates}
        learned = av.LearnerWeights(off.move_targets(target, weights, **when))
        params = ActParams(ActingWeights(weights, state.updates + 1), moments)
        priorities = off.priorities(error, batch.mask, spec.num_agents)
        metrics["epsilon"] = epsilon_now(config, state.updates)
        return AgentState(params, learned, opt_state, (), state.updates + 1), UpdateOutput(metrics, priorities)

    def initial_core(batch_size: int) -> Tree:
        if config.exploration == "linear":
            return ()
        return Core(jnp.zeros(batch_size, jnp.float32))

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        weights = params.weights
        if config.exploration == "linear":  # epsilon starts over, for actors too
            weights = weights._replace(updates=state.params.weights.updates)
        return state._replace(
            params=params._replace(weights=weights), learner_params=av.LearnerWeights(weights.network)
        )

    check_schedule(config)
    agent = Agent(init, initial_core, make_act(parts), update, adopt=adopt, store_core=False)
    return ac.for_agents(agent, spec.num_agents)


def make_act(parts: Components) -> Act:
    config = parts.config

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        weights = params.weights
        values = mean_values(parts, apply(parts, weights.network, norm.normalize(params.moments, observation)))
        rung_key, action_key = jax.random.split(key)
        if config.exploration == "linear":
            epsilon = epsilon_now(config, weights.updates)
        else:
            core = Core(av.episode_epsilon(rung_key, is_first, core.epsilon, base=config.epsilon))
            epsilon = jnp.where(weights.updates > 0, core.epsilon, 1.0)
        chosen = av.epsilon_greedy(action_key, values, epsilon, observation, greedy=greedy)
        return ActOutput(*chosen, distribution={"values": values}), core

    return act


# -- exploration ------------------------------------------------------------------------------------------------------


def epsilon_now(config: DQNConfig, updates: Array) -> Array:
    """Return epsilon [] after `updates` updates; for the ladder that of its middle."""
    if config.exploration == "linear":
        assert config.total_updates is not None
        over = max(1, round(config.exploration_fraction * config.total_updates))
        return av.annealed_epsilon(updates, final=config.epsilon, over=over)
    middle = av.ladder_epsilon(jnp.asarray(0.5), base=config.epsilon)
    return jnp.where(updates > 0, middle, 1.0)


def check_schedule(config: DQNConfig) -> None:
    if config.exploration == "linear" and config.total_updates is None:
        raise ConfigError(
            "exploration='linear' needs total_updates (an Experiment sets it), got None; your own loop must give it, or "
            "choose exploration='ladder'"
        )


# -- learning ---------------------------------------------------------------------------------------------------------


def apply(parts: Components, weights: Tree, observation: Tree) -> Array:
    """Return outputs [B, A, Z] for observations [B, ...]; for seats [B, N, A, Z]."""
    rows = jax.tree.leaves(observation)[0].shape[0]
    return parts.network.apply(weights, observation, jnp.zeros(rows, bool), ())[0]


def mean_values(parts: Components, outputs: Array) -> Array:
    """Return values [..., A] for outputs [..., A, Z]."""
    if parts.config.num_atoms == 1:
        return outputs[..., 0]
    if parts.config.quantiles:
        return jnp.mean(outputs, axis=-1)
    return jnp.sum(jax.nn.softmax(outputs) * parts.support, axis=-1)


def dqn_loss(
    parts: Components, weights: Tree, target: Tree, batch: Transition, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the loss, and (metrics, error [B]).

    y = r + d Q'(o', argmax_a Q(o', a)) (double; else the argmax of Q'), over the actions that o' allows. Where o' is a
    value-only row, y = r + d Q'(o', 0): action 0 stands for none, and only its value is trained there.
    One atom: Huber's or the squared error to y. More atoms: the cross-entropy to the projected distribution of y; the error
    is then the KL divergence, the cross-entropy minus that distribution's own entropy. Quantiles: `quantile_loss`, and the
    error of the mean.

    Args:
      weights: what the gradient is for. target: weights of the target network.
      batch: transitions. mean: over their mask.
    """
    config = parts.config
    taken, following = outputs_of(
        parts, weights, target, batch.observation, batch.action, batch.next_observation, batch.next_acting
    )
    if config.num_atoms == 1:
        return one_step_loss(config, taken[:, 0], following[:, 0], batch, mean)
    if config.quantiles:
        quantiles = jax.lax.stop_gradient(batch.reward[:, None] + batch.discount[:, None] * following)
        value = jnp.mean(taken, axis=-1)
        each = quantile_loss(taken, quantiles)
        return _summed(each, value, value - jnp.mean(quantiles, axis=-1), batch, mean)
    atoms = batch.reward[:, None] + batch.discount[:, None] * parts.support
    goal = jax.lax.stop_gradient(av.project(atoms, jax.nn.softmax(following), parts.support))
    log_p = jax.nn.log_softmax(taken)
    each = -jnp.sum(goal * log_p, axis=-1)
    error = each + jnp.sum(goal * jnp.log(jnp.maximum(goal, 1e-30)), axis=-1)
    value = jnp.sum(jnp.exp(log_p) * parts.support, axis=-1)
    return _summed(each, value, error, batch, mean)


def quantile_loss(value: Array, target: Array) -> Array:
    """Return the quantile Huber loss [B] of quantiles [B, Z], at (i + 1/2) / Z, to samples [B, Z] of the target.

    Source: Dabney et al., 2018, equation 10, as in Stable-Baselines3: a sum over quantiles, a mean over samples.
    """
    error = target[:, None, :] - value[:, :, None]
    place = (jnp.arange(value.shape[-1]) + 0.5)[:, None] / value.shape[-1]
    huber = value_loss(error, jnp.zeros_like(error), error, kind="huber")
    return jnp.mean(jnp.sum(jnp.abs(place - (error < 0)) * huber, axis=1), axis=-1)


def outputs_of(
    parts: Components,
    weights: Tree,
    target: Tree,
    observation: Tree,
    action: Array,
    next_observation: Tree,
    next_acting: Array,
) -> tuple[Array, Array]:
    """Return the outputs [..., Z] of the actions [...] taken, and the target network's outputs of the next actions.

    Args:
      next_acting: [...], 1 where the agent acts on the next observation; elsewhere its action is 0.
    """
    next_outputs = apply(parts, target, next_observation)
    chooser = apply(parts, weights, next_observation) if parts.config.double else next_outputs
    chooser = ac.mask_outputs(mean_values(parts, chooser), next_observation)
    best = jnp.where(next_acting > 0, jnp.argmax(chooser, axis=-1), 0)
    taken = _of_action(apply(parts, weights, observation), action)
    return taken, _of_action(next_outputs, best)


def one_step_loss(
    config: DQNConfig, value: Array, following: Array, batch: Transition, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the results of `dqn_loss` for values [B] and the target network's values [B] of the next observations."""
    goal = batch.reward + batch.discount * following
    goal = jax.lax.stop_gradient(goal)
    each = value_loss(value, goal, goal, kind=config.loss)
    return _summed(each, value, value - goal, batch, mean)


def _summed(
    each: Array, value: Array, error: Array, batch: Transition, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    total = mean(each * batch.weight)
    return total, ({"loss": total, "loss_value": total, "value_mean": mean(value)}, error)


def _of_action(outputs: Array, action: Array) -> Array:
    """Return the outputs [..., Z] of each row's action, from [..., A, Z]."""
    return jnp.take_along_axis(outputs, action[..., None, None].astype(jnp.int32), axis=-2)[..., 0, :]
