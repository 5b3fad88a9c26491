"""Meta-solvers on games with known solutions."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.directors.solvers import SOLVERS, alpha_rank, nash, replicator, stationary, uniform
from jsrl.errors import ConfigError
from tests.marks import nightly, slow

BIASED = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
PLAIN = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


@pytest.mark.parametrize("name", sorted(SOLVERS))
@pytest.mark.parametrize("shape", [slow((1, 1)), (1, 3), nightly((4, 2))])
def test_solvers_return_probabilities_of_any_shape(name, shape):
    row = np.random.default_rng(0).normal(size=shape)
    for mixture, size in zip(SOLVERS[name](row, -row), shape, strict=True):
        assert mixture.shape == (size,) and mixture.min() >= 0.0 and mixture.sum() == pytest.approx(1.0)


def test_nash_of_biased_rock_paper_scissors():
    for mixture in nash(BIASED, -BIASED):
        assert mixture == pytest.approx([0.25, 0.5, 0.25], abs=1e-9)


def test_nash_of_random_games_has_no_better_answer():
    generator = np.random.default_rng(1)
    for _ in range(10):
        row = generator.normal(size=(6, 4))
        x, y = nash(row, 3.0 - row)  # a constant-sum game counts as zero-sum
        assert (row @ y).max() - (x @ row).min() == pytest.approx(0.0, abs=1e-7)


def test_nash_refuses_a_game_that_is_not_zero_sum():
    with pytest.raises(ConfigError, match=r"goes from 0 to 2.*choose|Choose solver='replicator'"):
        nash(np.eye(2), np.eye(2))


def test_replicator_averages_equal_openspiel():
    """OpenSpiel 2.0.2, projected_replicator_dynamics with its defaults, finds .258 .497 .245."""
    for mixture in replicator(BIASED, -BIASED):
        assert mixture == pytest.approx([0.258, 0.497, 0.245], abs=1e-3)


def test_replicator_finds_the_strict_equilibrium_of_a_general_game_and_keeps_its_floor():
    prisoners = np.array([[3.0, 0.0], [5.0, 1.0]])
    x, y = replicator(prisoners, prisoners.T, steps=4_000, step_size=0.05, floor=0.05)
    assert 0.05 <= x[0] < 0.1 and 0.05 <= y[0] < 0.1  # without a floor: 0.02


def test_alpha_rank_of_known_games():
    x, y = alpha_rank(PLAIN, -PLAIN)
    assert x == pytest.approx([1 / 3] * 3, abs=1e-6) and y == pytest.approx([1 / 3] * 3, abs=1e-6)
    prisoners = np.array([[3.0, 0.0], [5.0, 1.0]])
    x, y = alpha_rank(prisoners, prisoners.T)
    assert x[1] > 0.99 and y[1] > 0.99


def test_alpha_rank_prefers_the_better_of_two_equilibria_that_are_almost_never_left():
    shared = np.diag([1.0, 2.0])  # the first is left with a probability of 1e-106, the second with 1e-213
    x, y = alpha_rank(shared, shared)
    assert x == pytest.approx([0.0, 1.0], abs=1e-6) and y == pytest.approx([0.0, 1.0], abs=1e-6)


def test_stationary_distribution_of_chains_of_several_blocks():
    generator = np.random.default_rng(2)
    for states in (1, 2, 64, 65, 66, 150):
        moves = generator.random((states, states)) ** 8 / states
        np.fill_diagonal(moves, 0.0)
        mass = stationary(moves)
        assert mass @ moves == pytest.approx(mass * moves.sum(axis=1), abs=1e-15) and mass.sum() == pytest.approx(1.0)


def test_uniform():
    x, y = uniform(np.zeros((2, 4)), np.zeros((2, 4)))
    assert x.tolist() == [0.5, 0.5] and y.tolist() == [0.25] * 4
