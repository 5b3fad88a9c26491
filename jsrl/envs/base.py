"""The vector protocol of all environments, and the result of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from jsrl.types import Array, EnvSpec, GameSpec, Tree


@dataclass(frozen=True)
class Episode:
    """One finished episode, reported exactly once, in raw (unclipped, unscaled) reward.

    Attributes:
      slot: the environment's index inside its vector.
      return_: undiscounted sum of raw rewards.
      length: env steps.
      terminated: True when it terminated, False when it was truncated.
      metrics: the keys of the environment's `info` named by `episode_metrics`, aggregated over the episode.
      returns: of each seat, in their order, in environments with seats; `return_` is then their mean.
    """

    slot: int
    return_: float
    length: int
    terminated: bool
    metrics: dict[str, float] = field(default_factory=dict)
    returns: tuple[float, ...] = ()


class EnvStep(NamedTuple):
    """Result of `step(a_t)` (or `reset`): the consequences of row t, and the observation of row t+1.

    Arrays may be reused by the next `step`: copy what you keep.

    Attributes:
      observation: tree of [B, ...]: o_{t+1}.
      is_first: bool [B]: row t+1 opens an episode (so row t was a last observation and its action was ignored).
      reward: float32 [B]: r_t for the algorithm; 0 where is_first.
      discount: float32 [B]: 0 where row t terminated its episode, else 1.
      acts: uint8 [B]: kind of row t+1: 1 the agent acts on it (always, for a single agent), 0 it waits, 2 value-only.
      episodes: the episodes that ended with this step.
      state: tree of [B, ...]: the global state of row t+1; () where the environment has none.
    """

    observation: Tree
    is_first: Array
    reward: Array
    discount: Array
    acts: Array
    episodes: list[Episode]
    state: Tree = ()


class TakesTasks(Protocol):
    """A VectorEnv or VectorGame that accepts a task for each episode."""

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        """Set the task of the next episode of each slot, passed to `reset` as options; None: no task.

        Raises:
          ConfigError: the environment's `reset` accepts no options.
        """
        ...


def options_of_task(task: Any) -> dict[str, Any]:
    """Return a task as options of `reset`: a dict unchanged, another JSON value under `task`."""
    return dict(task) if isinstance(task, Mapping) else {"task": task}


class VectorEnv(Protocol):
    """B environments stepped together, with next-step auto-reset (the row table of jsrl.types).

    After an episode ends, the next `step` ignores that slot's action and starts a new episode.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self) -> EnvStep:
        """Reset every slot: is_first is True, reward 0, discount 1. Seeds were given at construction."""
        ...

    def step(self, action: Array) -> EnvStep:
        """Step every slot with `action` [B, ...] (int32, or float32 unclipped).

        Raises:
          EnvironmentFault: the environment raised, or returned NaN, a wrong shape or a wrong dtype.
        """
        ...

    def close(self) -> None:
        """Free the environments' resources; may be called twice."""
        ...


class GameStep(NamedTuple):
    """Result of a step of an environment with N seats, like EnvStep for one agent.

    Seats are divided into groups, one for each policy; the observations of a group's N_g seats are stacked.

    Attributes:
      observation: group -> tree of [B, N_g, ...]: o_{t+1} of its seats.
      is_first: bool [B]: row t+1 opens an episode, of all seats at once.
      reward, discount: float32 [B, N], seats in the order of GameSpec. A seat's discount is 0 where its episode terminated,
        and from then on until the next episode.
      acts: uint8 [B, N]: on row t+1 the seat acts (1), waits (0: not its turn, or it is out), or only receives its team's
        rewards (2: dead in a game with death="team").
      state: tree of [B, ...]: the global state of row t+1; () where the environment has none.
      episodes: the episodes that ended with this step.
    """

    observation: dict[str, Tree]
    is_first: Array
    reward: Array
    discount: Array
    acts: Array
    state: Tree
    episodes: list[Episode]


class VectorGame(Protocol):
    """B environments with N seats stepped together, with next-step auto-reset, as VectorEnv.

    Attributes:
      groups: group -> names of its seats.
    """

    spec: GameSpec
    num_envs: int
    groups: Mapping[str, tuple[str, ...]]

    def reset(self) -> GameStep:
        """Reset every slot; see VectorEnv.reset."""
        ...

    def step(self, action: Mapping[str, Array]) -> GameStep:
        """Step every slot with group -> actions [B, N_g, ...]; those of seats that do not act are ignored.

        Raises:
          EnvironmentFault: as VectorEnv.step; also if a seat comes back to life, or is truncated before the episode ends.
        """
        ...

    def close(self) -> None:
        """Free the environments' resources; may be called twice."""
        ...
