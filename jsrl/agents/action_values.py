"""What DQN and R2D2 share: epsilon-greedy actions, exploration schedules, distributions over values, value rescaling."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jsrl.agents.actor_critic import mask_outputs
from jsrl.agents.base import ActParams, AgentState
from jsrl.agents.off_policy import ActingWeights
from jsrl.types import Array, Tree


class LearnerWeights(NamedTuple):
    """Learner-only params: weights of the target network."""

    target: Tree


def fresh_state(weights: Tree, optimizer: optax.GradientTransformation, moments: Tree) -> AgentState:
    """Return the state before any update; the target network starts with the same weights."""
    updates = jnp.zeros((), jnp.int32)
    params = ActParams(ActingWeights(weights, updates), moments)
    return AgentState(params, LearnerWeights(weights), optimizer.init(weights), (), updates)


# -- exploration ------------------------------------------------------------------------------------------------------


def annealed_epsilon(updates: Array, *, final: float, over: int) -> Array:
    """Return epsilon after `updates` updates: it falls linearly from 1 to `final` over `over` updates."""
    return 1.0 + (final - 1.0) * jnp.clip(updates / float(over), 0.0, 1.0)  # an int above 2^31 overflows


def ladder_epsilon(place: Array, *, base: float) -> Array:
    """Return base^(1 + 7 place) for places in [0, 1] on the ladder: it falls from base to base^8.

    Source: Horgan et al., 2018, arXiv 1803.00933, section 4.1 (place = i / (N - 1) for actor i of N; alpha = 7).
    """
    return base ** (1.0 + 7.0 * place)


def episode_epsilon(key: Array, is_first: Array, kept: Array, *, base: float) -> Array:
    """Return the epsilon [B] of each row's episode: `kept`, or where an episode begins a random place on the ladder."""
    drawn = ladder_epsilon(jax.random.uniform(key, is_first.shape, jnp.float32), base=base)
    return jnp.where(is_first, drawn, kept)


def epsilon_greedy(
    key: Array, values: Array, epsilon: Array, observation: Tree, *, greedy: bool = False
) -> tuple[Array, Array]:
    """Return (action int32 [B], log-probability [B]) for values [B, A] and epsilon [] or [B].

    With probability epsilon the action is uniform over those that the observation's `action_mask` allows, else the best
    of them.
    """
    best = jnp.argmax(mask_outputs(values, observation), axis=-1).astype(jnp.int32)
    if greedy:
        return best, jnp.zeros(best.shape, jnp.float32)
    explore_key, action_key = jax.random.split(key)
    uniform = jax.nn.log_softmax(mask_outputs(jnp.zeros_like(values), observation))
    explore = jax.random.uniform(explore_key, best.shape) < epsilon
    action = jnp.where(explore, jax.random.categorical(action_key, uniform).astype(jnp.int32), best)
    chance = epsilon * jnp.exp(pick(uniform, action)) + (1.0 - epsilon) * (action == best)
    return action, jnp.log(jnp.maximum(chance, 1e-30))


def pick(values: Array, action: Array) -> Array:
    """Return the entry of each action: values [..., A] and action [...] give [...]."""
    return jnp.take_along_axis(values, action[..., None].astype(jnp.int32), axis=-1)[..., 0]


# -- values -----------------------------------------------------------------------------------------------------------


def project(atoms: Array, chances: Array, support: Array) -> Array:
    """Return the distribution of `atoms` [..., Z] with `chances` [..., Z], projected onto `support` [Z], evenly spaced.

    An atom's probability is split between its two neighbours on the support, in proportion to how near they are; an atom
    beyond the ends gives all of it to the end.

    Source: Bellemare et al., 2017, arXiv 1707.06887, equation 7.
    """
    step = support[1] - support[0]
    inside = jnp.clip(atoms, support[0], support[-1])
    share = jnp.clip(1.0 - jnp.abs(inside[..., None, :] - support[:, None]) / step, 0.0, 1.0)  # [..., to, from]
    return jnp.sum(share * chances[..., None, :], axis=-1)


RESCALE_EPSILON = 1e-3


def rescale(value: Array) -> Array:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + e x, e = RESCALE_EPSILON: large values become small, small ones stay.

    Source: Pohlen et al., 2018, arXiv 1805.11593, proposition A.2.
    """
    return jnp.sign(value) * (jnp.sqrt(jnp.abs(value) + 1.0) - 1.0) + RESCALE_EPSILON * value


def unscale(value: Array) -> Array:
    """Return the inverse of `rescale`: sign(x) (((sqrt(1 + 4 e (|x| + 1 + e)) - 1) / (2 e))^2 - 1).

    This form avoids the difference of nearly equal numbers, which float32 cannot hold: with s = |x| + 1 + e,
    (sqrt(1 + 4 e s) - 1) / (2 e) = 2 s / (sqrt(1 + 4 e s) + 1).
    """
    distance = jnp.abs(value) + 1.0 + RESCALE_EPSILON
    root = 2.0 * distance / (jnp.sqrt(1.0 + 4.0 * RESCALE_EPSILON * distance) + 1.0)
    return jnp.sign(value) * (jnp.square(root) - 1.0)
