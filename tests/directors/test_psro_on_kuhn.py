"""PSRO as a director, with exact best responses and payoffs, on Kuhn poker: it reaches the equilibrium at population 7."""

from __future__ import annotations

import pytest

from benchmarks.games.poker import Kuhn
from benchmarks.games.trees import unfold
from jsrl.directors.psro import PSRO
from tests.directors.exact_psro import run_psro

TREE = unfold(Kuhn())
SIDES = ("first", "second")


@pytest.mark.parametrize(
    ("solver", "expected"), [("nash", {3: 0.333, 5: 0.222, 7: 0.0}), ("uniform", {3: 0.417, 5: 0.283, 7: 0.226})]
)
def test_nash_conv_over_the_population(solver, expected):
    def respond(policy, strategies, mixture):
        player = SIDES.index(policy)
        return TREE.best_response(TREE.mixture(strategies, mixture, 1 - player), player)[1]

    def play(strategies):
        value = TREE.expected(TREE.profile(*strategies))
        return value, -value

    director = PSRO(SIDES, oracle_env_steps=7, games_per_cell=1, solver=solver, max_population=7)
    solved, _ = run_psro(director, {side: TREE.uniform() for side in SIDES}, respond, play)
    found = {}
    for size in expected:
        mixed = [TREE.mixture(*solved[size][side], player) for player, side in enumerate(SIDES)]
        found[size] = TREE.nash_conv(TREE.profile(*mixed))
    assert found == pytest.approx(expected, abs=6e-4)
