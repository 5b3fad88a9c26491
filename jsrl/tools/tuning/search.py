"""The search for a fast setting with noisy measurements.

A Gaussian process over the log of the speed proposes what to try next; then the leaders are measured again, in turns, because
the best of many noisy measurements is often luck. Nothing is random: the same measurements lead to the same next one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jsrl.tools.tuning.space import Setting, Space, Trial, key_of

EXPLORE_SHARE = 0.75  # of the time; in the rest the leaders are measured again
WORTH = 0.005  # expected gain (of the log speed) below which exploration ends early
MAX_LEADERS = 3
LEADER_MARGIN = 0.10  # how far behind the best (log speed, in the model) a leader may be
MIN_ROUNDS, MAX_ROUNDS = 2, 6
FINALS = 4  # trials that are left for the leaders, in turns: the best two, twice
USERS_FAULTS = ("EnvironmentFault:", "AgentFault:")  # errors of the user's own code, which every setting would repeat


Measure = Callable[[Setting, str, float], Trial]  # setting, phase, the best speed so far -> the measurement


@dataclass
class Budget:
    """Time budget of a search; tests may replace its clock.

    Attributes:
      total_s: to spend. clock: returns seconds. stopped: returns whether to end now (Ctrl-C).
    """

    total_s: float
    clock: Callable[[], float]
    stopped: Callable[[], bool] = lambda: False
    begin_s: float = field(init=False)
    _durations: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.begin_s = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.begin_s

    @property
    def left_s(self) -> float:
        return self.total_s - self.elapsed_s

    def took(self, seconds: float) -> None:
        self._durations.append(seconds)

    def allows(self, share: float = 1.0, later: int = 0) -> bool:
        """Return whether another trial of the usual length fits into a share of the time, and `later` ones into all of it."""
        usual_s = statistics.median(self._durations) if self._durations else 0.0
        most_s = min(share * self.total_s, self.total_s - later * usual_s)
        return not self.stopped() and self.elapsed_s + usual_s <= most_s


def search(space: Space, measure: Measure, budget: Budget) -> list[Trial]:
    """Measure settings until the time is spent, or no gain is expected; return all trials in order.

    Args:
      space: possible settings; its default is measured first. measure: makes one trial. budget: of time.
    """
    trials: list[Trial] = []

    def make(setting: Setting, phase: str) -> None:
        begin_s = budget.clock()
        best = max((t.env_steps_per_s for t in trials), default=0.0)
        trials.append(measure(setting, phase, best))
        budget.took(budget.clock() - begin_s)

    make(space.default, "explore")
    while not _is_hopeless(trials) and budget.allows(EXPLORE_SHARE, FINALS if len(trials) > 1 else 0):
        setting = propose(space, trials)
        if setting is None:
            break
        make(setting, "explore")
    for setting in finals(space, trials):
        if not budget.allows():
            break
        make(setting, "final")
    return trials


def _is_hopeless(trials: Sequence[Trial]) -> bool:
    """Return whether no setting can work: the user's own code fails, or the first two failed alike."""
    errors = [trial.error for trial in trials]
    return all(errors) and (any(fault in errors[0] for fault in USERS_FAULTS) or errors[:2] == 2 * errors[:1])


# -- what to try next -------------------------------------------------------------------------------------------------


def propose(space: Space, trials: Sequence[Trial]) -> Setting | None:
    """Return the setting to measure next: the openings first, then the one with the largest expected gain; None: none."""
    tried = {key_of(t.setting) for t in trials}
    for setting in openings(space):
        if key_of(setting) not in tried:
            return setting
    untried = [i for i, key in enumerate(space.keys) if key not in tried]
    if not untried:
        return None
    model = fit(space, trials)
    if model is None:
        return space.candidates[untried[0]]
    gain = model.expected_gain(space.points[untried])
    best = int(np.argmax(gain))
    return space.candidates[untried[best]] if gain[best] >= WORTH or len(trials) < 2 * len(openings(space)) else None


def openings(space: Space) -> list[Setting]:
    """Return the settings measured before there is a model: the default, and each placement with few and with many workers."""
    chosen: dict[Any, Setting] = {key_of(space.default): space.default}
    for own in space.grid.values():
        points = space.coordinates(own)
        central = own[int(np.argmin(np.linalg.norm(points - points.mean(axis=0), axis=1)))]
        chosen.setdefault(key_of(central), central)
        distances = np.linalg.norm(points - space.coordinates([central]), axis=1)
        if distances.max() > 1.5:
            far = own[int(np.argmax(distances))]
            chosen.setdefault(key_of(far), far)
    return list(chosen.values())


# -- the model --------------------------------------------------------------------------------------------------------

# Hyperparameters that are compared by their likelihood: correlation length (in steps of a knob), spread of the log speed
# over the space, and noise of one measurement. The first of each is the most likely before any measurement.
LENGTHS, SPREADS, NOISES = (2.0, 1.0, 4.0, 8.0), (0.5, 0.25, 1.0), (0.05, 0.025, 0.1, 0.2)
CUT_NOISE = 0.15  # additional noise of a measurement that was ended early
FAILED_BELOW = 0.7  # a failed setting counts as this much (log) slower than the slowest


@dataclass(frozen=True)
class Model:
    """A Gaussian process (squared exponential) over the log of the speed.

    Attributes:
      points: measured, [M, X]. factor: Cholesky factor of their covariance. weights: [M], its solution for the measurements.
      mean: of the log speeds. best: the model's highest value at a measured point.
    """

    points: np.ndarray
    factor: np.ndarray
    weights: np.ndarray
    mean: float
    length: float
    spread: float
    best: float

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean, standard deviation) of the log speed at points [P, X]."""
        cross = _covariance(points, self.points, self.length, self.spread)
        mean = self.mean + cross @ self.weights
        solved = np.linalg.solve(self.factor, cross.T)
        variance = self.spread**2 - np.einsum("ij,ij->j", solved, solved)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def expected_gain(self, points: np.ndarray) -> np.ndarray:
        """Return each point's expected gain over the best log speed."""
        mean, deviation = self.predict(points)
        z = (mean - self.best) / deviation
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
        return deviation * (z * below + density)


def _covariance(a: np.ndarray, b: np.ndarray, length: float, spread: float) -> np.ndarray:
    return spread**2 * np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * length**2))


def fit(space: Space, trials: Sequence[Trial]) -> Model | None:
    """Return the model of the measurements; None if all failed."""
    speeds = np.array([t.env_steps_per_s for t in trials])
    if not (speeds > 0).any():
        return None
    logs = np.log(np.maximum(speeds, speeds[speeds > 0].min() * math.exp(-FAILED_BELOW)))
    points = space.coordinates([t.setting for t in trials])
    extra = np.array([CUT_NOISE if t.cut or t.error else 0.0 for t in trials])
    mean = float(logs.mean())
    chosen: tuple[float, Model] | None = None
    for length, spread, noise in itertools.product(LENGTHS, SPREADS, NOISES):
        covariance = _covariance(points, points, length, spread) + np.diag(noise**2 + extra**2)
        factor = np.linalg.cholesky(covariance)
        half = np.linalg.solve(factor, logs - mean)
        likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
        likelihood -= 0.5 * ((length != LENGTHS[0]) + (spread != SPREADS[0]) + (noise != NOISES[0]))
        if chosen is None or likelihood > chosen[0]:
            weights = np.linalg.solve(factor.T, half)
            model = Model(points, factor, weights, mean, length, spread, -math.inf)
            chosen = likelihood, model
    assert chosen is not None
    model = chosen[1]
    return Model(**(vars(model) | {"best": float(model.predict(points)[0][speeds > 0].max())}))


# -- the leaders, again -----------------------------------------------------------------------------------------------


def leaders(space: Space, trials: Sequence[Trial]) -> list[Setting]:
    """Return the settings to measure again, best first: by the model, which lucky measurements mislead less."""
    model = fit(space, trials)
    measured = {key_of(t.setting): t.setting for t in trials if t.env_steps_per_s > 0 and not t.cut}
    if model is None or not measured:
        return []
    settings = list(measured.values())
    mean, _ = model.predict(space.coordinates(settings))
    order = np.argsort(-mean, kind="stable")
    return [settings[i] for i in order[:MAX_LEADERS] if mean[i] >= mean[order[0]] - LEADER_MARGIN]


def finals(space: Space, trials: Sequence[Trial]) -> Iterator[Setting]:
    """Yield the leaders (and, every other round, the default) to measure again, in turns; hopeless ones drop out.

    Args:
      trials: a list that grows by the measurements.
    """
    running = leaders(space, trials)
    if not running:
        return
    default = space.default
    for number in range(MAX_ROUNDS):
        order = running if number % 2 == 0 else running[::-1]
        yield from order
        if number % 2 == 0 and default not in running:
            yield default
        speed = {key_of(s): statistics.median(_final_speeds(trials, s)) for s in running}
        best = max(speed.values(), default=0.0)
        margin = max(LEADER_MARGIN / (number + 1), 0.03)  # the margin shrinks with the number of measurements
        running = [s for s in running if speed[key_of(s)] >= (1 - margin) * best]
        if number + 1 >= MIN_ROUNDS and len(running) < 2:
            return


def _final_speeds(trials: Sequence[Trial], setting: Setting) -> list[float]:
    """Return the speeds in the final measurements of a setting; [0.0] without any."""
    return [t.env_steps_per_s for t in trials if t.phase == "final" and t.setting == setting] or [0.0]
