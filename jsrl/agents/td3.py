"""Twin delayed deterministic policy gradient (TD3), for continuous actions.

Read `td3` first: `update` is the algorithm in three steps.

Source: Fujimoto et al., 2018, arXiv 1802.09477.
Differs: n-step windows where replay gives them; random actions are played until the first update is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import ActParams, Agent, AgentState, Split, UpdateOutput
from jsrl.agents.devices import Mean, normal_columns
from jsrl.agents.off_policy import ActingWeights, Transition
from jsrl.agents.split import make_split
from jsrl.fields import (
    NonNegativeFinite,
    NonNegativeFloat,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    PositiveUnitFloat,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import Network, critic_network, policy_network
from jsrl.types import REPLAY, Array, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class TD3Config:
    """Hyperparameters of TD3."""

    factory: ClassVar[str] = "jsrl.agents.td3:td3"
    learns_from: ClassVar[str] = REPLAY
    usual_replay: ClassVar[dict[str, Any]] = off.USUAL_REPLAY
    explorable: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma", "tau", "max_grad_norm")

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(3e-4, "learning rate of the policy.")
    critic_learning_rate: PositiveFinite | None = option(None, "that of the critics; None: learning_rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    max_grad_norm: PositiveFloat | None = option(None, "clip each gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    tau: PositiveUnitFloat = option(0.005, "share of the online networks in each step of the target networks; 1 "
        "replaces them.")
    num_critics: PositiveInt = option(2, "number of critics; the smallest value counts in targets.")
    policy_delay: PositiveInt = option(2, "updates of the critics per update of the policy and the targets.")
    noise_process: off.Process = option("normal", off.PROCESS_HELP)
    exploration_noise: NonNegativeFinite = option(0.1, "standard deviation of the noise on played actions, as a share "
        "of half the action's range.")
    target_noise: NonNegativeFinite = option(0.2, "standard deviation of the noise on the target policy's actions, in "
        "the same unit.")
    target_noise_clip: NonNegativeFloat = option(0.5, "largest noise on the target policy's actions, in the same unit.")
    normalize_observations: bool = option(False, off.NORMALIZE_HELP)
    network: NetworkConfig = option(help="options of the policy's network and of each "
        "critic's.", factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    # fmt: on


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions."""

    config: TD3Config
    policy: Network
    critics: Network
    box: off.ActionBox
    optimizer: optax.GradientTransformation


class LearnerParams(NamedTuple):
    """Critics (a leading ensemble axis) and the two targets."""

    critics: Tree
    target_critics: Tree
    target_policy: Tree


class OptStates(NamedTuple):
    """The optimizer states of policy and critics."""

    policy: Tree
    critics: Tree


def td3(config: TD3Config, spec: EnvSpec) -> Agent:
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    box = off.action_box(agent_spec)
    policy_net = policy_network(config.network, agent_spec, deterministic=True)
    critic_net = critic_network(config.network, agent_spec, num_critics=config.num_critics)
    optimizer = ac.make_optimizer(config.optimizer, eps=1e-8, max_grad_norm=config.max_grad_norm)
    parts = Components(config, policy_net, critic_net, box, optimizer)

    def init(key: Array) -> AgentState:
        policy_key, critic_key = jax.random.split(key)
        policy, critics = policy_net.init(policy_key), critic_net.init(critic_key)
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        params = ActParams(ActingWeights(policy, jnp.zeros((), jnp.int32)), moments)
        opt_state = OptStates(optimizer.init(policy), optimizer.init(critics))
        reported = {"loss_policy": jnp.float32(0.0)}
        learner_params = LearnerParams(critics, critics, policy)
        return AgentState(params, learner_params, opt_state, reported, jnp.zeros((), jnp.int32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        options: Any = {"gamma": config.gamma, "num_agents": spec.num_agents, "axis_name": axis_name}
        batch, moments = off.prepare(state.params.moments, trajectory, **options)
        # 1. Critics: one gradient step towards the smaller target value of the target policy's action, with noise.
        state, metrics, error = critic_step(parts, state, batch, key, axis_name)

        # 2. and 3. Every `policy_delay` updates: the policy, with the new critics, and all targets.
        def delayed_update(state: AgentState) -> tuple[AgentState, dict[str, Array]]:
            state, metrics = policy_step(parts, state, batch, axis_name)
            return move_targets(parts, state), metrics

        state, reported = off.every(config.policy_delay, state.updates, delayed_update, state, state.extra)
        updates = state.updates + 1
        params = ActParams(state.params.weights._replace(updates=updates), moments)
        priorities = off.priorities(error, batch.mask, spec.num_agents)
        state = state._replace(params=params, extra=reported, updates=updates)
        return state, UpdateOutput({**metrics, **reported}, priorities)

    act = off.noisy_act(policy_net, box, process=config.noise_process, noise=config.exploration_noise)
    initial_core = off.noise_core(config.noise_process, agent_spec.action.array.shape[0])

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        learned = state.learner_params._replace(target_policy=params.weights.network)
        return state._replace(params=params, learner_params=learned)

    split = split_td3(parts, spec.num_agents)
    agent = Agent(init, initial_core, act, update, split, adopt=adopt, store_core=False)
    return ac.for_agents(agent, spec.num_agents)


def critic_loss(
    parts: Components, critics: Tree, fixed: tuple[Tree, Tree], columns: tuple[Transition, Array], mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the critics' loss, and (metrics, error [B]).

    y = r + d min Q'(o', clip(pi'(o') + clip(noise))); loss: (Q(o, a) - y)^2 / 2, summed over critics. Where o' is a
    value-only row, the stored action 0 takes the policy's place: only its value is trained there.

    Args:
      critics: what the gradient is for. fixed: weights of the target critics and the target policy.
      columns: transitions, and standard normal noise [B, A]. mean: over the transitions' mask.
    """
    config, (target_critics, target_policy), (batch, noise) = parts.config, fixed, columns
    noise = jnp.clip(config.target_noise * noise, -config.target_noise_clip, config.target_noise_clip)
    action = jnp.clip(parts.policy.apply(target_policy, batch.next_observation) + noise, -1.0, 1.0)
    action = jnp.where(batch.next_acting[:, None] > 0, action, parts.box.to_unit(jnp.zeros_like(action)))
    next_value = jnp.min(parts.critics.apply(target_critics, batch.next_observation, action), axis=0)
    value = parts.critics.apply(critics, batch.observation, parts.box.to_unit(batch.action))
    error = value - jax.lax.stop_gradient(batch.reward + batch.discount * next_value)
    loss = mean(jnp.sum(0.5 * jnp.square(error), axis=0) * batch.weight)
    return loss, ({"loss_value": loss, "value_mean": mean(jnp.mean(value, axis=0))}, jnp.mean(jnp.abs(error), axis=0))


def policy_loss(
    parts: Components, policy: Tree, critics: Tree, batch: Transition, mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Tree]]:
    """Return the policy's loss -Q_1(o, pi(o)), the first critic's, and (metrics, ())."""
    first = jax.tree.map(lambda w: w[:1], critics)
    value = parts.critics.apply(first, batch.observation, parts.policy.apply(policy, batch.observation))[0]
    loss = -mean(value)
    return loss, ({"loss_policy": loss}, ())


def critic_step(
    parts: Components, state: AgentState, batch: Transition, key: Array, axis_name: str | None
) -> tuple[AgentState, dict[str, Array], Array]:
    """Return the state after one gradient step of the critics, metrics, and the mean |error| of the critics [B]."""
    learned, config = state.learner_params, parts.config
    fixed = (learned.target_critics, learned.target_policy)
    shape = batch.action.shape
    noise = normal_columns(key, shape, axis_name) if config.target_noise else jnp.zeros(shape)

    def loss(critics: Tree, columns: Any, mean: Mean) -> Any:
        return critic_loss(parts, critics, fixed, columns, mean)

    gradients, metrics, error = off.gradient(loss, learned.critics, (batch, noise), batch.mask, axis_name)
    rate = ac.learning_rate(config, state.updates, config.critic_learning_rate)
    critics, opt_state = ac.apply_gradients(parts.optimizer, gradients, state.opt_state.critics, learned.critics, rate)
    learned = learned._replace(critics=critics)
    return state._replace(learner_params=learned, opt_state=state.opt_state._replace(critics=opt_state)), metrics, error


def policy_step(
    parts: Components, state: AgentState, batch: Transition, axis_name: str | None
) -> tuple[AgentState, dict[str, Array]]:
    """Return the state after one gradient step of the policy, and metrics."""
    config, weights, critics = parts.config, state.params.weights, state.learner_params.critics

    def loss(policy: Tree, columns: Transition, mean: Mean) -> Any:
        return policy_loss(parts, policy, critics, columns, mean)

    gradients, metrics, _ = off.gradient(loss, weights.network, batch, batch.acting, axis_name)
    rate = ac.learning_rate(config, state.updates)
    policy, opt_state = ac.apply_gradients(parts.optimizer, gradients, state.opt_state.policy, weights.network, rate)
    state = state._replace(
        params=state.params._replace(weights=weights._replace(network=policy)),
        opt_state=state.opt_state._replace(policy=opt_state),
    )
    return state, metrics


def move_targets(parts: Components, state: AgentState) -> AgentState:
    """Return the state, after an update of the policy, with both targets moved towards critics and policy."""
    config, (critics, target_critics, target_policy) = parts.config, state.learner_params
    online, target = (critics, state.params.weights.network), (target_critics, target_policy)
    moved = off.move_targets(target, online, tau=config.tau, period=1, updates=state.updates)
    return state._replace(learner_params=LearnerParams(critics, *moved))


def split_td3(parts: Components, num_agents: int | None) -> Split:
    """Return policy and critics as two updates; targets move with the critics, every `policy_delay`-th update."""
    config = parts.config

    def critics(
        state: AgentState, batch: Transition, key: Array, axis_name: str | None
    ) -> tuple[AgentState, dict[str, Array], Array]:
        state, metrics, error = critic_step(parts, state, batch, key, axis_name)
        moved, _ = off.every(config.policy_delay, state.updates, lambda s: (move_targets(parts, s), ()), state, ())
        return moved, metrics, error

    def policy(
        state: AgentState, batch: Transition, key: Array, axis_name: str | None
    ) -> tuple[AgentState, dict[str, Array]]:
        del key

        def delayed_update(state: AgentState) -> tuple[AgentState, dict[str, Array]]:
            return policy_step(parts, state, batch, axis_name)

        state, reported = off.every(config.policy_delay, state.updates, delayed_update, state, state.extra)
        return state._replace(extra=reported), reported

    return make_split(critics, policy, gamma=config.gamma, num_agents=num_agents)
