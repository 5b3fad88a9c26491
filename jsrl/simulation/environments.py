"""Times an experiment's environments alone: steps and resets, on a core and idle."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsrl.envs.base import VectorEnv
from jsrl.envs.make import make
from jsrl.envs.random_play import random_actions, random_joint_actions
from jsrl.experiment import Experiment
from jsrl.simulation.times import Cost, EnvTimes, fit
from jsrl.types import GameSpec, Tree

QUANTILES = 32
_FEWEST = 30  # smallest number of timed steps


@dataclass(frozen=True)
class Steps:
    """Timed steps of a group: its number of environments, episodes begun in each step [N], and seconds [N]."""

    size: int
    begun: np.ndarray
    cpu_s: np.ndarray
    wall_s: np.ndarray


def time_environments(experiment: Experiment, sizes: list[int], seconds: float = 2.0) -> EnvTimes:
    """Return the times of steps and resets of groups of some sizes, with random actions.

    Args:
      experiment: with the environments. sizes: environments of a group. seconds: time per size.
    """
    timed = [_time(experiment, size, seconds) for size in sorted(set(sizes))]
    step, step_idle, reset, reset_idle = _costs(timed)
    calm = max(timed, key=lambda steps: steps.size)
    plain = calm.wall_s[calm.begun == 0] if (calm.begun == 0).sum() >= _FEWEST else calm.wall_s
    shape = np.quantile(plain, (np.arange(QUANTILES) + 0.5) / QUANTILES)
    shape = np.minimum(shape / shape.mean(), 20.0)
    begun, rows = sum(s.begun.sum() for s in timed), sum(s.size * len(s.begun) for s in timed)
    return EnvTimes(
        step=step,
        step_idle=step_idle,
        reset=reset,
        reset_idle=reset_idle,
        episode_steps=round(float(rows / begun), 3) if begun else 1e9,
        shape=tuple(round(float(value), 4) for value in shape / shape.mean()),
    )


def _time(experiment: Experiment, size: int, seconds: float) -> Steps:
    env: Any = make(experiment.env, size, seed=experiment.seed, group=0)
    draw = random_joint_actions if isinstance(env.spec, GameSpec) else _random_actions
    rng = np.random.default_rng(experiment.seed)
    rows: list[tuple[int, float, float]] = []
    try:
        latest = env.reset()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(rows) <= _FEWEST:
            action = draw(env, latest.observation, rng)
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            latest = env.step(action)
            cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
            rows.append((int(latest.is_first.sum()), cpu_s, wall_s))
    finally:
        env.close()
    begun, cpu, wall = (np.array(column) for column in zip(*rows[1:], strict=True))
    return Steps(size, begun, cpu, wall)


def _random_actions(env: VectorEnv, observation: Tree, rng: np.random.Generator) -> np.ndarray:
    return random_actions(env.spec, observation, rng)


def _costs(timed: list[Steps]) -> tuple[Cost, Cost, Cost, Cost]:
    """Return the costs of steps and resets, CPU and idle, from means of steps with and without resets."""
    busy, idle, resets, reset_idle = [], [], list[float](), list[float]()
    for steps in timed:
        calm = steps.begun == 0
        base = calm if calm.sum() >= _FEWEST else np.ones(len(calm), bool)
        cpu_s, wait_s = float(steps.cpu_s[base].mean()), float((steps.wall_s - steps.cpu_s)[base].mean())
        busy.append((steps.size, cpu_s))
        idle.append((steps.size, max(0.0, wait_s)))
        if calm.sum() >= _FEWEST and (~calm).any():
            begun = steps.begun[~calm].sum()
            resets.append(float((steps.cpu_s[~calm] - cpu_s).sum() / begun))
            reset_idle.append(float(((steps.wall_s - steps.cpu_s)[~calm] - wait_s).sum() / begun))
    return fit(busy), fit(idle), _each(resets), _each(reset_idle)


def _each(seconds: list[float]) -> Cost:
    """Return the mean as a cost per started episode."""
    return Cost(0.0, max(0.0, float(np.mean(seconds)))) if seconds else Cost()
