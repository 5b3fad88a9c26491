"""Soft actor-critic with automatic temperature, for continuous and for discrete actions.

Read `sac` first: `update` is the algorithm in three steps.

Source: Haarnoja et al., 2018, arXiv 1812.05905; discrete actions: Christodoulou, 2019, arXiv 1910.07207.
Differs: n-step windows where replay gives them; the temperature's loss is linear in log alpha, as in the authors' code;
random actions are played until the first update is published (`random_start`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, Split, UpdateOutput
from jsrl.agents.devices import Mean, normal_columns
from jsrl.agents.distributions import categorical, named, noise_core, squashed_gaussian, state_noise
from jsrl.agents.losses import entropy_excess
from jsrl.agents.off_policy import ActingWeights, Transition
from jsrl.agents.split import make_split
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
from jsrl.networks.off_policy import Network, critic_network, policy_network
from jsrl.types import REPLAY, Array, Continuous, Discrete, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class SACConfig:
    """Hyperparameters of SAC."""

    factory: ClassVar[str] = "jsrl.agents.sac:sac"
    learns_from: ClassVar[str] = REPLAY
    usual_replay: ClassVar[dict[str, Any]] = off.USUAL_REPLAY
    explorable: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma", "tau", "max_grad_norm")

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(3e-4, "learning rate of the policy.")
    critic_learning_rate: PositiveFinite | None = option(None, "that of the critics; None: learning_rate.")
    temperature_learning_rate: PositiveFinite | None = option(None, "that of the temperature; None: learning_rate.",
        needs=("learn-temperature",))
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    max_grad_norm: PositiveFloat | None = option(None, "clip each gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    tau: PositiveUnitFloat = option(0.005, "share of the critics in each step of the target critics; 1 replaces them.")
    target_period: PositiveInt = option(1, "updates between steps of the target critics.")
    num_critics: PositiveInt = option(2, "number of critics; the smallest value counts.")
    policy_delay: PositiveInt = option(1, "updates of the critics per update of policy and temperature.")
    temperature: PositiveFinite = option(1.0, "weight alpha of the entropy, at the start, or fixed where "
        "learn_temperature is false.")
    learn_temperature: bool = option(True, "learn alpha so that the entropy reaches target_entropy.")
    target_entropy: FiniteFloat | None = option(None, "target of the entropy in nats. None: minus the number of action "
        "dimensions (of tanh(u) on [-1, 1]), or for discrete actions 0.5 log(number of actions). With an action mask "
        "the target of each row is scaled by log(legal actions) / log(actions).", needs=("learn-temperature",))
    random_start: bool = option(True, "play uniformly random actions until the first update is published.")
    normalize_observations: bool = option(False, off.NORMALIZE_HELP)
    network: NetworkConfig = option(help="options of the policy's network and of each "
        "critic's.", factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    # fmt: on


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions.

    predict: (critic weights, observation, stored action) -> values [E, B] of the actions taken.
    evaluate: (policy weights, critic weights, observation, noise, acting=None) -> (smallest value [B], log-probability [B])
      of the policy's own action: sampled, or for discrete actions the expectation over all actions. The value is that of
      the stored action 0 where `acting` [B] is 0; None: the policy acts everywhere.
    critic_loss, policy_loss: in place of sac_critic_loss and sac_policy_loss.
    """

    config: SACConfig
    policy: Network
    critics: Network
    predict: Callable[..., Array]
    evaluate: Callable[..., tuple[Array, Array]]
    target_entropy: float
    optimizer: optax.GradientTransformation
    critic_loss: Callable[..., Any] | None = None
    policy_loss: Callable[..., Any] | None = None


class Critics(NamedTuple):
    """Weights with a leading ensemble axis."""

    online: Tree
    target: Tree


class Extra(NamedTuple):
    """log_temperature: log alpha. reported: metrics of the last policy step."""

    log_temperature: Array
    reported: dict[str, Array]


class OptStates(NamedTuple):
    """The optimizer states of policy, critics and temperature."""

    policy: Tree
    critics: Tree
    temperature: Tree


class Choose(Protocol):
    """How one kind of actions is chosen."""

    def __call__(
        self, weights: ActingWeights, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool
    ) -> tuple[ActOutput, Tree]:
        """Return the actions for normalised observations (action masks are not normalised), and the new core."""
        ...


def sac(
    config: SACConfig,
    spec: EnvSpec,
    *,
    critic_loss: Callable[..., Any] | None = None,
    policy_loss: Callable[..., Any] | None = None,
) -> Agent:
    """The losses replace `sac_critic_loss` and `sac_policy_loss`."""
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    parts, choose = (discrete_parts if isinstance(spec.action, Discrete) else continuous_parts)(config, agent_spec)
    parts = parts._replace(critic_loss=critic_loss, policy_loss=policy_loss)
    optimizer = parts.optimizer

    def init(key: Array) -> AgentState:
        policy_key, critic_key = jax.random.split(key)
        policy, critics = parts.policy.init(policy_key), parts.critics.init(critic_key)
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        log_temperature = jnp.asarray(math.log(config.temperature), jnp.float32)
        updates = jnp.zeros((), jnp.int32)
        opt_state = OptStates(*map(optimizer.init, (policy, critics, log_temperature)))
        params = ActParams(ActingWeights(policy, updates), moments)
        reported = {name: jnp.float32(0.0) for name in ("loss_policy", "entropy", "temperature")}
        extra = Extra(log_temperature, reported)
        return AgentState(params, Critics(critics, critics), opt_state, extra, updates)

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        critic_key, policy_key = jax.random.split(key)
        options: Any = {"gamma": config.gamma, "num_agents": spec.num_agents, "axis_name": axis_name}
        batch, moments = off.prepare(state.params.moments, trajectory, **options)
        # 1. Critics: one gradient step towards the soft value of the next observation.
        state, metrics, error = critic_step(parts, state, batch, critic_key, axis_name)

        # 2. Policy and temperature, with the new critics.
        def delayed_update(state: AgentState) -> tuple[AgentState, dict[str, Array]]:
            return policy_step(parts, state, batch, policy_key, axis_name)

        state, reported = off.every(config.policy_delay, state.updates, delayed_update, state, state.extra.reported)
        # 3. Targets follow the critics.
        state = move_targets(parts, state)
        updates = state.updates + 1
        params = ActParams(state.params.weights._replace(updates=updates), moments)
        state = state._replace(params=params, extra=with_reported(state.extra, reported), updates=updates)
        priorities = off.priorities(error, batch.mask, spec.num_agents)
        return state, UpdateOutput({**metrics, **reported}, priorities)

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        return choose(params.weights, key, norm.normalize(params.moments, observation), is_first, core, greedy=greedy)

    noisy = config.network.noise_period is not None and isinstance(spec.action, Continuous)
    core = noise_core(jax.eval_shape(parts.policy.init, jax.random.key(0))) if noisy else off.no_core
    agent = Agent(init, core, act, update, split_sac(parts, spec.num_agents), store_core=False)
    return ac.for_agents(agent, spec.num_agents)


# -- learning ---------------------------------------------------------------------------------------------------------


def sac_critic_loss(
    parts: Components, critics: Tree, fixed: tuple[Tree, Tree, Array], columns: tuple[Transition, Array], mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Return the critics' loss, and (metrics, error [B]).

    y = r + d (min Q'(o', a') - alpha log pi(a' | o')), a' from the policy; loss: (Q(o, a) - y)^2 / 2, summed over critics.
    Where o' is a value-only row, the policy does not act: a' is the stored action 0, whose value alone is trained there,
    and there is no entropy term.

    Args:
      critics: what the gradient is for. fixed: weights of targets and policy, and log alpha.
      columns: transitions, and noise for the next actions. mean: over the transitions' mask.
    """
    targets, policy, log_temperature = fixed
    batch, noise = columns
    next_value, log_prob = parts.evaluate(policy, targets, batch.next_observation, noise, batch.next_acting)
    bonus = jnp.where(batch.next_acting > 0, jnp.exp(log_temperature) * log_prob, 0.0)
    target = batch.reward + batch.discount * (next_value - bonus)
    value = parts.predict(critics, batch.observation, batch.action)
    error = value - jax.lax.stop_gradient(target)
    loss = mean(jnp.sum(0.5 * jnp.square(error), axis=0) * batch.weight)
    return loss, ({"loss_value": loss, "value_mean": mean(jnp.mean(value, axis=0))}, jnp.mean(jnp.abs(error), axis=0))


def sac_policy_loss(
    parts: Components, policy: Tree, fixed: tuple[Tree, Array], columns: tuple[Transition, Array], mean: Mean
) -> tuple[Array, tuple[dict[str, Array], Tree]]:
    """Return the policy's loss alpha log pi(a | o) - min Q(o, a), and (metrics, ()).

    Args:
      policy: what the gradient is for. fixed: weights of the critics, and log alpha.
      columns: transitions, and noise for the actions. mean: over those on which the agent acted.
    """
    critics, log_temperature = fixed
    batch, noise = columns
    value, log_prob = parts.evaluate(policy, critics, batch.observation, noise)
    loss = mean(jnp.exp(log_temperature) * log_prob - value)
    excess = mean(entropy_excess(-log_prob, parts.target_entropy, ac.action_mask(batch.observation)))
    return loss, ({"loss_policy": loss, "entropy": mean(-log_prob), "entropy_excess": excess}, ())


def critic_step(
    parts: Components, state: AgentState, batch: Transition, key: Array, axis_name: str | None
) -> tuple[AgentState, dict[str, Array], Array]:
    """Return the state after one gradient step of the critics, metrics, and the mean |error| of the critics [B]."""
    config, (online, target) = parts.config, state.learner_params
    fixed = (target, state.params.weights.network, state.extra.log_temperature)
    noise = normal_columns(key, batch.action.shape, axis_name)

    def loss(critics: Tree, columns: Any, mean: Mean) -> Any:
        return (parts.critic_loss or sac_critic_loss)(parts, critics, fixed, columns, mean)

    gradients, metrics, error = off.gradient(loss, online, (batch, noise), batch.mask, axis_name)
    rate = ac.learning_rate(config, state.updates, config.critic_learning_rate)
    online, opt_state = ac.apply_gradients(parts.optimizer, gradients, state.opt_state.critics, online, rate)
    learned = {"learner_params": Critics(online, target), "opt_state": state.opt_state._replace(critics=opt_state)}
    return state._replace(**learned), metrics, error


def policy_step(
    parts: Components, state: AgentState, batch: Transition, key: Array, axis_name: str | None
) -> tuple[AgentState, dict[str, Array]]:
    """Return the state after one gradient step of policy and temperature, and metrics."""
    config, weights, opt_state = parts.config, state.params.weights, state.opt_state
    fixed = (state.learner_params.online, state.extra.log_temperature)
    noise = normal_columns(key, batch.action.shape, axis_name)

    def loss(policy: Tree, columns: Any, mean: Mean) -> Any:
        return (parts.policy_loss or sac_policy_loss)(parts, policy, fixed, columns, mean)

    gradients, metrics, _ = off.gradient(loss, weights.network, (batch, noise), batch.acting, axis_name)
    rate = ac.learning_rate(config, state.updates)
    policy, policy_opt = ac.apply_gradients(parts.optimizer, gradients, opt_state.policy, weights.network, rate)
    log_temperature, temperature_opt = state.extra.log_temperature, opt_state.temperature
    excess = metrics.pop("entropy_excess")
    if config.learn_temperature:  # the gradient of log alpha (entropy - target entropy)
        rate = ac.learning_rate(config, state.updates, config.temperature_learning_rate)
        log_temperature, temperature_opt = ac.apply_gradients(
            parts.optimizer, excess, temperature_opt, log_temperature, rate
        )
    state = state._replace(
        params=state.params._replace(weights=weights._replace(network=policy)),
        opt_state=opt_state._replace(policy=policy_opt, temperature=temperature_opt),
        extra=state.extra._replace(log_temperature=log_temperature),
    )
    return state, {**metrics, "temperature": jnp.exp(log_temperature)}


def with_reported(extra: Extra, metrics: dict[str, Array]) -> Extra:
    """Return `extra` with the metrics of this policy step; those that a user's loss adds are not kept in the state."""
    return extra._replace(reported={name: metrics[name] for name in extra.reported})


def move_targets(parts: Components, state: AgentState) -> AgentState:
    online, target = state.learner_params
    when: Any = {"tau": parts.config.tau, "period": parts.config.target_period, "updates": state.updates}
    return state._replace(learner_params=Critics(online, off.move_targets(target, online, **when)))


def split_sac(parts: Components, num_agents: int | None) -> Split:
    """Return policy (with the temperature) and critics as two updates."""

    def critics(state: AgentState, batch: Transition, key: Array, axis_name: str | None) -> Any:
        state, metrics, error = critic_step(parts, state, batch, jax.random.split(key)[0], axis_name)
        return move_targets(parts, state), metrics, error

    def policy(state: AgentState, batch: Transition, key: Array, axis_name: str | None) -> Any:
        def delayed_update(state: AgentState) -> tuple[AgentState, dict[str, Array]]:
            return policy_step(parts, state, batch, jax.random.split(key)[1], axis_name)

        delay = parts.config.policy_delay
        state, reported = off.every(delay, state.updates, delayed_update, state, state.extra.reported)
        return state._replace(extra=with_reported(state.extra, reported)), reported

    return make_split(critics, policy, gamma=parts.config.gamma, num_agents=num_agents)


# -- the two kinds of actions -----------------------------------------------------------------------------------------


def continuous_parts(config: SACConfig, spec: EnvSpec) -> tuple[Components, Choose]:
    """Return SAC's functions for bounded real actions, and the acting rule: a tanh-squashed Gaussian."""
    box, chosen = off.action_box(spec), squashed_gaussian()
    policy = policy_network(config.network, spec)
    critics = critic_network(config.network, spec, num_critics=config.num_critics)
    num_dims, period = spec.action.array.shape[0], config.network.noise_period

    def predict(weights: Tree, observation: Tree, action: Array) -> Array:
        return critics.apply(weights, observation, box.to_unit(action))

    def evaluate(
        weights: Tree, critic_weights: Tree, observation: Tree, noise: Array, acting: Array | None = None
    ) -> tuple[Array, Array]:
        outputs = policy.apply(weights, observation)
        mean, log_std = outputs
        raw = mean + jnp.exp(log_std) * noise
        unit = jnp.tanh(raw)
        if acting is not None:
            unit = jnp.where(acting[:, None] > 0, unit, box.to_unit(jnp.zeros_like(unit)))
        value = critics.apply(critic_weights, observation, unit)
        return jnp.min(value, axis=0), chosen.log_prob(outputs, raw)

    def choose(
        weights: ActingWeights, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool
    ) -> tuple[ActOutput, Tree]:
        outputs, features = policy.read(weights.network, observation)
        raw = chosen.mode(outputs) if greedy else chosen.sample(key, outputs)
        if period is not None:
            noise, core = state_noise(weights.network, features, core, key, is_first, period)
            raw = raw if greedy else chosen.mode(outputs) + noise
        action, log_prob = box.from_raw(raw), chosen.log_prob(outputs, raw)
        if not greedy and config.random_start:
            action, log_prob = off.random_first(weights, key, box, action, log_prob)
        return ActOutput(action, log_prob, distribution=named(outputs)), core

    entropy = config.target_entropy if config.target_entropy is not None else -float(num_dims)
    return Components(config, policy, critics, predict, evaluate, entropy, _optimizer(config)), choose


def discrete_parts(config: SACConfig, spec: EnvSpec) -> tuple[Components, Choose]:
    """Return SAC's functions for discrete actions, and the acting rule; expectations over actions are exact."""
    assert isinstance(spec.action, Discrete)
    chosen = categorical()
    policy = policy_network(config.network, spec)
    critics = critic_network(config.network, spec, num_critics=config.num_critics)

    def predict(weights: Tree, observation: Tree, action: Array) -> Array:
        values = critics.apply(weights, observation)
        return jnp.take_along_axis(values, action[None, :, None].astype(jnp.int32), axis=-1)[..., 0]

    def evaluate(
        weights: Tree, critic_weights: Tree, observation: Tree, noise: Array, acting: Array | None = None
    ) -> tuple[Array, Array]:
        del noise
        log_p = jax.nn.log_softmax(ac.mask_outputs(policy.apply(weights, observation), observation))
        p = jnp.exp(log_p)
        value = jnp.min(critics.apply(critic_weights, observation), axis=0)
        chances = p if acting is None else jnp.where(acting[:, None] > 0, p, jnp.arange(p.shape[-1]) == 0)
        return jnp.sum(chances * value, axis=-1), jnp.sum(p * log_p, axis=-1)

    def choose(
        weights: ActingWeights, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool
    ) -> tuple[ActOutput, Tree]:
        logits = policy.apply(weights.network, observation)
        if not greedy and config.random_start:
            logits = jnp.where(weights.updates > 0, logits, 0.0)
        logits = ac.mask_outputs(logits, observation)
        action = chosen.mode(logits) if greedy else chosen.sample(key, logits)
        return ActOutput(action, chosen.log_prob(logits, action), distribution=named(logits)), core

    entropy = 0.5 * math.log(spec.action.num_actions) if config.target_entropy is None else config.target_entropy
    return Components(config, policy, critics, predict, evaluate, entropy, _optimizer(config)), choose


def _optimizer(config: SACConfig) -> optax.GradientTransformation:
    return ac.make_optimizer(config.optimizer, eps=1e-8, max_grad_norm=config.max_grad_norm)
