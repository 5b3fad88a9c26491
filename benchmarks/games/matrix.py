"""Two-player matrix games, exactly."""

from __future__ import annotations

import numpy as np

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""Row's payoffs; the uniform mixture is its equilibrium, so that an untrained policy has NashConv 0."""
BIASED = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
"""Rock-paper-scissors with one result that counts double; equilibrium (1/4, 1/2, 1/4), NashConv of uniform 2/3."""


def best_responses(row: np.ndarray, column: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pure best responses [R] to y and [C] to x; ties go to the first action.

    Args:
      row, column: payoffs [R, C] of both players. x, y: their mixtures [R], [C].
    """
    return np.eye(len(row))[np.argmax(row @ y)], np.eye(row.shape[1])[np.argmax(x @ column)]


def nash_conv(row: np.ndarray, column: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return the total gain of both players by best responses: 0 in an equilibrium, twice the exploitability."""
    return float((row @ y).max() - x @ row @ y + (x @ column).max() - x @ column @ y)
