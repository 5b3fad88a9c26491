"""Checks of the environment contract: `check_env(EnvConfig("my_envs:Maze"))` takes seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, Episode, GameStep, VectorEnv, VectorGame
from jsrl.envs.config import EnvConfig
from jsrl.envs.contract import Contract
from jsrl.envs.make import make
from jsrl.envs.spaces import spec_notes
from jsrl.errors import ConfigError, EnvironmentFault, counted
from jsrl.types import (
    ACTING,
    VALUE_ONLY,
    Continuous,
    Discrete,
    EnvSpec,
    GameSpec,
    MultiDiscrete,
    Tree,
    map_tree,
    named_leaves,
)

Factory = Callable[[int, int], Any]  # (num_envs, seed) -> VectorEnv or VectorGame


@dataclass(frozen=True)
class EnvReport:
    """The result of `check_env`; `str()` gives a readable report.

    Attributes:
      spec: the environment's. passed: checks, one line each. notes: what could not be checked, and why.
      env_steps_per_s: measured with random actions, checks off. episodes: how many ended during the checks.
    """

    spec: EnvSpec | GameSpec
    passed: tuple[str, ...]
    notes: tuple[str, ...]
    env_steps_per_s: float
    episodes: int

    def __str__(self) -> str:
        lines = _described(self.spec)
        lines += [f"  ok    {line}" for line in self.passed]
        lines += [f"  note  {line}" for line in self.notes]
        return "\n".join(
            [*lines, f"  {self.env_steps_per_s:,.0f} env steps/s, {counted(self.episodes, 'episode')} ended"]
        )


def check_env(
    env: EnvConfig | Factory, *, num_envs: int = 4, steps: int = 600, max_seconds: float = 10.0, seed: int = 0
) -> EnvReport:
    """Check an environment against the vector protocol.

    Args:
      env: a config, or a function (num_envs, seed) -> VectorEnv or VectorGame.
      num_envs: slots of each vector. steps: vector steps of each of two equal runs. max_seconds: of each run.

    Raises:
      EnvironmentFault: it breaks the contract; the message names the rule, the slot and the values.
      ConfigError: `env` is neither a config nor a function.
    """
    if not callable(env) and not isinstance(env, EnvConfig):
        wanted = f"EnvConfig({env!r})" if isinstance(env, str) else "EnvConfig(...)"
        raise ConfigError(f"check_env was given {env!r}; expected {wanted}, or a function (num_envs, seed) -> vector.")
    outside: list[str] = []  # of the bounds
    # ignore `on_fault`: report every fault
    build: Factory = (
        partial(make, replace(env, on_fault="auto"), note=outside.append) if isinstance(env, EnvConfig) else env
    )
    games = isinstance(env, EnvConfig) and env.is_atari and env.atari.episodic_life

    def walk() -> _Walk:
        vector = build(num_envs, seed)
        if isinstance(vector.spec, GameSpec):
            return _GameWalk(vector, num_envs, seed)
        return _Walk(vector, num_envs, seed, whole_episodes=not games)

    one = walk()
    one.run(steps, max_seconds)
    build = getattr(one.env, "another", build)  # environments in JAX are compiled once
    two = walk()
    two.run(len(one.digests) - 1, 4 * max_seconds)
    for t, (a, b) in enumerate(zip(one.digests, two.digests, strict=False)):
        if a != b:
            raise EnvironmentFault(
                f"environment {one.env.spec.name!r}: two runs with seed {seed} and the same actions differ at step {t}; "
                "expected the same. It draws from a random state that its seed does not set"
            )
    passed, notes = _findings(one, _begins(build, one.opening, num_envs, range(seed + 1, seed + 4)))
    for env_ in (one.env, two.env, one.env):  # twice is allowed
        env_.close()
    notes += [*outside[:1], *spec_notes(one.env.spec)]
    return EnvReport(one.env.spec, tuple(passed), tuple(notes), one.env_steps_per_s, len(one.episodes))


def _findings(one: _Walk, begins: tuple[bool, bool]) -> tuple[list[str], list[str]]:
    """Return the checks that a walk has passed, and what it has not seen; begins: as _begins returns it."""
    varies, slots_differ = begins
    passed = ["shapes and dtypes of observations, rewards, discounts", "same seed, same run", "reset row: reward 0"]
    notes = []
    if varies and slots_differ:
        passed.append("other seeds and other slots start differently")
    elif varies or slots_differ:
        what = "slots" if varies else "seeds"
        raise EnvironmentFault(
            f"environment {one.env.spec.name!r}: different {what} all start with the same observation; seeds have no effect"
        )
    else:
        notes.append("all seeds and slots start with the same observation: the start is fixed, or the seed is ignored")
    if one.episodes:
        passed.append("episodes reported once each, with their return and length")
    else:
        notes.append(f"no episode ended within {len(one.digests) - 1} steps, so endings were not seen")
    if isinstance(one, _GameWalk):
        passed.append("each seat's rewards, with those of its last step, sum to its return; turns, deaths and masks")
        notes += [f"no seat {what}, so that was not seen" for what in ("waited", "died") if what not in one.seen]
    return passed, notes


def _begins(build: Factory, opening: Tree, num_envs: int, seeds: range) -> tuple[bool, bool]:
    """Return whether environments of other seeds, and other slots, begin differently.

    Several seeds are tried, because two different starts may coincide by chance.
    """
    varies, slots_differ = False, _slots_differ(opening, num_envs)
    for seed in seeds:
        if varies and (slots_differ or num_envs == 1):
            break  # making environments may take long
        other = build(num_envs, seed)
        try:
            theirs = other.reset().observation
            varies = varies or _varies(theirs, opening)
            slots_differ = slots_differ or _slots_differ(theirs, num_envs)
        finally:
            other.close()
    return varies, slots_differ if num_envs > 1 else varies  # with one slot only the seed can be tested


def _described(spec: EnvSpec | GameSpec) -> list[str]:
    if isinstance(spec, EnvSpec):
        seen = [f"  observation {name or '(one array)'}: {leaf}" for name, leaf in named_leaves(spec.observation)]
        return [f"{spec.name}: action {spec.action}", *seen]
    lines = [f"{spec.name}: {len(spec.seats)} seats, death={spec.death!r}, symmetric={spec.symmetric}"]
    for seat in spec.seats:
        lines.append(f"  seat {seat.name}{f' of {seat.side}' if seat.side else ''}: action {seat.action}")
        lines += [f"    observation {name or '(one array)'}: {leaf}" for name, leaf in named_leaves(seat.observation)]
    return lines + [f"  state {name or '(one array)'}: {leaf}" for name, leaf in named_leaves(spec.state)]


def _varies(a: Tree, b: Tree) -> bool:
    return any(not np.array_equal(x, y) for (_, x), (_, y) in zip(named_leaves(a), named_leaves(b), strict=True))


def _slots_differ(observation: Tree, num_envs: int) -> bool:
    leaves = [leaf for _, leaf in named_leaves(observation)]
    return any(not np.array_equal(leaf[0], leaf[i]) for leaf in leaves for i in range(1, num_envs))


class _Walk:
    """One run with random actions, checked at every step.

    Attributes:
      digests: of every step. episodes: those that ended. opening: the first observation. env_steps_per_s: measured.
    """

    def __init__(self, env: Any, num_envs: int, seed: int, *, whole_episodes: bool = True):
        self.env, self.num_envs, self.whole_episodes = env, num_envs, whole_episodes
        self.contract = Contract(env, num_envs, whole_episodes=whole_episodes)
        self.expect = self.contract.expect
        self.rng = np.random.default_rng(seed)
        self.digests: list[int] = []
        self.episodes: list[Episode] = []
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, int)
        self.env_steps_per_s = 0.0

    def run(self, steps: int, max_seconds: float) -> None:
        """Reset, then step until `steps` or the time is over; the first step, which may compile, is not counted in it."""
        step = self.env.reset()
        self.contract.check(step, opens=True)
        self.begin(step)
        self.opening: Tree = map_tree(np.array, step.observation)
        self._remember(step)
        for count in range(1, steps + 1):
            action = random_actions(self.env, step.observation, self.rng)
            before = time.perf_counter()
            step = self.env.step(action)
            after = time.perf_counter()
            if count == 1:
                begun, in_env = time.monotonic(), 0.0
            else:
                in_env += after - before
                self.env_steps_per_s = (count - 1) * self.num_envs / in_env
            self.contract.check(step)
            self.check(step)
            self.episodes += step.episodes
            self._remember(step)
            if time.monotonic() - begun > max_seconds:
                break

    def begin(self, step: Any) -> None:
        """Check the result of the reset."""

    def check(self, step: Any) -> None:
        """Check one step, beyond its contract."""
        flat = np.asarray(step.reward).reshape(self.num_envs, -1)
        self.returns += np.where(step.is_first, 0.0, flat.sum(axis=1))
        self.lengths += ~np.asarray(step.is_first)
        for episode in step.episodes:
            slot = episode.slot
            self.check_length(episode)
            if self.whole_episodes:
                total = self.returns[slot]
                near = abs(episode.return_ - total) <= 1e-4 * max(1.0, abs(total))
                self.expect(near, "slot {} reported return {}; its rewards sum to {}", slot, episode.return_, total)
            self.returns[slot], self.lengths[slot] = 0.0, 0

    def check_length(self, episode: Episode) -> None:
        slot, rows = episode.slot, self.lengths[episode.slot]
        what = "slot {} reported an episode of {} steps; its rows were {}"
        self.expect(episode.length == rows, what, slot, episode.length, rows)

    def _remember(self, step: EnvStep | GameStep) -> None:
        leaves = [leaf for tree in (step.observation, step.state) for _, leaf in named_leaves(tree)]
        arrays = [*leaves, step.is_first, step.reward, step.discount, step.acts]
        self.digests.append(hash(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)))


class _GameWalk(_Walk):
    """The same with seats: turns, deaths, last rewards.

    Attributes:
      seen: what happened at least once: `waited`, `died`.
    """

    def __init__(self, game: Any, num_envs: int, seed: int):
        super().__init__(game, num_envs, seed)
        self.seen: set[str] = set()
        self.returns = np.zeros((num_envs, len(game.spec.seats)))
        self._out = np.zeros(self.returns.shape, bool)
        sides = [seat.side or f"\0{seat.name}" for seat in game.spec.seats]
        self._same_side = np.array([[one == other for other in sides] for one in sides])

    def begin(self, step: GameStep) -> None:
        self._turns(step)
        self._first_rows(step)

    def check(self, step: GameStep) -> None:
        self._first_rows(step)
        self._rewards(step)
        self._endings(step)
        self._turns(step)

    def _turns(self, step: GameStep) -> None:
        """Check who acts on the row of this step's observation, and its masks."""
        acts, playing = np.asarray(step.acts), ~self.contract.ended
        allowed = (0, 1, 2) if self.env.spec.death == "team" else (0, 1)
        self.expect(bool(np.isin(acts, allowed).all()), "acts {}; expected one of {}", acts, allowed)
        idle = playing & ~(acts == ACTING).any(axis=1)
        self.expect(not idle.any(), "no seat acts in slots {}, and their episodes go on", np.flatnonzero(idle))
        wrong = (acts == ACTING) & self._out
        self.expect(not wrong.any(), "seats {} act after they died", self._names(wrong))
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
            self.expect(not shut.any(), "the mask of a seat of {} that does not act is not all ones", group)
            shut = (mine == 1) & ~masks.any(axis=2)
            self.expect(not shut.any(), "the mask of a seat of {} that acts allows nothing", group)

    def _first_rows(self, step: GameStep) -> None:
        first = np.asarray(step.is_first)
        self.returns[first], self.lengths[first], self._out[first] = 0.0, 0, False

    def _rewards(self, step: GameStep) -> None:
        """Check that the dead of a game without teams earn nothing, and add up the rewards."""
        if self.env.spec.death == "ends":
            paid = self._out & (step.reward != 0)
            self.expect(not paid.any(), "seats {} earn rewards after they died", self._names(paid))
        self.returns += step.reward
        self.lengths += ~np.asarray(step.is_first)

    def _endings(self, step: GameStep) -> None:
        discount = np.asarray(step.discount)
        cut = discount == 0
        ended, terminated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for episode in step.episodes:
            slot, returns = episode.slot, self.returns[episode.slot]
            ended[slot], terminated[slot] = True, episode.terminated
            self.check_length(episode)
            self.expect(
                len(episode.returns) == len(returns) and np.isclose(episode.return_, np.mean(episode.returns)),
                "slot {} reported returns {} and return {}; expected one of each seat, and their mean",
                slot,
                episode.returns,
                episode.return_,
            )
            near = np.allclose(episode.returns, returns, rtol=1e-4, atol=1e-4)
            self.expect(near, "slot {} reported returns {}; its rewards sum to {}", slot, episode.returns, returns)
        whole = (cut | self._out).all(axis=1) & cut.any(axis=1)
        silent = whole & ~ended & (self.env.spec.death == "ends")
        self.expect(not silent.any(), "every seat of slots {} has died, and no episode ended", np.flatnonzero(silent))
        if self.env.spec.death == "team":
            apart = (cut[:, :, None] != cut[:, None, :]) & self._same_side & ~ended[:, None, None]
            apart &= ~(self._out[:, :, None] | self._out[:, None, :])
            self.expect(
                not apart.any(), "discount {} differs within a side; its end is that of all its seats", discount
            )
        died = cut & ~terminated[:, None]
        if died.any():
            self.seen.add("died")
        self._out |= died

    def _names(self, which: np.ndarray) -> list[str]:
        return [self.env.spec.names[i] for i in np.flatnonzero(which.any(axis=0))]


def random_actions(env: VectorEnv | VectorGame, observation: Tree, rng: np.random.Generator) -> Any:
    """Draw legal actions, [B, ...] or group -> [B, N_g, ...]; continuous ones exceed their bounds on purpose."""
    if not isinstance(env.spec, GameSpec):
        return _draw(env.spec, observation, rng)
    drawn = {}
    for group, seats in env.groups.items():
        columns = [map_tree(lambda leaf, i=i: leaf[:, i], observation[group]) for i in range(len(seats))]
        views = [env.spec.view((seat,)) for seat in seats]
        drawn[group] = np.stack([_draw(view, seen, rng) for view, seen in zip(views, columns, strict=True)], axis=1)
    return drawn


def _draw(spec: EnvSpec, observation: Tree, rng: np.random.Generator) -> np.ndarray:
    num_envs = len(next(leaf for _, leaf in named_leaves(observation)))
    masks = observation.get("action_mask") if isinstance(observation, dict) else None
    action = spec.action
    if isinstance(action, Continuous):
        return rng.normal(0.0, 2.0, (num_envs, len(action.low))).astype(np.float32)
    nums = (action.num_actions,) if isinstance(action, Discrete) else action.nums
    columns, start = [], 0
    for num in nums:
        score = rng.random((num_envs, num))
        if masks is not None:
            score = np.where(masks[:, start : start + num] > 0, score, -1.0)
        columns.append(score.argmax(axis=1).astype(np.int32))
        start += num
    return np.stack(columns, axis=1) if isinstance(action, MultiDiscrete) else columns[0]
