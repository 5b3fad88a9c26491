"""Games with random deaths, absences and turns that record the true events; in both forms of PettingZoo."""

from __future__ import annotations

import time

import numpy as np
from gymnasium import spaces


class Schedule:
    """The events of an episode, drawn beforehand: absences, deaths, the ending, and rewards."""

    def __init__(self, rng: np.random.Generator, names: list[str]):
        self.present = [name for name in names if rng.random() < 0.8] or [names[0]]
        limit = int(rng.integers(1, 13))
        self.death = {name: int(rng.integers(1, limit + 1)) for name in self.present if rng.random() < 0.5}
        forever = [name for name in self.present if name not in self.death]
        self.truncated = bool(forever) and rng.random() < 0.5
        self.length = limit if forever else max(self.death.values())
        if not self.truncated:
            self.death |= dict.fromkeys(forever, limit)
        self.rewards: list[dict[str, float]] = []
        self.turns: list[str] = []
        self.closed = False

    def living(self, after: int) -> list[str]:
        """Return the living agents after this number of steps."""
        return [name for name in self.present if self.death.get(name, 99) > after]


class ScheduledGame:
    """Shared by both forms."""

    metadata = {"name": "fate"}  # noqa: RUF012

    def __init__(self, fault: str = ""):
        self.possible_agents = [f"a_{i}" for i in range(4)]
        self.fault, self.log, self.rng = fault, [], None

    def observation_space(self, agent):
        return spaces.Box(-100.0, 100.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def begin(self, seed):
        if seed is not None or self.rng is None:
            self.rng = np.random.default_rng(seed)
        self.plan, self.time = Schedule(self.rng, self.possible_agents), 0
        self.log.append(self.plan)
        self.agents = list(self.plan.present)

    def seen(self, agent):
        return np.array([self.time + 1, self.possible_agents.index(agent) + 1], np.float32)

    def earn(self, lived):
        earned = {name: float(self.rng.uniform(-1, 1)) for name in lived}
        self.plan.rewards.append(dict(earned))
        self.plan.closed = self.time == self.plan.length
        return {name: np.ones(1) for name in lived} if self.fault == "reward" else earned

    def ended(self, lived):
        last = self.time == self.plan.length
        died = {name: self.plan.death.get(name) == self.time for name in lived}
        cut = {name: last and self.plan.truncated and not died[name] for name in lived}
        if self.fault == "cut" and self.time == 1 and len(lived) > 1 and not last:
            cut[lived[0]], died[lived[0]] = True, False
        return died, cut

    def close(self):
        pass


class ParallelGame(ScheduledGame):
    """All living agents act at once."""

    def reset(self, seed=None, options=None):
        self.begin(seed)
        return {name: self.seen(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        lived = list(self.agents)
        assert set(actions) == set(lived), f"actions of {sorted(actions)}, but the living agents are {lived}"
        assert all(isinstance(action, np.integer) for action in actions.values())
        self.time += 1
        earned = self.earn(lived)
        died, cut = self.ended(lived)
        self.agents = [name for name in lived if not died[name] and not cut[name]]
        dead = [name for name in self.plan.present if name not in lived]
        if self.fault == "revive" and dead and self.agents:
            self.agents.append(dead[0])
        if self.fault == "vanish" and len(self.agents) > 1:
            self.agents.pop()
        shown = {name: self.seen(name) for name in lived}
        if self.fault == "unseen" and self.agents:
            del shown[self.agents[0]]
        if self.fault == "unseen last" and any(cut.values()):
            shown = {}
        return shown, earned, died, cut, {name: {"level": 1.0} for name in lived}


class TurnGame(ScheduledGame):
    """One agent moves at a time, drawn at random; any move may kill any agent. Dead agents step with None."""

    def reset(self, seed=None, options=None):
        self.begin(seed)
        self._clear()
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {name: {} for name in self.agents}
        self._choose(self.agents)

    def _clear(self):
        self.rewards = dict.fromkeys(self.agents, 0.0)

    def _choose(self, among):
        self.agent_selection = among[int(self.rng.integers(len(among)))]
        if self.agent_selection not in self._flagged():
            self.plan.turns.append(self.agent_selection)

    def last(self):
        raise AssertionError("rewards are to be read from `rewards`, of all agents after each move")

    def observe(self, agent):
        return self.seen(agent)

    def _flagged(self):
        return [name for name in self.agents if self.terminations[name] or self.truncations[name]]

    def step(self, action):
        if self.agent_selection in self._flagged():
            assert action is None, "dead agents must step with None"
            for kept in (self.agents, self.rewards, self.terminations, self.truncations, self.infos):
                kept.remove(self.agent_selection) if kept is self.agents else kept.pop(self.agent_selection)
            self._clear()
            self._next()
            return
        assert action is not None
        self.time += 1
        lived = [name for name in self.agents if name not in self._flagged()]
        self._clear()
        self.rewards |= self.earn(lived)
        died, cut = self.ended(lived)
        self.terminations |= died
        self.truncations |= cut
        self._next()

    def _next(self):
        if flagged := self._flagged():
            self.agent_selection = flagged[0]
        elif self.agents:
            self._choose(self.agents)


class LateTurnGame(TurnGame):
    """The dead stay in `agents` until it is their turn."""

    def _next(self):
        if self.agents:
            self._choose(self.agents)


class WithState(ParallelGame):
    """Has a global state; `state` makes it too short."""

    state_space = spaces.Box(-100.0, 100.0, (3,), np.float32)

    def state(self):
        return np.zeros(2 if self.fault == "state" else 3, np.float32)


class Masked(ParallelGame):
    """Masks in `info`, with one allowed action; `wrong` allows none."""

    def reset(self, seed=None, options=None):
        seen, _ = super().reset(seed)
        return seen, self._masks()

    def _masks(self):
        allowed = 0 if self.fault == "none" else 1
        return {name: {"action_mask": np.array([0, allowed, 0], np.int8)} for name in self.agents}

    def step(self, actions):
        assert all(chosen == 1 for chosen in actions.values())
        seen, earned, died, cut, _ = super().step(actions)
        return seen, earned, died, cut, self._masks()


class Raises(ParallelGame):
    """Raises as it is made or reset, or hangs in a reset."""

    def __init__(self, fault: str):
        super().__init__(fault)
        if fault == "made":
            raise RuntimeError("no display")

    def reset(self, seed=None, options=None):
        if self.fault == "hangs":
            time.sleep(9)
        raise RuntimeError("no level")
