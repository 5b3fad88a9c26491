"""Population-based training: which members copy which and when, exploration, and edge cases."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from jsrl.directors.draws import Draws
from jsrl.directors.messages import Copy, Outcome, Player
from jsrl.directors.pbt import PBT, Range
from jsrl.errors import ConfigError
from tests.directors.scripted import beaten, check_replay, commands_of

RATES = {"rate": Range(1e-4, 1e-2), "rows": Range(8, 64, whole=True)}


def play(director: PBT, state, skill: dict[str, float], rounds: int, length: int = 10):
    """Let each member play this number of games, each with its skill as return; return (state, commands)."""
    commands = []
    for _ in range(rounds):
        state, games = director.propose(state, len(director.policies))
        for game in games:
            outcome = Outcome(game.id, length, (skill[game.players[0].policy],))
            state, given = director.report(state, [outcome])
            commands += given
    return state, commands


@pytest.mark.parametrize("num", [2, 3, 4])
def test_small_populations_exploit(num):
    """int(0.2 x 2) is 0: there is at least one member in each share."""
    members = tuple(f"member-{i}" for i in range(num))
    director = PBT(members, RATES, ready_env_steps=50, window=5)
    skill = {member: float(number) for number, member in enumerate(members)}
    _, commands = play(director, director.init(0), skill, 10)
    assert [(command.policy, command.source) for command in commands] == [("member-0", members[-1])]


def test_the_worst_fifth_copies_the_best_fifth():
    members = tuple(f"member-{i:02}" for i in range(20))
    director = PBT(members, RATES, ready_env_steps=50, window=5)
    skill = {member: float(number) for number, member in enumerate(members)}
    copied = set()
    for seed in range(12):
        state = director.init(seed)
        state, commands = play(director, state, skill, 10)
        assert [command.policy for command in commands] == list(members[:4])
        copied |= {command.source for command in commands}
        for command in commands:
            assert command.hyperparameters == director.hyperparameters_of(state, command.policy)
    assert copied == set(members[-4:])


def test_copies_perturb_the_values_of_their_parent():
    director = PBT(("a", "b"), {"rate": Range(1e-4, 1e-2)}, ready_env_steps=1, window=1, resample=0.25)
    kinds = Counter()
    for seed in range(400):
        state = director.init(seed)
        parent = director.hyperparameters_of(state, "b")["rate"]
        _, (command,) = play(director, state, {"a": 0.0, "b": 1.0}, 2, length=1)
        found = command.hyperparameters["rate"]
        assert 1e-4 <= found <= 1e-2
        factor = found / parent
        kinds["x0.8" if abs(factor - 0.8) < 1e-9 else "x1.2" if abs(factor - 1.2) < 1e-9 else "other"] += 1
    assert kinds["x0.8"] == pytest.approx(150, abs=45) and kinds["x1.2"] == pytest.approx(150, abs=45)
    assert kinds["other"] == pytest.approx(100, abs=50)  # drawn again, or clipped to the range


def test_hyperparameters_stay_in_their_ranges():
    draws = Draws({"seed": 0, "draws": 0})
    values = [Range(8, 64, whole=True).draw(draws) for _ in range(500)]
    assert all(isinstance(value, int) for value in values) and min(values) == 8 and max(values) >= 60
    assert sum(value < 8 * 8**0.5 for value in values) / 500 == pytest.approx(0.5, abs=0.1)  # uniform in the logarithm
    flat = [Range(-1.0, 1.0, log=False).draw(draws) for _ in range(500)]
    assert sum(value < 0.0 for value in flat) / 500 == pytest.approx(0.5, abs=0.1)
    assert Range(1.0, 2.0).clip(2.4) == 2.0 and Range(8, 64, whole=True).clip(7.2) == 8


def test_equal_scores_and_too_few_games_change_nothing():
    director = PBT(("a", "b", "c"), RATES, ready_env_steps=10, window=5)
    state, commands = play(director, director.init(0), {"a": 1.0, "b": 1.0, "c": 1.0}, 20)
    assert commands == []
    state, commands = play(director, director.init(0), {"a": 0.0, "b": 1.0, "c": 2.0}, 4)
    assert commands == [] and director.score(state, "a") is None  # ready, but with 4 games of 5
    state, commands = play(director, state, {"a": 0.0, "b": 1.0, "c": 2.0}, 2)
    assert [command.policy for command in commands] == ["a"]


def test_the_newest_recorded_scores_are_compared():
    director = PBT(("a", "b"), ready_env_steps=1, window=1)
    state, commands = play(director, director.init(0), {"a": 5.0, "b": 1.0}, 1)
    assert commands == [Copy("b", "a", {})]
    state, commands = play(director, state, {"a": 0.0, "b": 1.0}, 1)
    assert commands == [Copy("a", "b", {})]  # its score of 5 is past


def test_copy_resets_scores_and_ignores_earlier_games():
    director = PBT(("a", "b"), ready_env_steps=20, window=2)
    state, before = director.propose(director.init(0), 2)
    state, commands = play(director, state, {"a": 0.0, "b": 1.0}, 4)
    assert commands == []  # the first games are open: later results wait
    state, commands = director.report(state, [Outcome(before[1].id, 10, (1.0,)), Outcome(before[0].id, 10, (0.0,))])
    assert commands == [Copy("a", "b", {})]
    assert director.score(state, "a") is None and state["members"]["a"]["life"] == 1
    state, late = director.propose(state, 2)
    state, _ = director.report(state, [Outcome(late[0].id, 10, (5.0,))])
    assert state["members"]["a"]["scores"] == [5.0]


def test_open_games_before_a_copy_do_not_count():
    director = PBT(("a", "b"), ready_env_steps=20, window=2)
    state, commands = play(director, director.init(0), {"a": 0.0, "b": 1.0}, 1)
    state, games = director.propose(state, 4)
    first = [Outcome(game.id, 10, (1.0 if game.players[0].policy == "b" else 0.0,)) for game in games[:2]]
    state, commands = director.report(state, list(reversed(first)))
    assert [command.policy for command in commands] == ["a"]
    state, _ = director.report(state, [Outcome(games[2].id, 10, (99.0,))])
    assert games[2].players[0] == Player("a") and state["members"]["a"]["scores"] == []
    assert state["members"]["a"]["env_steps"] == 0


def test_members_playing_each_other_are_scored_by_points():
    director = PBT(("a", "b", "c"), opponents="population", ready_env_steps=200, window=10)
    strength, chance = {"a": 0.0, "b": 1.0, "c": 2.0}, random.Random(0)
    state, commands, pairs = director.init(1), [], Counter()
    for _ in range(90):
        state, games = director.propose(state, 3)
        chance.shuffle(games)
        for game in games:
            first, second = (strength[player.policy] for player in game.players)
            pairs[game.players] += 1
            assert game.learns == (True, True)
            points = [float(first > second), float(second > first)]
            result = tuple(points if game.sides == (0, 1) else reversed(points))
            state, given = director.report(state, [Outcome(game.id, 10, (), result)])
            commands += given
    assert len(pairs) == 6 and {command.policy for command in commands} == {"a"}
    assert {command.source for command in commands} <= {"b", "c"} and Counter(c.source for c in commands)["c"] > 0


def test_pbt_replays():
    members = tuple(f"member-{i}" for i in range(5))

    def script(game, chance):
        return Outcome(game.id, chance.randint(5, 50), (chance.gauss(int(game.players[0].policy[-1]), 1.0),))

    state, journal = check_replay(PBT(members, RATES, ready_env_steps=200, window=5), 400, script)
    assert len(commands_of(journal)) >= 8 and state["discarded"] > 10
    matches = PBT(members, RATES, opponents="population", ready_env_steps=400, window=5)
    _, journal = check_replay(matches, 300, beaten(0.5))
    assert len(commands_of(journal)) >= 4


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: PBT(("a",)), "needs >= 2"),
        (lambda: PBT(("a", "b"), worst_share=0.6), "worst_share is 0.6; it must be from 0 to 0.5"),
        (lambda: PBT(("a", "b"), factors=()), "factors"),
        (lambda: PBT(("a", "b"), window=0), "window is 0"),
        (lambda: PBT(("a", "b"), opponents="all"), "opponents is 'all'; expected one of none, population"),
        (lambda: Range(0.0, 1.0), "log=False where low is not positive"),
        (lambda: Range(2.0, 1.0), "low <= high"),
    ],
)
def test_wrong_options_are_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        make()
