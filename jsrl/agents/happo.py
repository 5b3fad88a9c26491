"""HAPPO: PPO for a team in which every seat has a policy of its own, and these are updated one after another.

Read `happo` first. The seats share one advantage, the team's. A seat's PPO loss weights this advantage by the product of the
probability ratios of the seats updated before it in this update. So each step starts from the joint policy of the earlier
steps.

Parts are PPO's (jsrl.agents.ppo): preparation, losses, gradient steps. The value function reads the global state.

Source: Kuba et al., 2022, arXiv 2109.11251, algorithm 4 and equation 13.
Differs: values are normalised by PopArt, as in jsrl.agents.mappo.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import ppo
from jsrl.agents.actor_critic import Weights
from jsrl.agents.base import Act, ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Means
from jsrl.agents.distributions import distribution
from jsrl.agents.hyperparameters import with_fields
from jsrl.agents.mappo import CENTRAL, MAPPOConfig
from jsrl.agents.rows import RowMasks, row_margin, row_masks, row_scores
from jsrl.agents.seats import as_dict, team_rows, team_size, team_vector
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, suggesting
from jsrl.networks.model import ActorCritic, actor_critic
from jsrl.types import ACTING, Array, ArraySpec, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class HAPPOConfig(MAPPOConfig):
    """Hyperparameters of HAPPO: those of MAPPO without the ones that are fixed here.

    Each seat has weights of its own, and num_epochs and num_minibatches are those of each.
    """

    factory: ClassVar[str] = "jsrl.agents.happo:happo"
    joins_seats: ClassVar[bool] = True  # the seats of an environment are one column of a batch

    num_epochs: PositiveInt = 5
    critic: ClassVar[str] = "central"  # type: ignore[misc]
    rewards: ClassVar[str] = "team"  # type: ignore[misc]  # the seats share one advantage
    returns: ClassVar[str] = "gae"  # type: ignore[misc]
    chunk_length: ClassVar[None] = None  # type: ignore[misc]
    agent_ids: ClassVar[bool] = False  # type: ignore[misc]


class OptStates(NamedTuple):
    """The optimizers' states. policies: of each seat, leaves [N, ...]. value: of the value function."""

    policies: Tree
    value: Tree


class Seats(NamedTuple):
    """Inputs and actions of the policies: leaves [T, B, N, ...] (observation [T+1, ...]), core [B, N, ...].

    mask: 1 where the seat acted and the team's row is trained on.
    """

    observation: Tree
    action: Array
    log_prob: Array
    mask: Array
    core: Tree


def happo(config: HAPPOConfig, spec: EnvSpec) -> Agent:
    n = spec.num_agents
    if n is None:
        raise ConfigError(f"{spec.name} has one agent; HAPPO is for teams. Use ppo")
    one = dataclasses.replace(ac.one_agent(spec), observation=as_dict(ac.one_agent(spec).observation), state=None)
    ac.check_action_mask(one)
    state_spec = ArraySpec((team_size(spec),), "float32")
    own = actor_critic(config.network, one)
    critic = actor_critic(config.critic_network, dataclasses.replace(one, observation=state_spec))
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    policies = ppo.Components(config, own, distribution(one.action), optimizer, config.clip_ratio)
    values = policies._replace(config=with_fields(config, {"target_kl": None}), network=_of_team(critic))

    def init(key: Array) -> AgentState:
        return initial_state(key, policies, values, critic.init, {**one.observation, CENTRAL: state_spec}, n)

    def initial_core(batch_size: int) -> Tree:
        return ac.unfold(ac.acting_core(own)(batch_size * n), 0, n)

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        weights = ppo.weights_of(values, state)
        rows = team_rows(trajectory, n)
        team = rows._replace(
            observation={CENTRAL: team_vector(trajectory)}, log_prob=jnp.zeros_like(rows.reward), core=()
        )
        # 1. The team's values, advantages and targets; the value function moves to the targets' units.
        batch, prepared_metrics = ppo.prepare(values, weights, state, team, axis_name)
        scored = row_masks(team, row_margin(team, axis_name)).policy
        scores = row_scores(team, batch.target, batch.old_value, scored, None)
        weights, value_moments, batch = ppo.rescale_values(values, weights, state.extra, batch, axis_name)
        # 2. One seat's policy after another, in random order.
        order_key, key = jax.random.split(key)
        rate = ac.learning_rate(config, state.updates)
        options: Any = {"learning_rate": rate, "axis_name": axis_name}
        seats = seats_of(state.params.moments, trajectory, rows, batch.masks.policy)
        turns = jax.random.permutation(order_key, n), jax.random.split(key, n)
        states = weights.policy, state.opt_state.policies
        now = ppo.at(policies, state.updates)
        policy, policy_states, metrics = update_policies(now, *states, seats, batch, turns, **options)
        # 3. The value function.
        steps: Any = {"key": jax.random.fold_in(key, n), "of": value_only, **options}
        columns = ppo.flat(batch)
        value, value_state, of_value = ppo.optimize(values, weights.value, state.opt_state.value, columns, **steps)
        # 4. The rows enter the observation moments, once.
        moments = state.params.moments
        if config.normalize_observations:
            moments = merged(moments, trajectory, {**as_dict(rows.observation), **team.observation}, batch, axis_name)
        metrics = {**metrics, "loss_value": of_value["loss_value"], **prepared_metrics, "learning_rate": rate}
        new_states = OptStates(policy_states, value_state)
        new = ppo.pack(values, Weights(policy, value), moments, new_states, value_moments, state.updates + 1)
        return new, UpdateOutput(metrics, scores)

    return Agent(init, initial_core, _make_act(policies, n), update, store_core=own.noise_period is None)


def _of_team(critic: ActorCritic) -> ActorCritic:
    """Return a network whose value function reads the leaf `central`, and which has no policy."""

    def policy(weights: Tree, observation: Tree, is_first: Array, core: Tree) -> tuple[Any, Any, Tree]:
        return (), (), core

    def value(weights: Tree, observation: Tree, features: Array) -> Array:
        return critic.value(weights, observation[CENTRAL], features)

    return critic._replace(policy=policy, value=value)


def _make_act(parts: ppo.Components, num_agents: int) -> Act:
    """Return the `act` of N seats, each with weights of its own."""
    alone = ac.make_act(parts.network, parts.distribution)

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        def seat(weights: Tree, key: Array, observation: Tree, core: Tree) -> tuple[ActOutput, Tree]:
            return alone(ActParams(weights, params.moments), key, observation, is_first, core, greedy=greedy)

        keys, seen = jax.random.split(key, num_agents), as_dict(observation)
        return jax.vmap(seat, in_axes=(0, 0, 1, 1), out_axes=1)(params.weights, keys, seen, core)

    return act


def initial_state(
    key: Array,
    policies: ppo.Components,
    values: ppo.Components,
    init_critic: Callable[[Array], tuple[Tree, Tree]],
    seen: dict[str, Tree],
    num_agents: int,
) -> AgentState:
    """Return the state before any update, with policies that start differently; seen: schema of the normalised leaves."""
    config, optimizer = policies.config, policies.optimizer
    policy_key, value_key = jax.random.split(key)
    policy = jax.vmap(lambda k: policies.network.init(k)[0])(jax.random.split(policy_key, num_agents))
    weights = Weights(policy, init_critic(value_key)[1])
    moments = norm.init_moments(seen) if config.normalize_observations else ()
    value_moments = norm.init_value_moments() if config.normalize_values else ()
    opt_state = OptStates(jax.vmap(optimizer.init)(policy), optimizer.init(weights.value))
    return ppo.pack(values, weights, moments, opt_state, value_moments, jnp.zeros((), jnp.int32))


# -- learning ---------------------------------------------------------------------------------------------------------


def seats_of(moments: Tree, trajectory: Trajectory, rows: Trajectory, mask: Array) -> Seats:
    """Return the training rows of the policies; rows: from `team_rows`. mask: [T, B], of the team's rows."""
    acting = mask[..., None] * (trajectory.acts[:-1] == ACTING)
    return Seats(
        norm.normalize(moments, as_dict(rows.observation)),
        rows.action[:-1],
        jnp.where(acting > 0, trajectory.log_prob[:-1], 0.0),
        acting,
        trajectory.core,
    )


def batch_of(seats: Seats, team: ppo.Batch, seat: Array, weight: Array) -> ppo.Batch:
    """Return PPO's batch [T, B, ...] of one seat; its advantage is the team's times `weight` [T, B]."""
    rows = jax.tree.map(lambda x: jnp.take(x, seat, axis=2), seats._replace(core=()))
    return team._replace(
        observation=jax.tree.map(lambda x: x[:-1], rows.observation),
        action=rows.action,
        log_prob=rows.log_prob,
        masks=RowMasks(rows.mask, team.masks.value),
        advantage=team.advantage * weight,
        core=jax.tree.map(lambda x: jnp.take(x, seat, axis=1), seats.core),
    )


def update_policies(
    parts: ppo.Components,
    policies: Tree,
    opt_states: Tree,
    seats: Seats,
    team: ppo.Batch,
    turns: tuple[Array, Array],
    *,
    learning_rate: Array,
    axis_name: str | None,
) -> tuple[Tree, Tree, dict[str, Array]]:
    """Return policies and optimizer states [N, ...] after each seat's steps, and metrics averaged over the seats.

    A seat's advantage is weighted by the product of new probability / old probability of the actions, over the seats before it
    that acted on the row.

    Args:
      turns: (the seats in update order [N], a key for each).
    """
    recurrent = parts.config.network.core != "none"

    def one(carry: tuple[Tree, Tree, Array], turn: tuple[Array, Array]) -> tuple[tuple[Tree, Tree, Array], Any]:
        seat, key = turn
        *kept, weight = carry
        policy, opt_state = jax.tree.map(lambda x: x[seat], kept)
        batch = batch_of(seats, team, seat, weight)
        columns = batch if recurrent else ppo.flat(batch)
        options: Any = {"key": key, "learning_rate": learning_rate, "axis_name": axis_name, "of": policy_only}
        *new, metrics = ppo.optimize(parts, policy, opt_state, columns, **options)
        weight = weight * jnp.exp(ppo.log_ratio_of(parts, outputs_of(parts, new[0], batch), batch))
        kept = jax.tree.map(lambda x, y: x.at[seat].set(y), kept, new)
        return (*kept, weight), metrics

    start = policies, opt_states, jnp.ones_like(team.advantage)
    (policies, opt_states, _), metrics = jax.lax.scan(one, start, turns)
    return policies, opt_states, jax.tree.map(jnp.mean, metrics)


def outputs_of(parts: ppo.Components, policy: Tree, batch: ppo.Batch) -> Any:
    """Return the head's outputs of one seat's policy, masked."""
    outputs, _, _ = parts.network.policy(policy, batch.observation, batch.is_first, batch.core)
    return ac.mask_outputs(outputs, batch.observation)


def policy_only(parts: ppo.Components, policy: Tree, batch: ppo.Batch, mean: Means) -> tuple[Array, dict[str, Array]]:
    """Return PPO's loss of one seat's policy; see jsrl.agents.ppo.ppo_loss."""
    outputs = outputs_of(parts, policy, batch)
    metrics = ppo.policy_terms(parts, outputs, batch, mean.policy)
    total = metrics["loss_policy"] - parts.config.entropy_coef * metrics["entropy"]
    return total, {"loss": total, **metrics}


def value_only(parts: ppo.Components, weights: Tree, batch: ppo.Batch, mean: Means) -> tuple[Array, dict[str, Array]]:
    """Return PPO's loss of the value function; see jsrl.agents.ppo.ppo_loss."""
    value = parts.network.value(weights, batch.observation, jnp.zeros(()))
    error = ppo.value_term(parts, value, batch, mean.value)
    return parts.config.value_coef * error, {"loss_value": error}


def merged(
    moments: dict[str, Tree], trajectory: Trajectory, seen: dict[str, Tree], team: ppo.Batch, axis_name: str | None
) -> dict[str, Tree]:
    """Return moments that also cover the rows of the seats and of the team (the value function's input)."""
    rows = jax.tree.map(lambda x: x[:-1], seen)
    mask = team.masks.value
    own = mask[..., None] * (trajectory.acts[:-1] > 0)
    return {
        name: norm.merge_moments(moments[name], leaf, mask if name == CENTRAL else own, axis_name)
        for name, leaf in rows.items()
    }
