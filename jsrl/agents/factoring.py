"""Value factoring: the value of a team's joint action as a mixture of its seats' utilities, for DQN and for R2D2.

The seats of a policy group are one team. Each has a utility Q_i(o_i, a_i), all from one network. A mixer computes Q_tot
from the utilities of the seats that act; DQN's or R2D2's loss trains Q_tot with the team's reward. The mixer never decreases
in a utility, so each seat's best action is its part of the best joint one: acting needs neither mixer nor state.

    value      Q_tot(s, a) = mix(Q_1(o_1, a_1), ..., Q_N(o_N, a_N); s)
    target     r + gamma mix'(Q'_1(o'_1, argmax_a Q_1(o'_1, a)), ...; s')       double Q; mix' and Q' of the target network

Utilities, targets and losses are those of jsrl.agents.dqn and jsrl.agents.r2d2; VDN and QMIX differ in their `Mixing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import dqn, r2d2
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean, mean_gradient
from jsrl.agents.off_policy import ActingWeights, Transition
from jsrl.agents.rows import row_masks
from jsrl.agents.seats import numbered, numbered_spec, team_rows, team_size, team_vector
from jsrl.errors import ConfigError
from jsrl.networks.off_policy import value_network
from jsrl.types import ACTING, Array, ArraySpec, EnvSpec, Trajectory, Tree


class Mixing(NamedTuple):
    """How utilities become one value.

    init: (key) -> weights. apply: (weights, utilities [..., N], 0 of seats that do not act, state [..., F]) -> values [...].
    """

    init: Callable[[Array], Tree]
    apply: Callable[[Tree, Array, Array], Array]


MakeMixing: TypeAlias = Callable[[int, int], Mixing]  # (N, F) -> Mixing


class Factored(NamedTuple):
    """All trained weights. network: of the utilities. mixer: of their mixture."""

    network: Tree
    mixer: Tree


class LearnerWeights(NamedTuple):
    """Learner-only params: the mixer, and the weights that compute targets."""

    mixer: Tree
    target: Factored


class Team(NamedTuple):
    """The parts of both agents.

    base: the agent of single seats. spec: of one seat, as the network reads it. mixer_size: F.
    """

    config: Any
    base: Agent
    spec: EnvSpec
    mixing: Mixing
    mixer_size: int
    optimizer: optax.GradientTransformation
    num_agents: int


def make_team(config: Any, spec: EnvSpec, make: Callable[[Any, EnvSpec], Agent], make_mixing: MakeMixing) -> Team:
    """Return the parts; `make` makes the agent of single seats."""
    n = spec.num_agents
    if n is None:
        raise ConfigError(f"{spec.name} has one agent; VDN and QMIX are for teams. Use dqn or r2d2")
    whole = numbered_spec(spec, config.agent_ids)
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    width = team_size(spec)
    return Team(config, make(config, whole), ac.one_agent(whole), make_mixing(n, width), width, optimizer, n)


# -- a team's rows ----------------------------------------------------------------------------------------------------


def as_team(team: Team, trajectory: Trajectory) -> Trajectory:
    """Return the team's rows [T+1, B, ...], as `team_rows` does.

    observation: {"seats": as the network reads it, "acts": float32 [T+1, B, N], 1 where the seat acts, "state": the mixer's
    input}.
    """
    rows = team_rows(with_numbers(team, trajectory), team.num_agents)
    acts = (trajectory.acts == ACTING).astype(jnp.float32)
    return rows._replace(observation={"seats": rows.observation, "acts": acts, "state": team_vector(trajectory)})


def with_numbers(team: Team, trajectory: Trajectory) -> Trajectory:
    shape = trajectory.is_first.shape
    return trajectory._replace(
        observation=numbered(trajectory.observation, team.num_agents, team.config.agent_ids, *shape)
    )


def mix(mixing: Mixing, weights: Tree, utilities: Array, observation: dict[str, Array]) -> Array:
    """Return Q_tot [...] of utilities [..., N]; seats that do not act are left out, unless none acts.

    So the value of a team whose seats are all dead is learned: it is mixed from their utilities of action 0, which stands
    for none.
    """
    acts = observation["acts"] > 0
    counts = acts | ~jnp.any(acts, axis=-1, keepdims=True)
    return mixing.apply(weights, jnp.where(counts, utilities, 0.0), observation["state"])


# -- agents -----------------------------------------------------------------------------------------------------------


def factored_dqn(config: Any, spec: EnvSpec, make_mixing: MakeMixing) -> Agent:
    """Return DQN with mixed utilities as values; config: a DQNConfig with `agent_ids`."""
    team = make_team(config, spec, dqn.dqn, make_mixing)
    network = value_network(config.network, team.spec, dueling=config.dueling)
    parts = dqn.Components(config, network, jnp.zeros(1))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        online, target = online_of(state), state.learner_params.target
        rows = as_team(team, trajectory)
        raw = off.transition(rows, config.gamma, axis_name)
        batch = raw._replace(
            observation=normalized(state, raw.observation), next_observation=normalized(state, raw.next_observation)
        )

        def of_all(weights: Factored, columns: Transition, mean: Mean) -> Any:
            return dqn_loss(parts, team.mixing, weights, target, columns, mean)

        gradients, metrics, error = off.gradient(of_all, online, batch, batch.mask, axis_name)
        moments = merged(state, raw.observation, raw.mask, axis_name)
        metrics["epsilon"] = dqn.epsilon_now(config, state.updates)
        return step(team, state, gradients, moments), UpdateOutput(metrics, off.priorities(error, batch.mask, None))

    return as_agent(team, update)


def factored_r2d2(config: Any, spec: EnvSpec, make_mixing: MakeMixing) -> Agent:
    """Return R2D2 with mixed utilities as values; config: an R2D2Config with `agent_ids`."""
    team = make_team(config, spec, r2d2.r2d2, make_mixing)
    parts = r2d2.Components(config, value_network(config.network, team.spec, dueling=config.dueling))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # the update is deterministic
        online, target = online_of(state), state.learner_params.target
        rows = as_team(team, trajectory)
        trained = r2d2.trained_rows(config, rows, axis_name)
        seats = ac.fold_agents(with_numbers(team, trajectory), team.num_agents)
        moments = state.params.moments
        sequences = r2d2.burn_in(parts, online.network, target.network, moments, seats, axis_name)
        seen = jax.tree.map(lambda x: x[config.burn_in :], normalized(state, rows.observation))

        def of_all(weights: Factored, mean: Mean) -> Any:
            return r2d2_loss(parts, team.mixing, weights, target, sequences, (seen, trained), mean)

        gradients, (metrics, error) = mean_gradient(of_all, online, trained.mask, axis_name)
        raw = jax.tree.map(lambda x: x[:-1], rows.observation)
        new = step(team, state, gradients, merged(state, raw, row_masks(rows, trained.margin).value, axis_name))
        return new, UpdateOutput(metrics, r2d2.window_priorities(error, trained.mask, None))

    return as_agent(team, update)


def dqn_loss(
    parts: dqn.Components, mixing: Mixing, weights: Factored, target: Factored, batch: Transition, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return DQN's loss of Q_tot: see jsrl.agents.dqn.dqn_loss. batch: from a team's rows."""
    here, there = batch.observation, batch.next_observation
    reads = here["seats"], batch.action, there["seats"], there["acts"]
    taken, following = dqn.outputs_of(parts, weights.network, target.network, *reads)
    value = mix(mixing, weights.mixer, taken[..., 0], here)
    return dqn.one_step_loss(parts.config, value, mix(mixing, target.mixer, following[..., 0], there), batch, mean)


def r2d2_loss(
    parts: r2d2.Components,
    mixing: Mixing,
    weights: Factored,
    target: Factored,
    sequences: r2d2.Sequences,
    team: tuple[dict[str, Array], r2d2.TrainedRows],
    mean: Mean,
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return R2D2's loss of Q_tot: see jsrl.agents.r2d2.loss.

    Args:
      sequences: of the seats, [T+1, B N, ...]. team: the observation after burn-in, [T+1, B, ...], and the trained rows.
    """
    (observation, trained), rows = team, sequences.rows.trajectory
    utilities = r2d2.values_of(parts, weights.network, target.network, sequences, rows)
    taken, best = ac.unfold(utilities, 1, observation["acts"].shape[-1])
    value = mix(mixing, weights.mixer, taken, jax.tree.map(lambda x: x[:-1], observation))
    return r2d2.n_step_loss(parts.config, value, mix(mixing, target.mixer, best, observation), trained, mean)


def online_of(state: AgentState) -> Factored:
    return Factored(state.params.weights.network, state.learner_params.mixer)


def normalized(state: AgentState, observation: dict[str, Array]) -> dict[str, Array]:
    moments = {"seats": state.params.moments, "acts": (), "state": state.extra}
    return norm.normalize(moments, observation)


def merged(state: AgentState, observation: dict[str, Array], mask: Array, axis_name: str | None) -> tuple[Tree, Tree]:
    """Return the moments of seats and of the mixer's state that also cover rows [..., N, ...] with team mask [...]."""
    acting = mask[..., None] * observation["acts"]
    seats = norm.merge_moments(state.params.moments, observation["seats"], acting, axis_name)
    return seats, norm.merge_moments(state.extra, observation["state"], mask, axis_name)


def step(team: Team, state: AgentState, gradients: Factored, moments: tuple[Tree, Tree]) -> AgentState:
    """Return the state after one gradient step; the target weights follow."""
    config, online = team.config, online_of(state)
    rate = ac.learning_rate(config, state.updates)
    online, opt_state = ac.apply_gradients(team.optimizer, gradients, state.opt_state, online, rate)
    when: Any = {"tau": config.tau, "period": config.target_period, "updates": state.updates}
    target = off.move_targets(state.learner_params.target, online, **when)
    params = ActParams(ActingWeights(online.network, state.updates + 1), moments[0])
    return AgentState(params, LearnerWeights(online.mixer, target), opt_state, moments[1], state.updates + 1)


def as_agent(team: Team, update: Any) -> Agent:
    """Return the agent with this update; it acts like the agent of single seats."""
    base, config = team.base, team.config

    def init(key: Array) -> AgentState:
        fresh = base.init(key)
        online = Factored(fresh.params.weights.network, team.mixing.init(jax.random.fold_in(key, 1)))
        moments = norm.init_moments(ArraySpec((team.mixer_size,), "float32")) if config.normalize_observations else ()
        return fresh._replace(
            learner_params=LearnerWeights(online.mixer, online), opt_state=team.optimizer.init(online), extra=moments
        )

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        observation = numbered(observation, team.num_agents, config.agent_ids, *is_first.shape)
        return base.act(params, key, observation, is_first, core, greedy=greedy)

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        begun = base.adopt(state, params) if base.adopt else state._replace(params=params)
        target = state.learner_params.target._replace(network=params.weights.network)
        return begun._replace(learner_params=state.learner_params._replace(target=target))

    return base._replace(init=init, act=act, update=update, adopt=adopt)
