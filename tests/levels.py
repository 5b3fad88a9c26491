"""Levels with known scores: the level number is in the observation, and the agent scores each row by it,
and by half more on rows that it must not train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput, row_mask
from jsrl.agents.rows import row_scores
from jsrl.directors.plr import PLR
from jsrl.types import ONLY_SCORED


class Levels(gymnasium.Env):
    """One agent; it observes the number of its level, for a random number of steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.left = (options or {}).get("task", -1), int(self.np_random.integers(1, 20))
        return np.full(1, self.level, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(1, self.level, np.float32), 1.0, self.left == 0, False, {}


@dataclass(frozen=True)
class ScoringConfig:
    """Options of the agent that scores rows by its observation."""

    factory: ClassVar[str] = "tests.levels:scoring"
    scores_rows: ClassVar[bool] = True


def scoring(config: ScoringConfig, spec) -> Agent:
    """Return the agent."""

    def init(key):
        return AgentState(ActParams({"unused": jnp.zeros(1)}), (), (), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        rows = is_first.shape[0]
        return ActOutput(jnp.zeros(rows, jnp.int32), jnp.zeros(rows)), core

    def update(state, trajectory, key, *, axis_name=None):
        half = 0.5 * (trajectory.game[:-1] <= ONLY_SCORED)
        scores = row_scores(trajectory, -half, trajectory.observation[:-1, :, 0], row_mask(trajectory), None)
        return state._replace(updates=state.updates + 1), UpdateOutput({"loss": jnp.zeros(())}, scores)

    return Agent(init, lambda batch_size: (), act, update)


class LoggedPLR(PLR):
    """PLR that stores its proposals, received scores and, of each game, both returns in its state."""

    def _next(self, state, draws, cache):
        known = list(state["levels"])
        game = super()._next(state, draws, cache)
        state.setdefault("log", []).append(["again" if game.task in known else "new", game.id, game.task])
        return game

    def _ended(self, state, record, outcome):
        state.setdefault("returns", {})[str(outcome.assignment)] = sum(outcome.returns)
        yield from super()._ended(state, record, outcome)

    def _score(self, state, score):
        state.setdefault("log", []).append(["score", score.assignment, score.value])
        state.setdefault("learner's returns", {})[str(score.assignment)] = score.episode_return
        super()._score(state, score)
