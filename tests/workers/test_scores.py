"""Scores of games, counted by a learner over batches and sessions."""

from __future__ import annotations

import numpy as np

from jsrl.workers.attached.directed import Scores


class EventRecorder:
    def __init__(self) -> None:
        self.scores: list[tuple[float, ...]] = []

    def event(self, kind: str, **facts) -> None:
        assert kind == "scores"
        self.scores += facts["scores"]


def batch(*games: int) -> np.ndarray:
    """Return the games of T+1 rows of one environment, [D, T+1, B/D]."""
    return np.array(games, np.int32).reshape(1, -1, 1)


def values(*scores: float) -> np.ndarray:
    """Return the sums of T rows, see `row_scores`, [D, B/D, T, 5]: x is |error|, and the rest follows from it."""
    x, one = np.array(scores), np.ones(len(scores))
    return np.stack([x, x / 2, -x, one, 10 * x], -1).reshape(1, 1, -1, 5)


def test_later_session_continues_open_games():
    """Game 7 has the rows 1, 2 in one session and 6 in the next: its score is 3."""
    heard = EventRecorder()
    first = Scores(heard)
    first.add(batch(5, 7, 7), values(4.0, 1.0))
    first.add(batch(7, 7), values(2.0))
    assert heard.scores == [(5, 4.0, 2.0, -4.0, 40.0)] and first.open_games == [(7, 3.0, 1.5, -3.0, 2.0, 30.0)]
    later = Scores(heard, known=[list(game) for game in first.open_games])  # as stored in JSON
    later.add(batch(7, 8), values(6.0))
    assert heard.scores[1:] == [(7, 3.0, 1.5, -3.0, 90.0)] and later.open_games == []
