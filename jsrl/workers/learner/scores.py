"""Scores of the games that a director assigned, reported when a game ends (see jsrl.directors.messages.Score).

A game's rows come in several batches. Snapshots keep the scores of unfinished games for a restart.

Source: Jiang et al., "Prioritized Level Replay" (2021), section 3.1: averages over the rows of an episode. Differs: the rows
of an episode that is longer than one batch are scored with the value functions of their own updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jsrl.types import ONLY_SCORED, Array
from jsrl.workers.base import Reporter

SUMS = 5  # of a row, see jsrl.agents.rows.row_scores
MOST_OPEN = 10_000  # unfinished games kept: some never end, because their rows were dropped


class Scores:
    """Scores of the games in a learner's batches.

    Args:
      reporter: reports to the director. policy: number of the learner's policy.
      always: report every batch, even if no game ended, because the director waits for it.
      known: scores of games that were unfinished at the restart, see `open_games`.
    """

    def __init__(
        self, reporter: Reporter, policy: int = 0, *, always: bool = False, known: Sequence[Sequence[float]] = ()
    ) -> None:
        self._reporter, self._policy, self._always = reporter, policy, always
        self._open = {int(game): np.array(sums, np.float64) for game, *sums in known}  # the sums of its rows so far

    @property
    def open_games(self) -> list[tuple[float, ...]]:
        """Return each unfinished game, with the sums of its rows so far."""
        return [(game, *sums.tolist()) for game, sums in self._open.items()]

    def add(self, game: Array, rows: Array | None, batches: int = 0) -> None:
        """Count the rows of a batch, and report the games that ended in it.

        Args:
          game: int32 [D, T+1, B/D], see Trajectory. rows: [D, B/D, T, 5], see jsrl.agents.rows.row_scores;
            None: nothing was trained. batches: number of batches so far.
        """
        if rows is None:
            self._report((), batches)
            return
        games = np.moveaxis(np.asarray(game), 1, 2)  # [D, B/D, T+1]
        games = np.where(games <= ONLY_SCORED, ONLY_SCORED - games, games)
        own, values = games[..., :-1].ravel(), np.asarray(rows, np.float64).reshape(-1, SUMS)
        found, index = np.unique(own, return_inverse=True)
        sums = np.stack([np.bincount(index, column, len(found)) for column in values.T], axis=1)
        for number, total in zip(found.tolist(), sums, strict=True):
            self._open[number] = self._open.pop(number, 0.0) + total
        ended = np.unique(games[..., :-1][games[..., :-1] != games[..., 1:]]).tolist()
        self._report(ended, batches)
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _report(self, ended: Sequence[int], batches: int) -> None:
        scores = []
        for number in ended:
            error, positive, value, count, reward = self._open.pop(number).tolist()
            if number >= 0 and count and math.isfinite(error + reward):
                scores.append((number, error / count, positive / count, value / count, reward))
        if scores or self._always:
            self._reporter.event("scores", scores=scores, policy=self._policy, batches=batches)
