"""Prioritised level replay (PLR): a curriculum of levels with high learning potential."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np

from jsrl.directors.base import SelfPlayTasks, State
from jsrl.directors.draws import Draws
from jsrl.directors.messages import Assignment, Command, Outcome, Score
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, Range, UnitFloat, option, suggesting

LevelScore: TypeAlias = Literal["l1", "positive", "max_mc"]
MOST_WAITING = 10_000
"""Assignments whose score PLR waits for; older ones are dropped."""
PATIENCE = 2.0
"""A level waits this many times the longest recent delay of a score: dropped rows are never scored."""
FORGET = 0.99
"""Factor of the longest delay at each score."""


@suggesting
@dataclass(frozen=True)
class PLR(SelfPlayTasks):
    """Prioritised level replay: levels with high learning potential are played again.

    Levels are integers, the assignment's task. A level enters the buffer with its first `Score`, which the learner
    reports; `score` says what counts of it. With probability `replay_share` an
    assignment draws a level from the buffer, by

        P = (1 - staleness) P_score + staleness P_stale,   P_score ~ 1 / rank^(1/beta),
        P_stale ~ assignments since the level was last proposed,

    otherwise a new level. A full buffer drops the level with the smallest P if the new one's score is not lower.

    Differs: a level that waits for its score is not drawn again while there are others. Else parallel games would all play
    the level of the highest rank, which cannot fall before the learner has trained on them.

    Source: Jiang et al., "Prioritized Level Replay" (2021), section 3 and equations 1 to 3; for `train_on_new` and the other
    scores Jiang et al., "Replay-Guided Adversarial Environment Design" (2021), robust PLR.
    """

    wants_scores: ClassVar[bool] = True

    # fmt: off
    num_levels: PositiveInt | None = option(None, "Levels are 0 to num_levels - 1; None: any number of 31 bits.")
    replay_share: UnitFloat = option(0.5, "Share of assignments that play a level of the buffer again, once the "
        "buffer has enough levels.")
    capacity: PositiveInt = option(4_000, "Levels in the buffer.")
    min_fill: UnitFloat = option(0.5, "Share of the capacity (of num_levels, if that is smaller) that must be filled "
        "before levels are played again.")
    beta: Annotated[float, Range(ge=1e-3)] = option(0.3, "Temperature of ranks: small values play the highest scores "
        "only (0.1 for Procgen, 0.3 for mazes).")
    staleness: UnitFloat = option(0.1, "Weight of the levels that were not played for a long time.")
    score: LevelScore = option("l1", "The score of a level, a mean over the rows of its newest game: `l1`, "
        "|advantage|; `positive`, max(advantage, 0), the positive value loss; `max_mc`, the level's highest return so "
        "far (undiscounted) less the value function.")
    train_on_new: bool = option(True, "Train on new levels as well; false: robust PLR, where new levels are only "
        "scored.")
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train_on_new and self.replay_share == 0.0:
            raise ConfigError(
                "PLR has train_on_new=False and replay_share=0: nothing would be trained on; change one of them"
            )

    def _start(self) -> State:
        return {"levels": [], "scores": [], "proposed": [], "waiting": {}}

    def weights(self, state: State) -> np.ndarray:
        """Return the probability [L] of each level of the buffer, in the order of `state["levels"]`."""
        score = rank_weights(state["scores"], self.beta)
        stale = state["assigned"] - np.asarray(state["proposed"], np.float64)
        return (1.0 - self.staleness) * score + self.staleness * stale / stale.sum()

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        known = state["levels"]
        size = min(self.capacity, self.num_levels or self.capacity)
        again = len(known) >= max(1.0, self.min_fill * size) and draws.uniform() < self.replay_share
        waiting = self._waiting(state) if again or self.num_levels else set[int]()
        unseen = math.inf if self.num_levels is None else self.num_levels - len({*known, *waiting})
        if known and (again or unseen <= 0):
            index = draws.choose(self._chances(state, waiting))
            state["proposed"][index] = state["assigned"]
            level, learns = known[index], True
        else:
            level, learns = self._new_level({*known, *waiting}, draws, unseen), self.train_on_new
        game = self._assign_task(state, draws, level, learns=learns)
        state["waiting"][str(game.id)] = level
        if len(state["waiting"]) > MOST_WAITING:
            del state["waiting"][next(iter(state["waiting"]))]
        return game

    def _waiting(self, state: State) -> set[int]:
        """Return the levels whose last score is still to come."""
        levels, oldest = set[int](), state["assigned"] - PATIENCE * state.get("delay", math.inf)
        for game, level in reversed(state["waiting"].items()):
            if int(game) < oldest:
                break
            levels.add(level)
        return levels

    def _chances(self, state: State, waiting: set[int]) -> list[float]:
        """Return the weight of each level, 0 for one whose last score is still to come, unless all are."""
        weights = self.weights(state).tolist()
        chances = [0.0 if level in waiting else p for level, p in zip(state["levels"], weights, strict=True)]
        return chances if any(chances) else weights

    def _new_level(self, taken: set[int], draws: Draws, unseen: float) -> int:
        """Return a level that is not taken, neither in the buffer nor waiting for its score, if there is one."""
        if self.num_levels is None:
            return draws.seed()
        if unseen <= 0:
            return draws.below(self.num_levels)
        level = draws.below(int(unseen))
        for seen in sorted(taken):
            level += seen <= level
        return level

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        if outcome.discarded:
            state["waiting"].pop(str(outcome.assignment), None)
        return iter(())

    def _score(self, state: State, score: Score) -> None:
        level = state["waiting"].pop(str(score.assignment), None)
        if level is None:
            return
        state["delay"] = max(float(state["assigned"] - score.assignment), FORGET * state.get("delay", 0.0))
        levels, scores, proposed = state["levels"], state["scores"], state["proposed"]
        best = state.setdefault("best", {})  # level -> highest return
        value = self._value(best, level, score)
        if level in levels:
            scores[levels.index(level)] = value
        elif len(levels) < self.capacity:
            levels.append(level)
            scores.append(value)
            proposed.append(score.assignment)
        else:
            index = int(self.weights(state).argmin())
            left = levels[index] if value >= scores[index] else level
            if left != level:
                levels[index], scores[index], proposed[index] = level, value, score.assignment
            best.pop(str(left), None)

    def _value(self, best: dict[str, float], level: int, score: Score) -> float:
        """Return the score of a level's newest game; `max_mc` keeps the level's best return."""
        if self.score != "max_mc":
            return score.positive if self.score == "positive" else score.value
        key = str(level)
        best[key] = max(score.episode_return, best.get(key, -math.inf))
        return best[key] - score.predicted


def rank_weights(scores: list[float], beta: float) -> np.ndarray:
    """Return probabilities [L] in proportion to 1 / rank^(1/beta); rank 1 is the highest score; ties: older first."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-np.asarray(scores), kind="stable")] = np.arange(1, len(scores) + 1)
    weights = ranks ** (-1.0 / beta)
    return weights / weights.sum()
