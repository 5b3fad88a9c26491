"""PSRO: its phases, the order of its commands, the payoff table; exact runs on matrix games and on Kuhn poker."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.games.matrix import BIASED, nash_conv
from benchmarks.games.poker import Kuhn
from benchmarks.games.trees import unfold
from jsrl.directors.messages import INITIAL, Freeze, Outcome, Player, Reset, Stop
from jsrl.directors.psro import PSRO
from jsrl.errors import ConfigError
from tests.directors.exact_psro import run_psro
from tests.directors.scripted import beaten, check_replay, commands_of
from tests.marks import nightly

LATEST = Player("main")


def member(number: int, policy: str = "main") -> Player:
    return Player(policy, f"frozen-{number}" if number else INITIAL)


def ended(games, points: float = 1.0):
    """Return outcomes in which the first player of each game gets `points` and a return of 2 points - 1."""
    outcomes = []
    for game in games:
        per_side = (points, 1.0 - points) if game.sides[0] == 0 else (1.0 - points, points)
        outcomes.append(Outcome(game.id, 10, tuple(2.0 * share - 1.0 for share in per_side), per_side))
    return outcomes


def test_phases_and_commands_are_in_order():
    director = PSRO(oracle_env_steps=20, games_per_cell=4)
    state, games = director.propose(director.init(0), 2)
    assert [game.players for game in games] == [(LATEST, member(0))] * 2
    assert {game.learns for game in games} == {(True, False)}
    state, commands = director.report(state, ended(games))
    assert commands == [Freeze("main", "frozen-1")]  # the copy is taken, nothing is reset yet
    state, games = director.propose(state, 6)
    assert [game.players for game in games] == [(member(0), member(1))] * 4 + [(LATEST, member(0))] * 2
    assert Counter(game.sides for game in games[:4]) == {(0, 1): 2, (1, 0): 2}
    assert {game.learns for game in games[:4]} == {(False, False)}
    state, commands = director.report(state, ended(games[:3], 0.0))
    assert commands == [] and state["phase"] == "fill"
    state, commands = director.report(state, ended(games[3:4], 0.0))
    assert commands == [Reset("main", "initial")] and state["phase"] == "train"
    assert director.mixture(state, "main") == [0.0, 1.0]  # the initial member lost every game
    state, commands = director.report(state, ended(games[4:]))  # training for the previous mixture: not counted
    assert commands == [] and state["members"]["main"]["env_steps"] == 0


def test_two_policies_are_frozen_together_and_fill_all_pairs():
    director = PSRO(("first", "second"), oracle_env_steps=10, games_per_cell=1, oracle="latest", max_population=2)
    state, games = director.propose(director.init(0), 3)
    assert [game.players[0].policy for game in games] == ["first", "second", "first"]
    assert [game.sides for game in games] == [(0, 1), (1, 0), (0, 1)]
    state, commands = director.report(state, ended([games[0], games[2]]))
    assert commands == []  # the second policy has not trained yet
    state, commands = director.report(state, ended([games[1]]))
    assert commands == [Freeze("first", "frozen-1"), Freeze("second", "frozen-1")]
    state, games = director.propose(state, 4)
    pairs = [(member(i, "first"), member(j, "second")) for i in (0, 1) for j in (0, 1)]
    assert [game.players for game in games] == pairs and {game.sides for game in games} == {(0, 1)}
    state, commands = director.report(state, ended(games, 0.5))
    assert commands == [Stop("the population has 2 members")]


def test_opponents_come_from_the_rivals_population_and_its_mixture():
    director = PSRO(("first", "second"), oracle_env_steps=10)
    state = director.init(0)
    state["members"]["first"] |= {"versions": [INITIAL, "frozen-1"], "mixture": [1.0, 0.0]}
    state["members"]["second"] |= {"versions": [INITIAL, "frozen-1"], "mixture": [0.0, 1.0]}
    state, games = director.propose(state, 2)
    assert [game.players for game in games] == [
        (Player("first"), member(1, "second")),
        (Player("second"), member(0, "first")),
    ]


def test_a_void_game_is_played_again():
    director = PSRO(oracle_env_steps=1, games_per_cell=2)
    state, games = director.propose(director.init(0), 1)
    state, _ = director.report(state, ended(games))
    state, games = director.propose(state, 2)
    state, commands = director.report(state, [Outcome(games[0].id, discarded="killed"), *ended(games[1:])])
    assert commands == []
    state, (again, other) = director.propose(state, 2)
    assert again.players == (member(0), member(1)) and other.players[0] == LATEST
    state, commands = director.report(state, ended([again]))
    assert commands == [Reset("main", "initial")]
    payoff = director.payoff(state)
    assert payoff.counts(member(0), member(1)) == {"assigned": 3, "finished": 2, "discarded": 1, "open": 0}


@pytest.mark.slow
def test_each_cell_gets_the_same_number_of_games_and_training_none():
    director = PSRO(oracle_env_steps=300, games_per_cell=10, solver="uniform", max_population=5)
    state, journal = check_replay(director, 600, beaten(0.6))
    for away in range(1, 5):
        for home in range(away):
            counts = director.payoff(state).counts(member(home), member(away))
            assert counts["finished"] == 10 and counts["open"] == 0
    assert director.payoff(state).counts(LATEST, member(1))["assigned"] == 0
    kinds = [command["type"] for command in commands_of(journal)]
    assert kinds[:8] == ["Freeze", "Reset", "Freeze", "Reset", "Freeze", "Reset", "Freeze", "Stop"]


@pytest.mark.slow
def test_payoff_matrices_of_results_are_zero_sum():
    director = PSRO(oracle_env_steps=1, games_per_cell=2, value="result", solver="replicator")
    state, games = director.propose(director.init(0), 1)
    state, _ = director.report(state, ended(games))
    state, games = director.propose(state, 2)
    state, _ = director.report(state, [*ended(games[:1], 1.0), *ended(games[1:], 0.5)])
    row, column = director.matrices(state)
    assert row.tolist() == [[0.0, 0.5], [-0.5, 0.0]] and column.tolist() == (-row).tolist()


def respond(policy, strategies, mixture):
    """Return the best response to a mixture of strategies in the biased game, which is symmetric."""
    return np.eye(3)[np.argmax(BIASED @ np.average(strategies, axis=0, weights=mixture))]


def test_psro_solves_biased_rock_paper_scissors():
    def play(strategies):
        value = float(strategies[0] @ BIASED @ strategies[1])
        return value, -value

    director = PSRO(oracle_env_steps=20, games_per_cell=2, max_population=4)
    solved, commands = run_psro(director, {"main": np.full(3, 1 / 3)}, respond, play)
    strategies, mixture = solved[4]["main"]
    assert np.average(strategies, axis=0, weights=mixture) == pytest.approx([0.25, 0.5, 0.25], abs=1e-9)
    kinds = [type(command) for command in commands]
    assert kinds == [Freeze, Reset, Freeze, Reset, Freeze, Stop]


def test_the_higher_return_wins_where_the_environment_names_no_winner():
    director = PSRO(oracle_env_steps=1, games_per_cell=4)
    state, games = director.propose(director.init(0), 1)
    state, _ = director.report(state, ended(games))
    state, games = director.propose(state, 4)
    assert {game.sides for game in games} == {(0, 1), (1, 0)}
    returns = [(3.0, -3.0) if game.sides[0] == 0 else (-3.0, 3.0) for game in games[:3]] + [(0.0, 0.0)]
    pairs = zip(games, returns, strict=True)
    state, _ = director.report(state, [Outcome(game.id, 1, gains) for game, gains in pairs])
    players, points, played = director.results(state)
    assert players == [member(0), member(1)]
    assert points.tolist() == [[0.0, 3.5], [0.5, 0.0]] and played.tolist() == [[0.0, 4.0], [4.0, 0.0]]
    assert director.matrices(state)[0][0, 1] == 2.25


@pytest.mark.slow
@pytest.mark.parametrize(("games", "bar"), [(400, 0.15), nightly(4_000, 0.05)])
def test_psro_solves_biased_rock_paper_scissors_from_sampled_games(games: int, bar: float):
    """A fixed number of sampled games per cell: NashConv falls from 0.667 below the threshold with at most 6 members."""
    generator = np.random.default_rng(0)

    def play(strategies):
        first, second = (generator.choice(3, p=strategy) for strategy in strategies)
        return float(BIASED[first, second]), -float(BIASED[first, second])

    director = PSRO(oracle_env_steps=20, games_per_cell=games, max_population=5)
    uniform = np.full(3, 1 / 3)
    solved, _ = run_psro(director, {"main": uniform}, respond, play, at_once=64)
    mixed = {size: np.average(found["main"][0], axis=0, weights=found["main"][1]) for size, found in solved.items()}
    assert nash_conv(BIASED, -BIASED, uniform, uniform) == pytest.approx(2 / 3)
    assert nash_conv(BIASED, -BIASED, mixed[5], mixed[5]) <= bar


@pytest.mark.slow
def test_general_sum_games_are_refused_by_zero_sum_solvers():
    def play(strategies):
        return 1.0, 1.0

    with pytest.raises(ConfigError, match="PSRO with one policy needs a zero-sum game"):
        run_psro(PSRO(oracle_env_steps=1, games_per_cell=1, max_population=3), {"main": np.eye(3)[0]}, respond, play)

    def stag(strategies):  # a coordination game: both get 1 if they choose the same action
        value = float(strategies[0] @ strategies[1])
        return value, value

    two = {"first": np.eye(3)[0], "second": np.eye(3)[1]}
    options = {"oracle_env_steps": 1, "games_per_cell": 1, "max_population": 3}
    with pytest.raises(ConfigError, match="Nash solver needs payoffs whose sum is the same"):
        run_psro(PSRO(("first", "second"), **options), two, respond, stag)
    solved, _ = run_psro(PSRO(("first", "second"), solver="replicator", **options), two, respond, stag)
    assert sorted(solved) == [2, 3]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"solver": "lp"}, "solver is 'lp'; expected one of uniform, nash, replicator, alpha_rank"),
        ({"value": "wins"}, "value is 'wins'"),
        ({"oracle": "best"}, "oracle is 'best'"),
        ({"games_per_cell": 0}, "games_per_cell is 0"),
        ({"max_population": 1}, "max_population is 1"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        PSRO(**options)


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
