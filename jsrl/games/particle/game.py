"""The vector game around a particle world: actions, rows, resets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from jsrl.envs.base import GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import VectorisedGame
from jsrl.envs.spaces import SCALED, continuous_spec
from jsrl.errors import ConfigError
from jsrl.games.particle.tasks import MOVES, TASKS, Role, Task
from jsrl.games.particle.world import World
from jsrl.games.probes import hashed
from jsrl.references.importing import nearest
from jsrl.types import ActionSpec, Array, ArraySpec, Continuous, Discrete, GameSpec, MultiDiscrete, Seat, to_environment


class ParticleGame(VectorisedGame):
    """B particle worlds; episodes are truncated after `max_cycles` steps (25), or `max_episode_steps` if that is fewer.

    The global state is that of mpe2: the concatenated observations of all seats.

    Args:
      multi_discrete: agents that move and speak choose a move and a symbol, MultiDiscrete((5, 10)), in place of mpe2's one
        number of both, Discrete(50).

    Attributes:
      world: positions and velocities. goal: drawn landmarks, int [B, G]. message: last messages, [B, N, most symbols].
    """

    def __init__(
        self,
        config: EnvConfig,
        task: Task,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
        *,
        max_cycles: int = 25,
        continuous_actions: bool = False,
        multi_discrete: bool = False,
    ):
        if max_cycles < 1:
            raise ConfigError(f"max_cycles is {max_cycles}; give at least 1")
        if continuous_actions and multi_discrete:
            raise ConfigError("continuous_actions and multi_discrete exclude each other; give one of them")
        self._task, self._continuous, self._parts = task, continuous_actions, multi_discrete
        size = sum(role.observes for role in task.roles)
        seats = tuple(
            Seat(role.name, ArraySpec((role.observes,), "float32"), self._action_spec(role, config), role.side)
            for role in task.roles
        )
        notes = (SCALED,) if continuous_actions and config.action_transform == "auto" else ()
        spec = GameSpec(seats, config.id, ArraySpec((size,), "float32"), symmetric=task.symmetric, notes=notes)
        super().__init__(spec, config, num_envs, seed, group, groups)
        self._limit = max_cycles
        self._dropped = np.zeros(num_envs, np.int64)  # episodes dropped by a reset
        self._clock = np.zeros(num_envs, np.int64)
        self.world, self.goal = World(num_envs, task.bodies), np.zeros((num_envs, task.goals), np.int64)
        self._symbols = max(role.symbols for role in task.roles)
        self.message = np.zeros((num_envs, len(seats), self._symbols))
        self._state = np.zeros((num_envs, size), np.float32)
        ends = np.cumsum([role.observes for role in task.roles])
        self._seen = [
            self._state[:, end - role.observes : end] for role, end in zip(task.roles, ends.tolist(), strict=True)
        ]
        self._force = np.zeros((num_envs, len(seats), 2))
        self._none = np.zeros((num_envs, len(seats)), bool)

    def _action_spec(self, role: Role, config: EnvConfig) -> ActionSpec:
        moves = 5 if role.strength else 0
        if self._parts and moves and role.symbols:
            return MultiDiscrete((moves, role.symbols))
        if not self._continuous:
            return Discrete(max(moves, 1) * max(role.symbols, 1))
        size = moves + role.symbols
        return continuous_spec((0.0,) * size, (1.0,) * size, config.action_transform)

    def reset(self) -> GameStep:
        self._dropped[self._clock > 0] += 1
        self._begin(np.arange(self.num_envs))
        self.refresh()
        return self._rows.opened(self._observation(), state=self._state)

    def step(self, action: Mapping[str, Array]) -> GameStep:
        first = self._rows.first
        for i, chosen in enumerate(self._groups.actions(action)):
            if self._rows.any_first:
                chosen = np.where(first.reshape(-1, *[1] * (chosen.ndim - 1)), 0, chosen)
            self._act(i, chosen)
        self.world.step(self._force)
        reward = self._task.reward(self.world, self.goal)
        self._clock += 1
        if self._rows.any_first:
            self._begin(np.flatnonzero(first))
            self.world.measure()
        self._look()
        over = self._clock >= self._limit
        truncated = np.broadcast_to(over[:, None], self._none.shape) if over.any() else self._none
        return self._rows.step(self._observation(), reward, self._none, truncated, state=self._state)

    def refresh(self) -> None:
        """Recompute distances and observations after the world was changed directly."""
        self.world.measure()
        self._look()

    def _begin(self, slots: np.ndarray) -> None:
        """Start episodes in some slots, int [b]; random numbers are a hash of the slot's seed and episode."""
        draws = self._task.draws
        number = self._episode()[slots, None] * draws + np.arange(draws)
        seeds = np.broadcast_to(self._seeds[slots, None], number.shape)
        self._task.begin(self.world, self.goal, slots, hashed(seeds, number))
        self.message[slots], self._clock[slots] = 0.0, 0

    def _episode(self) -> np.ndarray:
        return self._rows.episode + self._dropped

    def _look(self) -> None:
        self._task.observe(self.world, self.goal, self.message, self._seen)

    def _observation(self) -> dict[str, Any]:
        return self._groups.stacked(self._seen)

    def _act(self, agent: int, chosen: np.ndarray) -> None:
        """Turn an agent's actions [B] or [B, A] into its force and message."""
        role, spec = self._task.roles[agent], self.spec.seats[agent].action
        if not isinstance(spec, Continuous):
            counts = np.array(spec.nums if isinstance(spec, MultiDiscrete) else spec.num_actions)
            self._check_actions(chosen[:, None], counts[None], agent)
            move = said = chosen
            if isinstance(spec, MultiDiscrete):
                move, said = chosen[:, 0], chosen[:, 1]
            elif role.symbols and role.strength:
                move, said = chosen % 5, chosen // 5
            if role.symbols:
                self.message[:, agent, : role.symbols] = np.eye(role.symbols)[said]
            if role.strength:
                self._force[:, agent] = (role.strength * MOVES)[move]
            return
        pushes = to_environment(spec, chosen)
        if role.symbols:
            self.message[:, agent, : role.symbols] = pushes[:, -role.symbols :]
        if role.strength:
            self._force[:, agent] = role.strength * (pushes[:, [2, 4]] - pushes[:, [1, 3]]).astype(np.float64)


def particle(config: EnvConfig) -> Callable[..., ParticleGame]:
    """Return the maker of the world that an id names."""
    name = config.id.partition(":")[2]
    if name not in TASKS:
        raise ConfigError(f"there is no particle task {name!r}{nearest(name, TASKS)}; tasks: {', '.join(TASKS)}")
    kwargs = dict(config.kwargs)
    own = {key: kwargs.pop(key) for key in ("max_cycles", "continuous_actions", "multi_discrete") if key in kwargs}
    return partial(ParticleGame, config, TASKS[name](**kwargs), **own)
