"""Ratings of known games: their values and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.directors.ratings import rate, win_rate_interval
from jsrl.errors import ConfigError


def table(skills, games_per_pair):
    """Return (points, games) in which each pair's share is exactly the one predicted by their Elo points."""
    num = len(skills)
    games = games_per_pair * (1.0 - np.eye(num))
    points = np.array([[1.0 / (1.0 + 10.0 ** ((b - a) / 400.0)) for b in skills] for a in skills]) * games
    return points, games


def test_ratings_recover_those_that_generated_the_games():
    skills = np.array([-300.0, -50.0, 0.0, 120.0, 230.0])
    found = rate(*table(skills, 40.0), prior_games=0.0)
    assert found.elo == pytest.approx(skills - skills.mean(), abs=1e-6)
    anchored = rate(*table(skills, 40.0), anchor=3, prior_games=0.0)
    assert anchored.elo == pytest.approx(skills - 120.0, abs=1e-6)
    assert anchored.low[3] == anchored.high[3] == 0.0


@pytest.mark.parametrize(("games", "deviation"), [(100.0, 35.0), (400.0, 17.4)])
def test_intervals_of_two_players(games, deviation):
    found = rate(*table(np.zeros(2), games), anchor=0, prior_games=0.0)
    assert found.elo == pytest.approx([0.0, 0.0], abs=1e-9)
    assert (found.high[1] - found.low[1]) / (2.0 * 1.96) == pytest.approx(deviation, rel=0.01)


def test_intervals_cover_the_truth_in_95_of_100_cases():
    generator, skills, held = np.random.default_rng(0), np.array([-100.0, 0.0, 100.0]), 0
    for _ in range(200):
        points, games = table(skills, 60.0)
        won = np.triu(generator.binomial(60, np.clip(points / 60.0, 0.0, 1.0)), 1).astype(float)
        points = won + np.tril(games - won.T, -1)
        found = rate(points, games, anchor=0, prior_games=0.0)
        held += found.low[2] <= 200.0 <= found.high[2]
    assert 180 <= held <= 198


def test_prior_keeps_ratings_finite():
    games = np.array([[0.0, 10.0, 10.0], [10.0, 0.0, 10.0], [10.0, 10.0, 0.0]])
    points = np.array([[0.0, 10.0, 10.0], [0.0, 0.0, 5.0], [0.0, 5.0, 0.0]])
    found = rate(points, games)
    assert np.isfinite(found.elo).all() and found.elo[0] > found.elo[1] + 200.0
    assert found.elo[1] == pytest.approx(found.elo[2])
    with pytest.raises(ConfigError, match="ratings are infinite; choose prior_games above 0"):
        rate(points, games, prior_games=0.0)


def test_a_player_without_games_is_average_and_unsure():
    points, games = np.zeros((2, 3, 3))
    games[0, 1] = games[1, 0] = 100.0
    points[0, 1], points[1, 0] = 60.0, 40.0
    found = rate(points, games)
    assert found.elo[2] == pytest.approx(0.0, abs=1.0) and found.elo[0] > 0.0 > found.elo[1]
    assert found.high[2] - found.low[2] > 1.5 * (found.high[0] - found.low[0])


def test_cyclic_results_give_equal_ratings():
    points = np.array([[0.0, 9.0, 1.0], [1.0, 0.0, 9.0], [9.0, 1.0, 0.0]])
    assert rate(points, points + points.T).elo == pytest.approx([0.0] * 3, abs=1e-9)


def test_mismatched_tables_are_refused():
    with pytest.raises(ConfigError, match=r"points \+ points.T = games"):
        rate(np.ones((2, 2)), np.ones((2, 2)))


def test_win_rate_intervals():
    assert win_rate_interval(0.0, 0.0) == (0.0, 1.0)
    low, high = win_rate_interval(50.0, 100.0)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    low, high = win_rate_interval(10.0, 10.0)
    assert low == pytest.approx(0.7225, abs=1e-3) and high == pytest.approx(1.0)
