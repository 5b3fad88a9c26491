"""Response surfaces to search on: the speed of settings on simulated machines."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jsrl.agents.ppo import PPOConfig
from jsrl.experiment import Experiment
from jsrl.tools.tuning.search import Budget, search
from jsrl.tools.tuning.space import Machine, Setting, Space, Trial, key_of, make_knobs, make_space

Surface = Callable[[Setting], float]


@functools.cache
def space_of(cores: int, num_envs: int = 64) -> Space:
    """The space of a PPO experiment on a machine with the given number of cores."""
    experiment = Experiment(agent=PPOConfig(), num_envs=num_envs, max_policy_lag=1, placement="served", num_actors=1)
    return make_space(experiment, make_knobs(experiment, Machine(cores)))


def random_surface(seed: int, cores: int) -> Surface:
    """A random machine: a best number of actors and groups per placement, and effects of the other options."""
    rng = np.random.default_rng(seed)
    level = {name: rng.normal(0, 0.5) for name in ("serial", "inline", "served", "apart")}
    peak_actors = {name: rng.uniform(0, math.log2(cores) + 1) for name in level}
    peak_ring = {name: rng.uniform(0, 3) for name in level}
    steep_actors, steep_ring = rng.uniform(0.05, 0.5), rng.uniform(0.02, 0.3)
    detail = {
        "num-inference-servers": {1: 0.0, 2: rng.normal(-0.1, 0.1)},
        "actor.blocks-per-group": {1: rng.normal(-0.1, 0.1), 2: 0.0, 4: rng.normal(0, 0.03)},
    }
    threads: dict[int | None, float] = {None: 0.0}
    rows: dict[int, float] = {}

    def speed(setting: Setting) -> float:
        place = setting["placement"]
        log = 10 + level[place]
        if place != "serial":
            log -= steep_actors * (math.log2(setting["num-actors"]) - peak_actors[place]) ** 2
            log -= steep_ring * (math.log2(setting["ring"]) - peak_ring[place]) ** 2
            count = setting["learner.threads"]
            if count not in threads:
                threads[count] = float(np.random.default_rng((seed, count or 0)).normal(-0.05, 0.1))
            log += threads[count]
        if "inference.max-rows" in setting:
            count = setting["inference.max-rows"]
            if count not in rows:
                rows[count] = float(np.random.default_rng((seed, count)).normal(-0.02, 0.04))
            log += rows[count]
        log += sum(effects[setting[name]] for name, effects in detail.items() if name in setting)
        return math.exp(log)

    return speed


@dataclass
class SimulatedMachine:
    """A simulated machine that answers at once: a trial takes `trial_s` of its own clock and returns the speed with noise.

    Attributes:
      surface: true speeds. noise: spread of the log of one measurement. outliers: share of disturbed trials.
    """

    surface: Surface
    rng: np.random.Generator
    noise: float = 0.05
    outliers: float = 0.05
    trial_s: float = 7.0
    now_s: float = 0.0
    made: int = 0

    def measure(self, setting: Setting, phase: str, best: float) -> Trial:
        """Simulate a trial."""
        self.made += 1
        self.now_s += self.trial_s
        speed = self.surface(setting) * math.exp(self.rng.normal(0, self.noise))
        if self.rng.random() < self.outliers:
            speed *= self.rng.uniform(0.5, 0.9)  # another program ran meanwhile
        return Trial(setting, phase, speed, cut=phase == "explore" and speed < 0.5 * best)

    def search(self, space: Space, total_s: float = 180.0) -> list[Trial]:
        """Search like the tuner."""
        return search(space, self.measure, Budget(total_s, lambda: self.now_s))


def regret(space: Space, surface: Surface, chosen: Setting) -> float:
    """Return how much slower a setting is than the best one of a space, as a share."""
    return 1 - surface(chosen) / max(surface(s) for s in space.candidates)


def distinct(trials: list[Trial]) -> int:
    """Return the number of distinct measured settings."""
    return len({key_of(t.setting) for t in trials})
