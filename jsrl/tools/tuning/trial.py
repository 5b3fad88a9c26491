"""One trial: a separate run, in fresh processes and through the usual launch path, measured once it is warm.

`measure` starts `python -m jsrl.tools.tuning.trial`, follows the run's metrics and ends it when they cover enough time. The
evaluator, the video recorder and recordings are off; nothing else differs from a user's run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jsrl.errors import JsrlError
from jsrl.experiment import EvaluatorConfig, Experiment, VideoConfig
from jsrl.graph.graph_file import saved_experiment
from jsrl.references.importing import spawn_environment
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.tuning.child import Child
from jsrl.tools.tuning.space import Trial

RUN_NAME = "trial"
FOREVER_STEPS = 10**12
MOST_UPDATES = 2**22  # far more than a trial makes, and few enough for schedules of int32, such as those of optax
POLL_S = 0.05
RISE = 0.1  # a later half of the measurement that is this much faster than the earlier one: the run is not warm yet
ENDED = "the run ended"


@dataclass(frozen=True)
class Limits:
    """Time limits of a trial.

    Attributes:
      seconds: least duration of the measurement. updates: least number of updates. warm_s: after the first update, not
        counted; where the speed still rises, its earlier half is not counted either, and the trial goes on.
      start_s: until the first update. longest_s: for the measurement, even with slow updates.
      give_up_share: share of the best speed below which a trial is ended early.
    """

    seconds: float = 3.0
    updates: int = 4
    warm_s: float = 1.0
    start_s: float = 60.0
    longest_s: float = 12.0
    give_up_share: float = 0.5


def measure(
    experiment: Experiment,
    limits: Limits = Limits(),
    *,
    best: float = 0.0,
    stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Trial:
    """Run an experiment in fresh processes and return how fast it trains.

    Args:
      experiment: to run; its own limits are ignored. limits: of time.
      best: best speed so far, so that a trial far below it is ended early (0: none is).
      stopped: returns whether to end now. on_progress: called with progress texts.
    """
    with tempfile.TemporaryDirectory(prefix="jsrl-trial-") as folder:
        with contextlib.closing(start(experiment, Path(folder))) as child:
            trial = _follow(child, limits, best, stopped, on_progress)
        if trial.error.startswith(ENDED):
            trial = dataclasses.replace(trial, error=child.last_line or trial.error)
    return dataclasses.replace(trial, load=round(os.getloadavg()[0], 2))


def endless_steps(experiment: Experiment) -> int:
    """Return a number of env steps that a trial does not reach."""
    return min(FOREVER_STEPS, experiment.rows_per_update * MOST_UPDATES // experiment.updates_per_batch)


def start(experiment: Experiment, runs: Path) -> Child:
    endless = dataclasses.replace(
        experiment,
        total_env_steps=endless_steps(experiment),
        max_minutes=None,
        stop_at_return=None,
        policies={
            name: dataclasses.replace(policy, against=(), stop_at_return=None)
            for name, policy in experiment.policies.items()
        },
        evaluator=EvaluatorConfig(enabled=False),
        video=VideoConfig(enabled=False),
        record=None,
        trace=False,
    )
    source = RunFolder(runs).source
    (runs / "experiment.json").write_text(json.dumps(to_json(endless, source, "experiment")))
    spawn = spawn_environment((str(source),))
    command = [sys.executable, "-m", "jsrl.tools.tuning.trial", str(runs), str(os.getpid())]
    folder = runs / experiment.name / RUN_NAME
    return Child(command, folder, runs / "output.txt", variables=spawn.variables, cwd=spawn.working_directory)


def _follow(
    child: Child, limits: Limits, best: float, stopped: Callable[[], bool], on_progress: Callable[[str], None]
) -> Trial:
    """Watch a run's metrics until there are enough, it fails, or its time is up."""
    begin_s = time.monotonic()
    progress = Progress(limits, best)
    launcher = psutil.Process(child.pid)
    on_progress("starting")
    while True:
        waited_s = time.monotonic() - begin_s
        ended = child.ended  # before its last lines are read
        for line in child.new_lines():
            progress.take(line, waited_s)
        if progress.enough:
            return progress.trial()
        progress.used(_cpu_s(launcher), waited_s)
        if ended:
            return Trial(error=f"{ENDED} with status {child.status}")
        if stopped():
            return Trial(error="interrupted")
        if not progress.begun and waited_s > limits.start_s:
            return Trial(error=f"no update within {limits.start_s:.0f} s")
        if progress.begun and waited_s - progress.start_s > limits.warm_s + limits.longest_s:
            progress.settle()
            trial = progress.trial()
            few = "fewer than 2 updates in the time given"
            return trial if trial.updates else dataclasses.replace(trial, error=few)
        on_progress(progress.text)
        time.sleep(POLL_S)


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process so far; 0 when it has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


class Progress:
    """Progress of a trial, from its lines of metrics: `learner/trained_s` is the time at which the last of `updates` ended."""

    def __init__(self, limits: Limits, best: float = 0.0) -> None:
        self._limits, self._best = limits, best
        self._lines: list[dict[str, float]] = []  # since the first update
        self._warm: int | None = None  # number of the line from which on they count
        self._used: list[tuple[float, float]] = []  # of the launching process: first and last (CPU seconds, time)
        self._later = 0  # how often an earlier half was dropped
        self.start_s = 0.0

    def take(self, line: dict[str, float], waited_s: float) -> None:
        """Take a line; `waited_s`: since the trial began."""
        if "learner/trained_s" not in line or not line["updates"]:
            return
        if not self._lines:
            self.start_s = waited_s
        self._lines.append(line)
        if self._warm is None and _seconds(self._lines[0], line) >= self._limits.warm_s:
            self._warm = len(self._lines) - 1
        if self._measured and (later := self._rising_from()) is not None:
            self._warm, self._later = later, self._later + 1

    def used(self, cpu_s: float, waited_s: float) -> None:
        """Record the CPU seconds of the launching process, once the run is warm."""
        if self.warm:
            self._used = [*self._used[:1], (cpu_s, waited_s)]

    @property
    def begun(self) -> bool:
        return bool(self._lines)

    @property
    def warm(self) -> bool:
        return self._warm is not None

    def settle(self) -> None:
        """Count from the first line on, if the time was over before the run was warm."""
        self._warm = self._warm or 0

    @property
    def _counted(self) -> list[dict[str, float]]:
        return [] if self._warm is None else self._lines[self._warm :]

    def _since(self, name: str) -> float:
        counted = self._counted
        return counted[-1][name] - counted[0][name] if counted else 0.0

    @property
    def _measured(self) -> bool:
        """Whether the measurement is as long as it should be at least."""
        return (
            self._since("learner/trained_s") >= self._limits.seconds and self._since("updates") >= self._limits.updates
        )

    def _rising_from(self) -> int | None:
        """Return the number of the line in the middle of the measurement if the speed rises from there; None: it is steady."""
        assert self._warm is not None
        counted = self._counted
        warm, last = counted[0], counted[-1]
        at = next(i for i, own in enumerate(counted) if 2 * _seconds(warm, own) >= _seconds(warm, last))
        middle = counted[at]
        if _seconds(middle, last) <= 0 or _speed(middle, last) <= (1 + RISE) * _speed(warm, middle):
            return None
        return self._warm + at

    @property
    def cut(self) -> bool:
        """Return whether to give up: measured for a third of the time, and far behind the best."""
        sure = self._since("learner/trained_s") >= self._limits.seconds / 3 and self._since("updates") >= 2
        return sure and self.speed_now < self._limits.give_up_share * self._best

    @property
    def enough(self) -> bool:
        return self._measured or self.cut

    @property
    def speed_now(self) -> float:
        """Return trained env steps per second so far."""
        passed_s = self._since("learner/trained_s")
        return self._since("env_steps") / passed_s if passed_s > 0 else 0.0

    @property
    def text(self) -> str:
        if not self.begun:
            return "starting"
        return f"{self.speed_now:,.0f} env steps/s" if self.speed_now else "warming up"

    def trial(self) -> Trial:
        """Return the measurement."""
        short = self._since("learner/trained_s") < self._limits.seconds
        warm = [_numbers(line) for line in self._counted[1:]]
        names = dict.fromkeys(name for line in warm for name in line)
        return Trial(
            env_steps_per_s=round(self.speed_now, 2),
            seconds=round(self._since("learner/trained_s"), 3),
            updates=int(self._since("updates")),
            start_s=round(self.start_s, 2),
            cut=self.cut and short,
            rising=self._later > 0 and short,
            warm_s=_seconds(self._lines[0], self._counted[0]) if self._counted else 0.0,
            metrics=_numbers(self._lines[-1]) if self._lines else {},
            means={name: statistics.fmean(line[name] for line in warm if name in line) for name in names},
            launcher_cores=self._launcher_cores(),
        )

    def _launcher_cores(self) -> float:
        if len(self._used) < 2:
            return 0.0
        (cpu_s, from_s), (last_s, to_s) = self._used
        return (last_s - cpu_s) / (to_s - from_s)


def _seconds(one: dict[str, float], two: dict[str, float]) -> float:
    return two["learner/trained_s"] - one["learner/trained_s"]


def _speed(one: dict[str, float], two: dict[str, float]) -> float:
    return (two["env_steps"] - one["env_steps"]) / _seconds(one, two)


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if isinstance(value, int | float)}


def main(arguments: list[str]) -> int:
    """Run a trial's launching process: the experiment in FOLDER until interrupted."""
    from jsrl.control.run import run
    from jsrl.linux import die_with_parent

    folder, parent_pid = Path(arguments[0]), int(arguments[1])
    die_with_parent(parent_pid)
    experiment = saved_experiment(RunFolder(folder))
    try:
        run(experiment, runs_dir=folder, name=RUN_NAME, display="quiet")
    except Exception as error:  # also of the user's agent, which a serial run raises itself
        if not isinstance(error, JsrlError):
            traceback.print_exc()
        sys.stdout.write(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
