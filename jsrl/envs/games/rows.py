"""The row table of environments with seats: deaths, turns, last rewards, and the sums of episodes.

| what happens to a seat in step t | reward of row t | discount of row t | acts of the rows after it |
|---|---|---|---|
| it goes on | its own | 1 | 1 if it acts there, else 0 |
| it dies, `death="ends"` | its own | 0, until the episode ends | 0 until the episode ends |
| it dies, `death="team"` | its own, then the mean of its side's living | 1 while its side lives, then 0 | 2, then 0 |
| it is absent | 0 | as if it were dead | 0 |
| the episode terminates (every seat that lived died in this step or before) | its own | 0 for all seats | as below |
| the episode is truncated | its own | 1 for the seats that live | as below |

The row of an episode's last observation: its actions are ignored. If the episode is truncated, the seats that live after the
last step have `acts` as if it went on, because the truncation bootstraps from this row. Those that died in that step have 0 or
2 as above. If the episode terminates, the row keeps the `acts` of the seats that lived before the last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jsrl.envs.base import GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.groups import SeatGroups
from jsrl.envs.rows import Rows, slot_seeds
from jsrl.errors import EnvironmentFault
from jsrl.types import VALUE_ONLY, GameSpec, Tree


class VectorisedGame:
    """Base of games that step all slots at once: their seats in groups, seeds and rows.

    Attributes:
      spec: of the game. num_envs: B. groups: group -> names of its seats.
    """

    def __init__(
        self,
        spec: GameSpec,
        config: EnvConfig,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int,
        groups: Mapping[str, tuple[str, ...]] | None,
    ):
        self.spec, self.num_envs = spec, num_envs
        self._groups = SeatGroups(spec, groups)
        self.groups: Mapping[str, tuple[str, ...]] = self._groups.names
        seeds = slot_seeds(seed, group, num_envs)
        self._seeds, self._rows = np.asarray(seeds, np.int64), GameRows(spec, config, num_envs, seeds)

    def close(self) -> None:
        """Do nothing: it holds no resources."""

    def _check_actions(self, chosen: np.ndarray, counts: np.ndarray, seat: int = 0) -> None:
        """Check actions [B, N, ...] of the seats from `seat` on; counts [N, ...]: of the choices. Raises EnvironmentFault."""
        wrong = (chosen < 0) | (chosen >= counts)
        if wrong.any():
            slot, index = (int(i) for i in np.argwhere(wrong)[0, :2])
            what = f"was given action {chosen[slot, index].tolist()} for seat {self.spec.names[seat + index]!r}"
            raise self._rows.fault(slot, what, f"Expected 0 to {(counts[index] - 1).tolist()}")


class GameRows:
    """Turns raw rewards and ends of N seats into GameStep, under next-step auto-reset.

    Attributes:
      alive: bool [B, N]: seats that still play, after the last step.
      metrics: see jsrl.envs.rows.Rows.
    """

    def __init__(self, spec: GameSpec, config: EnvConfig, num_envs: int, seeds: list[int] | None):
        self._rows = Rows(config, num_envs, seeds)
        self.metrics, self.num_envs = self._rows.metrics, num_envs
        self._names, self._limit = spec.names, config.max_episode_steps
        self._team = spec.death == "team"
        sides = [seat.side or f"\0{seat.name}" for seat in spec.seats]
        self._same_side = np.array([[one == other for other in sides] for one in sides], np.float32)
        shape = (num_envs, len(sides))
        self._ones, self._acting = np.ones(shape, np.float32), np.ones(shape, np.uint8)
        self._returns = np.zeros(shape)
        self.alive, self._seated, self._whole = np.ones(shape, bool), np.ones(shape, bool), True

    @property
    def first(self) -> np.ndarray:
        """Return bool [B]: slots whose next step starts an episode (their actions are ignored)."""
        return self._rows.first

    @property
    def any_first(self) -> bool:
        return self._rows.any_first

    @property
    def episode(self) -> np.ndarray:
        """Return int64 [B]: finished episodes of each slot."""
        return self._rows.episode

    def opened(
        self, observation: Tree, *, state: Tree = (), present: np.ndarray | None = None, turns: np.ndarray | None = None
    ) -> GameStep:
        """Return the result of `reset`; unfinished episodes are dropped.

        Args:
          observation: group -> tree of [B, N_g, ...]. state: tree of [B, ...].
          present: bool [B, N]: seats that take part; None: all. turns: seats that act, None: all that take part.
        """
        self._rows.check_finite({"state": state})
        opened = self._rows.opened(observation)
        self._returns[:] = 0.0
        self._seat(np.ones(self.num_envs, bool), present)
        acts = self._acts(self.alive, turns)
        return GameStep(observation, opened.is_first, np.zeros_like(self._ones), self._ones, acts, state, [])

    def step(
        self,
        observation: Tree,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        *,
        state: Tree = (),
        present: np.ndarray | None = None,
        turns: np.ndarray | None = None,
    ) -> GameStep:
        """Return one step's GameStep.

        Args:
          reward: [B, N], raw. terminated, truncated: bool [B, N]. Values of seats that did not live before this step, and of
            slots that start an episode in it, are ignored. The others: see `opened`.

        Raises:
          EnvironmentFault: NaN or infinity, or a seat that is truncated before the episode ends.
        """
        first, lived = self._rows.first, self.alive
        reward = np.where(lived, reward, np.float32(0.0)).astype(np.float32)
        if self._rows.any_first:
            reward[first] = 0.0
        self._rows.check_finite({"state": state}, reward)
        done = (terminated | truncated) & lived & ~first[:, None]
        late = self._late()
        ending = bool(done.any()) or late is not None
        if self._team and not self._whole:
            reward = self._team_reward(reward, lived, first)
        left, died, over = lived, done, np.zeros(self.num_envs, bool)
        if ending:
            left, died = lived & ~done, done & terminated
            over = ~left.any(axis=1) & lived.any(axis=1) & ~first
            self._refuse_early(done & ~terminated & ~over[:, None])
            over = over if late is None else over | late
        final = over & ~(lived & ~died).any(axis=1)
        stepped = self._rows.step(observation, reward.mean(axis=1), final, over & ~final)
        self._returns[first] = 0.0
        self._returns += reward
        discount = self._discount(~lived | died, final, first) if ending or not self._whole else self._ones
        self.alive = left
        self._whole = self._whole and not ending
        if first.any():
            self._seat(first, present)
        shown = self.alive
        if ending:  # last rows: a seat that died as the episode was truncated is out
            last = np.where(final[:, None], lived, lived & ~died)
            shown = np.where(over[:, None], last, self.alive)
        acts = self._acts(shown, turns)
        episodes = [self._with_returns(episode) for episode in stepped.episodes]
        return GameStep(observation, first, reward, discount, acts, state, episodes)

    def fault(self, slot: int, what: str, advice: str) -> EnvironmentFault:
        return self._rows.fault(slot, what, advice)

    def cut(self, slot: int) -> None:
        """Let the current step start an episode in a slot, and drop the open one."""
        self._rows.cut(slot)

    def where(self, slot: int) -> str:
        return self._rows.where(slot)

    def _seat(self, slots: np.ndarray, present: np.ndarray | None) -> None:
        """Begin episodes in `slots` (bool [B]) with the seats that take part."""
        self.alive = self.alive.copy()
        self.alive[slots] = True if present is None else present[slots]
        self._seated[slots] = self.alive[slots]
        self._whole = bool(self.alive.all())

    def _acts(self, playing: np.ndarray, turns: np.ndarray | None) -> np.ndarray:
        if turns is None and self._whole:
            return self._acting
        acts = playing.astype(np.uint8) if turns is None else (playing & turns.astype(bool)).astype(np.uint8)
        if self._team:
            helped = (playing @ self._same_side) > 0  # a seat of the side lives
            acts[self._seated & ~playing & helped] = VALUE_ONLY
        return acts

    def _discount(self, out: np.ndarray, final: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the discounts [B, N] of a step after which the seats `out` are dead or absent.

        They stay 0 after a death: else a team whose seats die one by one would never terminate.
        """
        zero = ((~out) @ self._same_side == 0) if self._team else out
        return np.where((zero & ~first[:, None]) | final[:, None], np.float32(0.0), np.float32(1.0))

    def _team_reward(self, reward: np.ndarray, lived: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the rewards, with those of the dead replaced by the mean over the living seats of their side."""
        mean = (reward @ self._same_side) / np.maximum(lived @ self._same_side, 1.0)
        return np.where(self._seated & ~lived & ~first[:, None], mean, reward).astype(np.float32)

    def _late(self) -> np.ndarray | None:
        """Return bool [B]: the slots whose episode reaches the time limit in this step; None: there are none."""
        if self._limit is None:
            return None
        late = (self._rows.lengths() + 1 >= self._limit) & ~self._rows.first
        return late if late.any() else None

    def _refuse_early(self, cut: np.ndarray) -> None:
        """Raise if a seat was truncated (bool [B, N]) while others continue."""
        if cut.any():
            slot, seat = (int(i) for i in np.argwhere(cut)[0])
            raise self.fault(
                slot,
                f"truncated seat {self._names[seat]!r} in step {self._rows.lengths()[slot] + 1} of its episode, while others "
                "play on",
                "Expected all seats to be truncated together: terminate the seat, or end the episode for all",
            )

    def _with_returns(self, episode: Any) -> Any:
        returns = self._returns[episode.slot]
        return replace(episode, return_=float(returns.mean()), returns=tuple(returns.tolist()))
