"""Matches: the assignment of seats, how games are counted, and standings."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from jsrl.envs.seats import SeatView
from jsrl.errors import ConfigError
from jsrl.matches.match import Game, Match, MatchScore, Table, TableGame
from jsrl.matches.players import seatings, tables
from jsrl.matches.standings import Standings
from jsrl.workers.evaluator.matches import Matches, ScoreOfMatches
from jsrl.workers.play import Seated
from tests.matches.bids import Bids, bidder


def test_sides_are_swapped_evenly_and_seats_go_to_their_players():
    strong, weak = bidder("strong", 2.0, (0, 1)), bidder("weak", 1.0, (0, 1))
    match = Match(Bids(("", "")), strong, weak, 10)
    assert match.advance() and match.complete
    games = match.score.games
    assert [game.side for game in games].count(0) == 5 == [game.side for game in games].count(1)
    for game in games:
        places = (0.0, 0.1) if game.side == 0 else (0.1, 0.0)
        assert game.home_return == pytest.approx(game.length * (2 + places[0]), rel=1e-5)
        assert game.away_return == pytest.approx(game.length * (1 + places[1]), rel=1e-5)
        assert game.points == 1.0 and game.length == (2 if game.side == 0 else 9)  # short games do not count more
    facts = match.score.facts()
    assert (facts["won"], facts["drawn"], facts["lost"], facts["win_rate"]) == (10, 0, 0, 1.0)
    assert facts["by_side"] == {
        "seat_0": {"games": 5, "win_rate": 1.0},
        "seat_1": {"games": 5, "win_rate": 1.0},
    }
    assert facts["win_rate_low"] == pytest.approx(0.722, abs=1e-3) and facts["win_rate_high"] == 1.0
    assert match.score.repeats_itself


def test_a_game_without_an_end_ends_the_waiting():
    """The first game takes 2 steps, with the sides changed one takes 9."""
    match = Match(Bids(("", "")), bidder("strong", 2.0, (0, 1)), bidder("weak", 1.0, (0, 1)), 6, max_steps=8)
    assert not match.advance() and match.endless and len(match.score.games) == 3
    assert not Match(Bids(("", "")), bidder("a", 2.0, (0, 1)), bidder("b", 1.0, (0, 1)), 6).endless


def test_equal_bids_win_half_of_the_games():
    """Seat 1 adds a tenth: without swapped sides one of two equals would win everything."""
    match = Match(Bids(("", "")), bidder("one", 1.0, (0, 1)), bidder("two", 1.0, (0, 1)), 8)
    match.advance()
    assert match.score.facts()["win_rate"] == 0.5 and match.score.counts == (4, 0, 4)


def test_teams_and_asymmetric_sides():
    scouts, rest = bidder("a", 1.0, (0, 2)), bidder("b", 3.0, (1,), (3,))
    match = Match(Bids(("x", "y", "x", "y")), scouts, rest, 4)
    match.advance()
    assert {game.side for game in match.score.games} == {0} and match.score.counts == (0, 0, 4)
    assert match.score.games[0].home_return == pytest.approx(9 * (1 + 0.1), rel=1e-5)  # the mean of seats 0 and 2
    whole = Match(Bids(("x", "y", "x", "y")), bidder("c", 1.0, (0, 2), (1, 3)), bidder("d", 1.0, (0, 1, 2, 3)), 4)
    whole.advance()
    assert [game.side for game in whole.score.games].count(1) == 2


def test_three_sides_compare_home_with_the_best_other():
    match = Match(Bids(("", "", "")), bidder("one", 1.05, (0, 1, 2)), bidder("all", 1.0, (0, 1, 2)), 6)
    match.advance()
    by_side = match.score.facts()["by_side"]
    assert {name: own["win_rate"] for name, own in by_side.items()} == {"seat_0": 0.0, "seat_1": 0.0, "seat_2": 1.0}


def test_a_match_is_played_in_steps():
    match = Match(Bids(("", ""), num_envs=1), bidder("a", 1.0, (0, 1)), bidder("b", 0.0, (0, 1)), 3)
    calls = 0
    while not match.advance(0.0):
        calls += 1
    assert calls == 2 + 1 + 9 + 1 + 2 - 1 and len(match.score.games) == 3


@pytest.mark.parametrize(
    ("sides", "home", "away", "wanted", "sentence"),
    [
        (
            ("", ""),
            (0,),
            (0,),
            None,
            "a has the seats seat_0 of 'bids', b has seat_0; one must have all seats of a side",
        ),
        (("", ""), (0, 1), (1,), (1,), "Sides: seat_0; seat_1"),
        (("x", "y", "x"), (0,), (1,), None, "Sides: seat_0, seat_2; seat_1"),
        (("x", "x"), (0, 1), (0, 1), None, "all seats of 'bids' are on one side"),
    ],
)
def test_players_without_the_seats_are_refused(sides, home, away, wanted, sentence):
    with pytest.raises(ConfigError) as refusal:
        Match(Bids(sides), bidder("a", 1.0, home), bidder("b", 1.0, away), 2, sides=wanted)
    assert sentence in str(refusal.value)


def scored(points):
    return MatchScore("a", "b", ("x", "y"), [Game(n % 2, p, p, -p, 5 + n) for n, p in enumerate(points)])


def test_standings_are_sorted_by_rating():
    standings = Standings(["low", "high", "middle"])
    standings.add(0, 1, scored([0.0] * 9 + [1.0]))
    standings.add(2, 0, scored([1.0] * 6 + [0.5] * 2 + [0.0] * 2))
    expected = np.array([[np.nan, 0.1, 0.3], [0.9, np.nan, np.nan], [0.7, np.nan, np.nan]])
    np.testing.assert_allclose(standings.win_rates, expected)
    lines = str(standings).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["high", "middle", "low"]
    assert lines[2].split()[2:5] == ["-", "-", "0.90"]
    facts = standings.facts()
    assert facts["win_rates"][1] == [0.9, None, None] and facts["games"][0] == [0, 10, 10]
    assert facts["elo_low"][1] < facts["elo"][1] < facts["elo_high"][1] and sum(facts["elo"]) == pytest.approx(0.0)
    assert not standings.scores[0].repeats_itself


def test_three_player_table_covers_all_pairs_and_sides():
    """Seat k adds k / 10 to a bid per step: `high` always wins, and of two equals the one in the later seat."""
    players = [bidder(name, bid, (0, 1, 2)) for name, bid in (("one", 1.0), ("same", 1.0), ("high", 2.0))]
    bids = Bids(("", "", ""))
    orders = seatings(bids.spec, players)
    assert sorted(orders) == sorted(itertools.permutations(range(3)))
    table = Table(bids, players, orders, 12)
    assert table.advance()
    assert Counter(game.players for game in table.finished) == dict.fromkeys(orders, 2)
    assert all(len(game.returns) == 3 and game.totals == game.returns for game in table.finished)
    standings = Standings([player.name for player in players], sides=3)
    standings.add_table((0, 1, 2), table.finished)
    np.testing.assert_allclose(standings.win_rates, [[np.nan, 0.5, 0.0], [0.5, np.nan, 0.0], [1.0, 1.0, np.nan]])
    each = standings.facts()["each"]
    assert [own["first_share"] for own in each] == [0.0, 0.0, 1.0] and [own["games"] for own in each] == [12] * 3
    assert each[2]["return_mean"] == pytest.approx(np.mean([g.totals[g.players.index(2)] for g in table.finished]))
    assert standings.repeats_itself
    first = str(standings).splitlines()[2]
    assert first.split()[:4] == ["1", "high", "-", "1.00"] and "0.76 to 1.00" in first


def test_teams_of_two_at_three_sides_and_fewer_players_than_sides():
    spec = Bids(("x", "y", "z", "x", "y", "z")).spec
    teams = [bidder("a", 1.0, (0, 1, 2, 3, 4, 5)), bidder("b", 2.0, (0, 3), (1, 4))]
    orders = seatings(spec, teams)
    assert sorted(orders) == [(0, 1, 0), (1, 0, 0), (1, 1, 0)]  # b lacks the seats of z
    table = Table(Bids(("x", "y", "z", "x", "y", "z"), num_envs=1), teams, orders, 3)
    table.advance()
    totals = {game.players: game.totals for game in table.finished}[0, 1, 0]
    np.testing.assert_allclose(totals, [9 * 2.3, 9 * 4.5, 9 * 2.7], rtol=1e-5)
    standings = Standings(["a", "b"], sides=3)
    standings.add_table((0, 1), table.finished)
    assert standings.win_rates[1, 0] == 1.0  # in every pair of sides; two sides of one player have no result
    with pytest.raises(ConfigError, match=r"cannot fill the sides of 'bids'.*b has seat_0, seat_1"):
        seatings(spec, [bidder("b", 1.0, (0,), (1,))])


@pytest.mark.parametrize(("players", "sides"), [(2, 2), (7, 2), (3, 5), (5, 3), (20, 3), (20, 4), (9, 6)])
def test_every_pair_meets(players, sides):
    found = tables(players, sides)
    met = Counter(pair for table in found for pair in itertools.combinations(table, 2))
    assert set(met) == set(itertools.combinations(range(players), 2))
    assert all(len(set(table)) == min(players, sides) for table in found) and len(found) <= players * (players - 1) / 2
    games = Counter(player for table in found for player in table)
    assert max(games.values()) <= 2 * min(games.values())


def test_many_sides_use_sampled_and_rotated_orders():
    spec = Bids(("",) * 7).spec
    orders = seatings(spec, [bidder(str(i), 1.0, tuple(range(7))) for i in range(7)], seed=3)
    assert len(orders) == 24 * 7
    for side in range(7):
        assert set(Counter(order[side] for order in orders).values()) == {24}


@pytest.mark.slow
def test_rating_intervals_have_their_coverage():
    """500 tournaments of 4 equal players that end in a random order: 95% of the first one's intervals contain 0."""
    draws, inside = np.random.default_rng(0), 0
    for _ in range(500):
        standings = Standings(list("abcd"), sides=4)
        orders = draws.permuted(np.tile(np.arange(4.0), (20, 1)), axis=1)
        standings.add_table(range(4), [TableGame((0, 1, 2, 3), tuple(o), tuple(o), 1) for o in orders.tolist()])
        ratings = standings.ratings
        inside += ratings.low[0] <= 0.0 <= ratings.high[0]
    assert 0.93 <= inside / 500 <= 0.98  # 0.87 if each pair's result counted as a game


def test_players_tied_for_first_share_the_first_place():
    standings = Standings(["a", "b", "c"], sides=3)
    standings.add_table((2, 0, 1), [TableGame((0, 1, 2), (3.0, 3.0, 1.0), (3.0, 3.0, 1.0), 1)])
    assert [each["first_share"] for each in standings.of_each()] == [0.5, 0.0, 0.5]
    assert [each["return_mean"] for each in standings.of_each()] == [3.0, 1.0, 3.0]
    rates = standings.win_rates
    assert (rates[2, 0], rates[2, 1], rates[0, 1], rates[1, 0]) == (0.5, 1.0, 1.0, 0.0)


class Bidder:
    """An engine whose policy bids 1."""

    version = 5

    def act(self, served, request):
        return SimpleNamespace(action=np.ones((*request.observation.shape[:2], 1), np.float32))


def test_an_evaluated_policy_plays_only_the_sides_of_its_own_seats():
    """The run's other policy could play the other side, but it is not the scored one."""
    policies = [Seated(Bidder(), SeatView(f"seat_{place}", (place,))) for place in (0, 1)]
    matches = Matches(policies, [bidder("both", 2.0, (0,), (1,))], Bids(("", "")), 4)
    assert matches.advance(60.0)
    (score,) = matches.score.matches
    assert [game.side for game in score.games] == [0] * 4 and matches.score.version == 5


def test_draws_of_all_matches_are_counted():
    score = ScoreOfMatches(0)
    for points in ((1.0, 0.5), (0.5, 0.0)):
        score.matches.append(MatchScore("a", "b", ("x", "y"), [Game(0, own, own, 0.0, 3) for own in points]))
    facts = score.facts()
    assert (facts["win_rate"], facts["draw_rate"], facts["opponents"], facts["episodes"]) == (0.5, 0.5, 2, 4)
