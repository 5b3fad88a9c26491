"""Advantages and value targets over rows: GAE, V-trace, lambda and n-step returns.

All functions take time-major arrays with any trailing axes and obey the row table of jsrl.types. With
`cut_t = is_first_{t+1}` (row t is a last observation) and `acts_t` (this agent acted on row t), a row is one of

* acting:  `mask_t = acts_t (1 - cut_t) = 1`; the recursions below;
* waiting: `acts_t = 0, cut_t = 0`; adds its reward and passes value and advantage through. The value seen from the row
  before is `w_t = r_t + d_t w_{t+1}`; gamma and lambda count acting rows only;
* cut:     nothing flows across; the row before sees `w_t = v_t`, which bootstraps a truncation (after a termination
  that row's discount is 0).

On acting rows `w_t = v_t`. Results are 0 (advantages) or w_t (targets) where the mask is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jsrl.types import Array


class Rows(NamedTuple):
    """What every return is computed from.

    value: float32 [T+1, ...], raw units. reward, discount (the environment's), acts: [T, ...], shaped like value.
    is_first: bool [T+1, ...]; may lack trailing axes (an environment's, where value is per agent).
    """

    value: Array
    reward: Array
    discount: Array
    acts: Array
    is_first: Array


class Returns(NamedTuple):
    """advantage: [T, ...], 0 where masked. target: [T, ...], what the value function is regressed to."""

    advantage: Array
    target: Array


class _Parts(NamedTuple):
    acting: Array
    waiting: Array
    value: Array
    reward: Array
    discount: Array


def _parts(rows: Rows) -> _Parts:
    """Return boolean row kinds and float32 leaves, all [T, ...]."""
    rank = rows.reward.ndim
    cut = rows.is_first[1:].astype(bool)
    cut = jnp.broadcast_to(cut.reshape(cut.shape + (1,) * (rank - cut.ndim)), rows.reward.shape)
    acts = rows.acts.astype(bool)
    chex.assert_equal_shape([rows.value[1:], rows.reward, rows.discount, acts])
    return _Parts(
        acting=acts & ~cut,
        waiting=~acts & ~cut,
        value=rows.value[:-1].astype(jnp.float32),
        reward=rows.reward.astype(jnp.float32),
        discount=rows.discount.astype(jnp.float32),
    )


def gae(rows: Rows, *, gamma: float, lambda_: float) -> Returns:
    """Return generalised advantage estimates and their value targets.

    Source: Schulman et al., 2015, arXiv 1506.02438, equation 16.
    """
    ones = jnp.ones_like(rows.reward, jnp.float32)
    return _corrected(rows, ones, ones * lambda_, ones, gamma=gamma, lambda_=lambda_)


def vtrace(
    rows: Rows,
    log_rho: Array,
    *,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    weight_advantage: bool = True,
) -> Returns:
    """Return V-trace targets and policy-gradient advantages; on-policy (all ratios 1) they are those of GAE.

    Args:
      rows: the rows.
      log_rho: log pi(a_t) - log mu(a_t), [T, ...]; mu is the behaviour policy.
      gamma: discount of the algorithm. lambda_: trace decay. rho_clip, c_clip: ratio ceilings.
      weight_advantage: multiply advantages by min(rho_clip, rho_t), as the policy gradient needs; False where the loss
        brings its own ratio (PPO).

    Source: Espeholt et al., 2018, arXiv 1802.01561, equation 1 and section 4.2.
    Differs: lambda_ < 1 also mixes the target ahead with the value ahead in the advantage, as rlax does.
    """
    chex.assert_equal_shape([log_rho, rows.reward])
    rho = jnp.exp(log_rho)
    return _corrected(
        rows,
        jnp.minimum(rho, rho_clip),
        lambda_ * jnp.minimum(rho, c_clip),
        jnp.minimum(rho, rho_clip) if weight_advantage else jnp.ones_like(rho),
        gamma=gamma,
        lambda_=lambda_,
    )


def _corrected(rows: Rows, rho: Array, c: Array, weight: Array, *, gamma: float, lambda_: float) -> Returns:
    """Run the recursion which GAE and V-trace share; x_t = vs_t - v_t is the correction to the value.

    acting:  x_t = rho_t (r_t + gamma d_t w_{t+1} - v_t) + gamma c_t d_t x_{t+1},   w_t = v_t
    waiting: x_t = d_t x_{t+1},                                                     w_t = r_t + d_t w_{t+1}
    cut:     x_t = 0,                                                               w_t = v_t

    The advantage is weight_t (r_t + gamma d_t (w_{t+1} + lambda x_{t+1}) - v_t); with rho_t = weight_t = 1 and c_t = lambda,
    this is x_t. c holds lambda already.
    """
    parts = _parts(rows)
    decay = gamma * jnp.float32(lambda_)

    def backward(carry: tuple[Array, Array], row: tuple[_Parts, Array, Array, Array]):
        w_next, x_next = carry
        (acting, waiting, v_t, r_t, d_t), rho_t, c_t, weight_t = row
        delta_t = r_t + gamma * d_t * w_next - v_t
        x_acting = rho_t * delta_t + gamma * c_t * d_t * x_next
        x_t = jnp.where(acting, x_acting, jnp.where(waiting, d_t * x_next, 0.0))
        w_t = jnp.where(waiting, r_t + d_t * w_next, v_t)
        advantage_t = weight_t * (delta_t + decay * d_t * x_next)
        return (w_t, x_t), (jnp.where(acting, advantage_t, 0.0), w_t + jnp.where(acting, x_t, 0.0))

    last = rows.value[-1].astype(jnp.float32)
    _, (advantage, target) = jax.lax.scan(backward, (last, jnp.zeros_like(last)), (parts, rho, c, weight), reverse=True)
    return Returns(advantage, target)


def lambda_returns(rows: Rows, *, gamma: float, lambda_: float) -> Array:
    """Return TD(lambda) targets [T, ...]: G_t = r_t + gamma d_t ((1 - lambda) w_{t+1} + lambda G_{t+1}).

    A waiting row passes G_t = r_t + d_t G_{t+1}; a cut row gives G_t = v_t.

    Source: Sutton and Barto, 2018, chapter 12.
    """
    parts = _parts(rows)

    def backward(carry: tuple[Array, Array], row: _Parts):
        w_next, g_next = carry
        acting, waiting, v_t, r_t, d_t = row
        mixed = (1.0 - lambda_) * w_next + lambda_ * g_next
        g_acting = r_t + gamma * d_t * mixed
        g_t = jnp.where(acting, g_acting, jnp.where(waiting, r_t + d_t * g_next, v_t))
        w_t = jnp.where(waiting, r_t + d_t * w_next, v_t)
        return (w_t, g_t), g_t

    last = rows.value[-1].astype(jnp.float32)
    _, returns = jax.lax.scan(backward, (last, last), parts, reverse=True)
    return returns


def n_step_returns(rows: Rows, *, gamma: float, n: int) -> Array:
    """Return n-step targets [T, ...]; windows stop early at a cut row and at row T, bootstrapping there.

    With G^k the return over k acting rows, carried for all k = 0..n at once:
    acting: G^0_t = v_t, G^k_t = r_t + gamma d_t G^{k-1}_{t+1}; waiting: G^k_t = r_t + d_t G^k_{t+1}; cut: G^k_t = v_t.

    Raises:
      ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n-step returns need n >= 1, got {n}")
    parts = _parts(rows)

    def backward(g_next: Array, row: _Parts):
        acting, waiting, v_t, r_t, d_t = row
        g_acting = jnp.concatenate([v_t[None], r_t + gamma * d_t * g_next[:-1]])
        g_t = jnp.where(acting, g_acting, jnp.where(waiting, r_t + d_t * g_next, v_t))
        return g_t, g_t[-1]

    last = rows.value[-1].astype(jnp.float32)
    _, returns = jax.lax.scan(backward, jnp.broadcast_to(last, (n + 1, *last.shape)), parts, reverse=True)
    return returns
