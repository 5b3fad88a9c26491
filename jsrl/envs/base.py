"""The vector protocol that every environment is adapted to, and what one step of it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from jsrl.types import Array, EnvSpec, Tree


@dataclass(frozen=True)
class Episode:
    """One finished episode, reported exactly once, in raw (unclipped, unscaled) reward.

    Attributes:
      slot: the environment's index inside its vector.
      return_: undiscounted sum of raw rewards.
      length: env steps.
      terminated: True when it terminated, False when it was truncated.
      metrics: what `episode_metrics` names of the environment's `info`, aggregated over the episode.
    """

    slot: int
    return_: float
    length: int
    terminated: bool
    metrics: dict[str, float] = field(default_factory=dict)


class EnvStep(NamedTuple):
    """What `step(a_t)` (or `reset`) returns: the consequences of row t, and the observation that opens row t+1.

    Arrays may be reused by the next `step`: copy what must stay.

    Attributes:
      observation: tree of [B, ...]: o_{t+1}.
      is_first: bool [B]: row t+1 opens an episode (so row t was a last observation and its action was ignored).
      reward: float32 [B]: r_t as the algorithm shall see it; 0 where is_first.
      discount: float32 [B]: 0 where row t terminated its episode, else 1.
      acts: uint8 [B]: 1 where the agent acts on row t+1 (always 1 for a single agent).
      episodes: the episodes that ended with this step.
    """

    observation: Tree
    is_first: Array
    reward: Array
    discount: Array
    acts: Array
    episodes: list[Episode]


class VectorEnv(Protocol):
    """B environments stepped together, with next-step auto-reset (the row table of jsrl.types).

    After an episode ends, the next `step` ignores that slot's action and returns that of a new episode.
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
        """Free what the environments hold; may be called twice."""
        ...
