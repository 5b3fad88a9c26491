"""Probe environments: tiny, vectorised, with known values; a wrong algorithm fails one of them in seconds.

| name | observation | reward | what it isolates | value |
|---|---|---|---|---|
| constant_reward | 0 | 1, one step | value loss, optimizer | v = 1 |
| predictable_reward | -1 or 1 | the observation, one step | backpropagation to the observation | v(o) = o |
| delayed_reward | 0, then 1 | 0, then 1 | discounting, bootstrap, endings | v(0) = gamma, v(1) = 1 |
| action_matters | 0 | 1 for action 1, -1 for 0, one step | policy gradient | optimal 1, random 0 |
| action_by_observation | -1 or 1 | 1 if action = (o > 0), else -1, one step | conditional policy | best 1, random 0 |
| truncation | 0 | 1, truncated after 5 steps | bootstrap of truncations | v = 1 / (1 - gamma), return 5 |
| memory | (cue, is the answer due) | 1 or -1 at the last step | recurrence | optimal 1; 0 without memory |
| continuous | x in [-1, 1] | 1 - (action - x)^2, one step | Gaussian policies | optimal 1 |
| multi_discrete | (-1 or 1, -1, 0 or 1) | share of right parts, one step | several choices | best 1, random 5/12 |
| masked | which 2 of 4 are allowed | 1 for the higher allowed action, else -1, one step | masks | optimal 1, random 0 |

Random draws are a hash of (slot's seed, episode), so a slot's observations never depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from jsrl.envs.base import EnvStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.rows import Rows, slot_seeds
from jsrl.errors import ConfigError
from jsrl.references.importing import nearest
from jsrl.types import ActionSpec, Array, ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete, Tree


def hashed(seed: np.ndarray, episode: np.ndarray, stream: int = 0) -> np.ndarray:
    """Return uniform float64 [B] in [0, 1) from (seed, episode, stream).

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (the finaliser of SplitMix64).
    """
    with np.errstate(over="ignore"):
        x = seed.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + episode.astype(np.uint64)
        for _ in range(2):
            x = x + np.uint64(0x9E3779B97F4A7C15) * np.uint64(stream + 1)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Probe:
    """Base of all probes: vectorised slots, next-step auto-reset, `save` and `load`.

    A probe defines its observation (`observe`), the reward of an action (`reward`), and the length of an episode.

    Attributes:
      steps: env steps of an episode. truncates: whether it ends by truncation.
      optimal_return, random_return: mean undiscounted return of the best and of the uniformly random policy.
    """

    steps = 1
    truncates = False
    optimal_return: ClassVar[float] = 1.0
    random_return: ClassVar[float] = 0.0
    action: ClassVar[ActionSpec] = Discrete(2)
    observation: ClassVar[Tree] = ArraySpec((1,), "float32")

    def __init__(self, config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0):
        self.num_envs = num_envs
        self.spec = EnvSpec(self.observation, self.action, config.id)
        seeds = slot_seeds(seed, group, num_envs)
        self.seeds = np.asarray(seeds, np.int64)
        self._limit = min(self.steps, config.max_episode_steps or self.steps)
        self._rows = Rows(config, num_envs, seeds)
        self.clock = np.zeros(num_envs, np.int64)
        self.episode = np.zeros(num_envs, np.int64)

    def draw(self, stream: int = 0) -> np.ndarray:
        """Return a uniform number per slot for this episode: float64 [B] in [0, 1)."""
        return hashed(self.seeds, self.episode, stream)

    def sign(self) -> np.ndarray:
        """Return a sign per slot for this episode: float32 [B], -1 or 1."""
        return np.where(self.draw() < 0.5, np.float32(-1.0), np.float32(1.0))

    def observe(self) -> Tree:
        """Return the observation [B, ...] at `clock`."""
        return np.zeros((self.num_envs, 1), np.float32)

    def reward(self, action: np.ndarray) -> np.ndarray:
        """Return the reward [B] of `action` at `clock`."""
        raise NotImplementedError

    def reset(self) -> EnvStep:
        started = self.clock > 0
        self.episode[started] += 1
        self.clock[:] = 0
        return self._rows.opened(self.observe())

    def step(self, action: Array) -> EnvStep:
        first = self._rows.first
        reward = np.where(first, np.float32(0.0), self.reward(np.asarray(action)))
        self.clock += 1
        if self._rows.any_first:
            self.clock[first] = 0
            self.episode[first] += 1
        over, cut = self.clock >= self.steps, self.clock >= self._limit
        terminated = np.zeros_like(over) if self.truncates else over
        return self._rows.step(self.observe(), reward, terminated, cut & ~terminated)

    def save(self) -> dict[str, Any]:
        return {"clock": self.clock.copy(), "episode": self.episode.copy(), "rows": self._rows.save()}

    def load(self, saved: Mapping[str, Any]) -> EnvStep:
        self.clock[:], self.episode[:] = saved["clock"], saved["episode"]
        self._rows.load(saved["rows"])
        ones, none = np.ones(self.num_envs, np.float32), np.zeros(self.num_envs, np.float32)
        acts = np.ones(self.num_envs, np.uint8)
        return EnvStep(self.observe(), (self.clock == 0) & ~self._rows.first, none, ones, acts, [])

    def close(self) -> None:
        """Do nothing: it holds no resources."""


class ConstantReward(Probe):
    """One step, reward 1: only the value of a constant has to be learned."""

    random_return = 1.0

    def reward(self, action: np.ndarray) -> np.ndarray:
        return np.ones(self.num_envs, np.float32)


class PredictableReward(Probe):
    """One step whose reward is the observation, -1 or 1."""

    optimal_return = 0.0

    def observe(self) -> Tree:
        return self.sign()[:, None]

    def reward(self, action: np.ndarray) -> np.ndarray:
        return self.sign()


class DelayedReward(Probe):
    """Two steps; the reward comes with the second."""

    steps = 2
    random_return = 1.0

    def observe(self) -> Tree:
        return self.clock.astype(np.float32)[:, None]

    def reward(self, action: np.ndarray) -> np.ndarray:
        return (self.clock == self.steps - 1).astype(np.float32)


class ActionMatters(Probe):
    """One step; action 1 earns 1, action 0 earns -1."""

    def reward(self, action: np.ndarray) -> np.ndarray:
        return 2.0 * action.astype(np.float32) - 1.0


class ActionByObservation(Probe):
    """One step; the observation says which action earns 1, the other earns -1."""

    def observe(self) -> Tree:
        return self.sign()[:, None]

    def reward(self, action: np.ndarray) -> np.ndarray:
        """Return whether the action has the observation's sign."""
        return np.where((action == 1) == (self.sign() > 0), np.float32(1.0), np.float32(-1.0))


class Truncation(ConstantReward):
    """Reward 1 forever, cut off after 5 steps: only bootstrapping a truncation gives 1 / (1 - gamma)."""

    steps = 5
    truncates = True
    optimal_return = 5.0
    random_return = 5.0


class Memory(Probe):
    """A cue at the first step, blanks, and the answer due at the last one; a policy without memory can only guess.

    Args:
      delay: steps from cue to answer.
    """

    observation = ArraySpec((2,), "float32")

    def __init__(
        self, config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0, *, delay: int = 4
    ):
        if delay < 1:
            raise ConfigError(f"probe:memory has delay={delay}; give at least 1, or there is nothing to remember")
        self.steps = delay + 1
        super().__init__(config, num_envs, seed, group)

    def observe(self) -> Tree:
        """Return (the cue at the first step, else 0; 1 where the answer is due)."""
        cue = np.where(self.clock == 0, self.sign(), np.float32(0.0))
        return np.stack([cue, (self.clock == self.steps - 1).astype(np.float32)], axis=1)

    def reward(self, action: np.ndarray) -> np.ndarray:
        """Return 1 for the cue's action at the last step, -1 for the other, 0 before."""
        right = np.where((action == 1) == (self.sign() > 0), np.float32(1.0), np.float32(-1.0))
        return np.where(self.clock == self.steps - 1, right, np.float32(0.0))


class ContinuousTarget(Probe):
    """One step; the action should equal the observation. Actions are clipped to [-2, 2]."""

    action = Continuous((-2.0,), (2.0,))
    random_return = -2.0 / 3.0  # 1 - E[(a - x)^2] with a in U(-2, 2), x in U(-1, 1)

    def observe(self) -> Tree:
        return (2.0 * self.draw() - 1.0).astype(np.float32)[:, None]

    def reward(self, action: np.ndarray) -> np.ndarray:
        target = self.observe()[:, 0]
        return 1.0 - (np.clip(action[:, 0].astype(np.float32), -2.0, 2.0) - target) ** 2


class MultiDiscreteMatch(Probe):
    """One step; each of two choices (2 and 3 ways) should match its entry of the observation."""

    action = MultiDiscrete((2, 3))
    observation = ArraySpec((2,), "float32")
    random_return = 5.0 / 12.0

    def observe(self) -> Tree:
        return np.stack([self.sign(), np.floor(3.0 * self.draw(1)).astype(np.float32) - 1.0], axis=1)

    def reward(self, action: np.ndarray) -> np.ndarray:
        wanted = self.observe()
        right = (action[:, 0] == (wanted[:, 0] > 0)).astype(np.float32) + (action[:, 1] == wanted[:, 1] + 1)
        return (0.5 * right).astype(np.float32)


class Masked(Probe):
    """One step; two of four actions are allowed, the higher one earns 1. A forbidden action is a fault."""

    action = Discrete(4)
    observation: ClassVar[Tree] = {
        "observation": ArraySpec((4,), "float32"),
        "action_mask": ArraySpec((4,), "uint8"),
    }

    def allowed(self) -> np.ndarray:
        """Return the two allowed actions of each slot, the lower one first: int64 [B, 2]."""
        pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
        return pairs[np.floor(6.0 * self.draw()).astype(np.int64)]

    def observe(self) -> Tree:
        """Return the mask twice: as an observation, and as the mask."""
        mask = np.zeros((self.num_envs, 4), np.uint8)
        np.put_along_axis(mask, self.allowed(), 1, axis=1)
        return {"observation": mask.astype(np.float32), "action_mask": mask}

    def reward(self, action: np.ndarray) -> np.ndarray:
        """Return 1 for the higher allowed action, -1 for the lower."""
        allowed = self.allowed()
        forbidden = ~(action[:, None] == allowed).any(axis=1) & ~self._rows.first
        if forbidden.any():
            slot = int(np.flatnonzero(forbidden)[0])
            what = f"was given action {int(action[slot])}, but its mask allows only {allowed[slot].tolist()}"
            raise self._rows.fault(slot, what, "Apply `action_mask` to the policy's logits")
        return np.where(action == allowed[:, 1], np.float32(1.0), np.float32(-1.0))


PROBES: dict[str, type[Probe]] = {
    "constant_reward": ConstantReward,
    "predictable_reward": PredictableReward,
    "delayed_reward": DelayedReward,
    "action_matters": ActionMatters,
    "action_by_observation": ActionByObservation,
    "truncation": Truncation,
    "memory": Memory,
    "continuous": ContinuousTarget,
    "multi_discrete": MultiDiscreteMatch,
    "masked": Masked,
}


def make_probe(config: EnvConfig, num_envs: int, seed: int | tuple[int, ...] = 0, group: int = 0) -> Probe:
    name = config.id.partition(":")[2]
    if name not in PROBES:
        raise ConfigError(f"there is no probe {name!r}{nearest(name, PROBES)}; probes: {', '.join(PROBES)}")
    try:
        return PROBES[name](config, num_envs, seed, group, **config.kwargs)
    except TypeError as error:
        raise ConfigError(
            f"probe {name!r} does not take env.kwargs {config.kwargs}: {error}. If they are for another environment, "
            "empty them: --env.kwargs '{}'."
        ) from None
