"""Win rates equal those of the games in assignment order, and no game is lost or counted twice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from jsrl.directors import in_order
from jsrl.directors.messages import Player
from jsrl.directors.payoff import Payoff

HOME, AWAY = Player("main"), Player("main", "frozen-1")


def play(num_games: int, slots: int, kill_rate: float, seed: int):
    """Play games in `slots` actors at once: home wins in 100 steps or loses in 10, each with probability one half.

    Yields (payoff, home's wins and games among those finished so far) after each game that ends. Actors are killed with
    `kill_rate` per step; their game is discarded then.
    """
    chance, payoff = random.Random(seed), Payoff({})
    ends: list[tuple[int, int, float | None]] = []
    wins = games = assigned = 0

    def assign(now: int) -> None:
        nonlocal assigned
        won = chance.random() < 0.5
        length = 100 if won else 10
        killed = next((step for step in range(length) if chance.random() < kill_rate), None)
        ends.append(
            (now + (length if killed is None else killed), assigned, None if killed is not None else float(won))
        )
        payoff.assign(assigned, HOME, AWAY)
        assigned += 1

    for _ in range(slots):
        assign(0)
    while ends:
        now, game, points = ends.pop(ends.index(min(ends)))
        payoff.end(game, HOME, AWAY, points)
        wins, games = wins + (points or 0.0), games + (points is not None)
        yield payoff, wins, games
        if assigned < num_games:
            assign(now)


def test_short_losses_do_not_bias_the_win_rate():
    rates, early = [], []
    for seed in range(8):
        for payoff, wins, games in play(num_games=400, slots=64, kill_rate=2e-4, seed=seed):
            counts = payoff.counts(HOME, AWAY)
            assert counts["assigned"] == counts["finished"] + counts["discarded"] + counts["open"]
            if games == 50:
                early.append(1.0 - wins / games)
        assert counts["assigned"] == 400 and counts["open"] == 0 and counts["discarded"] > 0
        rates.append(payoff.win_rate(HOME, AWAY))
    assert np.mean(early) >= 0.8  # the opponent seems to win nearly always, because its wins are short
    assert np.mean(rates) == pytest.approx(0.5, abs=0.05)
    assert all(abs(rate - 0.5) < 0.09 for rate in rates)  # 3.5 standard deviations of 400 games


def test_counted_games_are_unbiased_at_every_moment():
    """Also while long games are open: the counted games are a prefix of the list of assigned games."""
    at_once = {}
    for seed in range(40):
        for payoff, _, games in play(num_games=400, slots=64, kill_rate=0.0, seed=seed):
            if games == 100:
                _, counted = payoff.matrices([HOME, AWAY])
                at_once[seed] = (payoff.win_rate(HOME, AWAY) * counted[0, 1], counted[0, 1])
                break
    points, counted = np.sum(list(at_once.values()), axis=0)
    assert counted > 200 and points / counted == pytest.approx(0.5, abs=0.12)


def test_results_wait_for_older_games():
    queue: in_order.Queue = []
    for game in range(4):
        in_order.assign(queue, game)
    assert in_order.end(queue, 2, "c") == []
    assert in_order.end(queue, 1, None) == []
    assert in_order.end(queue, 9, "never assigned") == []
    assert in_order.end(queue, 0, "a") == ["a", "c"]
    assert in_order.end(queue, 3, 0.0) == [0.0] and queue == []


def test_win_rates_decay_and_are_antisymmetric():
    payoff = Payoff({}, decay=0.99)
    assert payoff.win_rate(HOME, AWAY) == payoff.win_rate(HOME, HOME) == 0.5
    for game, points in enumerate((1.0, 0.5, 0.0, 0.0)):
        payoff.assign(game, AWAY, HOME)
        payoff.end(game, AWAY, HOME, points, (2.0 * points - 1.0, 1.0 - 2.0 * points))
    expected = (0.99**3 + 0.5 * 0.99**2) / (0.99**3 + 0.99**2 + 0.99 + 1.0)
    assert payoff.win_rate(AWAY, HOME) == pytest.approx(expected)
    assert payoff.win_rates(HOME, [AWAY, HOME]) == pytest.approx([1.0 - expected, 0.5])
    assert payoff.mean_returns(AWAY, HOME) == pytest.approx((2 * expected - 1, 1 - 2 * expected))
    assert payoff.mean_returns(HOME, AWAY) == pytest.approx((1 - 2 * expected, 2 * expected - 1))
    points, games = payoff.matrices([HOME, AWAY])
    assert games[0, 1] == games[1, 0] == pytest.approx(0.99**3 + 0.99**2 + 0.99 + 1.0)
    assert points[0, 1] + points[1, 0] == pytest.approx(games[0, 1]) and points[1, 0] == pytest.approx(
        0.99**3 + 0.5 * 0.99**2
    )


def test_forgotten_player_starts_from_zero():
    payoff, other = Payoff({}), Player("main", "frozen-11")
    payoff.assign(0, HOME, AWAY)
    payoff.assign(1, HOME, AWAY)
    payoff.assign(2, HOME, other)
    payoff.end(0, HOME, AWAY, 1.0)
    payoff.forget(AWAY)
    assert payoff.win_rate(HOME, AWAY) == 0.5 and payoff.counts(HOME, other)["open"] == 1
    payoff.assign(3, HOME, AWAY)
    payoff.end(1, HOME, AWAY, 1.0)  # from before the copy
    payoff.end(3, HOME, AWAY, 0.0)
    assert payoff.win_rate(HOME, AWAY) == 0.0
    assert payoff.counts(HOME, AWAY) == {"assigned": 1, "finished": 1, "discarded": 0, "open": 0}
