"""What the off-policy algorithms share: windows as transitions, gradients over columns, targets, bounded actions, acting.

An update gets windows sampled by replay: a Trajectory [T+1, B, ...] with independent columns.
Agents without a core learn from row 0 of each window: one transition over up to T rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents.base import Act, ActOutput, ActParams
from jsrl.agents.devices import Mean, masked_sum, psum, row_count
from jsrl.agents.rows import row_margin
from jsrl.errors import ConfigError
from jsrl.networks.off_policy import Network
from jsrl.types import Array, Continuous, Discrete, EnvSpec, Trajectory, Tree

USUAL_REPLAY = {"capacity": 1_000_000, "batch_size": 256, "min_size": 1_000, "updates_per_env_step": 1.0}
NORMALIZE_HELP = "normalise observations, except images and flags, by running moments of the sampled rows."
MOST_TOO_SHORT = 0.1  # largest share of windows that may end before the agent's next row
CHUNK = 512  # columns whose intermediate values (256 units wide) stay in a core's cache


class ActingWeights(NamedTuple):
    """The weights of ActParams. network: the acting network's. updates: int32 scalar, the learner's updates so far."""

    network: Tree
    updates: Array


# -- windows ----------------------------------------------------------------------------------------------------------


class Transition(NamedTuple):
    """From row 0 of each window to the row that bootstraps it; leaves [B, ...].

    reward: the discounted sum between the two. discount: the factor of the bootstrap value, gamma^k or 0.
    mask: 1 where the window trains the critic. weight: mask times the importance weight. acting: the policy's mask, 1
    where the agent also acted on row 0. next_acting: 1 where it acts on the row that bootstraps.
    """

    observation: Tree
    action: Array
    reward: Array
    discount: Array
    next_observation: Tree
    mask: Array
    weight: Array
    acting: Array
    next_acting: Array


def transition(trajectory: Trajectory, gamma: float, axis_name: str | None = None) -> Transition:
    """Return the n-step transition of every window [T+1, B, ...] over the agent's own rows (acting and value-only).

    A window stops after a termination (discount 0), at a last observation (its row bootstraps a truncation), and at row T.
    In games of turns it also stops at the agent's first row t > T - margin (jsrl.agents.rows): its outcome comes after the
    window.
    If it stops at a waiting row, whose value is not learned, it bootstraps at the agent's last row before; if that is row
    0, the window is masked. Let end be the row that bootstraps, and g_t the product of all discounts before row t, with one
    gamma for each of the agent's rows from row 1 to t. Then reward = sum over t < end of g_t r_t, and discount = g_end. So a
    waiting row's reward counts as if it came with the agent's row before.
    If more than a tenth of the batch's windows are too short for that, the batch trains nothing: the remaining windows
    would be those in which the game ends soon, and Q would be biased to them. In a game of N players in turns, windows need
    N rows.
    """
    num_rows = trajectory.is_first.shape[0] - 1
    rows = jax.tree.map(lambda x: x[:-1], trajectory._replace(core=(), sampling=(), observation=()))
    going_on = 1.0 - trajectory.is_first[1:].astype(jnp.float32)  # 0: a last observation
    own = trajectory.acts > 0
    live = _product_before(going_on * (rows.discount > 0)) * going_on
    number = jnp.arange(num_rows + 1, dtype=jnp.int32)[:, None]
    margin = row_margin(trajectory, axis_name)
    late = own & (number > 0) & (number + margin > num_rows)
    stop = jnp.minimum(jnp.sum(live, axis=0).astype(jnp.int32), jnp.min(jnp.where(late, number, num_rows), axis=0))
    terminated = jnp.any((live > 0) & (rows.discount == 0) & (number[:-1] < stop), axis=0)
    end = jnp.where(terminated, stop, jnp.max(jnp.where(own & (number <= stop), number, 0), axis=0))
    used = number[:-1] < end
    step = jnp.where(used, rows.discount * jnp.where(own[1:], gamma, 1.0), 1.0)
    begun = own[0] * going_on[0]
    too_short = begun * (end == 0) * (stop == num_rows)
    windows, lost = psum((jnp.sum(begun), jnp.sum(too_short)), axis_name)
    mask = begun * (end > 0) * (lost <= MOST_TOO_SHORT * windows)
    reward = jnp.sum(jnp.where(used & (mask > 0), _product_before(step) * rows.reward, 0.0), axis=0)

    def last(x: Array) -> Array:
        return x[1] if num_rows == 1 else x[end, jnp.arange(x.shape[1])]

    return Transition(
        observation=jax.tree.map(lambda x: x[0], trajectory.observation),
        action=rows.action[0],
        reward=reward,
        discount=jnp.prod(step, axis=0),
        next_observation=jax.tree.map(last, trajectory.observation),
        mask=mask,
        weight=mask if isinstance(trajectory.sampling, tuple) else mask * trajectory.sampling,
        acting=mask * (rows.acts[0] == 1),
        next_acting=(last(trajectory.acts) == 1).astype(jnp.float32),
    )


def _product_before(x: Array) -> Array:
    """Return the product of the rows before each row: [T, B] -> [T, B], first row 1."""
    return jnp.concatenate([jnp.ones_like(x[:1]), jnp.cumprod(x[:-1], axis=0)])


def prepare(
    moments: Tree, trajectory: Trajectory, *, gamma: float, num_agents: int | None, axis_name: str | None
) -> tuple[Transition, Tree]:
    """Return transitions normalised by `moments`, and moments that also cover the sampled observations."""
    raw = transition(ac.fold_agents(trajectory, num_agents), gamma, axis_name)
    batch = raw._replace(
        observation=norm.normalize(moments, raw.observation),
        next_observation=norm.normalize(moments, raw.next_observation),
    )
    return batch, norm.merge_moments(moments, raw.observation, raw.mask, axis_name)


def priorities(error: Array, mask: Array, num_agents: int | None) -> Array:
    """Return |error| [B], 0 where masked; the mean over the agents with mask 1 if several share a window."""
    priority = jnp.abs(error) * mask
    if num_agents is None:
        return priority
    total, count = (jnp.sum(x.reshape(-1, num_agents), axis=1) for x in (priority, mask))
    return total / jnp.maximum(count, 1.0)


# -- learning ---------------------------------------------------------------------------------------------------------


class ColumnLoss(Protocol):
    """A loss of columns."""

    def __call__(self, weights: Tree, columns: Any, mean: Mean, /) -> tuple[Array, tuple[dict[str, Array], Tree]]:
        """Return loss and (metrics, values per column: leaves [B, ...]); loss and metrics are sums of means over columns."""
        ...


def gradient(
    loss: ColumnLoss, weights: Tree, columns: Any, mask: Array, axis_name: str | None = None
) -> tuple[Tree, dict[str, Array], Tree]:
    """Return gradient and metrics over the columns [B, ...] of all devices with mask [B], and the values per column.

    On CPU a large batch is processed in chunks of columns, so that intermediate values stay in the cache. `mean` is the share
    of this chunk and device in a mean; the shares are summed here.
    """
    count = row_count(mask, axis_name)

    def one(columns: Any, mask: Array) -> tuple[Tree, tuple[dict[str, Array], Tree]]:
        return jax.grad(loss, has_aux=True)(weights, columns, lambda x: masked_sum(x, mask) / count)

    num_columns = jax.tree.leaves(columns)[0].shape[0]
    if jax.default_backend() != "cpu" or num_columns <= CHUNK or num_columns % CHUNK:
        gradients, (metrics, per_column) = one(columns, mask)
        return (*psum((gradients, metrics), axis_name), per_column)

    def add(total: Tree, chunk: Any) -> tuple[Tree, Tree]:
        gradients, (metrics, per_column) = one(*chunk)
        return jax.tree.map(jnp.add, total, (gradients, metrics)), per_column

    chunks = jax.tree.map(lambda x: x.reshape(-1, CHUNK, *x.shape[1:]), (columns, mask))
    shapes = jax.eval_shape(one, *jax.tree.map(lambda x: x[0], chunks))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes[0], shapes[1][0]))
    total, per_column = jax.lax.scan(add, zeros, chunks)
    per_column = jax.tree.map(lambda x: x.reshape(num_columns, *x.shape[2:]), per_column)
    return (*psum(total, axis_name), per_column)


def move_targets(target: Tree, online: Tree, *, tau: float, period: int, updates: Array) -> Tree:
    """Return target + tau (online - target) after every `period`-th update, else target.

    Args:
      updates: number before this one.
    """
    if period == 1:
        return jax.tree.map(lambda t, w: t + tau * (w - t), target, online)
    due = (updates + 1) % period == 0
    return jax.tree.map(lambda t, w: jnp.where(due, (1.0 - tau) * t + tau * w, t), target, online)


def every(
    period: int, updates: Array, step: Callable[[Tree], tuple[Tree, Tree]], state: Tree, reported: Tree
) -> tuple[Tree, Tree]:
    """Return step(state) before every `period`-th update from the first on, else (state, reported).

    Args:
      updates: number before this one; the same on all devices. step: (state) -> (state, metrics). reported: metrics of
        its last call.
    """
    if period == 1:
        return step(state)
    return jax.lax.cond(updates % period == 0, step, lambda kept: (kept, reported), state)


# -- bounded actions --------------------------------------------------------------------------------------------------


class ActionBox(NamedTuple):
    """Conversions between stored actions [..., A] and unit actions, fractions of their bounds in [-1, 1].

    to_unit: (stored) -> unit. from_unit: (unit) -> stored. from_raw: (u) -> the stored action whose unit is tanh(u).
    """

    to_unit: Callable[[Array], Array]
    from_unit: Callable[[Array], Array]
    from_raw: Callable[[Array], Array]


def action_box(spec: EnvSpec) -> ActionBox:
    """Return the conversions for the spec's action transform (see jsrl.types.Continuous).

    Raises:
      ConfigError: the actions are not continuous, or not bounded.
    """
    action = spec.action
    if not isinstance(action, Continuous):
        other = "dqn or sac" if isinstance(action, Discrete) else "ppo or impala"
        raise ConfigError(f"{spec.name} has actions {action!r}; expected Continuous ones, or choose {other}")
    match action.transform:
        case "rescale":
            return ActionBox(lambda a: jnp.clip(a, -1.0, 1.0), lambda unit: unit, jnp.tanh)
        case "squash":
            nearly_one = 1.0 - 1e-6  # atanh(1) is infinite
            return ActionBox(jnp.tanh, lambda unit: jnp.arctanh(jnp.clip(unit, -nearly_one, nearly_one)), lambda u: u)
    if not action.bounded:
        raise ConfigError(
            f"{spec.name} has unbounded actions (low={action.low}, high={action.high}), but this algorithm's policy is "
            "bounded; wrap the environment so that its action space has finite bounds"
        )
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    half = np.maximum((high - low) / 2, 1e-6)

    def from_unit(unit: Array) -> Array:
        return jnp.clip(low + (unit + 1.0) * half, low, high)

    return ActionBox(lambda a: jnp.clip((a - low) / half - 1.0, -1.0, 1.0), from_unit, lambda u: from_unit(jnp.tanh(u)))


# -- acting -----------------------------------------------------------------------------------------------------------


Process: TypeAlias = Literal["normal", "ou"]
PROCESS_HELP = (
    "noise on played actions: normal, or ou, an Ornstein-Uhlenbeck process (theta 0.15, time step 0.01), which pushes the "
    "same way for hundreds of steps: for tasks whose reward is far away."
)
OU_THETA, OU_STEP = 0.15, 0.01


def noisy_act(network: Network, box: ActionBox, *, process: Process, noise: float) -> Act:
    """Return the `act` of a deterministic policy [..., A] in [-1, 1], with noise on its actions unless it is greedy.

    Actions before the first update are uniformly random.

    The log-probability is 0: noise is clipped to the bounds, so an action has no density, and no update reads it. The core is
    the noise of `ou` [B, A], which begins at 0 with each episode.

    Args:
      noise: standard deviation (of `ou`: sigma), as a share of half the action's range.

    Source of `ou`: OrnsteinUhlenbeckActionNoise of Stable-Baselines3.
    """

    def act(
        params: ActParams, key: Array, observation: Tree, is_first: Array, core: Tree, *, greedy: bool = False
    ) -> tuple[ActOutput, Tree]:
        unit = network.apply(params.weights.network, norm.normalize(params.moments, observation))
        log_prob = jnp.zeros(unit.shape[:-1], jnp.float32)
        if greedy:
            return ActOutput(box.from_unit(unit), log_prob), core
        added = noise * jax.random.normal(key, unit.shape, jnp.float32)
        if process == "ou":
            before = jnp.where(is_first[:, None], 0.0, core)
            added = core = (1.0 - OU_THETA * OU_STEP) * before + math.sqrt(OU_STEP) * added
        action = box.from_unit(jnp.clip(unit + added, -1.0, 1.0))
        return ActOutput(*random_first(params.weights, key, box, action, log_prob)), core

    return act


def noise_core(process: Process, size: int) -> Callable[[int], Tree]:
    """Return the `initial_core` of `noisy_act` for actions [..., size]."""
    return no_core if process == "normal" else lambda batch_size: jnp.zeros((batch_size, size), jnp.float32)


def random_first(
    weights: ActingWeights, key: Array, box: ActionBox, action: Array, log_prob: Array
) -> tuple[Array, Array]:
    """Return uniformly random actions and their log-probability before the first update, else the given ones."""
    learned = weights.updates > 0
    key = jax.random.fold_in(key, 1)  # `key` itself has drawn the action
    unit = jax.random.uniform(key, action.shape, jnp.float32, minval=-1.0, maxval=1.0)
    uniform = -action.shape[-1] * math.log(2.0)
    return jnp.where(learned, action, box.from_unit(unit)), jnp.where(learned, log_prob, uniform)


def no_core(batch_size: int) -> Tree:
    del batch_size
    return ()
