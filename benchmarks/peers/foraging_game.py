"""lbforaging as a PettingZoo game, for the drivers of libraries that read these."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import lbforaging  # noqa: F401 (registers its games)
from pettingzoo import ParallelEnv


class Foraging(ParallelEnv):
    """lbforaging as a parallel environment; its limit of 50 steps is a truncation, as in jsrl."""

    metadata: ClassVar[dict[str, Any]] = {"name": "foraging", "render_modes": []}

    def __init__(self, game: str) -> None:
        self._game = gymnasium.make(f"Foraging-{game}-v3", disable_env_checker=True).unwrapped
        self.possible_agents = [f"agent_{i}" for i in range(len(self._game.action_space))]

    def observation_space(self, agent: str) -> Any:
        """Return the space of what an agent observes."""
        return self._game.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self._game.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        del options
        self.agents = list(self.possible_agents)
        return self._of_agents(self._game.reset(seed=seed)[0]), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        """Step all agents together."""
        seen, rewards, over, _, _ = self._game.step([int(actions[agent]) for agent in self.possible_agents])
        eaten = over and not self._game.field.any()
        ends = [self._of_agents([end] * len(self.possible_agents)) for end in (eaten, over and not eaten)]
        self.agents = [] if over else self.agents
        return self._of_agents(seen), self._of_agents(rewards), *ends, self._of_agents([{}] * len(self.possible_agents))

    def _of_agents(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))
