"""Deep deterministic policy gradient (DDPG), for continuous actions.

Read `ddpg` first: `update` is the algorithm in three steps.

Source: Lillicrap et al., 2016, arXiv 1509.02971.
Differs: Gaussian noise in place of the Ornstein-Uhlenbeck process, no batch normalisation, one network width for all; n-step
windows where replay gives them; random actions are played until the first update is published (`random_start`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import ActParams, Agent, AgentState, Split, UpdateOutput
from jsrl.agents.off_policy import Published, Transition
from jsrl.agents.split import make_split
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import Network, critic_network, policy_network
from jsrl.types import Array, EnvSpec, Trajectory, Tree


@dataclass(frozen=True)
class DDPGConfig:
    """Hyperparameters of DDPG.

    Attributes:
      learning_rate: of the policy and, where not given, of the critic. critic_learning_rate: its own. Adam.
      max_grad_norm: global clip of each gradient, None off.
      gamma: discount. tau, target_period: targets move by tau every so many updates.
      exploration_noise: standard deviation of the noise on actions played, as a share of half the action's range.
      random_start: play uniformly random actions until the first update is published.
      normalize_observations: by running moments of the sampled rows (floating-point leaves only).
      network: of policy and critic each.
    """

    factory: ClassVar[str] = "jsrl.agents.ddpg:ddpg"

    learning_rate: float = 3e-4
    critic_learning_rate: float | None = None
    max_grad_norm: float | None = None
    gamma: float = 0.99
    tau: float = 0.005
    target_period: int = 1
    exploration_noise: float = 0.1
    random_start: bool = True
    normalize_observations: bool = False
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
          ConfigError: a value that cannot work; says which and what would.
        """
        off.check_learning(self)
        ac.check_range("exploration_noise", self.exploration_noise, 0)


class Parts(NamedTuple):
    """What an agent closes over."""

    config: DDPGConfig
    optimizer: optax.GradientTransformation
    policy: Network
    critic: Network
    box: off.ActionBox


class Pair(NamedTuple):
    """Something of the policy's and of the critic's: weights of both targets, or states of both optimizers."""

    policy: Tree
    critic: Tree


class LearnerParams(NamedTuple):
    """The critic's weights, and the targets'."""

    critic: Tree
    target: Pair


def ddpg(config: DDPGConfig, spec: EnvSpec) -> Agent:
    """Return DDPG for environments of this spec.

    Raises:
      ConfigError: the spec or network cannot work with this config.
    """
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    policy_net = policy_network(config.network, agent_spec, deterministic=True)
    critic_net = critic_network(config.network, agent_spec, num_critics=1)
    optimizer = ac.make_optimizer("adam", eps=1e-8, max_grad_norm=config.max_grad_norm)
    parts = Parts(config, optimizer, policy_net, critic_net, off.action_box(agent_spec))

    def init(key: Array) -> AgentState:
        policy_key, critic_key = jax.random.split(key)
        policy, critic = policy_net.init(policy_key), critic_net.init(critic_key)
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        params = ActParams(Published(policy, jnp.zeros((), jnp.int32)), moments)
        opt_state = Pair(optimizer.init(policy), optimizer.init(critic))
        learner_params = LearnerParams(critic, Pair(policy, critic))
        return AgentState(params, learner_params, opt_state, (), jnp.zeros((), jnp.int32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        del key  # nothing here is random
        options: Any = {"gamma": config.gamma, "num_agents": spec.num_agents, "axis_name": axis_name}
        batch, count, moments = off.prepare(state.params.moments, trajectory, **options)
        # 1. The critic: one gradient step towards the target value of the target policy's action.
        state, metrics, error = critic_step(parts, state, batch, count, axis_name)
        # 2. The policy: one gradient step up the new critic's value of its own action.
        state, policy_metrics = policy_step(parts, state, batch, count, axis_name)
        # 3. Targets follow both.
        state = move_targets(parts, state)
        updates = state.updates + 1
        params = ActParams(state.params.weights._replace(updates=updates), moments)
        priorities = off.priorities(error, batch.mask, spec.num_agents)
        state = state._replace(params=params, updates=updates)
        return state, UpdateOutput({**metrics, **policy_metrics}, priorities)

    options: Any = {"noise": config.exploration_noise, "random_start": config.random_start}
    act = off.make_act(off.gaussian_around(policy_net, parts.box, **options), spec.num_agents)

    def adopt(state: AgentState, params: ActParams) -> AgentState:
        critic, target = state.learner_params
        learned = LearnerParams(critic, target._replace(policy=params.weights.network))
        return state._replace(params=params, learner_params=learned)

    return Agent(init, off.no_core, act, update, split_ddpg(parts, spec.num_agents), adopt=adopt)


def critic_loss(
    parts: Parts, critic: Tree, target: Pair, batch: Transition, count: Array
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return this device's share of the critic's loss, and (its share of the metrics, error [B]).

    y = r + d Q'(o', pi'(o')); loss: (Q(o, a) - y)^2 / 2.

    Args:
      critic: what the gradient is for. target: weights of the targets.
      batch: transitions. count: unmasked columns of all devices.
    """
    action = parts.policy.apply(target.policy, batch.next_observation)
    next_value = parts.critic.apply(target.critic, batch.next_observation, action)[0]
    value = parts.critic.apply(critic, batch.observation, parts.box.to_unit(batch.action))[0]
    error = value - jax.lax.stop_gradient(batch.reward + batch.discount * next_value)
    loss = jnp.sum(0.5 * jnp.square(error) * batch.weight) / count
    return loss, ({"loss_value": loss, "value_mean": jnp.sum(value * batch.mask) / count}, error)


def policy_loss(
    parts: Parts, policy: Tree, critic: Tree, batch: Transition, count: Array
) -> tuple[Array, tuple[dict[str, Array], Tree]]:
    """Return this device's share of the policy's loss -Q(o, pi(o)), and (its share of the metrics, ())."""
    value = parts.critic.apply(critic, batch.observation, parts.policy.apply(policy, batch.observation))[0]
    loss = -jnp.sum(value * batch.mask) / count
    return loss, ({"loss_policy": loss}, ())


def critic_step(
    parts: Parts, state: AgentState, batch: Transition, count: Array, axis_name: str | None
) -> tuple[AgentState, dict[str, Array], Array]:
    """Return the state with the critic one gradient step on, metrics, and the critic's error [B]."""
    config, (critic, target) = parts.config, state.learner_params

    def loss(weights: Tree, columns: Transition) -> Any:
        return critic_loss(parts, weights, target, columns, count)

    gradients, metrics, error = off.gradient(loss, critic, batch, axis_name)
    rate = config.critic_learning_rate or config.learning_rate
    critic, opt_state = ac.apply_gradients(parts.optimizer, gradients, state.opt_state.critic, critic, rate)
    learned = LearnerParams(critic, target)
    return state._replace(learner_params=learned, opt_state=state.opt_state._replace(critic=opt_state)), metrics, error


def policy_step(
    parts: Parts, state: AgentState, batch: Transition, count: Array, axis_name: str | None
) -> tuple[AgentState, dict[str, Array]]:
    """Return the state with the policy one gradient step on, and metrics."""
    weights, critic = state.params.weights, state.learner_params.critic

    def loss(policy: Tree, columns: Transition) -> Any:
        return policy_loss(parts, policy, critic, columns, count)

    gradients, metrics, _ = off.gradient(loss, weights.network, batch, axis_name)
    policy, opt_state = ac.apply_gradients(
        parts.optimizer, gradients, state.opt_state.policy, weights.network, parts.config.learning_rate
    )
    params = state.params._replace(weights=weights._replace(network=policy))
    return state._replace(params=params, opt_state=state.opt_state._replace(policy=opt_state)), metrics


def move_targets(parts: Parts, state: AgentState) -> AgentState:
    """Return the state with both targets moved towards critic and policy."""
    critic, target = state.learner_params
    when: Any = {"tau": parts.config.tau, "period": parts.config.target_period, "updates": state.updates}
    moved = off.move_targets(target, Pair(state.params.weights.network, critic), **when)
    return state._replace(learner_params=LearnerParams(critic, moved))


def split_ddpg(parts: Parts, num_agents: int | None) -> Split:
    """Return policy and critic as two updates; targets move with the critic."""

    def critic(state: AgentState, batch: Transition, count: Array, key: Array, axis_name: str | None) -> Any:
        del key
        state, metrics, error = critic_step(parts, state, batch, count, axis_name)
        return move_targets(parts, state), metrics, error

    def policy(state: AgentState, batch: Transition, count: Array, key: Array, axis_name: str | None) -> Any:
        del key
        return policy_step(parts, state, batch, count, axis_name)

    return make_split(critic, policy, gamma=parts.config.gamma, num_agents=num_agents, critic_optimizer="critic")
