"""Advantages and value targets over rows: GAE (its targets are lambda returns), V-trace and n-step returns.

All functions take time-major arrays with any trailing axes and obey the tables of jsrl.types. With
`cut_t = is_first_{t+1}` (row t is a last observation) a row is one of

* acting:     `acts_t = 1, cut_t = 0`; the recursions below;
* value-only: `acts_t = 2, cut_t = 0`; the same recursions with all ratios 1, but no advantage;
* waiting:    `acts_t = 0, cut_t = 0`; adds its reward to that of the agent's row before, undiscounted, and passes value and
  advantage through: `u_t = r_t + d_t u_{t+1}` and `w_t = d_t w_{t+1}` are the reward and the value seen from the row before.
  gamma and lambda do not count it;
* cut:        nothing flows across; the row before sees `w_t = v_t`, which bootstraps a truncation (after a termination
  that row's discount is 0).

So an agent's returns are those over its own rows, each with all rewards until its next row. On rows that do not wait,
`u_t = 0, w_t = v_t`. If the bootstrap of such a row is the value of a waiting row, it is not known, as these values are not
learned (jsrl.agents.rows). Then the row has no target: it corrects nothing, traces stop there, both masks are 0. So it is for
the last rows of a batch in games of turns (`margin`, from jsrl.extend.row_margin). Advantages are 0 where the policy mask
is 0, and targets are v_t where the value mask is 0 (0 on waiting rows).
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jsrl.agents.rows import row_kinds
from jsrl.types import Array


class Rows(NamedTuple):
    """Inputs of every return.

    value: float32 [T+1, ...], raw units. reward, discount (the environment's): [T, ...]. acts: [T+1, ...], row T included.
    is_first: bool [T+1, ...]; may lack trailing axes (an environment's, where value is per agent).
    """

    value: Array
    reward: Array
    discount: Array
    acts: Array
    is_first: Array


class Returns(NamedTuple):
    """advantage: [T, ...], 0 where masked. target: [T, ...], the regression target of the value function.

    The masks are those of jsrl.extend.row_masks.
    """

    advantage: Array
    target: Array


class _Parts(NamedTuple):
    """Leaves [T, ...]; acting, waiting and trained as in RowKinds."""

    acting: Array
    waiting: Array
    trained: Array
    value: Array
    reward: Array
    discount: Array


def _parts(rows: Rows, margin: Array | int) -> tuple[_Parts, Array]:
    """Return row kinds and float32 leaves, and the value of row T; values of waiting rows, which are not learned, become 0."""
    chex.assert_equal_shape([rows.value[1:], rows.reward, rows.discount])
    kinds = row_kinds(rows.discount, rows.acts, rows.is_first, margin)
    value = jnp.where(rows.acts > 0, rows.value, 0.0).astype(jnp.float32)
    parts = _Parts(*kinds, value[:-1], rows.reward.astype(jnp.float32), rows.discount.astype(jnp.float32))
    return parts, value[-1]


def gae(rows: Rows, *, gamma: float, lambda_: float, margin: Array | int = 1) -> Returns:
    """Return generalised advantage estimates and their value targets, the TD(lambda) returns.

    Source: Schulman et al., 2015, arXiv 1506.02438, equation 16.
    """
    ones = jnp.ones_like(rows.reward, jnp.float32)
    return _corrected(rows, ones, ones * lambda_, ones, gamma=gamma, lambda_=lambda_, margin=margin)


def vtrace(
    rows: Rows,
    log_rho: Array,
    *,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    weight_advantage: bool = True,
    margin: Array | int = 1,
) -> Returns:
    """Return V-trace targets and policy-gradient advantages; on-policy (all ratios 1) they equal GAE's.

    Args:
      rows: the rows.
      log_rho: log pi(a_t) - log mu(a_t), [T, ...]; mu is the behaviour policy. Only acting rows have one.
      gamma: discount of the algorithm. lambda_: trace decay. rho_clip, c_clip: ratio ceilings.
      weight_advantage: multiply advantages by min(rho_clip, rho_t), as the policy gradient needs; False where the loss
        brings its own ratio (PPO).

    Source: Espeholt et al., 2018, arXiv 1802.01561, equation 1 and section 4.2.
    Differs: lambda_ < 1 also mixes next target and next value in the advantage, as rlax does.
    """
    chex.assert_equal_shape([log_rho, rows.reward])
    rho = jnp.exp(jnp.where(rows.acts[:-1] == 1, log_rho, 0.0))
    return _corrected(
        rows,
        jnp.minimum(rho, rho_clip),
        lambda_ * jnp.minimum(rho, c_clip),
        jnp.minimum(rho, rho_clip) if weight_advantage else jnp.ones_like(rho),
        gamma=gamma,
        lambda_=lambda_,
        margin=margin,
    )


def _corrected(
    rows: Rows, rho: Array, c: Array, weight: Array, *, gamma: float, lambda_: float, margin: Array | int
) -> Returns:
    """Run the recursion shared by GAE and V-trace; x_t = vs_t - v_t is the correction to the value.

    trained: delta_t = r_t + d_t u_{t+1} + gamma d_t w_{t+1} - v_t
             x_t = rho_t delta_t + gamma c_t d_t x_{t+1},   u_t = 0,                   w_t = v_t
    waiting: x_t = d_t x_{t+1},                             u_t = r_t + d_t u_{t+1},   w_t = d_t w_{t+1}
    others:  x_t = 0,                                       u_t = 0,                   w_t = v_t

    The advantage of an acting row is weight_t (delta_t + gamma lambda d_t x_{t+1}); with rho_t = weight_t = 1 and
    c_t = lambda, this is x_t. c holds lambda already.
    """
    parts, last = _parts(rows, margin)
    decay = gamma * jnp.float32(lambda_)

    def backward(carry: tuple[Array, Array, Array], row: tuple[_Parts, Array, Array, Array]):
        w_next, u_next, x_next = carry
        (acting, waiting, trained, v_t, r_t, d_t), rho_t, c_t, weight_t = row
        r_t = r_t + d_t * u_next
        delta_t = r_t + gamma * d_t * w_next - v_t
        x_trained = rho_t * delta_t + gamma * c_t * d_t * x_next
        x_t = jnp.where(trained, x_trained, jnp.where(waiting, d_t * x_next, 0.0))
        w_t, u_t = jnp.where(waiting, d_t * w_next, v_t), jnp.where(waiting, r_t, 0.0)
        advantage_t = weight_t * (delta_t + decay * d_t * x_next)
        return (w_t, u_t, x_t), (jnp.where(acting & trained, advantage_t, 0.0), v_t + jnp.where(trained, x_t, 0.0))

    zero = jnp.zeros_like(last)
    _, (advantage, target) = jax.lax.scan(backward, (last, zero, zero), (parts, rho, c, weight), reverse=True)
    return Returns(advantage, target)


def n_step_returns(rows: Rows, *, gamma: float, n: int, margin: Array | int = 1) -> Array:
    """Return n-step targets [T, ...], over fewer rows where a window ends early.

    A window ends, and bootstraps, at a cut row, at row T, and at a row without a known bootstrap.

    With G^k the return over k trained rows, carried for all k = 0..n at once:
    trained: G^0_t = v_t, G^k_t = r_t + d_t u_{t+1} + gamma d_t G^{k-1}_{t+1}; waiting: G^k_t = d_t G^k_{t+1}; others: v_t.

    Raises:
      ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n-step returns need n >= 1, got {n}")
    parts, last = _parts(rows, margin)

    def backward(carry: tuple[Array, Array], row: _Parts):
        g_next, u_next = carry
        _, waiting, trained, v_t, r_t, d_t = row
        r_t = r_t + d_t * u_next
        g_trained = jnp.concatenate([v_t[None], r_t + gamma * d_t * g_next[:-1]])
        g_t = jnp.where(trained, g_trained, jnp.where(waiting, d_t * g_next, v_t))
        return (g_t, jnp.where(waiting, r_t, 0.0)), jnp.where(waiting, v_t, g_t[-1])

    start = (jnp.broadcast_to(last, (n + 1, *last.shape)), jnp.zeros_like(last))
    _, returns = jax.lax.scan(backward, start, parts, reverse=True)
    return returns
