"""Self-play against the newest params and against pools: sampling frequencies, freezes, and replays."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from jsrl.directors.base import open_assignments
from jsrl.directors.draws import Draws
from jsrl.directors.fixed import Fixed, LatestSelfPlay, Match
from jsrl.directors.messages import (
    Assignment,
    Copy,
    Freeze,
    Outcome,
    Player,
    Reset,
    Score,
    Stop,
    from_json,
    parse_player,
    to_json,
)
from jsrl.directors.pools import PFSP, DeltaUniform, weigh
from jsrl.errors import ConfigError
from tests.directors.scripted import beaten, check_replay, chi_square_p, commands_of, run

WIN_RATES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
EXPECTED = {
    "squared": (0.491, 0.297, 0.152, 0.055, 0.006, 0.0),
    "capped": (0.263, 0.263, 0.263, 0.158, 0.053, 0.0),
    "variance": (0.106, 0.247, 0.294, 0.247, 0.106, 0.0),
}


@pytest.mark.parametrize("weighting", sorted(EXPECTED))
def test_pfsp_draws_opponents_by_their_win_rates(weighting):
    weights = np.array(weigh(WIN_RATES, weighting))
    shares = weights / weights.sum()
    assert shares == pytest.approx(EXPECTED[weighting], abs=6e-4)
    draws = Draws({"seed": 5, "draws": 0})
    listed = weights.tolist()
    counts = np.bincount([draws.choose(listed) for _ in range(100_000)], minlength=6)
    assert counts[5] == 0
    assert chi_square_p(counts[:5], 100_000 * shares[:5]) > 0.001
    assert chi_square_p(counts[:5], 100_000 * np.roll(shares[:5], 1)) < 1e-9  # check that the test can fail


def test_all_beaten_is_uniform():
    assert weigh((1.0, 1.0, 1.0), "squared") == weigh((1.0, 1.0, 1.0), "capped") == [1.0] * 3
    assert weigh((1.0, 0.0), "variance") == [1.0, 1.0]  # each of them is certain


def test_pfsp_assigns_by_the_rates_in_its_payoff():
    director = PFSP()
    state = director.init(1)
    payoff = director.payoff(state)
    for opponent, rate in enumerate(WIN_RATES, start=1):
        away = Player("main", f"frozen-{opponent}")
        state["pools"]["main"]["frozen"].append(away.version)
        cell = {
            "assigned": 1,
            "finished": 1,
            "discarded": 0,
            "games": 1.0,
            "points": 1.0 - rate,
            "returns": [0.0, 0.0],
            "queue": [],
        }
        state["payoff"][f"{away} main@latest"] = cell
        assert payoff.win_rate(Player("main"), away) == pytest.approx(rate)
    _, assignments = director.propose(state, 4_000)
    drawn = Counter(game.players[1].version for game in assignments)
    counts = [drawn[f"frozen-{opponent}"] for opponent in range(1, 7)]
    assert counts[5] == 0
    shares = np.array(EXPECTED["squared"][:5])
    assert chi_square_p(counts[:5], 4_000 * shares / shares.sum()) > 0.001
    assert {game.learns for game in assignments} == {(True, False)}
    first = Counter(game.sides for game in assignments)
    assert set(first) == {(0, 1), (1, 0)} and abs(first[0, 1] - 2_000) < 140  # 4.4 standard deviations


@pytest.mark.slow
@pytest.mark.parametrize("director", [PFSP(freeze_env_steps=1_500, pool_size=4), DeltaUniform(freeze_env_steps=1_500)])
def test_a_thousand_results_replay_to_the_same_freezes(director):
    state, journal = check_replay(director, 1_000, beaten(0.5))
    trained = sum(message["length"] for message in journal if message["type"] == "Outcome")
    commands = commands_of(journal)
    assert 0.9 * trained / 1_600 < len(commands) <= trained / 1_500
    assert [command["name"] for command in commands] == [f"frozen-{n + 1}" for n in range(len(commands))]
    kept = state["pools"]["main"]["frozen"]
    assert kept == [command["name"] for command in commands][-len(kept) :] and len(kept) <= director.pool_size
    assert state["discarded"] > 20
    players, points, games = director.results(state)
    assert players == [Player("main"), *(Player("main", name) for name in kept)]
    assert games[0, 1:].min() >= 0.0 and games[0].max() > 5.0 and np.allclose(points + points.T, games)


def test_proposals_do_not_depend_on_the_number_per_call():
    director = PFSP(freeze_env_steps=500)
    state, _ = run(director, 200, beaten(0.6))
    _, together = director.propose(state, 5)
    state, first = director.propose(state, 2)
    _, rest = director.propose(state, 3)
    assert [*first, *rest] == together
    assert [game.id for game in together] == list(range(together[0].id, together[0].id + 5))


def test_opponents_come_from_the_rivals_pool():
    director = DeltaUniform(("first", "second"), delta=1.0)
    state = director.init(0)
    state["pools"]["first"]["frozen"], state["pools"]["second"]["frozen"] = ["frozen-1"], ["frozen-1", "frozen-2"]
    _, games = director.propose(state, 2)
    pairs = [(Player("first"), Player("second", "frozen-2")), (Player("second"), Player("first", "frozen-1"))]
    assert [game.players for game in games] == pairs and [game.sides for game in games] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("delta", "drawn"), [(0.0, range(1, 11)), (0.5, range(6, 11)), (0.75, range(8, 11)), (1.0, range(10, 11))]
)
def test_delta_uniform_draws_from_the_newest(delta, drawn):
    director = DeltaUniform(delta=delta)
    state = director.init(3)
    state["pools"]["main"]["frozen"] = [f"frozen-{n}" for n in range(1, 11)]
    _, assignments = director.propose(state, 2_000)
    counts = Counter(game.players[1].version for game in assignments)
    assert set(counts) == {f"frozen-{n}" for n in drawn}
    if len(counts) > 1:
        assert chi_square_p(list(counts.values())) > 0.001


def test_a_share_plays_the_latest_version():
    director = DeltaUniform(latest_share=0.8)
    state = director.init(3)
    _, assignments = director.propose(state, 10)
    assert {game.players[1] for game in assignments} == {Player("main")}  # there is no other player yet
    state["pools"]["main"]["frozen"] = ["frozen-1", "frozen-2"]
    _, assignments = director.propose(state, 4_000)
    latest = [game for game in assignments if game.players[1] == Player("main")]
    assert len(latest) / 4_000 == pytest.approx(0.8, abs=4.5 * math.sqrt(0.16 / 4_000))
    assert {game.learns for game in latest} == {(True, True)}
    assert {game.learns for game in assignments if game.players[1].version != "latest"} == {(True, False)}


def test_two_policies_play_each_others_past_from_their_own_side():
    _, journal = run(PFSP(("seeker", "hider"), freeze_env_steps=400), 300, beaten(0.5), discarded=0.0)
    games = [from_json(message) for message in journal if message["type"] == "Assignment"]
    for game in games:
        home = "seeker" if game.id % 2 == 0 else "hider"
        assert game.players[0] == Player(home) and game.players[1].policy == ({"seeker", "hider"} - {home}).pop()
        assert game.sides == ((0, 1) if home == "seeker" else (1, 0))
    assert {player.version for game in games for player in game.players} >= {"latest", "frozen-1", "frozen-2"}
    assert {command["policy"] for command in commands_of(journal)} == {"seeker", "hider"}


def test_results_are_read_by_side():
    """Home sits on side 1 and wins there."""
    director = PFSP()
    state = director.init(0)
    state["pools"]["main"]["frozen"] = ["frozen-1"]
    state, assignments = director.propose(state, 40)
    won = [Outcome(game.id, 1, (), (1.0, 0.0) if game.sides[0] == 0 else (0.0, 1.0)) for game in assignments]
    assert {game.sides for game in assignments} == {(0, 1), (1, 0)}
    state, _ = director.report(state, won)
    assert director.payoff(state).win_rate(Player("main"), Player("main", "frozen-1")) == 1.0


def test_late_or_repeated_messages_only_raise_a_count():
    director = PFSP(freeze_env_steps=10)
    state, (game,) = director.propose(director.init(0), 1)
    outcome = Outcome(game.id, 10, (1.0, -1.0), (1.0, 0.0))
    state, commands = director.report(state, [outcome])
    again, none = director.report(state, [outcome, Outcome(99, 10, (1.0, -1.0), (1.0, 0.0))])
    assert commands == [Freeze("main", "frozen-1")] and none == []
    assert again == {**state, "late": 2}


def test_games_ended_by_a_crash_are_reported_as_void():
    director = PFSP(freeze_env_steps=500)
    state, _ = run(director, 200, beaten(0.6), slots=8)
    lost = open_assignments(state)
    assert len(lost) == 7 and lost == sorted(lost)
    after, commands = director.report(state, [Outcome(game, discarded="the run was resumed") for game in lost])
    assert open_assignments(after) == [] and commands == []
    assert after["discarded"] == state["discarded"] + 7 and after["assigned"] == after["finished"] + after["discarded"]
    assert all(not cell["queue"] for cell in after["payoff"].values())  # results that waited for them are counted


def test_games_without_a_winner_are_refused_by_win_counting_directors():
    director = PFSP()
    state, (game,) = director.propose(director.init(0), 1)
    with pytest.raises(ConfigError, match="ended without a result"):
        director.report(state, [Outcome(game.id, 10, (1.0, -1.0))])
    with pytest.raises(ConfigError, match="3 numbers where the assignment has 2 sides"):
        director.report(state, [Outcome(game.id, 10, (), (1.0, 0.0, 0.0))])


def test_a_state_of_another_director_or_format_is_refused():
    with pytest.raises(ConfigError, match="state of PFSP, format 1, was given to DeltaUniform"):
        DeltaUniform().propose(PFSP().init(0), 1)
    with pytest.raises(ConfigError, match="format 0"):
        PFSP().report(PFSP().init(0) | {"format": 0}, [])


# -- fixed and latest -------------------------------------------------------------------------------------------------


def test_fixed_matches_are_drawn_by_weight():
    tasks = (
        Match(("main", "main@frozen-3"), 3.0, {"level": 1}),
        Match(("main", "bot"), 1.0),
        Match(("bot", "main"), 0.0),
    )
    director = Fixed(tasks)
    assert director.policies == ("main", "bot")
    state, assignments = director.propose(director.init(2), 2_000)
    first = [game for game in assignments if game.task == {"level": 1}]
    assert len(first) / 2_000 == pytest.approx(0.75, abs=0.045)
    assert {(game.players, game.learns) for game in first} == {
        ((Player("main"), Player("main", "frozen-3")), (True, False))
    }
    assert {game.players for game in assignments if game.task is None} == {(Player("main"), Player("bot"))}
    assert {game.sides for game in assignments} == {(0, 1)}
    check_replay(Fixed(tasks, permute_sides=True), 60, beaten(0.5))
    state, none = director.report(state, [Outcome(game.id, 5, (0.0, 0.0)) for game in assignments])
    assert state["finished"] == 2_000 and state["open"] == {} and none == []


def test_latest_plays_all_sides():
    _, (game,) = LatestSelfPlay(num_sides=3).propose(LatestSelfPlay().init(0), 1)
    assert game.players == (Player("main"),) * 3 and game.learns == (True,) * 3 and game.sides == (0, 1, 2)
    _, (game,) = LatestSelfPlay(("seeker", "hider")).propose(LatestSelfPlay().init(0), 1)
    assert game.players == (Player("seeker"), Player("hider"))
    _, journal = check_replay(LatestSelfPlay(), 60, beaten(0.5))
    assert len({message["seed"] for message in journal if message["type"] == "Assignment"}) == 67


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: PFSP(weighting="linear"), "weighting is 'linear'; expected one of squared, capped, variance"),
        (lambda: PFSP(("a", "b", "c")), "needs 1 to 2 of them"),
        (lambda: PFSP(("a", "a")), "name each of them once"),
        (lambda: PFSP(("a@b",)), "no space and no @"),
        (lambda: PFSP(latest_share=1.5), "latest_share is 1.5; it must be from 0 to 1"),
        (lambda: DeltaUniform(delta=-0.1), "delta is -0.1"),
        (lambda: DeltaUniform(freeze_env_steps=0), "freeze_env_steps is 0"),
        (lambda: LatestSelfPlay(()), "needs >= 1 of them"),
        (lambda: Fixed(()), "at least one match"),
        (lambda: Fixed((Match(("a",)), Match(("a", "b")))), "all with one player for each side"),
        (lambda: Fixed((Match(("a",), 0.0),)), "whose weights are all 0"),
        (lambda: Outcome(4, 1, (math.nan,)), "assignment 4 ended with returns"),
        (lambda: Outcome(4, 1, (1.0,), (2.0,)), "1, 0.5 or 0"),
        (lambda: from_json({"type": "Pause"}), "a message of type 'Pause'"),
    ],
)
def test_wrong_options_are_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


def test_messages_round_trip_through_json():
    messages = (
        Assignment(3, (Player("a"), Player("b", "frozen-1")), (True, False), (1, 0), 5, {"level": [1]}),
        Outcome(3, 7, (1.0, -1.0), (1.0, 0.0)),
        Outcome(3, discarded="killed"),
        Score(3, 0.5),
        Freeze("a", "frozen-1"),
        Reset("a"),
        Copy("a", "b", {"rate": 0.1}),
        Stop("enough"),
    )
    assert tuple(from_json(to_json(message)) for message in messages) == messages
    assert parse_player("a") == Player("a") and str(parse_player("a@frozen-1")) == "a@frozen-1"


def test_draws_equal_splitmix64_and_are_uniform():
    """Known answers: SplitMix64 with the key that seed 0 mixes to, 0."""
    draws = Draws({"seed": 0, "draws": 0})
    assert [draws.bits() for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    state = {"seed": 9, "draws": 0}
    counts = np.bincount([Draws(state).below(10) for _ in range(20_000)])
    assert chi_square_p(counts) > 0.001 and state["draws"] == 20_000
    orders = Counter(tuple(Draws(state).permutation(3)) for _ in range(6_000))
    assert len(orders) == 6 and chi_square_p(list(orders.values())) > 0.001


def test_live_versions_are_bounded_and_cover_the_pool():
    director = DeltaUniform(freeze_env_steps=1, live=4, renew_games=20)
    state = director.init(3)
    for _ in range(50):  # each game freezes one
        state, (game,) = director.propose(state, 1)
        state, _ = director.report(state, [Outcome(game.id, 1, (0.0, 0.0), (0.5, 0.5))])
    frozen = list(state["pools"]["main"]["frozen"])
    assert len(frozen) == 50
    met, games = Counter[str](), []
    for _ in range(6):
        state, found = director.propose(state, 1000)
        games += [game.players[1].version for game in found]
    for begin in range(0, len(games) - 20, 20):
        assert len(set(games[begin : begin + 20])) <= 5, "four, and one that was renewed"
    met.update(games)
    assert set(met) == set(frozen)
    assert max(met.values()) < 8 * 6000 / 50


def test_options_of_live_versions_are_checked():
    for wrong in ({"live": -1}, {"renew_games": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            DeltaUniform(**wrong)
