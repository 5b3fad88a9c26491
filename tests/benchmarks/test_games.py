"""Exact values of small games: known numbers, brute force, and refusals."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from benchmarks.games import boards, matrix, poker, populations
from benchmarks.games.trees import solve_by_cfr, unfold
from tests.marks import slow

KUHN = unfold(poker.Kuhn())


@functools.cache
def leduc():
    return unfold(poker.Leduc())


def random_policy(tree, seed: int) -> np.ndarray:
    shares = np.where(tree.legal, np.random.default_rng(seed).random(tree.legal.shape) ** 3, 0.0)
    return shares / shares.sum(axis=1, keepdims=True)


# -- matrix games -----------------------------------------------------------------------------------------------------


def test_matrix_games():
    third, nash = np.full(3, 1 / 3), np.array([0.25, 0.5, 0.25])
    assert matrix.nash_conv(matrix.BIASED, -matrix.BIASED, third, third) == pytest.approx(2 / 3)
    assert matrix.nash_conv(matrix.BIASED, -matrix.BIASED, nash, nash) == pytest.approx(0.0, abs=1e-12)
    plain = matrix.ROCK_PAPER_SCISSORS
    assert matrix.nash_conv(plain, -plain, third, third) == pytest.approx(0.0, abs=1e-12)
    rock = np.eye(3)[0]
    against_rock = matrix.best_responses(plain, -plain, rock, rock)
    assert [response.tolist() for response in against_rock] == [[0.0, 1.0, 0.0]] * 2


# -- trees ------------------------------------------------------------------------------------------------------------


def test_kuhn_has_the_known_value():
    assert len(KUHN.player) == 12 and len(KUHN.parent) == 55
    assert KUHN.nash_conv(KUHN.uniform()) == pytest.approx(11 / 12)
    assert KUHN.expected(KUHN.uniform()) == pytest.approx(1 / 8)


@pytest.mark.parametrize(("iterations", "nash_conv"), [(10, 0.137), (100, 0.016), (1_000, 0.002)])
def test_cfr_on_kuhn(iterations, nash_conv):
    policy = solve_by_cfr(KUHN, iterations)
    assert KUHN.nash_conv(policy) == pytest.approx(nash_conv, abs=6e-4)
    if iterations == 1_000:
        assert KUHN.expected(policy) == pytest.approx(-1 / 18, abs=1e-3)


@pytest.mark.parametrize("player", [0, 1])
def test_best_responses_beat_every_pure_policy(player):
    """By brute force: all 64 pure policies of a player in Kuhn poker."""
    policy, sign = random_policy(KUHN, 3), 1.0 if player == 0 else -1.0
    value, response = KUHN.best_response(policy, player)
    assert value == pytest.approx(sign * KUHN.expected(response))
    mine, found = np.flatnonzero(KUHN.player == player), []
    for actions in itertools.product((0, 1), repeat=6):
        pure = policy.copy()
        pure[mine] = np.eye(2)[list(actions)]
        found.append(sign * KUHN.expected(pure))
    assert value == pytest.approx(max(found)) and min(found) < value - 0.1


def test_a_mixture_is_weighted_by_reach():
    """Its value is the average of its members' values against any opponent; averaging action probabilities gives another."""
    members, weights = [random_policy(KUHN, seed) for seed in (1, 2, 3)], [0.2, 0.5, 0.3]
    mean_policy = np.average(members, axis=0, weights=weights)
    for player in (0, 1):
        mixed, other = KUHN.mixture(members, weights, player), random_policy(KUHN, 9)

        def against(policy, player=player, other=other):
            return KUHN.expected(KUHN.profile(policy, other) if player == 0 else KUHN.profile(other, policy))

        average = np.dot(weights, [against(member) for member in members])
        assert against(mixed) == pytest.approx(average)
        if player == 0:  # the player that moves twice in a game
            assert abs(against(mean_policy) - average) > 1e-3
    assert KUHN.mixture([KUHN.uniform()], [1.0], 0) == pytest.approx(KUHN.uniform())


def test_leduc_has_the_known_size():
    tree = leduc()
    assert len(tree.player) == 936 and len(tree.parent) == 9_457
    assert tree.nash_conv(tree.uniform()) == pytest.approx(4.7472, abs=5e-5)
    first, second = solve_by_cfr(tree, 5), solve_by_cfr(tree, 20)
    assert tree.nash_conv(second) < tree.nash_conv(first) < 4.0


def test_nash_conv_of_random_policies_equals_openspiel():
    """OpenSpiel 2.0.2's nash_conv of the same policies, computed by hand; the random numbers come from NumPy."""
    assert KUHN.nash_conv(random_policy(KUHN, 0)) == pytest.approx(1.2088308589408103, rel=1e-9)
    assert leduc().nash_conv(random_policy(leduc(), 0)) == pytest.approx(5.478276888358131, rel=1e-9)


@pytest.mark.parametrize(("make", "size"), [(lambda: KUHN, 11), (leduc, 30)])
def test_observations_hold_only_information_of_the_player(make, size):
    tree = make()
    assert tree.observations.shape == (len(tree.player), size)
    assert len(np.unique(tree.observations, axis=0)) == len(tree.player)
    assert tree.observations[:, :2].argmax(axis=1).tolist() == tree.player.tolist()
    asked = tree.query(lambda observations, legal: legal / legal.sum(axis=1, keepdims=True))
    assert tree.nash_conv(asked) == pytest.approx(tree.nash_conv(tree.uniform()))


def test_tensors_equal_openspiel():
    """Printed by OpenSpiel 2.0.2 for these histories."""
    sets = {
        (player, name): number for number, (player, name) in enumerate(zip(KUHN.player, KUHN.information, strict=True))
    }
    assert KUHN.observations[sets[0, "1pb"]].tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0]
    tree = leduc()
    found = tree.observations[tree.information.index("5 3 crc/r")]
    assert np.flatnonzero(found).tolist() == [1, 7, 11, 14, 17, 18, 23]


def test_invalid_policy_is_refused():
    with pytest.raises(ValueError, match="expected probabilities"):
        leduc().query(lambda observations, legal: np.full(legal.shape, 1 / 3))


# -- populations of exact best responses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("nash", {3: 0.333, 5: 0.222, 7: 0.0}),
        ("uniform", {3: 0.417, 5: 0.283, 7: 0.226}),
        ("latest", {3: 0.333, 5: 2.333, 7: 0.333, 11: 0.333, 16: 1.333}),
        ("newest half", {3: 0.5, 5: 0.222, 7: 0.792, 11: 0.583, 16: 0.375}),
    ],
)
def test_populations_on_kuhn(rule, expected):
    found = populations.grow(KUHN, populations.RULES[rule], list(expected))
    assert found == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("nash", {3: 5.08, 5: 3.53, 7: 3.85, 11: 3.31, 16: 2.76}),
        slow("uniform", {3: 5.26, 5: 3.97, 7: 3.09, 11: 2.35, 16: 1.85, 26: 1.27}),
        slow("latest", {3: 5.33, 5: 10.7, 7: 7.4, 11: 11.5, 16: 9.1, 26: 10.4}),
    ],
)
def test_populations_on_leduc(rule, expected):
    found = populations.grow(leduc(), populations.RULES[rule], list(expected))
    assert found == pytest.approx(expected, abs=0.06, rel=3e-3)


# -- boards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "num_positions", "nash_conv"),
    [(boards.tic_tac_toe, 5_478, 1.9197), (boards.connect_four, 161_029, 1.9133)],
)
def test_boards_have_the_known_numbers_of_positions(make, num_positions, nash_conv):
    board = make()
    assert board.num_positions == num_positions
    assert board.nash_conv(boards.uniform) == pytest.approx(nash_conv, abs=5e-5)
    assert board.solved_value() == 0.0


def uneven(position: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """A policy that prefers some squares, and more strongly on full boards."""
    shares = np.where(legal, 1.0 + np.arange(legal.shape[1]) * (1 + np.abs(position).sum(axis=(1, 2)))[:, None], 0.0)
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("player", [0, slow(1)])
def test_best_responses_on_boards_equal_a_slow_oracle(player):
    """Plain recursion over tic-tac-toe's positions, with lists."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

    @functools.cache
    def value(squares: tuple[int, ...], mover: int) -> float:
        """Return the value for the player to move; its own pieces are 1."""
        free = [square for square in range(9) if not squares[square]]
        found = {}
        for square in free:
            after = (*squares[:square], 1, *squares[square + 1 :])
            if any(all(after[i] == 1 for i in line) for line in lines):
                found[square] = 1.0
            else:
                found[square] = 0.0 if len(free) == 1 else -value(tuple(-piece for piece in after), 1 - mover)
        if mover == player:
            return max(found.values())
        shares = uneven(np.array(squares).reshape(1, 3, 3), np.array([[not piece for piece in squares]]))[0]
        return sum(shares[square] * found[square] for square in free)

    expected = value((0,) * 9, 0) * (1.0 if player == 0 else -1.0)
    assert boards.tic_tac_toe().best_response_value(uneven, player) == pytest.approx(expected)


def test_pieces_fall_and_are_observed_by_the_mover():
    board = boards.connect_four()
    second = board.boards(board.plies[1])
    assert second.shape == (4, 4, 4) and (second[:, :3] == 0).all()
    assert sorted(map(tuple, second[:, 3].tolist())) == [(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 0, -1)]
    full = board.boards(board.plies[4])
    stacked = [position for position in full if (position[:, 0] != 0).all()]
    assert stacked and not board.plies[4].legal[[(position[:, 0] != 0).all() for position in full], 0].any()


def centre_first(position: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """A policy that takes the first free square in a fixed order."""
    order = np.array([4, 0, 8, 2, 6, 1, 3, 5, 7])
    return np.eye(9)[order[legal[:, order].argmax(axis=1)]]


def test_values_of_two_policies_equal_played_games():
    board, generator = boards.tic_tac_toe(), np.random.default_rng(0)
    expected = board.expected(centre_first, boards.uniform)
    results = []
    for _ in range(800):
        index, value = 0, 0.0
        for number, ply in enumerate(board.plies):
            policy = (centre_first, boards.uniform)[number % 2]
            shares = policy(board.boards(ply, index, index + 1), ply.legal[index : index + 1])[0]
            action = generator.choice(len(shares), p=shares)
            value = ply.reward[index, action] * (1.0 if number % 2 == 0 else -1.0)
            index = ply.child[index, action]
            if index < 0:
                break
        results.append(value)
    assert np.mean(results) == pytest.approx(expected, abs=4.0 * 0.6 / np.sqrt(800))
    assert expected > 0.5 > board.expected(boards.uniform, centre_first) + 0.3


def test_policies_are_queried_in_batches_and_checked():
    sizes = []

    def counted(positions, legal):
        sizes.append(len(positions))
        return boards.uniform(positions, legal)

    board = boards.connect_four()
    board.best_response_value(counted, 0)
    asked = sum(len(ply.own) for ply in board.plies[1::2])
    assert sum(sizes) == asked and max(sizes) == boards.MOST_ROWS and len(sizes) < 20
    with pytest.raises(ValueError, match="expected probabilities"):
        boards.tic_tac_toe().nash_conv(lambda positions, legal: np.full(legal.shape, 1 / 9))
    with pytest.raises(ValueError, match="36 squares; at most 31"):
        boards.connect_four(6, 6)
