"""A game and an agent that identify the player: each action is the number of updates of the params that chose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jsrl.agents import actor_critic as ac
from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.directors.fixed import Fixed, LatestSelfPlay
from jsrl.directors.league import League
from jsrl.directors.messages import Reset, Stop
from jsrl.directors.pools import DeltaUniform
from jsrl.directors.stages import Stages


class Duel:
    """Two seats; the reward of each is its action, for a random number of steps."""

    possible_agents = ("left", "right")

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.left = list(self.possible_agents), (options or {}).get("length", int(self.rng.integers(1, 9)))
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.left -= 1
        over, everyone = self.left == 0, self.agents
        rewards = {agent: float(actions[agent][0]) for agent in everyone}
        self.agents = [] if over else everyone
        nobody = dict.fromkeys(everyone, False)
        return self._see(), rewards, dict.fromkeys(everyone, over), nobody, {agent: {} for agent in everyone}

    def _see(self):
        return {agent: np.full(2, self.left / 8, np.float32) for agent in self.possible_agents}

    def close(self):
        pass


@dataclass(frozen=True)
class MarkedConfig:
    """Options of the agent whose actions count its updates.

    Attributes:
      core: whether it has one, which counts the rows of an episode.
      padding: unused numbers in its params. most_lag: updates by which params may be older than the newest.
    """

    factory: ClassVar[str] = "tests.duel:marked"

    core: bool = False
    padding: int = 0
    most_lag: int = 0


def marked(config: MarkedConfig, spec) -> Agent:
    """Return the agent; its loss counts the trained rows that other params chose."""

    def init(key):
        weights = {"made": jnp.zeros(1)} | ({"padding": jnp.zeros(config.padding)} if config.padding else {})
        return AgentState(ActParams(weights), (), (), (), jnp.zeros((), jnp.int32))

    def initial_core(batch_size):
        return jnp.zeros(batch_size) if config.core else ()

    def act(params, key, observation, is_first, core, *, greedy=False):
        action = jnp.broadcast_to(params.weights["made"], (*is_first.shape, 1))
        steps = jnp.where(is_first, 0.0, core) + 1 if config.core else jnp.zeros(is_first.shape)
        return ActOutput(action, steps), steps if config.core else ()

    def update(state, trajectory, key, *, axis_name=None):
        trained = trajectory.acts[:-1] == 1
        lag = state.updates - trajectory.action[:-1, ..., 0]
        wrong = (trained & ((lag < 0) | (lag > config.most_lag))).sum()
        if config.core:  # it is reset at episode starts and continues in between
            rows = slice(1, -1)
            first = trajectory.is_first[rows].reshape(*trajectory.is_first[rows].shape, *[1] * (trained.ndim - 2))
            expected = jnp.where(first, 1.0, trajectory.log_prob[:-2] + 1)
            known = trained[1:] & (first | trained[:-1])
            wrong += (known & (trajectory.log_prob[rows] != expected)).sum()
        metrics = {"loss": wrong.astype(jnp.float32), "trained": trained.mean()}
        new = ActParams(jax.tree.map(lambda x: x + 1, state.params.weights))
        return state._replace(params=new, updates=state.updates + 1), UpdateOutput(metrics, None)

    return ac.for_agents(Agent(init, initial_core, act, update), spec.num_agents)


class Watching:
    """Stores every outcome in the state of a director."""

    def _assign(self, state, *args, task=None, **kept):
        return super()._assign(state, *args, task=task, **(kept if task is None else kept | {"about": task}))

    def _ended(self, state, record, outcome):
        if "about" in record and not outcome.discarded:
            state.setdefault("tasks", []).append([record["about"], outcome.length])
        kept = [
            outcome.assignment,
            record["players"],
            record["sides"],
            outcome.length,
            list(outcome.returns),
            outcome.discarded,
        ]
        state.setdefault("seen", []).append(kept)
        return super()._ended(state, record, outcome)


@dataclass(frozen=True)
class Watched(Watching, DeltaUniform):
    """Delta-uniform self-play that stores every outcome in its state."""


@dataclass(frozen=True)
class WatchedLeague(Watching, League):
    """A league that stores every outcome in its state."""


@dataclass(frozen=True)
class WatchedMatches(Watching, Fixed):
    """Fixed matches that store every outcome in their state."""


@dataclass(frozen=True)
class WatchedStages(Watching, Stages):
    """A curriculum that stores every outcome in its state."""


class Walk(gymnasium.Env):
    """One agent; the task is the length of the episode."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = (options or {}).get("length", 1)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


@dataclass(frozen=True)
class ResetOnce(LatestSelfPlay):
    """All seats play with the newest params; after some games they are reset, and the run stops."""

    games: int = 40

    def _ended(self, state, record, outcome):
        return [Reset("main"), Stop("for now")] if state["finished"] == self.games and not outcome.discarded else []
