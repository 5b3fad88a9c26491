"""Automatic tuning: short trials of the real system find the settings that train fastest on this machine.

Inspired by Spreeze, which adapts its parallelism to the hardware. Source: Hou et al., 2023, arXiv 2312.06126.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TextIO

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import Machine
from jsrl.experiment.placements import PLACEMENTS, PlacementName
from jsrl.fields import options_of
from jsrl.graph.machine import this_machine
from jsrl.graph.plan import decided
from jsrl.tools.tuning.child import Lines
from jsrl.tools.tuning.trial import Limits, Trial, measure

MINUTES = 3.0
TRIALS_PER_BUDGET = 60  # part of the time for a trial's measurement; starting takes as long again, or longer
NOISE = 0.1  # of a measurement: what is slower by less may still be the best
FINAL_SHARE = 0.25  # of the time, in which the fastest settings are measured again, at least once
FINALISTS, ROUNDS = 3, 3
TIE = 0.02  # the default is kept unless something is faster by more than this share


@dataclass(frozen=True)
class Setting:
    """The tuned part of an experiment.

    Attributes:
      ring: groups of each actor. threads: of the learner; None: one per core. scale: factor of num_envs and batch_envs,
        which changes what is learned.
    """

    placement: PlacementName
    actors: int = 1
    ring: int = 1
    servers: int = 1
    threads: int | None = None
    scale: float = 1.0


FIELDS = {  # of a setting -> the options that fix it
    "actors": {"num-actors"},
    "ring": {"num-groups"},
    "servers": {"num-inference-servers"},
    "threads": {"learner.threads"},
    "scale": {"num-envs", "batch-envs"},
}


def setting_of(experiment: Experiment) -> Setting:
    """Return the setting of an experiment as it would run here."""
    e, _ = decided(experiment)
    if not (e.where.processes and e.where.has_actors):
        return Setting(e.placement)
    return Setting(e.placement, e.actors, e.ring, e.num_inference_servers, e.learner.threads)


def options_for(experiment: Experiment, setting: Setting, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the options (name -> value) that give an experiment a setting, without its own values and those given."""
    where = PLACEMENTS[setting.placement]
    found: dict[str, Any] = {"placement": setting.placement}
    if where.processes and where.has_actors:
        found |= {"num-actors": setting.actors, "num-groups": setting.actors * setting.ring}
        found |= {"num-inference-servers": setting.servers} if where.serves else {}
        found["learner.threads"] = setting.threads
    if setting.scale != 1.0:
        found["num-envs"] = int(setting.scale * experiment.envs)
        if experiment.batch_envs is not None:
            found["batch-envs"] = int(setting.scale * experiment.batch_envs)
    own = options_of(experiment)
    return {name: value for name, value in found.items() if name not in given and value != own[name].default}


def applied(experiment: Experiment, options: dict[str, Any]) -> Experiment:
    """Return the experiment with options set, all at once, so that they are checked together."""
    changes: dict[str, Any] = {}
    for name, value in options.items():
        head, _, tail = name.replace("-", "_").partition(".")
        part = dataclasses.replace(changes.get(head, getattr(experiment, head)), **{tail: value}) if tail else value
        changes[head] = part
    return dataclasses.replace(experiment, **changes)


def spelled(options: dict[str, Any]) -> list[str]:
    """Return options as arguments of the command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value).lower())]


@dataclass(frozen=True)
class Tuned:
    """The results of a tuning.

    Attributes:
      options: the best ones (name -> value), over the experiment's own; empty: the default is kept. experiment: with them.
      speeds: of each measured setting, the one of the search first. interrupted: by Ctrl-C.
    """

    experiment: Experiment
    options: dict[str, Any]
    speeds: dict[Setting, list[float]]
    interrupted: bool


def tune(
    experiment: Experiment,
    *,
    given: Collection[str] = (),
    minutes: float = MINUTES,
    batch: bool = False,
) -> Tuned:
    """Measure settings of an experiment on this machine, and return the fastest.

    What is learned stays the same (environments, rollout, batch, policy lag), unless `batch` is true. Ctrl-C ends the tuning
    and keeps the best so far.

    Args:
      experiment: to tune. given: options that keep their values. minutes: for all trials together.
      batch: vary the number of environments and the batch, too.
    """
    if experiment.deterministic:
        raise ConfigError("a deterministic run fixes its groups and their order; tune without --deterministic.")
    return Tuner(experiment, this_machine(), minutes * 60, given=given, batch=batch, show=sys.stderr).run()


class TimeIsUp(Exception):
    """Another trial does not fit into the time."""


class Tuner:
    """Tries each placement, doubles one field of a setting after the other, and measures the fastest settings again."""

    def __init__(
        self,
        experiment: Experiment,
        machine: Machine,
        total_s: float,
        *,
        given: Collection[str] = (),
        batch: bool = False,
        show: TextIO | None = None,
        trial: Callable[[Experiment, Limits], Trial] = measure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See `tune`. show: stream for progress. trial, clock: tests replace them."""
        self._experiment, self._machine, self._total_s = experiment, machine, total_s
        self._given, self._batch = given, batch
        self.default = setting_of(experiment)
        self.speeds: dict[Setting, list[float]] = {}
        self._lines, self._trial, self._clock, self._begin_s = Lines(show), trial, clock, clock()
        self._searches = True  # and leaves time for the finals
        self._usual_s = self._start_s = 0.0  # of a trial; deadline of its first update

    def run(self) -> Tuned:
        """Measure until the time is spent, or nothing is left to try."""
        name = self._experiment.name
        self._lines.notify(f"tuning {name} for up to {self._total_s / 60:g} min (Ctrl-C keeps the best so far)")
        interrupted = False
        try:
            first = self._try(self.default, max(120.0, self._total_s))  # compiles, and may take longer than the others
            if first.error:
                raise ConfigError(f"the experiment cannot be measured as it is: {first.error}")
            self._start_s = max(30.0, 4 * first.start_s)
            with contextlib.suppress(TimeIsUp):
                self._search()
            self._searches = False
            with contextlib.suppress(TimeIsUp):
                self._measure_fastest_again()
        except KeyboardInterrupt:
            if not self.speeds:
                raise
            interrupted = True
        best = self._best()
        self._lines.notify(self._text(best))
        return Tuned(self._experiment_with(best), self._options(best), self.speeds, interrupted)

    def _search(self) -> None:
        """Measure each placement as it is by default; then vary the other fields, in the fastest one first."""
        for placement in () if "placement" in self._given else self._placements:
            with contextlib.suppress(ConfigError):  # this experiment cannot run in it
                self._speed(setting_of(dataclasses.replace(self._experiment, placement=placement)))
        for setting in self._fastest():
            for field, fixed_by in FIELDS.items():
                if not fixed_by & set(self._given):
                    setting = self._varied(setting, field)

    def _varied(self, setting: Setting, field: str) -> Setting:
        """Return the best setting with other values of a field: larger ones until it gets slower, or else smaller ones."""
        values = self._values(setting, field)
        at = values.index(getattr(setting, field))
        for following in (values[at + 1 :], values[:at][::-1]):
            best = setting
            for value in following:
                further = dataclasses.replace(setting, **{field: value})
                best = max(best, further, key=self._speed)
                if self._speed(further) < (1 - NOISE) * self._speed(best):
                    break
            if best != setting:
                return best
        return setting

    def _values(self, setting: Setting, field: str) -> list[Any]:
        """Return the values of a field that a setting may have, in order, with its own."""
        where, own, cores = PLACEMENTS[setting.placement], getattr(setting, field), self._machine.cores
        doubled = [2**power for power in range(12)]
        others: dict[str, list[Any]] = {
            "actors": [number for number in doubled if number <= 2 * cores],
            "ring": [1, 2, 4, 8],
            "servers": [1, 2] if where.serves else [],
            "threads": [] if self._machine.accelerators else [1, max(1, cores // 2), None],
            "scale": [0.5, 1.0, 2.0, 4.0] if self._batch else [],
        }
        alone = field != "scale" and not (where.processes and where.has_actors)
        values = sorted({own, *([] if alone else others[field])}, key=lambda value: (value is None, value))
        return [value for value in values if value == own or self._can_be(setting, field, value)]

    def _can_be(self, setting: Setting, field: str, value: Any) -> bool:
        try:
            self._experiment_with(dataclasses.replace(setting, **{field: value}))
        except ConfigError:  # its groups cannot be divided so
            return False
        return True

    @property
    def _placements(self) -> list[PlacementName]:
        found: list[PlacementName] = ["serial", "inline", "served"]
        found += ["apart"] if self._machine.accelerators else []
        return found + (["fused"] if self._experiment.env.in_jax else [])

    def _fastest(self) -> list[Setting]:
        """Return the settings by their speed in the search, the fastest first."""
        return sorted((s for s in self.speeds if self.speeds[s][0] > 0), key=lambda s: -self.speeds[s][0])

    def _measure_fastest_again(self) -> None:
        """Measure the fastest settings and the default again, in turns: the best of many noisy measurements is often luck."""
        finalists = [setting for setting in self._fastest() if setting != self.default][:FINALISTS]
        for _ in range(ROUNDS if finalists else 0):
            for setting in (*finalists, self.default):
                self._measure(setting)

    def _best(self) -> Setting:
        """Return the setting with the highest median of the later measurements; the default, if that is about as fast."""
        compared = [s for s, own in self.speeds.items() if len(own) > 1 or not self._has_finals]
        fastest = max(compared, key=self._median)
        return self.default if self._median(self.default) >= (1 - TIE) * self._median(fastest) else fastest

    @property
    def _has_finals(self) -> bool:
        """Return whether a round of final measurements is complete: the default is the last one."""
        return len(self.speeds[self.default]) > 1

    def _counted(self, setting: Setting) -> list[float]:
        """Return the measurements of a setting that count: the final ones, or that of the search."""
        own = self.speeds[setting]
        return own[1:] if len(own) > 1 and self._has_finals else own[:1]

    def _median(self, setting: Setting) -> float:
        return statistics.median(self._counted(setting))

    # -- trials --------------------------------------------------------------------------------------------------------

    def _speed(self, setting: Setting) -> float:
        """Return the first measured speed of a setting; 0: it failed."""
        if setting not in self.speeds:
            self._measure(setting)
        return self.speeds[setting][0]

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._begin_s

    def _measure(self, setting: Setting) -> None:
        begin_s = self._elapsed_s
        later_s = max(FINAL_SHARE * self._total_s, (FINALISTS + 1) * self._usual_s) if self._searches else 0.0
        if begin_s + self._usual_s > self._total_s - later_s:
            raise TimeIsUp
        self._try(setting, self._start_s)
        self._usual_s = self._elapsed_s - begin_s

    def _try(self, setting: Setting, start_s: float) -> Trial:
        """Measure a setting once, and show its speed; `start_s`: deadline of the first update."""
        experiment = self._experiment_with(setting)
        self._lines.show(f"{self._elapsed_s:4.0f} s  {self._words(setting)}")
        seconds = min(max(self._total_s / TRIALS_PER_BUDGET, 1.0), 4.0)
        trial = self._trial(experiment, Limits(seconds, start_s=start_s, longest_s=max(4 * seconds, 8.0)))
        found = f"failed: {trial.error[:90]}" if trial.error else f"{trial.env_steps_per_s:>9,.0f} env steps/s"
        self._lines.notify(f"{self._elapsed_s:4.0f} s {found}  {self._words(setting)}")
        self.speeds.setdefault(setting, []).append(trial.env_steps_per_s)
        return trial

    def _experiment_with(self, setting: Setting) -> Experiment:
        return applied(self._experiment, self._options(setting))

    def _options(self, setting: Setting) -> dict[str, Any]:
        return {} if setting == self.default else options_for(self._experiment, setting, self._given)

    def _words(self, setting: Setting) -> str:
        default = self.default.placement
        return f"the default ({default})" if setting == self.default else " ".join(spelled(self._options(setting)))

    def _text(self, best: Setting) -> str:
        name, speed, own = self._experiment.name, self._median(best), self._median(self.default)
        if best == self.default:
            lines = [f"{name}: keep {self._words(best)}, {speed:,.0f} env steps/s: nothing was faster by 2%"]
        else:
            gain = f"{speed / own:.2f}x the default, " if own else ""  # it may fail in the finals
            lines = [f"{name}: {self._words(best)}: {gain}{speed:,.0f} env steps/s"]
        if best.scale != 1.0:
            lines.append("  the number of environments and the batch changed, and what is learned with them")
        lines.append(f"  the fastest of {len(self.speeds)} settings (lowest and highest of the last measurements):")
        for setting in sorted(self.speeds, key=lambda s: (s != best, -self._median(s)))[:4]:
            last = self._counted(setting)
            between = f"({min(last):,.0f} - {max(last):,.0f})" if len(last) > 1 else "(once)"
            lines.append(f"  {self._median(setting):>10,.0f} {between}  {self._words(setting)}")
        return "\n".join(lines)
