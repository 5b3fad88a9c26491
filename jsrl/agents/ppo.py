"""Proximal policy optimisation, feed-forward and recurrent, for every action spec and any number of devices.

Read `ppo` first: `update` is the algorithm in four steps. One call runs all epochs and minibatches, compiled together.

Source: Schulman et al., 2017, arXiv 1707.06347; details as in Huang et al., 2022
(The 37 Implementation Details of PPO).
Differs: advantages are normalised once per update, unless the config says `minibatch`; the rows after an episode's end are
masked, never trained on; `target_kl` also skips the step whose minibatch exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.actor_critic import Weights
from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.devices import Mean, Means, masked_mean, mean_gradient, standardized
from jsrl.agents.distributions import Distribution, distribution
from jsrl.agents.losses import ValueLoss, approximate_kl, clipped_surrogate, value_loss
from jsrl.agents.minibatches import check_divides, chunked, flat, minibatches_of, plan_minibatches, take
from jsrl.agents.returns import Rows, gae, vtrace
from jsrl.agents.rows import RowMasks, row_margin, row_masks, row_scores, train_only
from jsrl.errors import ConfigError, nearest_divisors
from jsrl.fields import (
    FiniteFloat,
    NonNegativeFinite,
    NonNegativeFloat,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.networks.model import ActorCritic, NetworkConfig, actor_critic
from jsrl.types import FRESH, Array, EnvSpec, Trajectory, Tree

# error of the value function at which the Huber loss becomes linear (Yu et al., 2022, as MAPPO's code)
HUBER_DELTA = 10.0


@suggesting
@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO."""

    factory: ClassVar[str] = "jsrl.agents.ppo:ppo"
    learns_from: ClassVar[str] = FRESH
    explorable: ClassVar[tuple[str, ...]] = (
        "learning_rate", "gamma", "gae_lambda", "clip_ratio", "value_clip", "value_coef", "entropy_coef", "max_grad_norm",
        "target_kl",
    )  # fmt: skip
    scores_rows: ClassVar[bool] = True

    # fmt: off
    learning_rate: PositiveFinite = option(3e-4, "learning rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    adam_eps: PositiveFinite = option(1e-5, "epsilon of Adam.")
    max_grad_norm: PositiveFloat | None = option(0.5, "clip the gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    gae_lambda: UnitFloat = option(0.95, "trace decay of GAE or V-trace.")
    returns: Literal["gae", "vtrace"] = option("gae", "advantages and value targets by `gae` or `vtrace`.")
    clip_ratio: PositiveFloat = option(0.2, "clip range of the probability ratio.")
    clip_schedule: Any = option("constant", "clip range over time, as `schedule` for the learning rate.")
    dual_clip: Annotated[float, Range(ge=1)] | None = option(None, "bound of the loss for negative advantages (> 1); "
        "None: off.")
    value_clip: NonNegativeFloat | None = option(None, "clip range of the change of the value function, in units of "
        "its (normalised) output; None: off.")
    value_loss: ValueLoss = option("mse", "mse (half the squared error) or huber (linear from an error of 10).")
    value_coef: NonNegativeFinite = option(0.5, "weight of the value loss; that of a library with the whole squared "
        "error is half as large.")
    entropy_coef: FiniteFloat = option(0.0, "weight of the entropy bonus.")
    num_epochs: PositiveInt = option(4, "passes over the rows of a batch.")
    num_minibatches: PositiveInt = option(4, "gradient steps per pass. Feed-forward networks shuffle rows; recurrent "
        "ones keep sequences together and shuffle environments.")
    minibatch_size: PositiveInt | None = option(None, "rows of a gradient step, over all devices, in place of "
        "num_minibatches. If it does not divide the batch, minibatches are the next larger ones that do.",
        instead_of="num_minibatches")
    chunk_length: PositiveInt | None = option(None, "rows of the sequences that recurrent networks learn from; "
        "minibatches shuffle these chunks. Gradients end at the edges; each chunk begins with the state that the core "
        "has there before the first gradient step. It divides the rows of a trajectory. None: whole trajectories.")
    values: Literal["learner", "acting"] = option("learner", "values of rows before the first gradient step are "
        "computed by the `learner` (a forward pass over the batch), or by `acting` (the actors send them, which saves "
        "that pass; equal where the policy lag is 0). `acting` needs `returns` gae, a feed-forward network and no "
        "normalize_values.")
    normalize_advantages: bool | Literal["minibatch"] = option(True, "scale advantages to mean 0 and std 1 over the "
        "unmasked rows of all devices, once per update or in each `minibatch`.")
    normalize_observations: bool = option(False, "normalise observations, except images and flags, by running moments.")
    normalize_values: bool = option(False, "normalise the value function by PopArt.")
    target_kl: NonNegativeFloat | None = option(None, "skip the update's remaining gradient steps once approx_kl "
        "exceeds this on average over devices; None: off.")
    network: NetworkConfig = option(help="options of the network.", factory=NetworkConfig)
    # fmt: on

    def check_batch(self, rows: int, columns: int) -> None:
        """Check that the minibatches divide a device's batch [rows, columns].

        Raises:
          ConfigError: they do not; with the nearest numbers that do.
        """
        number, what = (rows * columns, "rows") if self.network.core == "none" else (columns, "environments")
        if self.chunk_length is not None:
            if rows % self.chunk_length:
                raise ConfigError(
                    f"agent.chunk_length={self.chunk_length} does not divide the {rows} rows of a trajectory; use "
                    f"{nearest_divisors(rows, self.chunk_length)}."
                )
            number, what = columns * rows // self.chunk_length, "chunks"
        if self.minibatch_size is None:
            check_divides("num_minibatches", self.num_minibatches, number, what)

    def __post_init__(self) -> None:
        if self.chunk_length is not None and self.network.core == "none":
            raise ConfigError(
                f"chunk_length={self.chunk_length} is for recurrent networks, and network.core is 'none'; leave it out"
            )
        if self.values == "acting" and (self.returns != "gae" or self.normalize_values or self.network.core != "none"):
            raise ConfigError(
                "values='acting' needs returns='gae', normalize_values=False and a feed-forward network, got "
                f"returns={self.returns!r}, normalize_values={self.normalize_values}, core={self.network.core!r}; "
                "use values='learner'"
            )


class Components(NamedTuple):
    """The configuration and modules shared by the agent's functions. clip_ratio: that of this update."""

    config: PPOConfig
    network: ActorCritic
    distribution: Distribution
    optimizer: optax.GradientTransformation
    clip_ratio: Array | float


class Batch(NamedTuple):
    """Inputs of the loss: leaves [T, C, ...], core [C, ...]; minibatches consist of some of the C columns.

    observation is normalised and includes row T; target and old_value are in the value function's normalised units.
    masks: of the policy's rows and of the value function's.
    """

    observation: Tree
    is_first: Array
    action: Array
    log_prob: Array
    masks: RowMasks
    advantage: Array
    target: Array
    old_value: Array
    core: Tree


Loss = Callable[[Components, Any, Batch, Means], tuple[Array, dict[str, Array]]]  # as ppo_loss


def ppo(config: PPOConfig, spec: EnvSpec, network: ActorCritic | None = None, *, loss: Loss | None = None) -> Agent:
    """`network` replaces the config's and is for the same spec; `loss` replaces `ppo_loss`."""
    agent_spec = ac.one_agent(spec)
    ac.check_action_mask(agent_spec)
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    network = actor_critic(config.network, agent_spec) if network is None else network
    parts = Components(config, network, distribution(agent_spec.action), optimizer, config.clip_ratio)
    recurrent = bool(jax.tree.leaves(parts.network.initial_core(1)))

    def init(key: Array) -> AgentState:
        weights = Weights(*parts.network.init(key))
        moments = norm.init_moments(agent_spec.observation) if config.normalize_observations else ()
        value_moments = norm.init_value_moments() if config.normalize_values else ()
        opt_state = optimizer.init(weights)
        return pack(parts, weights, moments, opt_state, value_moments, jnp.zeros((), jnp.int32))

    def update(
        state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
    ) -> tuple[AgentState, UpdateOutput]:
        weights = weights_of(parts, state)
        trajectory = ac.fold_agents(trajectory, spec.num_agents)
        # 1. Values of all rows, advantages and targets, with the moments at the start of the update.
        batch, prepared_metrics = prepare(parts, weights, state, trajectory, axis_name)
        scored = row_masks(trajectory, row_margin(trajectory, axis_name)).policy
        scores = row_scores(trajectory, batch.target, batch.old_value, scored, spec.num_agents)
        # 2. The value function moves to the targets' units; its outputs in raw units stay as they are.
        weights, value_moments, batch = rescale_values(parts, weights, state.extra, batch, axis_name)
        # 3. Gradient steps over epochs and minibatches.
        rate = ac.learning_rate(config, state.updates)
        columns = chunked(_without_last_row(batch), config.chunk_length) if recurrent else flat(batch)
        options: Any = {"key": key, "learning_rate": rate, "axis_name": axis_name, "of": loss or ppo_loss}
        weights, opt_state, metrics = optimize(at(parts, state.updates), weights, state.opt_state, columns, **options)
        # 4. The rows enter the observation moments, once.
        raw = jax.tree.map(lambda x: x[:-1], trajectory.observation)
        moments = norm.merge_moments(state.params.moments, raw, batch.masks.value, axis_name)
        metrics = {**metrics, **prepared_metrics, "learning_rate": rate}
        new = pack(parts, weights, moments, opt_state, value_moments, state.updates + 1)
        return new, UpdateOutput(metrics, scores)

    with_value = config.values == "acting"
    return ac.acting_agent(parts.network, parts.distribution, init, update, spec.num_agents, with_value=with_value)


def pack(
    parts: Components, weights: Weights, moments: Tree, opt_state: Tree, value_moments: Tree, updates: Array
) -> AgentState:
    """Return the agent's state: `params` for acting, with the value function if actors send values."""
    if parts.config.values == "acting":
        return AgentState(ActParams(weights, moments), (), opt_state, value_moments, updates)
    return AgentState(ActParams(weights.policy, moments), weights.value, opt_state, value_moments, updates)


def at(parts: Components, updates: Array) -> Components:
    """Return the parts with the clip range after `updates` updates."""
    config = parts.config
    clip_ratio = ac.scheduled(config.clip_ratio, config.clip_schedule, config.total_updates, updates)
    return parts._replace(clip_ratio=clip_ratio)


def weights_of(parts: Components, state: AgentState) -> Weights:
    if parts.config.values == "acting":
        return state.params.weights
    return Weights(state.params.weights, state.learner_params)


def values_of(
    parts: Components, weights: Weights, observation: Tree, trajectory: Trajectory
) -> tuple[Any, Array, Tree]:
    """Return head outputs and values of all rows [T+1, B], and the first cores of the minibatches' columns.

    If actors send values, outputs are of row T only, and the values are the actors'.
    """
    network, core = parts.network, trajectory.core
    if parts.config.values == "learner":
        read = (weights.policy, observation, trajectory.is_first, core)
        if parts.config.chunk_length is None:
            outputs, features, _ = network.policy(*read)
        else:
            outputs, features, core = read_in_chunks(network, *read, length=parts.config.chunk_length)
        return outputs, network.value(weights.value, observation, features), core
    last = jax.tree.map(lambda x: x[-1:], observation)
    outputs, features, _ = network.policy(weights.policy, last, trajectory.is_first[-1:], core)
    value = network.value(weights.value, last, features)
    return outputs, jnp.concatenate([trajectory.extras["value"][:-1], value]), core


def read_in_chunks(
    network: ActorCritic, weights: Tree, observation: Tree, is_first: Array, core: Tree, *, length: int
) -> tuple[Any, Array, Tree]:
    """Return head outputs and features of rows [T+1, B], and the cores before each chunk, [T/length * B, ...]."""

    def read(core: Tree, rows: tuple[Tree, Array]) -> tuple[Tree, tuple[Any, Array, Tree]]:
        outputs, features, after = network.policy(weights, *rows, core)
        return after, (outputs, features, core)

    rows = (observation, is_first)
    chunks = jax.tree.map(lambda x: x[:-1].reshape(-1, length, *x.shape[1:]), rows)
    core, (outputs, features, cores) = jax.lax.scan(read, core, chunks)
    _, (*last, _) = read(core, jax.tree.map(lambda x: x[-1:], rows))
    outputs, features = jax.tree.map(
        lambda x, end: jnp.concatenate([x.reshape(-1, *x.shape[2:]), end]), (outputs, features), tuple(last)
    )
    return outputs, features, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), cores)


def prepare(
    parts: Components, weights: Weights, state: AgentState, trajectory: Trajectory, axis_name: str | None
) -> tuple[Batch, dict[str, Array]]:
    """Return the batch with advantages (normalised) and targets and old values (both still in raw units)."""
    config, chosen = parts.config, parts.distribution
    observation = norm.normalize(state.params.moments, trajectory.observation)
    outputs, value, core = values_of(parts, weights, observation, trajectory)
    if config.normalize_values:
        value = norm.denormalize_value(state.extra, value)
    margin = row_margin(trajectory, axis_name)
    scored = row_masks(trajectory, margin)
    masks = train_only(scored, trajectory)
    chex.assert_equal_shape([value, trajectory.reward, trajectory.discount, trajectory.acts, trajectory.log_prob])

    played = jax.tree.map(lambda x: x[:-1], trajectory._replace(core=(), sampling=()))
    rows = Rows(value, played.reward, played.discount, trajectory.acts, trajectory.is_first)
    if config.returns == "gae":
        advantage, target = gae(rows, gamma=config.gamma, lambda_=config.gae_lambda, margin=margin)
    else:
        outputs = ac.mask_outputs(jax.tree.map(lambda x: x[:-1], outputs), played.observation)
        log_rho = jnp.where(scored.policy > 0, chosen.log_prob(outputs, played.action) - played.log_prob, 0.0)
        options: Any = {"gamma": config.gamma, "lambda_": config.gae_lambda, "margin": margin}
        advantage, target = vtrace(rows, log_rho, weight_advantage=False, **options)

    metrics = {"explained_variance": ac.explained_variance(target, value[:-1], masks.value, axis_name)}
    if config.normalize_advantages is True:
        advantage = standardized(advantage, lambda x: masked_mean(x, masks.policy, axis_name))
    batch = Batch(
        observation,
        played.is_first,
        played.action,
        played.log_prob,
        masks,
        advantage,
        target,
        value[:-1],
        core,
    )
    return batch, metrics


def _without_last_row(batch: Batch) -> Batch:
    return batch._replace(observation=jax.tree.map(lambda x: x[:-1], batch.observation))


def rescale_values(
    parts: Components, weights: Weights, moments: Any, batch: Batch, axis_name: str | None
) -> tuple[Weights, Any, Batch]:
    """Return weights, value moments and batch in the units of moments that include this update's targets (PopArt)."""
    if not parts.config.normalize_values:
        return weights, moments, batch
    new = norm.merge_value_moments(moments, batch.target, batch.masks.value, axis_name=axis_name)
    head = norm.rescale_head(weights.value, parts.network.value_head, moments, new)
    target, old_value = (norm.normalize_value(new, x) for x in (batch.target, batch.old_value))
    return weights._replace(value=head), new, batch._replace(target=target, old_value=old_value)


def ppo_loss(parts: Components, weights: Weights, batch: Batch, mean: Means) -> tuple[Array, dict[str, Array]]:
    """Return PPO's loss and metrics; `mean`: over the rows of the policy and over those of the value function."""
    config, network = parts.config, parts.network
    outputs, features, _ = network.policy(weights.policy, batch.observation, batch.is_first, batch.core)
    outputs = ac.mask_outputs(outputs, batch.observation)
    value = network.value(weights.value, batch.observation, features)
    of_policy = policy_terms(parts, outputs, batch, mean.policy)
    loss_value = value_term(parts, value, batch, mean.value)
    total = of_policy["loss_policy"] + config.value_coef * loss_value - config.entropy_coef * of_policy["entropy"]
    return total, {"loss": total, "loss_value": loss_value, **of_policy}


def policy_terms(parts: Components, outputs: Any, batch: Batch, mean: Mean) -> dict[str, Array]:
    """Return the policy's terms and metrics; outputs are masked."""
    config, clip_ratio, chosen = parts.config, parts.clip_ratio, parts.distribution
    log_ratio = log_ratio_of(parts, outputs, batch)
    ratio = jnp.exp(log_ratio)
    within = config.normalize_advantages == "minibatch"
    advantage = standardized(batch.advantage, mean) if within else batch.advantage
    surrogate = clipped_surrogate(ratio, advantage, clip_ratio=clip_ratio, dual_clip=config.dual_clip)
    return {
        "loss_policy": mean(surrogate),
        "entropy": mean(chosen.entropy(outputs)),
        "approx_kl": mean(approximate_kl(log_ratio)),
        "clip_fraction": mean(jnp.abs(ratio - 1.0) > clip_ratio),
    }


def log_ratio_of(parts: Components, outputs: Any, batch: Batch) -> Array:
    """Return log(probability of the actions now / when chosen); 0 where the policy's mask is 0."""
    return jnp.where(batch.masks.policy > 0, parts.distribution.log_prob(outputs, batch.action) - batch.log_prob, 0.0)


def value_term(parts: Components, value: Array, batch: Batch, mean: Mean) -> Array:
    options: Any = {"kind": parts.config.value_loss, "huber_delta": HUBER_DELTA, "clip": parts.config.value_clip}
    return mean(value_loss(value, batch.target, batch.old_value, **options))


def optimize(
    parts: Components,
    weights: Any,
    opt_state: Tree,
    batch: Batch,
    *,
    key: Array,
    learning_rate: Array,
    axis_name: str | None,
    of: Loss = ppo_loss,
) -> tuple[Any, Tree, dict[str, Array]]:
    """Return weights and optimizer state after all epochs, and metrics averaged over the gradient steps evaluated.

    Args:
      of: the loss, a function of these weights.
    """
    config = parts.config

    def gradient_step(weights: Any, opt_state: Tree, columns: Array):
        minibatch = take(batch, columns)
        gradients, metrics = mean_gradient(
            lambda w, mean: of(parts, w, minibatch, mean), weights, minibatch.masks, axis_name
        )
        metrics["grad_norm"] = optax.tree.norm(gradients)
        going = jnp.asarray(True) if config.target_kl is None else metrics["approx_kl"] <= config.target_kl
        stepped = ac.apply_gradients(parts.optimizer, gradients, opt_state, weights, learning_rate)
        kept = jax.tree.map(lambda new, old: jnp.where(going, new, old), stepped, (weights, opt_state))
        return *kept, going, metrics

    def body(carry: tuple[Any, Tree, Array], columns: Array):
        if config.target_kl is None:
            weights, opt_state, going, metrics = gradient_step(*carry[:2], columns)
        else:
            zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(gradient_step, *carry[:2], columns)[-1])
            weights, opt_state, going, metrics = jax.lax.cond(
                carry[2], lambda w, o: gradient_step(w, o, columns), lambda w, o: (w, o, carry[2], zeros), *carry[:2]
            )
        return (weights, opt_state, going), (metrics, carry[2], going)

    start = (weights, opt_state, jnp.asarray(True))
    rows, columns = batch.target.shape
    size = config.minibatch_size
    count = config.num_minibatches if size is None else minibatches_of(size, columns, rows, axis_name)
    sizes = {"num_epochs": config.num_epochs, "num_minibatches": count}
    plan = plan_minibatches(columns, **sizes, key=key, axis_name=axis_name)
    (weights, opt_state, _), (metrics, evaluated, applied) = jax.lax.scan(body, start, plan)
    metrics = {name: masked_mean(x, evaluated.astype(jnp.float32), None) for name, x in metrics.items()}
    metrics["epochs_run"] = jnp.sum(applied) / count
    return weights, opt_state, metrics
