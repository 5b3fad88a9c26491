"""Phasic policy gradient (PPG): PPO, and after every N of its updates a phase that improves the features.

Read `ppg` first: its update is the algorithm in three steps. The policy phase is PPO's update, with separate networks for
policy and value. The auxiliary phase trains, on the rows of all batches since the last one, a value head on the policy's
features, while the KL divergence to the policy before the phase keeps the actions as they were, and the value network.

The rows are arrays in the agent's state, because an update is a pure function of it: exact resumes, several devices and
compiled programs need nothing else. They take `phase_rows` observations of memory, on every device and in every snapshot of
the state.

Source: Cobbe et al., 2020, arXiv 2009.04416, algorithm 1.
Differs: the policy phase trains policy and value network on the same minibatches (E_pi = E_V); the auxiliary head starts at
zero, and its phase has an optimizer state of its own.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.base import Agent, AgentState, UpdateOutput, with_extra
from jsrl.agents.devices import Means
from jsrl.agents.distributions import distribution
from jsrl.agents.hyperparameters import with_fields
from jsrl.agents.losses import value_loss
from jsrl.agents.minibatches import check_divides
from jsrl.agents.off_policy import every
from jsrl.agents.ppo import HUBER_DELTA, Components, PPOConfig, optimize, pack, ppo, prepare, weights_of
from jsrl.agents.rows import RowMasks
from jsrl.errors import ConfigError
from jsrl.fields import FiniteFloat, NonNegativeFinite, PositiveInt, option, suggesting
from jsrl.networks.model import ActorCritic, actor_critic
from jsrl.types import Array, EnvSpec, Trajectory, Tree


@suggesting
@dataclass(frozen=True)
class PPGConfig(PPOConfig):
    """Hyperparameters of PPG: those of PPO for the policy phase, and these."""

    factory: ClassVar[str] = "jsrl.agents.ppg:ppg"
    explorable: ClassVar[tuple[str, ...]] = (*PPOConfig.explorable, "clone_coef")

    entropy_coef: FiniteFloat = 0.01
    num_epochs: PositiveInt = 1
    # fmt: off
    phase_rows: PositiveInt = option(65_536, "rows of an auxiliary phase, which are kept on the device: it comes after as "
        "many updates as have so many rows (in the paper 32).")
    aux_epochs: PositiveInt = option(6, "passes over these rows.")
    aux_minibatches: PositiveInt = option(16, "gradient steps of a pass for each batch that is kept.")
    clone_coef: NonNegativeFinite = option(1.0, "weight of the KL divergence to the policy before the phase.")
    # fmt: on

    def check_batch(self, rows: int, columns: int) -> None:
        """Check that the minibatches of both phases divide a device's batch [rows, columns]."""
        super().check_batch(rows, columns)
        check_divides("aux_minibatches", self.aux_minibatches, rows * columns, "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network.core != "none" or self.network.shared:
            raise ConfigError(
                "ppg has feed-forward networks, separate for policy and value, got network.core="
                f"{self.network.core!r}, network.shared={self.network.shared}; leave both out, or use ppo"
            )


class Rows(NamedTuple):
    """What the auxiliary phase reads: leaves [R, ...], batches [T, C] one after another, with the C columns of all devices.

    observation: raw. target: of the value function, raw units.
    """

    observation: Tree
    target: Array
    masks: RowMasks


class Weights(NamedTuple):
    """What the auxiliary phase trains. head: kernel [F] and bias [], from the policy's features to values."""

    policy: Tree
    value: Tree
    head: dict[str, Array]


class Phase(NamedTuple):
    """AgentState.extra. agent: PPO's own extra. reported: metrics of the last auxiliary phase."""

    agent: Tree
    rows: Rows
    head: dict[str, Array]
    opt_state: Tree
    reported: dict[str, Array]


class Batch(NamedTuple):
    """Inputs of the auxiliary loss, [1, C, ...]. old: outputs of the policy before the phase. core: ()."""

    observation: Tree
    target: Array
    masks: RowMasks
    old: Any
    core: tuple[()] = ()


def ppg(config: PPGConfig, spec: EnvSpec) -> Agent:
    agent_spec, size = ac.one_agent(spec), config.phase_rows
    network = actor_critic(dataclasses.replace(config.network, shared=False), agent_spec)
    optimizer = ac.make_optimizer(config.optimizer, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    parts = Components(config, network, distribution(agent_spec.action), optimizer, config.clip_ratio)
    policy_phase = ppo(config, spec, network)

    def begin(own: Tree) -> Phase:
        policy, value = jax.eval_shape(network.init, jax.random.key(0))
        zeros = partial(jnp.zeros, dtype=jnp.float32)
        head = {"kernel": zeros(num_features(network, policy, agent_spec)), "bias": zeros(())}
        opt_state = optimizer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), Weights(policy, value, head)))
        observation = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), agent_spec.observation)
        kept = Rows(observation, zeros(size), RowMasks(zeros(size), zeros(size)))
        reported = {name: zeros(()) for name in ("loss_auxiliary", "kl_clone")}
        return Phase(own, kept, head, opt_state, reported)

    def update(
        own: AgentState, kept: Phase, trajectory: Trajectory, key: Array, axis_name: str | None
    ) -> tuple[AgentState, Phase, UpdateOutput]:
        # 1. The policy phase: an update of PPO.
        state, output = policy_phase.update(own, trajectory, key, axis_name=axis_name)
        # 2. Its rows are kept.
        new = read_rows(parts, own, ac.fold_agents(trajectory, spec.num_agents), axis_name)
        length, columns = new.target.shape
        number = size // (length * columns)  # batches of a phase
        if not number:
            raise ConfigError(f"agent.phase_rows={size} is less than the {length * columns} rows of a batch; give more")
        first = own.updates % number * (length * columns)

        def put(kept: Array, x: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(kept, x.reshape(-1, *x.shape[2:]), first, 0)

        rows = jax.tree.map(put, kept.rows, new)

        # 3. After the last batch of a phase: the auxiliary phase.
        def auxiliary(learned: tuple[Weights, Tree]) -> tuple[tuple[Weights, Tree], dict[str, Array]]:
            shape = (number, length, columns)
            batches = jax.tree.map(lambda x: x[: math.prod(shape)].reshape(*shape, *x.shape[1:]), rows)
            return auxiliary_phase(parts, state, *learned, batches, jax.random.fold_in(key, 1), axis_name)

        weights = weights_of(parts, state)
        start = (Weights(weights.policy, weights.value, kept.head), kept.opt_state)
        (learned, opt_state), reported = every(number, state.updates, auxiliary, start, kept.reported)
        weights = ac.Weights(learned.policy, learned.value)
        state = pack(parts, weights, state.params.moments, state.opt_state, state.extra, state.updates)
        output = output._replace(metrics=output.metrics | reported)
        return state, Phase((), rows, learned.head, opt_state, reported), output

    return with_extra(policy_phase, begin, update)


def num_features(network: ActorCritic, weights: Tree, spec: EnvSpec) -> int:
    blank = jax.tree.map(lambda leaf: jnp.zeros((1, 1, *leaf.shape), leaf.dtype), spec.observation)
    shapes = jax.eval_shape(lambda w: network.policy(w, blank, jnp.zeros((1, 1), bool), ()), weights)
    return shapes[1].shape[-1]


def read_rows(parts: Components, state: AgentState, trajectory: Trajectory, axis_name: str | None) -> Rows:
    """Return the rows [T, C] that PPO learned from, of all devices; what is masked becomes 0."""
    batch, _ = prepare(parts, weights_of(parts, state), state, trajectory, axis_name)
    seen = jax.tree.map(lambda x: ac.where_rows(batch.masks.value > 0, x[:-1]), trajectory.observation)
    rows = Rows(seen, batch.target * batch.masks.value, batch.masks)
    return rows if axis_name is None else jax.lax.all_gather(rows, axis_name, axis=1, tiled=True)


def auxiliary_phase(
    parts: Components,
    state: AgentState,
    weights: Weights,
    opt_state: Tree,
    rows: Rows,
    key: Array,
    axis_name: str | None,
) -> tuple[tuple[Weights, Tree], dict[str, Array]]:
    """Return (weights, optimizer state) after the auxiliary phase, and metrics averaged over its gradient steps.

    Args:
      rows: of N batches, leaves [N, T, C, ...].
    """
    config: Any = parts.config
    moments = state.params.moments
    if axis_name is not None:  # each device reads its share of the columns
        share = rows.target.shape[2] // jax.lax.axis_size(axis_name)
        first = jax.lax.axis_index(axis_name) * share
        rows = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, share, axis=2), rows)
    old = jax.lax.map(lambda seen: read(parts, weights, moments, seen)[0], rows.observation)
    target = norm.normalize_value(state.extra, rows.target) if config.normalize_values else rows.target
    batch = Batch(rows.observation, target, rows.masks, old)
    batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[3:]), batch)
    steps = {"num_epochs": config.aux_epochs, "num_minibatches": len(rows.target) * config.aux_minibatches}
    own = with_fields(config, {**steps, "minibatch_size": None, "target_kl": None})
    weights, opt_state, metrics = optimize(
        parts._replace(config=own),
        weights,
        opt_state,
        batch,
        key=key,
        learning_rate=ac.learning_rate(config, state.updates),
        axis_name=axis_name,
        of=lambda parts, weights, batch, mean: auxiliary_loss(parts, weights, moments, batch, mean),
    )
    return (weights, opt_state), {name: metrics[name] for name in ("loss_auxiliary", "kl_clone")}


def read(parts: Components, weights: Weights, moments: Tree, observation: Tree) -> tuple[Any, Array, Array]:
    """Return the policy's outputs, the auxiliary values and those of the value network, for observations [T, C, ...]."""
    network, normal = parts.network, norm.normalize(moments, observation)
    is_first = jnp.zeros(jax.tree.leaves(observation)[0].shape[:2], bool)
    outputs, features, _ = network.policy(weights.policy, normal, is_first, ())
    auxiliary = features @ weights.head["kernel"] + weights.head["bias"]
    return ac.mask_outputs(outputs, observation), auxiliary, network.value(weights.value, normal, features)


def auxiliary_loss(
    parts: Components, weights: Weights, moments: Tree, batch: Any, mean: Means
) -> tuple[Array, dict[str, Array]]:
    """Return the loss of the auxiliary phase for a `Batch`, and metrics.

    mean( (V_head - target)^2 / 2 ) + clone_coef mean( KL(old policy || policy) ) + mean( (V - target)^2 / 2 ); the value
    losses are those of the config.
    """
    config: Any = parts.config
    outputs, auxiliary, value = read(parts, weights, moments, batch.observation)

    def loss_of(value: Array) -> Array:
        options: Any = {"kind": config.value_loss, "huber_delta": HUBER_DELTA}
        return mean.value(value_loss(value, batch.target, batch.target, **options))

    clone, loss_auxiliary = mean.policy(parts.distribution.kl(batch.old, outputs)), loss_of(auxiliary)
    total = loss_auxiliary + config.clone_coef * clone + loss_of(value)
    return total, {"loss_auxiliary": loss_auxiliary, "kl_clone": clone}
