"""Staged curricula and prioritised level replay."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from jsrl.directors.messages import Outcome, Player, Score, Stop
from jsrl.directors.plr import MOST_WAITING, PLR
from jsrl.directors.stages import Stage, Stages
from jsrl.errors import ConfigError
from tests.directors.scripted import check_replay, chi_square_p, run
from tests.marks import slow

EASY, HARD = (
    Stage("easy", (1, 2), at_least=0.5, games=10),
    Stage("hard", (3,), at_least=0.5, games=5, max_env_steps=400),
)


def finish(director, state, returns, length: int = 10):
    """Play games in sequence with the given returns; return (state, tasks, commands)."""
    tasks, commands = [], []
    for value in returns:
        state, (game,) = director.propose(state, 1)
        state, given = director.report(state, [Outcome(game.id, length, (value,))])
        tasks.append(game.task)
        commands += given
    return state, tasks, commands


# -- stages -----------------------------------------------------------------------------------------------------------


def test_a_stage_is_passed_by_the_mean_of_its_newest_games():
    director = Stages(stages=(EASY, HARD), stop=True)
    state, tasks, _ = finish(director, director.init(0), [0.0] * 30 + [1.0] * 4)
    assert set(tasks) == {1, 2} and director.stage(state) == EASY  # a mean of 0.4
    state, _, _ = finish(director, state, [1.0])
    assert director.stage(state) == HARD
    state, tasks, commands = finish(director, state, [1.0] * 4)
    assert set(tasks) == {3} and commands == []
    state, _, commands = finish(director, state, [1.0])
    assert commands == [Stop("the last stage, hard, is passed")]
    _, tasks, commands = finish(director, state, [1.0] * 10)
    assert set(tasks) == {3} and commands == []  # announced once


def test_stage_always_ends_after_its_env_steps():
    director = Stages(stages=(Stage("a", (1,), max_env_steps=100), Stage("b", (2,))))
    state, tasks, _ = finish(director, director.init(0), [0.0] * 11)
    assert tasks == [1] * 10 + [2]
    state, tasks, commands = finish(director, state, [0.0] * 50)
    assert set(tasks) == {2} and commands == []


def test_games_of_an_earlier_stage_and_void_ones_do_not_count():
    director = Stages(stages=(Stage("a", (1,), at_least=1.0, games=1), Stage("b", (2,), at_least=1.0, games=1), HARD))
    state, games = director.propose(director.init(0), 3)
    state, _ = director.report(state, [Outcome(game.id, 1, (1.0,)) for game in games])
    assert director.stage(state).name == "b" and state["env_steps"] == 0
    state, (discarded, game) = director.propose(state, 2)
    state, _ = director.report(state, [Outcome(game.id, 1, (1.0,))])
    assert director.stage(state).name == "b"  # an older game is open
    state, _ = director.report(state, [Outcome(discarded.id, discarded="killed")])
    assert director.stage(state) == HARD


def test_a_staged_run_replays():
    stages = (Stage("a", (1,), at_least=0.4, games=40), Stage("b", (2,)))

    def script(game, chance):
        return Outcome(game.id, 10, (float(chance.random() < 0.5),))

    state, journal = check_replay(Stages(stages=stages), 300, script)
    tasks = [message["task"] for message in journal if message["type"] == "Assignment"]
    assert state["stage"] == 1 and 40 <= tasks.index(2) < 100 and set(tasks[tasks.index(2) :]) == {2}


def test_length_and_sides():
    director = Stages(
        ("a", "b"), stages=(Stage("short", (1,), at_least=20, games=2), Stage("end", (2,))), score="length"
    )
    state, (first, second) = director.propose(director.init(0), 2)
    assert first.players == (Player("a"), Player("b")) and first.learns == (True, True)
    state, _ = director.report(state, [Outcome(game.id, 20, (0.0, 0.0)) for game in (first, second)])
    assert director.stage(state).name == "end"
    other = Stages(("a", "b"), stages=(Stage("one", (1,), at_least=1.0, games=1), Stage("end", (2,))), side=1)
    state, (game,) = other.propose(other.init(0), 1)
    state, _ = other.report(state, [Outcome(game.id, 20, (0.0, 1.0))])
    assert other.stage(state).name == "end"


# -- prioritised level replay -----------------------------------------------------------------------------------------


def slow_weights(scores, proposed, assigned, beta, staleness):
    """The formula of the paper, level by level."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    by_rank = [0.0] * len(scores)
    for rank, index in enumerate(order, start=1):
        by_rank[index] = (1.0 / rank) ** (1.0 / beta)
    ages = [assigned - last for last in proposed]
    return [
        (1.0 - staleness) * own / sum(by_rank) + staleness * age / sum(ages)
        for own, age in zip(by_rank, ages, strict=True)
    ]


def scored(game, chance):
    others = (chance.random() for _ in range(3))
    return [Outcome(game.id, 10, (1.0,)), Score(game.id, chance.choice((0.25, 0.5, chance.random())), *others)]


@pytest.mark.parametrize(
    "options",
    [
        {"num_levels": 60},
        slow({"capacity": 40}),
        slow({"capacity": 40, "beta": 0.1, "staleness": 0.3}),
        slow({"capacity": 40, "score": "positive"}),
        slow({"num_levels": 60, "score": "max_mc"}),
        slow({"num_levels": 60, "capacity": 40, "score": "max_mc"}),
    ],
)
def test_weights_equal_a_slow_oracle_of_the_journal(options):
    director = PLR(**options)
    state, journal = check_replay(director, 600, scored, discarded=0.1)
    levels, scores, proposed, task, open_levels, returns = [], [], [], {}, {}, {}
    assigned = again = 0
    for message in journal:
        if message["type"] == "Assignment":
            level = message["task"]
            if level in levels:
                proposed[levels.index(level)] = message["id"]
                again += 1
            task[message["id"]] = open_levels[message["id"]] = level
            assigned += 1
        elif message["type"] == "Outcome" and message["discarded"]:
            open_levels.pop(message["assignment"])
        elif message["type"] == "Score" and message["assignment"] in open_levels:
            level = open_levels.pop(message["assignment"])
            value = message["positive" if director.score == "positive" else "value"]
            if director.score == "max_mc":
                returns.setdefault(level, []).append(message["episode_return"])
                value = max(returns[level]) - message["predicted"]
            if level in levels:
                scores[levels.index(level)] = value
                continue
            index = len(levels)
            if index == director.capacity:
                weights = slow_weights(scores, proposed, assigned, director.beta, director.staleness)
                index = weights.index(min(weights))
                if value < scores[index]:
                    returns.pop(level, None)
                    continue
                returns.pop(levels[index], None)
                for column in (levels, scores, proposed):
                    column.pop(index)
            for column, entry in ((levels, level), (scores, value), (proposed, message["assignment"])):
                column.insert(index, entry)
    assert (state["levels"], state["scores"], state["proposed"]) == (levels, scores, proposed)
    expected = slow_weights(scores, proposed, assigned, director.beta, director.staleness)
    assert director.weights(state) == pytest.approx(expected, rel=1e-9)
    assert again > 100


@pytest.mark.slow
def test_levels_are_drawn_by_their_weights():
    director = PLR(replay_share=1.0, beta=0.8, staleness=0.0, min_fill=0.0, capacity=6)
    state = director.init(0) | {
        "levels": [10, 11, 12, 13, 14, 15],
        "scores": [0.3, 0.9, 0.1, 0.5, 0.7, 0.2],
        "proposed": [0] * 6,
    }
    state["assigned"] = 1
    _, games = director.propose(state, 4_000)
    counts = Counter(game.task for game in games)
    expected = 4_000 * director.weights(state)
    assert np.argsort(-expected).tolist() == [1, 4, 3, 0, 5, 2]
    assert chi_square_p([counts[level] for level in state["levels"]], expected) > 0.001


def test_parallel_games_play_different_levels_until_their_scores_arrive():
    """Without this, 0.9 of the games would play the level of the highest score."""
    director = PLR(num_levels=8, replay_share=1.0, beta=0.3, staleness=0.0)
    known = {"levels": list(range(8)), "scores": [1.0 - 0.1 * level for level in range(8)], "proposed": [0] * 8}
    state, games = director.propose(director.init(0) | known | {"assigned": 1}, 8)
    assert sorted(game.task for game in games) == list(range(8))
    state, (_more,) = director.propose(state, 1)  # all wait: any level will do
    state, _ = director.report(state, [Score(game.id, 1.0) for game in games if game.task in (3, 5)])
    state, games = director.propose(state, 2)
    assert sorted(game.task for game in games) == [3, 5]


def test_stale_levels_are_replayed():
    director = PLR(replay_share=1.0, beta=0.1, staleness=0.5, min_fill=0.0, capacity=2)
    state = director.init(0) | {"levels": [0, 1], "scores": [1.0, 0.0], "proposed": [90, 10], "assigned": 100}
    assert director.weights(state) == pytest.approx([0.5 * 1024 / 1025 + 0.05, 0.5 / 1025 + 0.45])


def test_robust_plr_does_not_train_on_new_levels():
    director = PLR(train_on_new=False, num_levels=50, min_fill=0.2, replay_share=0.8)
    _, journal = run(director, 300, scored, discarded=0.0)
    seen, known = set(), 0
    for message in journal:
        if message["type"] == "Assignment":
            new = message["task"] not in seen
            assert message["learns"] == [not new]
            known += not new
            seen.add(message["task"])
    assert seen == set(range(50)) and known > 200


def test_a_share_of_assignments_plays_new_levels():
    director = PLR(replay_share=0.7, capacity=100, min_fill=0.5)
    state, journal = run(director, 50, scored, slots=1, discarded=0.0)
    tasks = [message["task"] for message in journal if message["type"] == "Assignment"]
    assert len(set(tasks)) == 50  # nothing is replayed before half of the buffer is filled
    state, games = director.propose(state, 2_000)
    again = sum(game.task in tasks for game in games)
    assert again / 2_000 == pytest.approx(0.7, abs=0.045)


@pytest.mark.slow
def test_new_levels_are_drawn_uniformly_from_unseen_ones():
    director = PLR(num_levels=10, replay_share=0.0)
    counts = Counter()
    for seed in range(600):
        state, games = director.propose(director.init(seed), 10)
        assert sorted(game.task for game in games) == list(range(10))
        counts[games[3].task] += 1
        _, (game,) = director.propose(state, 1)  # all wait for their scores
        assert 0 <= game.task < 10
    assert chi_square_p(list(counts.values())) > 0.001


def test_missing_scores_do_not_accumulate():
    director = PLR()
    state, _ = director.propose(director.init(0), MOST_WAITING + 5)
    assert len(state["waiting"]) == MOST_WAITING and "4" not in state["waiting"] and "5" in state["waiting"]
    state, _ = director.report(state, [Score(4, 1.0), Score(5, 2.0), Score(5, 3.0)])
    assert state["scores"] == [2.0]


@pytest.mark.slow
def test_levels_whose_scores_were_lost_are_drawn_again():
    director = PLR(num_levels=20, staleness=1.0)
    state, played = director.init(0), []
    for number in range(400):
        state, (game,) = director.propose(state, 1)
        played.append(game.task)
        if number % 10:  # the rows of every tenth game were dropped
            state, _ = director.report(state, [Score(game.id, 1.0)])
    assert set(played[-150:]) == set(range(20))
    counts = Counter(played[-150:])
    assert max(counts.values()) < 20  # a few levels are not all that is left


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Stages, "give at least one"),
        (lambda: Stages(stages=(Stage("a", (1,)), Stage("b", (1,)))), "stage 'a' has no condition"),
        (lambda: Stages(stages=(Stage("a", (1,)),), stop=True), "stage 'a' has no condition"),
        (lambda: Stages(stages=(Stage("a", ()),)), "has no tasks"),
        (lambda: Stages(stages=(EASY, EASY)), "a unique name"),
        (lambda: Stages(stages=(EASY,), score="wins"), "score is 'wins'; expected one of return, length"),
        (lambda: Stages(stages=(EASY,), side=1), "side=1, and there are 1"),
        (lambda: PLR(beta=0.0), "beta is 0"),
        (lambda: PLR(staleness=2.0), "staleness is 2.0"),
        (lambda: PLR(train_on_new=False, replay_share=0.0), "nothing would be trained on"),
        (lambda: PLR(score="regret"), "score is 'regret'; expected one of l1, positive, max_mc"),
        (lambda: Score(3, 1.0, predicted=math.inf), r"assignment 3 has the scores \(1.0, 0.0, inf"),
    ],
)
def test_wrong_options_are_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        make()
