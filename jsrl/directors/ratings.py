"""Ratings: one number per player, from all games, with intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jsrl.errors import ConfigError

ELO = 400.0 / math.log(10.0)
"""Elo points of one unit of log odds."""


class Ratings(NamedTuple):
    """Ratings in Elo points.

    Attributes:
      elo: [P]. low, high: [P], ends of the 95% intervals.
    """

    elo: np.ndarray
    low: np.ndarray
    high: np.ndarray


def rate(points: np.ndarray, games: np.ndarray, *, anchor: int | None = None, prior_games: float = 1.0) -> Ratings:
    """Return Bradley-Terry ratings of maximum likelihood.

    Ratings cannot show cycles: three players that beat each other in a cycle get the same one. Look at the payoff
    matrix as well.

    Args:
      points: [P, P], of row against column; draws count 0.5.
      games: [P, P], symmetric; `jsrl.extend.Payoff.matrices` gives both.
      anchor: the player that has 0 points; None: the mean of all is 0.
      prior_games: drawn games against an average player, added for each player, so that ratings of players that
        have won or lost every game are finite. 0: none.

    Source: Bradley and Terry (1952); Newton's method; intervals by the inverse of the Fisher information.

    Raises:
      ConfigError: tables of wrong shapes, or players without a common scale, with `prior_games` 0.
    """
    num = len(points)
    if points.shape != (num, num) or games.shape != (num, num) or not np.allclose(points + points.T, games):
        raise ConfigError(
            f"points {points.shape} and games {games.shape} do not fit; give square tables with points + points.T = games"
        )
    if prior_games <= 0.0 and not _one_scale(points):
        raise ConfigError(
            "some players have won, or lost, every game against all others, so that their ratings are infinite; "
            "choose prior_games above 0"
        )
    skill = np.zeros(num)
    for _ in range(100):
        odds = 1.0 / (1.0 + np.exp(skill[None, :] - skill[:, None]))
        average = 1.0 / (1.0 + np.exp(-skill))
        slope = (points - games * odds).sum(axis=1) + prior_games * (0.5 - average)
        weight = games * odds * (1.0 - odds)
        information = np.diag(weight.sum(axis=1) + prior_games * average * (1.0 - average)) - weight
        step = np.linalg.pinv(information) @ slope
        skill = skill + step / max(1.0, np.abs(step).max())  # at most one unit of log odds at a time
        if np.abs(step).max() < 1e-10:
            break
    to_zero = np.full((num, num), 1.0 / num) if anchor is None else np.eye(num)[np.full(num, anchor)]
    relative = np.eye(num) - to_zero
    spread = np.sqrt(np.clip(np.diag(relative @ np.linalg.pinv(information) @ relative.T), 0.0, None))
    elo, half = ELO * (relative @ skill), 1.96 * ELO * spread
    return Ratings(elo, elo - half, elo + half)


def _one_scale(points: np.ndarray) -> bool:
    """Return whether a chain of wins connects each player to each other one."""
    reached = (points > 0.0) | np.eye(len(points), dtype=bool)
    for _ in range(len(points).bit_length()):
        reached = (reached.astype(np.float64) @ reached) > 0.0
    return bool(reached.all())


def win_rate_interval(points: float, games: float) -> tuple[float, float]:
    """Return the 95% interval of a win rate; (0, 1) without games.

    Source: Wilson (1927). A draw counts as half a win, which makes the interval a little too wide.
    """
    if games <= 0.0:
        return 0.0, 1.0
    z, share = 1.96, points / games
    middle = (share + z * z / (2.0 * games)) / (1.0 + z * z / games)
    half = z / (1.0 + z * z / games) * math.sqrt(share * (1.0 - share) / games + (z / (2.0 * games)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)
