"""The league's matches, freezes and resets: each rule on a state with known win rates."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from jsrl.directors.league import League, without_falling_tail
from jsrl.directors.messages import Freeze, Outcome, Player, Reset
from jsrl.errors import ConfigError
from tests.directors.scripted import beaten, check_replay, chi_square_p, commands_of

LEAGUE = League(min_env_steps=1_000, max_env_steps=2_000)
MAIN, EXPLOITER = Player("main"), Player("main_exploiter")


def state_of(league: League, rates: dict[tuple[Player, Player], float], frozen: list[Player]):
    """Return a state with the given frozen players and win rates."""
    state = league.init(11)
    state["frozen"] = [list(player) for player in frozen]
    payoff, game = league.payoff(state), 10_000
    for (home, away), rate in rates.items():
        payoff.assign(game, home, away)
        payoff.end(game, home, away, rate)
        game += 1
        assert payoff.win_rate(home, away) == pytest.approx(rate)
    return state


def opponents(league: League, state, home: str, num: int = 4_000) -> Counter:
    """Return how often each opponent was proposed to a policy."""
    _, assignments = league.propose(state, num)
    games = [game for game in assignments if game.players[0].policy == home]
    assert len(games) == num // len(league.policies)
    assert all(game.learns == (True, game.players[0] == game.players[1]) for game in games)
    return Counter(game.players[1] for game in games)


def check_shares(counts: Counter, expected: dict[Player, float]) -> None:
    """Check counts against shares by a chi-square test; players without a share are never drawn."""
    assert set(counts) == {player for player, share in expected.items() if share}
    drawn = {player: share for player, share in expected.items() if share}
    assert sum(drawn.values()) == pytest.approx(1.0)
    total = counts.total()
    if len(drawn) > 1:
        observed = [counts[player] for player in drawn]
        assert chi_square_p(observed, [total * share for share in drawn.values()]) > 0.001


def frozen(policy: str, number: int) -> Player:
    return Player(policy, f"frozen-{number}")


def test_empty_league_plays_the_main_player():
    state = LEAGUE.init(1)
    for policy in LEAGUE.policies:
        check_shares(opponents(LEAGUE, state, policy, 400), {MAIN: 1.0})


@pytest.mark.slow
def test_main_plays_all_frozen_players_and_itself():
    """50% (1 - w)^2 over all; 15% find nothing to verify and 35% are self-play: the current main, with w = 0.5."""
    pool = [frozen("main", 1), frozen("main_exploiter", 1), frozen("league_exploiter_1", 1)]
    state = state_of(LEAGUE, {(MAIN, pool[0]): 0.9, (MAIN, pool[1]): 0.5, (MAIN, pool[2]): 0.1}, pool)
    weights = [0.01, 0.25, 0.81]
    expected = {player: 0.5 * weight / 1.07 for player, weight in zip(pool, weights, strict=True)} | {MAIN: 0.5}
    check_shares(opponents(LEAGUE, state, "main"), expected)


def test_main_verifies_against_exploiters_that_beat_it():
    pool = [frozen("main_exploiter", 1), frozen("main_exploiter", 2)]
    state = state_of(LEAGUE, {(MAIN, pool[0]): 0.2, (MAIN, pool[1]): 0.6}, pool)
    weights = [0.64, 0.16]
    expected = {player: 0.65 * weight / 0.8 for player, weight in zip(pool, weights, strict=True)} | {MAIN: 0.35}
    check_shares(opponents(LEAGUE, state, "main"), expected)


def test_main_verifies_against_forgotten_versions():
    """Rates 0.5, 0.9, 0.8: the first one was forgotten, the last one is in the declining tail."""
    pool = [frozen("main", number) for number in (1, 2, 3)]
    rates = dict(zip([(MAIN, player) for player in pool], (0.5, 0.9, 0.8), strict=True))
    squares = [0.25, 0.01, 0.04]
    expected = {player: 0.5 * square / 0.30 for player, square in zip(pool, squares, strict=True)}
    for player, square in zip(pool[:2], squares[:2], strict=True):
        expected[player] += 0.15 * square / 0.26
    check_shares(opponents(LEAGUE, state_of(LEAGUE, rates, pool), "main"), expected | {MAIN: 0.35})


def test_forgotten_versions_exclude_the_declining_tail():
    players = [frozen("main", number) for number in range(5)]
    for rates, kept in (
        ((0.9, 0.8, 0.7, 0.6, 0.5), 0),
        ((0.5, 0.9, 0.8, 0.7, 0.6), 2),
        ((0.1, 0.2, 0.3, 0.4, 0.5), 5),
        ((0.9, 0.2, 0.6, 0.6, 0.5), 3),
    ):
        table = dict(zip(players, rates, strict=True))
        assert without_falling_tail(players, table.__getitem__) == players[:kept]
    assert without_falling_tail([], lambda player: 0.5) == []


def test_main_players_meet_and_stronger_ones_through_past_versions():
    league = League(("main", "other"), (), (), pfsp_share=0.0, verification_share=0.0)
    other, past = Player("other"), [frozen("other", 1), frozen("other", 2)]
    check_shares(opponents(league, league.init(1), "main"), {MAIN: 0.5, other: 0.5})
    rates = {(MAIN, other): 0.2, (MAIN, past[0]): 0.5, (MAIN, past[1]): 0.1}
    weights = [0.25, 0.09]
    expected = {player: 0.5 * weight / 0.34 for player, weight in zip(past, weights, strict=True)} | {MAIN: 0.5}
    check_shares(opponents(league, state_of(league, rates, past), "main"), expected)


def test_main_exploiters_play_the_current_main_if_they_win_sometimes():
    past = [frozen("main", 1), frozen("main", 2), frozen("league_exploiter_1", 1)]
    rates = {(EXPLOITER, MAIN): 0.2, (EXPLOITER, past[0]): 0.5, (EXPLOITER, past[1]): 0.1}
    check_shares(opponents(LEAGUE, state_of(LEAGUE, rates, past), "main_exploiter"), {MAIN: 1.0})
    rates[EXPLOITER, MAIN] = 0.1
    expected = {past[0]: 0.25 / 0.34, past[1]: 0.09 / 0.34}
    check_shares(opponents(LEAGUE, state_of(LEAGUE, rates, past), "main_exploiter"), expected)
    check_shares(opponents(LEAGUE, state_of(LEAGUE, rates, []), "main_exploiter"), {MAIN: 1.0})


def test_league_exploiters_play_all_frozen_players():
    home = Player("league_exploiter_1")
    pool = [frozen("main", 1), frozen("main_exploiter", 1), frozen("league_exploiter_1", 1)]
    state = state_of(LEAGUE, {(home, pool[0]): 0.1, (home, pool[1]): 0.7, (home, pool[2]): 1.0}, pool)
    check_shares(opponents(LEAGUE, state, "league_exploiter_1"), {pool[0]: 0.5 / 0.8, pool[1]: 0.3 / 0.8})


def report_steps(league: League, state, policy: str, length: int):
    """Let a policy finish and lose one game of `length` env steps; return (state, commands)."""
    while True:
        state, (game,) = league.propose(state, 1)
        if game.players[0].policy == policy:
            lost = tuple(0.0 if side == game.sides[0] else 1.0 for side in (0, 1))
            return league.report(state, [Outcome(game.id, length, (), lost)])


def test_freeze_happens_before_the_reset_and_clears_win_rates():
    state = state_of(LEAGUE, {(EXPLOITER, MAIN): 0.9}, [])
    state, (old, *_) = LEAGUE.propose(state, 8)
    state, (game, *_) = LEAGUE.propose(state, 8)
    assert (old.players[0], game.players[0]) == (MAIN, MAIN)
    state, commands = report_steps(LEAGUE, state, "main_exploiter", 2_000)
    assert commands == [Freeze("main_exploiter", "frozen-1"), Reset("main_exploiter", "initial")]
    assert LEAGUE.payoff(state).win_rate(EXPLOITER, MAIN) == 0.5
    assert state["live"]["main_exploiter"]["env_steps"] == 0


def test_games_before_a_reset_do_not_count():
    state, games = LEAGUE.propose(LEAGUE.init(1), 8)
    before = [game for game in games if game.players[0] == EXPLOITER]
    state, commands = report_steps(LEAGUE, state, "main_exploiter", 2_000)
    assert len(before) == 2 and len(commands) == 2
    state, _ = LEAGUE.propose(state, 8)  # a cell for the player after the reset
    won = [Outcome(game.id, 1_999, (), tuple(float(side == game.sides[0]) for side in (0, 1))) for game in before]
    state, commands = LEAGUE.report(state, won)
    assert commands == [] and state["live"]["main_exploiter"]["env_steps"] == 0
    assert LEAGUE.payoff(state).win_rate(EXPLOITER, MAIN) == 0.5


def test_main_players_are_never_reset():
    _, commands = report_steps(LEAGUE, LEAGUE.init(1), "main", 2_000)
    assert commands == [Freeze("main", "frozen-1")]


def test_a_league_exploiter_is_reset_in_a_quarter_of_its_freezes():
    state, resets = LEAGUE.init(3), 0
    record = {"players": ["league_exploiter_1@latest", str(MAIN)], "learns": [True, False], "sides": [0, 1]}
    for number in range(1, 201):
        life = state["live"]["league_exploiter_1"]["life"]
        state["open"]["9"] = {**record, "life": life}
        state, commands = LEAGUE.report(state, [Outcome(9, 2_000, (), (0.0, 1.0))])
        assert commands[0] == Freeze("league_exploiter_1", f"frozen-{number}")
        resets += commands[1:] == [Reset("league_exploiter_1", "initial")]
    assert resets == pytest.approx(50, abs=25)  # 4 standard deviations


def test_player_that_beats_all_targets_is_frozen_early():
    """Not before min_env_steps, not with one target unbeaten, and not without any target."""
    won = {(MAIN, frozen("main", 1)): 0.95, (MAIN, frozen("main_exploiter", 1)): 0.71}
    for rates, length, freezes in (
        (won, 1_000, True),
        (won, 999, False),
        (won | {(MAIN, frozen("main_exploiter", 1)): 0.7}, 1_000, False),
        ({}, 1_999, False),
    ):
        state = state_of(LEAGUE, rates, [away for _, away in rates])
        state["live"]["main"]["env_steps"] = length - 1
        state["open"]["77"] = {
            "players": ["main@latest"] * 2,
            "learns": [True, True],
            "sides": [0, 1],
            "life": 0,
        }
        _, commands = LEAGUE.report(state, [Outcome(77, 1, (), (1.0, 0.0))])
        assert commands == ([Freeze("main", "frozen-1")] if freezes else [])


def test_a_main_exploiter_is_frozen_when_it_beats_the_current_main():
    for rate, freezes in ((0.71, True), (0.7, False)):
        state = state_of(LEAGUE, {(EXPLOITER, MAIN): rate}, [frozen("main", 1)])
        state["live"]["main_exploiter"]["env_steps"] = 1_500
        record = {"players": [str(EXPLOITER), "main@frozen-1"], "learns": [True, False], "sides": [0, 1]}
        state["open"]["77"] = {**record, "life": 0}
        _, commands = LEAGUE.report(state, [Outcome(77, 1, (), (0.0, 1.0))])
        assert (commands != []) == freezes


@pytest.mark.slow
def test_hundreds_of_results_replay_to_the_same_freezes_and_resets():
    league = League(min_env_steps=500, max_env_steps=1_000)
    state, journal = check_replay(league, 500, beaten(0.5), slots=16)
    commands = commands_of(journal)
    kinds = Counter((command["type"], command["policy"]) for command in commands)
    assert kinds["Freeze", "main"] >= 4 and kinds["Reset", "main"] == 0
    assert kinds["Freeze", "main_exploiter"] == kinds["Reset", "main_exploiter"] >= 4
    for index, command in enumerate(commands):
        if command["type"] == "Reset":
            assert (commands[index - 1]["type"], commands[index - 1]["policy"]) == ("Freeze", command["policy"])
    players, points, games = league.results(state)
    assert players[:4] == list(map(Player, LEAGUE.policies)) and len(players) == 4 + len(state["frozen"])
    assert games[0, 4:].sum() > 20 and np.allclose(points + points.T, games)
    assert len(state["frozen"]) == sum(count for (kind, _), count in kinds.items() if kind == "Freeze")


@pytest.mark.nightly
def test_a_thousand_results_replay_to_the_same_freezes_and_resets():
    _, journal = check_replay(League(min_env_steps=500, max_env_steps=1_000), 1_000, beaten(0.5), slots=16)
    kinds = Counter(command["type"] for command in commands_of(journal))
    assert kinds["Freeze"] >= 20 and kinds["Reset"] >= 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"main": ()}, "needs >= 1"),
        ({"main_exploiters": ("main",)}, "name each of them once"),
        ({"pfsp_share": 0.9}, "pfsp_share=0.9 and verification_share=0.15.*at most 1"),
        ({"min_env_steps": 10, "max_env_steps": 5}, "max_env_steps=5; it must be at least min_env_steps, 10"),
        ({"beaten": 70.0}, "beaten is 70"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        League(**options)
