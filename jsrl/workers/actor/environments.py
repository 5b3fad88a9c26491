"""What an actor has in all sessions of its streams: its environments, and counters. Imports no jax."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, Episode, GameStep, VectorEnv, VectorGame
from jsrl.envs.faults import foreign
from jsrl.envs.seats import SeatView
from jsrl.errors import JsrlError
from jsrl.services.metrics.metrics import Meter
from jsrl.workers.actor.lineup import Players
from jsrl.workers.actor.policies import Progress
from jsrl.workers.base import EnvCall, Reporter, watched


class Environments:
    """One group of environments, whose calls are watched: each must return in time, and its exceptions name the environment.

    Args:
      worker: name of the actor. number: of the group in the experiment. environment: its name, for messages.

    Attributes:
      env: its vector. latest: result of its last step (or reset). progress, players: of each policy.
    """

    env: VectorEnv | VectorGame
    latest: EnvStep | GameStep
    players: Sequence[Players] = ()

    def __init__(self, worker: str, number: int, environment: str, reporter: Reporter) -> None:
        self.number, self.environment = number, environment
        self._worker, self._reporter = worker, reporter
        self._where = f"{worker}: environment {environment!r}, group {number},"
        self.progress: list[Progress] = []

    def make(self, make_vector: Callable[[], VectorEnv | VectorGame], size: int) -> None:
        """Make `size` environments, which share the time for it, and reset them."""
        with watched(self._reporter, self._named("making") + ",", self._where, size):
            self.env = make_vector()
        self._resetting = EnvCall(self._named("reset"), self.env)
        self._stepping = EnvCall(self._named("step"), self.env)
        self.reset()

    def reset(self) -> None:
        with watched(self._reporter, self._resetting, self._where):
            self.latest = self.env.reset()

    def step(self, action: Any) -> None:
        # as `watched` does, in fewer calls
        self._reporter.entering(self._stepping, 1)
        try:
            self.latest = self.env.step(action)
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign(self._where, error) from error
        self._reporter.left()

    def _named(self, what: str) -> str:
        return f"{self._worker}: {what} of environment {self.environment!r}, group {self.number}"


class Tally:
    """Counts env steps, episodes and trajectories.

    Args:
      view: seats whose return is that of an episode; None: the environments have one agent. mean_over: newest episodes in the
        means; None: all.
    """

    def __init__(self, meter: Meter, view: SeatView | None, mean_over: int | None) -> None:
        self.meter, self._view, self._mean_over = meter, view, mean_over
        self._means: dict[str, deque[float]] = {}
        self.env_steps = self.episodes = self.trajectories = 0

    def stepped(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Count a step of a group, and the episodes that it ended."""
        self.env_steps += env_steps
        self.meter.rate("env_steps", env_steps)
        for episode in episodes:
            self.episodes += 1
            self.meter.count("episodes")
            own = episode.return_ if self._view is None else self._view.return_of(episode)
            custom = {f"episode_{name}": value for name, value in episode.metrics.items()}
            for name, value in {"return": own, "length": episode.length, **custom}.items():
                self._means.setdefault(name, deque(maxlen=self._mean_over)).append(value)

    @property
    def counts(self) -> dict[str, int]:
        return {"env_steps": self.env_steps, "episodes": self.episodes, "trajectories": self.trajectories}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        for name, values in self._means.items():
            self.meter.last(f"{name}_mean", float(np.mean(values)))
        return self.meter.flush(), self.counts
