"""Director runs with scripted games: the winner is a function of the assignment, and games end in any order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from jsrl.directors.messages import Assignment, Outcome, to_json

Script = Callable[[Assignment, random.Random], Any]


def beaten(share: float) -> Script:
    """Return the probability that home wins."""

    def script(assignment: Assignment, chance: random.Random) -> Outcome:
        won = float(chance.random() < share)
        per_side = [0.0] * len(assignment.sides)
        for player, side in enumerate(assignment.sides):
            per_side[side] = won if player == 0 else 1.0 - won
        returns = tuple(2.0 * points - 1.0 for points in per_side)
        return Outcome(assignment.id, 10 if won else 100, returns, tuple(per_side))

    return script


def run(
    director,
    num_games: int,
    script: Script,
    *,
    slots: int = 8,
    discarded: float = 0.05,
    restart_at: int = -1,
    seed: int = 1,
):
    """Play until `num_games` have ended, in random order; return (state, journal of all messages as JSON).

    Args:
      restart_at: after this number of games the state is passed through JSON text, as in a snapshot.
    """
    chance, journal = random.Random(seed), []
    state = director.init(7)
    open_games: list[Assignment] = []
    for ended in range(num_games):
        if ended == restart_at:
            state = json.loads(json.dumps(state))
        state, assignments = director.propose(state, slots - len(open_games))
        journal += map(to_json, assignments)
        open_games += assignments
        game = open_games.pop(chance.randrange(len(open_games)))
        reports = script(game, chance)
        reports = reports if isinstance(reports, list) else [reports]
        if chance.random() < discarded:
            reports = [Outcome(game.id, discarded="its actor died")]
        before = json.dumps(state) if ended % 25 == 0 else ""
        after, commands = director.report(state, reports)
        assert before in ("", json.dumps(state)), "report changed the state it was given"
        state = after
        assert state["assigned"] == state["finished"] + state["discarded"] + len(state["open"])
        journal += [to_json(message) for message in (*reports, *commands)]
    return state, journal


def commands_of(journal: list[dict]) -> list[dict]:
    return [message for message in journal if message["type"] in ("Freeze", "Reset", "Copy", "Stop")]


def check_replay(director, num_games: int, script: Script, **options: Any) -> tuple[dict, list[dict]]:
    """Check that a run replays bit for bit, also across a restart halfway; return its state and journal."""
    state, journal = run(director, num_games, script, **options)
    for restart_at in (-1, num_games // 3):
        again, other = run(director, num_games, script, restart_at=restart_at, **options)
        assert json.dumps(again) == json.dumps(state) and other == journal
    assert json.loads(json.dumps(state)) == state, "the state has more than JSON values"
    return state, journal


def chi_square_p(observed: Sequence[float], expected: Sequence[float] | None = None) -> float:
    """Return the p-value of a chi-square test; without `expected`, of equal frequencies."""
    from scipy.stats import chisquare  # takes half a second, which every test process would pay at collection

    return float(chisquare(observed, expected).pvalue)
