"""Meta-solvers: the probability of each member of a population, from the payoffs between members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from jsrl.errors import ConfigError

Mixtures: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Probabilities of the row player's [R] and of the column player's [C] members."""


def uniform(row: np.ndarray, column: np.ndarray) -> Mixtures:
    """Return uniform probabilities: with PSRO, this is fictitious self-play."""
    rows, columns = row.shape
    return np.full(rows, 1.0 / rows), np.full(columns, 1.0 / columns)


def nash(row: np.ndarray, column: np.ndarray) -> Mixtures:
    """Return a Nash equilibrium of a zero-sum game, by linear programming.

    Args:
      row: payoffs [R, C] of the first player.
      column: of the second.
    """
    total = row + column
    if np.ptp(total) > 1e-6 * (1.0 + np.abs(row).max()):
        raise ConfigError(
            f"the Nash solver needs payoffs whose sum is the same in each cell; here it goes from {total.min():g} to "
            f"{total.max():g}. Choose solver='replicator' or 'alpha_rank' for games that are not zero-sum"
        )
    return _maximin(row), _maximin(-row.T)


def _maximin(payoff: np.ndarray) -> np.ndarray:
    """Return the mixture of rows [R] with the best worst column: max v with payoff^T x >= v."""
    from scipy.optimize import linprog

    rows, columns = payoff.shape
    solved = linprog(
        c=[0.0] * rows + [-1.0],
        A_ub=np.hstack([-payoff.T, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=[[1.0] * rows + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
    )
    if not solved.success:
        raise ConfigError(f"the matrix game of shape {payoff.shape} was not solved: {solved.message}")
    mixture = np.clip(solved.x[:rows], 0.0, None)
    return mixture / mixture.sum()


def replicator(
    row: np.ndarray, column: np.ndarray, *, steps: int = 20_000, step_size: float = 5e-3, floor: float = 1e-6
) -> Mixtures:
    """Return the time average of projected replicator dynamics from the uniform mixture.

    Args:
      row: payoffs [R, C] of the first player.
      column: of the second; they need not be zero-sum.
      steps: Euler steps.
      step_size: each is of step_size / max |payoff|.
      floor: least probability of a member.

    Source: Lanctot et al. (2017), section 3.1, equation 2.
    """
    x, y = uniform(row, column)
    averages = np.zeros_like(x), np.zeros_like(y)
    scale = step_size / max(np.abs(row).max(), np.abs(column).max(), 1e-12)
    for _ in range(steps):
        gain_x, gain_y = row @ y, x @ column
        x = _project(x + scale * x * (gain_x - x @ gain_x), floor)
        y = _project(y + scale * y * (gain_y - y @ gain_y), floor)
        averages[0][:] += x
        averages[1][:] += y
    return averages[0] / steps, averages[1] / steps


def _project(point: np.ndarray, floor: float) -> np.ndarray:
    """Return the nearest probabilities [R] with none below `floor` (Euclidean projection)."""
    floor = min(floor, 1.0 / len(point))
    if point.min() >= floor and abs(point.sum() - 1.0) < 1e-12:
        return point
    ordered = np.sort(point - floor)[::-1]
    excess = (np.cumsum(ordered) - (1.0 - len(point) * floor)) / np.arange(1, len(point) + 1)
    return np.maximum(point - floor - excess[np.flatnonzero(ordered > excess)[-1]], 0.0) + floor


def alpha_rank(row: np.ndarray, column: np.ndarray, *, alpha: float = 10.0, population: int = 50) -> Mixtures:
    """Return the marginals of alpha-rank's stationary distribution over pairs of members.

    Args:
      row: payoffs [R, C] of the first player.
      column: of the second; they need not be zero-sum.
      alpha: strength of selection, for payoffs that are scaled to a range of 1. population: size m of each population.

    Source: Omidshafiei et al. (2019), equations 2 to 4, two populations.
    """
    scale = alpha / max(np.ptp(row), np.ptp(column), 1e-12)
    rows, columns = row.shape
    rate = 1.0 / max(rows + columns - 2, 1)
    moves = np.zeros((rows, columns, rows, columns))
    for i in range(rows):
        for j in range(columns):
            moves[i, j, :, j] += rate * _fixation(scale * (row[:, j] - row[i, j]), population)
            moves[i, j, i, :] += rate * _fixation(scale * (column[i] - column[i, j]), population)
            moves[i, j, i, j] = 0.0
    mass = stationary(moves.reshape(rows * columns, -1)).reshape(rows, columns)
    return mass.sum(axis=1), mass.sum(axis=0)


BLOCK = 64  # states that are eliminated with one product of matrices
LEAST_LEAVING = 1e-290


def stationary(moves: np.ndarray) -> np.ndarray:
    """Return the stationary distribution [N] of a Markov chain from the probabilities [N, N] of its moves to other states.

    Nothing is subtracted, so that rates of 1e-200, with which a population leaves an equilibrium, keep their digits.

    Source: Grassmann, Taksar and Heyman (1985), "Regenerative analysis and steady state distributions for Markov chains".
    Differs: states are eliminated in blocks.
    """
    rest, states = moves.copy(), len(moves)
    for high in range(states, 1, -BLOCK):
        low = max(high - BLOCK, 1)
        for k in range(high - 1, low - 1, -1):
            rest[:k, k] /= max(rest[k, :k].sum(), LEAST_LEAVING)
            rest[low:k, :k] += np.outer(rest[low:k, k], rest[k, :k])
            rest[:low, low:k] += np.outer(rest[:low, k], rest[k, low:k])
        rest[:low, :low] += rest[:low, low:high] @ rest[low:high, :low]
    mass = np.zeros(states)
    mass[0] = 1.0
    for k in range(1, states):
        mass[k] = mass[:k] @ rest[:k, k]
        mass[: k + 1] /= mass[: k + 1].sum()
    return mass


def _fixation(gain: np.ndarray, population: int) -> np.ndarray:
    """Return the probability that one mutant with this fitness gain takes over a population of m; 1/m without gain."""
    gain = np.clip(gain, -700.0 / population, 700.0)
    neutral = np.abs(gain) < 1e-9
    safe = np.where(neutral, 1.0, gain)
    return np.where(neutral, 1.0 / population, np.expm1(-safe) / np.expm1(-population * safe))


SOLVERS: dict[str, Callable[[np.ndarray, np.ndarray], Mixtures]] = {
    "uniform": uniform,
    "nash": nash,
    "replicator": replicator,
    "alpha_rank": alpha_rank,
}
