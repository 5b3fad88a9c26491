"""Checks of `check_env` for environments with seats: turns, deaths, last rewards, and the rules of a single agent's rows."""

from __future__ import annotations

import time

import numpy as np

from jsrl.envs.base import Episode, GameStep, VectorGame
from jsrl.envs.contract import Contract
from jsrl.envs.random_play import random_joint_actions
from jsrl.types import ACTING, VALUE_ONLY, Tree, map_tree, named_leaves


class GameWalk:
    """One run with random actions, checked at every step.

    Attributes:
      digests: of every step. episodes: those that ended. opening: the first observation. env_steps_per_s: measured.
      seen: what happened at least once: `waited`, `died`.
    """

    def __init__(self, game: VectorGame, num_envs: int, seed: int):
        self.env, self.num_envs = game, num_envs
        self._contract = Contract(game, num_envs)
        self._expect = self._contract.expect
        self.rng = np.random.default_rng(seed)
        self.digests: list[int] = []
        self.episodes: list[Episode] = []
        self.env_steps_per_s = 0.0
        self.seen: set[str] = set()
        shape = (num_envs, len(game.spec.seats))
        self._returns, self._lengths = np.zeros(shape), np.zeros(num_envs, int)
        self._out = np.zeros(shape, bool)
        sides = [seat.side or f"\0{seat.name}" for seat in game.spec.seats]
        self._same_side = np.array([[one == other for other in sides] for one in sides])

    def run(self, steps: int, max_seconds: float) -> None:
        begun, in_env = time.monotonic(), 0.0
        step = self.env.reset()
        self._contract.check(step, opens=True)
        self._look(step)
        self._first_rows(step)
        self.opening: Tree = map_tree(np.array, step.observation)
        for count in range(1, steps + 1):
            action = random_joint_actions(self.env, step.observation, self.rng)
            before = time.perf_counter()
            step = self.env.step(action)
            in_env += time.perf_counter() - before
            self._contract.check(step)
            self._first_rows(step)
            self._rewards(step)
            self._endings(step)
            self._look(step)
            self.env_steps_per_s = count * self.num_envs / in_env
            if time.monotonic() - begun > max_seconds:
                break

    def _look(self, step: GameStep) -> None:
        """Check who acts, and the masks; record the step."""
        self._turns(step)
        leaves = [leaf for tree in (step.observation, step.state) for _, leaf in named_leaves(tree)]
        arrays = [*leaves, step.is_first, step.reward, step.discount, step.acts]
        self.digests.append(hash(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)))

    def _turns(self, step: GameStep) -> None:
        """Check who acts on the row of this step's observation, and its masks."""
        acts, playing = np.asarray(step.acts), ~self._contract.ended
        allowed = (0, 1, 2) if self.env.spec.death == "team" else (0, 1)
        self._expect(bool(np.isin(acts, allowed).all()), "acts {}; expected one of {}", acts, allowed)
        idle = playing & ~(acts == ACTING).any(axis=1)
        self._expect(not idle.any(), "no seat acts in slots {}, and their episodes go on", np.flatnonzero(idle))
        wrong = (acts == ACTING) & self._out
        self._expect(not wrong.any(), "seats {} act after they died", self._names(wrong))
        self._out |= acts == VALUE_ONLY
        if (acts == VALUE_ONLY).any():
            self.seen.add("died")
        if (playing[:, None] & (acts == 0) & ~self._out).any():
            self.seen.add("waited")
        for group, seats in self.env.groups.items():
            masks = step.observation[group].get("action_mask") if isinstance(step.observation[group], dict) else None
            if masks is None:
                continue
            mine = acts[:, list(self.env.spec.index(seats))]
            shut = (mine != 1) & ~masks.all(axis=2)
            self._expect(not shut.any(), "the mask of a seat of {} that does not act is not all ones", group)
            shut = (mine == 1) & ~masks.any(axis=2)
            self._expect(not shut.any(), "the mask of a seat of {} that acts allows nothing", group)

    def _first_rows(self, step: GameStep) -> None:
        first = np.asarray(step.is_first)
        self._returns[first], self._lengths[first], self._out[first] = 0.0, 0, False

    def _rewards(self, step: GameStep) -> None:
        """Check that the dead of a game without teams earn nothing, and add up the rewards."""
        if self.env.spec.death == "ends":
            paid = self._out & (step.reward != 0)
            self._expect(not paid.any(), "seats {} earn rewards after they died", self._names(paid))
        self._returns += step.reward
        self._lengths += ~np.asarray(step.is_first)

    def _endings(self, step: GameStep) -> None:
        discount = np.asarray(step.discount)
        cut = discount == 0
        ended, terminated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for episode in step.episodes:
            slot, returns = episode.slot, self._returns[episode.slot]
            ended[slot], terminated[slot] = True, episode.terminated
            self._expect(
                episode.length == self._lengths[slot],
                "slot {} reported an episode of {} steps; its rows were {}",
                slot,
                episode.length,
                self._lengths[slot],
            )
            self._expect(
                len(episode.returns) == len(returns) and np.isclose(episode.return_, np.mean(episode.returns)),
                "slot {} reported returns {} and return {}; expected one of each seat, and their mean",
                slot,
                episode.returns,
                episode.return_,
            )
            near = np.allclose(episode.returns, returns, rtol=1e-4, atol=1e-4)
            self._expect(near, "slot {} reported returns {}; its rewards sum to {}", slot, episode.returns, returns)
        whole = (cut | self._out).all(axis=1) & cut.any(axis=1)
        silent = whole & ~ended & (self.env.spec.death == "ends")
        self._expect(not silent.any(), "every seat of slots {} has died, and no episode ended", np.flatnonzero(silent))
        if self.env.spec.death == "team":
            apart = (cut[:, :, None] != cut[:, None, :]) & self._same_side & ~ended[:, None, None]
            apart &= ~(self._out[:, :, None] | self._out[:, None, :])
            self._expect(
                not apart.any(), "discount {} differs within a side; its end is that of all its seats", discount
            )
        died = cut & ~terminated[:, None]
        if died.any():
            self.seen.add("died")
        self._out |= died
        self.episodes += step.episodes

    def _names(self, which: np.ndarray) -> list[str]:
        return [self.env.spec.names[i] for i in np.flatnonzero(which.any(axis=0))]
