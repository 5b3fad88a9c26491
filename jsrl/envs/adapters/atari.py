"""Atari through ale-py's C++ vector environment: grey [size, size, stack] uint8, newest frame last.

Differs: ale-py's own `episodic_life` restarts the whole game at every lost life. Here the game goes on, as in the
published preprocessing: a lost life is a termination row, and the next call presses FIRE (or nothing) in that slot.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np

from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import fault
from jsrl.envs.rows import Metrics, Rows, slot_seeds
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.references.importing import nearest
from jsrl.types import Array, ArraySpec, Discrete, EnvSpec

FIRE = 1  # ale_py.Action.FIRE


def make_atari(config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int = 0) -> AtariVector:
    return AtariVector(find_game(config), config, num_envs, seed, group)


def find_game(config: EnvConfig) -> str:
    """Return ale-py's name of the game of an id `ALE/...`."""
    gymnasium.register_envs(import_extra("ale_py", "atari", f"environment {config.id!r}"))
    spec = gymnasium.registry.get(config.id)
    if spec is None:
        known = [name for name in gymnasium.registry if name.startswith("ALE/")]
        raise ConfigError(f"ale-py has no {config.id!r}{nearest(config.id, known)}")
    unknown = sorted(set(config.kwargs) - {"render_mode"})
    if unknown:
        raise ConfigError(
            f"environment {config.id!r}: {', '.join(unknown)} cannot be given as kwargs; use the options of env.atari, or "
            "backend 'sync' for Gymnasium's single ALE environments with their own kwargs"
        )
    return spec.kwargs["game"]


def game_options(config: EnvConfig) -> dict[str, Any]:
    """Return the options that change the game itself (not its observations), as arguments of ale-py's vector."""
    options, steps = config.atari, config.max_episode_steps
    return {
        "num_threads": options.num_threads,
        "max_num_frames_per_episode": min(options.max_frames, (steps or options.max_frames) * options.frame_skip),
        "repeat_action_probability": options.repeat_action_probability,
        "full_action_space": options.full_action_space,
        "frameskip": options.frame_skip,
        "noop_max": options.noop_max,
        "use_fire_reset": options.fire_reset,
        "episodic_life": False,
        "reward_clipping": False,
    }


class AtariVector:
    """B games of one kind; `Episode` reports whole games, in raw score."""

    def __init__(self, game: str, config: EnvConfig, num_envs: int, seed: int | tuple[int, ...], group: int):
        from ale_py import AtariVectorEnv

        options = config.atari
        self._env: Any = AtariVectorEnv(
            game,
            num_envs,
            img_height=options.screen_size,
            img_width=options.screen_size,
            stack_num=options.stack,
            **game_options(config),
        )
        self.num_envs = num_envs
        self._name, self._episodic = config.id, options.episodic_life
        self._seeds = slot_seeds(seed, group, num_envs)
        self._pending_seeds: np.ndarray | None = np.asarray(self._seeds, np.int64)
        actions = [action.value for action in self._env.ale.get_action_set()]
        self._num_actions = len(actions)
        self._life_action = actions.index(FIRE) if options.fire_reset and FIRE in actions else 0
        shape = (options.screen_size, options.screen_size, options.stack)
        action_spec = Discrete(self._num_actions)
        frames = (
            options.stack if options.stack in (2, 4, 8) else None
        )  # _Stack makes the older ones black; ale-py may not
        self.spec = EnvSpec(
            ArraySpec(shape, "uint8"), action_spec, config.id, action_repeat=options.frame_skip, frames=frames
        )
        self._rows = Rows(config, num_envs)
        self._metrics = Metrics(config.episode_metrics, num_envs)
        self._stack = _Stack(num_envs, *shape)
        self._acts, self._ones = np.ones(num_envs, np.uint8), np.ones(num_envs, np.float32)
        self._lives = np.zeros(num_envs, np.int64)
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._games = np.zeros(num_envs, np.int64)
        self._game_over, self._life_lost = np.zeros(num_envs, bool), np.zeros(num_envs, bool)

    def reset(self) -> EnvStep:
        seeds, self._pending_seeds = self._pending_seeds, None
        frames, info = self._env.reset(seed=seeds)
        self._lives[:] = info["lives"]
        self._return[:], self._length[:] = 0.0, 0
        self._game_over[:] = self._life_lost[:] = False
        for slot in range(self.num_envs):
            self._metrics.close(slot)
        first = np.ones(self.num_envs, bool)
        zeros = np.zeros(self.num_envs, np.float32)
        return EnvStep(self._stack.push(frames, first), first, zeros, self._ones, self._acts, [])

    def step(self, action: Array) -> EnvStep:
        action = np.asarray(action).astype(np.int64)
        started, revived = self._game_over, self._life_lost
        action[revived] = self._life_action
        action[started] = 0
        self._check(action)
        frames, score, terminated, truncated, info = self._env.step(action)
        first, over = started | revived, terminated | truncated
        raw = score.astype(np.float32)
        self._return += raw
        self._length += ~first
        lives = info["lives"]
        # if it is lost while FIRE was pressed for the agent, nothing ends: the agent has not acted in that life yet
        lost = (lives < self._lives) & ~over & ~first if self._episodic else np.zeros_like(over)
        self._lives[:] = lives
        if self._metrics.entries:
            self._metrics.add_all(info, skip=first)
        discount = np.where((terminated & ~first) | lost, np.float32(0.0), np.float32(1.0))
        episodes = self._close(over, terminated) if over.any() else []
        self._game_over, self._life_lost = over, lost
        raw[first] = 0.0
        observation = self._stack.push(frames, started)
        return EnvStep(observation, first, raw, discount, self._acts, episodes)

    def _close(self, over: np.ndarray, terminated: np.ndarray) -> list[Episode]:
        episodes = []
        for slot in np.flatnonzero(over).tolist():
            score, length = float(self._return[slot]), int(self._length[slot])
            episodes.append(Episode(slot, score, length, bool(terminated[slot]), self._metrics.close(slot)))
        self._return[over], self._length[over] = 0.0, 0
        self._games += over
        return episodes

    def _check(self, action: np.ndarray) -> None:
        """Refuse an action that does not exist, for which ale-py's thread would wait forever."""
        wrong = (action < 0) | (action >= self._num_actions)
        if wrong.any():
            slot = int(np.flatnonzero(wrong)[0])
            raise fault(
                self._name,
                f"was given action {int(action[slot])}; it has actions 0 to {self._num_actions - 1}",
                "Compare the agent's action spec with `make_spec(config).action`",
                slot=slot,
                seed=self._seeds[slot],
                episode=int(self._games[slot]),
                step=int(self._length[slot]),
            )

    def render(self, slot: int = 0) -> np.ndarray:
        """Return slot's newest frame as the agent sees it: uint8 [size, size, 3]."""
        return np.repeat(self._stack.pixels[slot, :, :, -1:], 3, axis=2)

    def close(self) -> None:
        if self._env is not None:
            env, self._env = self._env, None
            env.close()


class _Stack:
    """Frames [B, stack, H, W] from ale-py, kept as [B, H, W, stack].

    A whole transposition costs 18 us per environment. The stack of one pixel is one integer, so shifting it by a byte
    and putting the new frame on top costs 1.6 us.
    """

    def __init__(self, num_envs: int, height: int, width: int, stack: int):
        self._words: np.ndarray | None = None
        if stack in (2, 4, 8) and sys.byteorder == "little":
            self._words = np.zeros((num_envs, height, width), f"<u{stack}")
            self._new = np.zeros_like(self._words)
            self.pixels = self._words.view(np.uint8).reshape(num_envs, height, width, stack)
            self._top = self._words.dtype.type(8 * (stack - 1))
            self._byte = self._words.dtype.type(8)
        else:
            self.pixels = np.zeros((num_envs, height, width, stack), np.uint8)

    def push(self, frames: np.ndarray, started: np.ndarray) -> np.ndarray:
        """Add the newest frame of each slot; where a game `started`, older ones are black."""
        if self._words is None:
            self.pixels[...] = frames.transpose(0, 2, 3, 1)
            return self.pixels
        self._words[started] = 0
        np.right_shift(self._words, self._byte, out=self._words)
        self._new[...] = frames[:, -1]
        np.left_shift(self._new, self._top, out=self._new)
        np.bitwise_or(self._words, self._new, out=self._words)
        return self.pixels
