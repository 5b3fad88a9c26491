"""Invented machines to tune on: the speed of each setting, measured with noise on a clock of their own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jsrl.agents.ppo import PPOConfig
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import Machine
from jsrl.tools.tuning.trial import Limits, Trial
from jsrl.tools.tuning.tune import Setting, Tuned, Tuner

PPO = Experiment(agent=PPOConfig(), name="some", num_envs=64, max_policy_lag=1, placement="served", num_actors=1)


class InventedMachine:
    """A machine with a best number of actors and groups for each placement, and effects of servers and threads.

    A trial takes `trial_s` of its clock. noise: spread of the log of one measurement. outliers: share of disturbed trials.
    """

    def __init__(
        self, seed: int, cores: int, *, noise: float = 0.05, outliers: float = 0.05, trial_s: float = 7.0
    ) -> None:
        rng = np.random.default_rng(seed)
        names = ("serial", "inline", "served", "apart")
        self._level = {name: rng.normal(0, 0.5) for name in names}
        self._best_actors = {name: rng.uniform(0, math.log2(cores) + 1) for name in names}
        self._best_ring = {name: rng.uniform(0, 3) for name in names}
        self._steep_actors, self._steep_ring = rng.uniform(0.05, 0.5), rng.uniform(0.02, 0.3)
        self._second_server = rng.normal(-0.1, 0.1)
        self._threads = {count: rng.normal(-0.05, 0.1) for count in range(1, 2 * cores)}
        self._rng, self._noise, self._outliers, self._trial_s = rng, noise, outliers, trial_s
        self.cores, self.now_s = cores, 0.0
        self.measured: list[Experiment] = []

    def speed(self, setting: Setting) -> float:
        """Return the true speed."""
        place = setting.placement
        log = 10 + self._level[place]
        if place != "serial":
            log -= self._steep_actors * (math.log2(setting.actors) - self._best_actors[place]) ** 2
            log -= self._steep_ring * (math.log2(setting.ring) - self._best_ring[place]) ** 2
            log += self._threads[setting.threads] if setting.threads else 0.0
        if place == "served":
            log += self._second_server * (setting.servers == 2)
        return math.exp(log)

    def trial(self, e: Experiment, limits: Limits) -> Trial:
        self.now_s += self._trial_s
        self.measured.append(e)
        speed = self.speed(Setting(e.placement, e.actors, e.ring, e.num_inference_servers, e.learner.threads))
        speed *= math.exp(self._rng.normal(0, self._noise))
        if self._rng.random() < self._outliers:
            speed *= self._rng.uniform(0.5, 0.9)  # another program ran meanwhile
        return Trial(speed, start_s=3.0)

    def tune(self, experiment: Experiment = PPO, total_s: float = 180.0, **options: Any) -> Tuned:
        return self.tuner(experiment, total_s, **options).run()

    def tuner(
        self, experiment: Experiment = PPO, total_s: float = 180.0, accelerators: int = 0, **options: Any
    ) -> Tuner:
        machine = Machine(self.cores, accelerators)
        return Tuner(experiment, machine, total_s, **{"trial": self.trial, "clock": lambda: self.now_s} | options)

    def regret(self, tuned: Tuned) -> float:
        """Return how much slower a result is than the best of a grid: placements, actors and groups in powers of 2."""
        e = tuned.experiment
        chosen = Setting(e.placement, e.actors, e.ring, e.num_inference_servers, e.learner.threads)
        return 1 - self.speed(chosen) / max(map(self.speed, self.grid()))

    def grid(self) -> Iterator[Setting]:
        yield Setting("serial")
        actors = [2**power for power in range(12) if 2**power <= 2 * self.cores]
        for placement, number, ring in itertools.product(("inline", "served"), actors, (1, 2, 4, 8)):
            if PPO.envs % (number * ring) == 0:
                yield Setting(placement, number, ring)
