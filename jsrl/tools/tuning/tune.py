"""Automatic tuning: short trials of the real system find the settings that train fastest on this machine.

Inspired by Spreeze, which adapts its parallelism to the hardware. Source: Hou et al., 2023, arXiv 2312.06126.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

import jsrl
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.machine import this_machine
from jsrl.graph.plan import decided
from jsrl.interrupts import interrupts
from jsrl.services.runs.files import file_lock
from jsrl.tools.tuning.advice import Advice, Measurements, advise, label
from jsrl.tools.tuning.child import Lines
from jsrl.tools.tuning.profiles import Profile, applied, machine_facts, make_folder, profiles_folder, save, work_facts
from jsrl.tools.tuning.search import Budget, search
from jsrl.tools.tuning.space import (
    Setting,
    Space,
    Trial,
    describe,
    make_knobs,
    make_space,
    options_for,
    with_setting,
)
from jsrl.tools.tuning.trial import Limits, measure

MINUTES = 3.0
FIRST = 4  # times as long as the others is the first trial measured
TRIALS_PER_BUDGET = 60  # part of the time for a trial's measurement; starting takes as long again, or longer


@dataclass(frozen=True)
class Tuned:
    """The results of a tuning.

    Attributes:
      experiment: with the best settings. advice: the settings, and their gain. measurements: that it is based on.
      profile, path: files of profile and measurements (None: not saved). interrupted: by Ctrl-C.
    """

    experiment: Experiment
    advice: Advice
    measurements: Measurements
    profile: Profile | None
    path: Path | None
    interrupted: bool


def tune(
    experiment: Experiment,
    *,
    given: Collection[str] = (),
    minutes: float = MINUTES,
    trial_seconds: float | None = None,
    batch: bool = False,
    profiles_dir: str | None = None,
    output: Path | None = None,
    show: TextIO | None = sys.stderr,
) -> Tuned:
    """Measure settings of an experiment on this machine, and save the best as the profile of later runs.

    What is learned stays the same (environments, rollout, batch, policy lag), unless `batch` is true. Ctrl-C ends
    the tuning and keeps the best so far, unless an earlier profile is based on more trials.

    Args:
      experiment: to tune. given: options that keep their values. minutes: for all trials together.
      trial_seconds: measured per trial; None: a sixtieth of the time, between 1 and 4. batch: tune num_envs and batch, too.
      profiles_dir: where to save; see profiles.py. output: file for the measurements. show: stream for progress.
    """
    if experiment.deterministic:
        raise ConfigError("a deterministic run fixes its groups and their order; tune without --deterministic.")
    work = work_facts(experiment, given)  # as a run sees it, whose options are settled after it has chosen a profile
    folder = profiles_folder(profiles_dir)
    if folder is not None:
        make_folder(folder)  # before minutes of trials
    experiment, _ = decided(experiment)
    space = make_space(experiment, make_knobs(experiment, this_machine(), batch=batch), given)
    seconds = min(max(minutes * 60 / TRIALS_PER_BUDGET, 1.0), 4.0) if trial_seconds is None else trial_seconds
    began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    screen = Screen(show, experiment, space, minutes * 60)
    with _alone(folder):
        trials, total_s, interrupted = run_search(experiment, space, minutes * 60, seconds, screen)
    found = _measurements(experiment, space, trials, work)
    found = msgspec.structs.replace(found, began=began, total_s=total_s, changes_learning=batch)
    advice = advise(found)
    profile, path = None, output
    if folder is not None:
        profile, path = _kept(found, advice, folder, output, interrupted)
    if path is not None:
        save(found, path)
    screen.close(advice, path)
    return Tuned(applied(experiment, advice.options), advice, found, profile, path, interrupted)


def _measurements(experiment: Experiment, space: Space, trials: list[Trial], work: dict[str, Any]) -> Measurements:
    settings = {label(setting): setting for setting in (*(t.setting for t in trials), space.default)}
    return Measurements(
        experiment=experiment.name,
        machine=machine_facts(),
        work=work,
        version=jsrl.__version__,
        default=space.default,
        trials=tuple(trials),
        words={name: describe(experiment, setting) for name, setting in settings.items()},
        options={name: options_for(experiment, setting) for name, setting in settings.items()},
    )


def _kept(
    found: Measurements, advice: Advice, folder: Path, output: Path | None, interrupted: bool
) -> tuple[Profile, Path | None]:
    """Save the profile of an advice, unless an earlier one is based on more trials; return (profile, file of measurements)."""
    gain = round(advice.gain, 2) if advice.default_env_steps_per_s else None
    number = sum(not trial.error for trial in found.trials)
    profile = Profile(advice.options, advice.words, gain, found.machine, found.work, found.version, number)
    if interrupted:
        with contextlib.suppress(ConfigError):  # there is none that can be read
            before = Profile.load(folder / f"{profile.key}.json")
            if before.trials >= number:
                return before, output
    path = output or folder / f"{profile.key}.measurements.json"
    return msgspec.structs.replace(profile, measurements=str(path)).save(folder), path


@contextlib.contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a folder of profiles: two tunings at once would measure each other."""
    try:
        with contextlib.nullcontext() if folder is None else file_lock(folder / ".tuning", 0.0):
            yield
    except TimeoutError:
        raise ConfigError(
            f"another tuning with profiles in {folder} is running, and each would slow the other; wait until it has ended."
        ) from None


def run_search(
    experiment: Experiment, space: Space, total_s: float, seconds: float, screen: Screen
) -> tuple[list[Trial], float, bool]:
    """Search with real trials; return (trials, seconds spent, whether Ctrl-C ended it, which happens cleanly).

    Raises:
      KeyboardInterrupt: it came before the end of the first trial.
    """
    interrupted: list[bool] = []
    starts: list[float] = []
    warm_s = Limits.warm_s  # the default is measured for longer, and shows when a run is warm
    budget = Budget(total_s, time.monotonic, stopped=lambda: bool(interrupted))

    def one(setting: Setting, phase: str, best: float) -> Trial:
        nonlocal warm_s
        tuned, least_s = screen.begin(setting, phase), seconds if starts else FIRST * seconds
        start_s = start_limit_s(starts, budget.left_s)
        trial = measure(
            tuned,
            Limits(least_s, warm_s=warm_s, start_s=start_s, longest_s=max(4 * least_s, 8.0)),
            best=best if phase == "explore" else 0.0,
            stopped=lambda: bool(interrupted),
            on_progress=lambda text: screen.progress(text, budget.elapsed_s),
        )
        warm_s = warm_s if starts else max(warm_s, trial.warm_s)
        if trial.start_s:
            starts.append(trial.start_s)
        trial = dataclasses.replace(trial, setting=setting, phase=phase, metrics={}, means={})
        screen.end(trial, budget.elapsed_s)
        return trial

    with interrupts(lambda: interrupted.append(True)):
        trials = search(space, one, budget)
    trials = [trial for trial in trials if trial.error != "interrupted"]
    if interrupted and not trials:
        raise KeyboardInterrupt
    return trials, round(budget.elapsed_s, 1), bool(interrupted)


def start_limit_s(starts: list[float], left_s: float) -> float:
    """Return a trial's time limit to its first update: the remaining time, but not many times the usual one."""
    if not starts:  # the default is measured in any case, as the reference
        return max(left_s, 120.0)
    return max(1.0, min(left_s, max(30.0, 4 * max(starts))))


class Screen:
    """Progress display: a line for each trial, and on a terminal its current state."""

    def __init__(self, stream: TextIO | None, experiment: Experiment, space: Space, total_s: float) -> None:
        self._lines, self._experiment, self._total_s = Lines(stream), experiment, total_s
        self._words, self._phase, self._number, self._best = "", "", 0, 0.0
        self._lines.notify(
            f"tuning {experiment.name} for up to {total_s / 60:g} min (as many of {len(space.candidates):,} settings as "
            "fit, the most promising first; Ctrl-C keeps the best so far)"
        )

    def begin(self, setting: Setting, phase: str) -> Experiment:
        """Record the current setting, and return its experiment."""
        self._number += 1
        self._words, self._phase = describe(self._experiment, setting), phase
        return with_setting(self._experiment, setting)

    def progress(self, text: str, elapsed_s: float) -> None:
        self._lines.show(f"{self._head(elapsed_s)} {self._words}: {text}")

    def end(self, trial: Trial, elapsed_s: float) -> None:
        if trial.error:
            outcome = f"failed: {trial.error[:90]}"
        else:
            mark = " *" if trial.env_steps_per_s > self._best else " (far behind, ended early)" if trial.cut else ""
            self._best = max(self._best, trial.env_steps_per_s)
            outcome = f"{trial.env_steps_per_s:>9,.0f} env steps/s{mark}"
        self._lines.notify(f"{self._head(elapsed_s)} {outcome}  {self._words}")

    def close(self, advice: Advice, path: Path | None) -> None:
        self._lines.notify(advice.text)
        if path is not None:
            self._lines.notify(f"  measurements: {path}")

    def _head(self, elapsed_s: float) -> str:
        again = " again" if self._phase == "final" else ""
        return f"[{elapsed_s:4.0f} of {self._total_s:.0f} s] {self._number:>2}{again}"
