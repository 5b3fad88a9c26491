"""One trial of speed: a separate run, in fresh processes and through the usual launch path, measured once it is warm.

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
from dataclasses import dataclass, field
from pathlib import Path

from jsrl.errors import JsrlError
from jsrl.experiment import EvaluatorConfig, Experiment, VideoConfig
from jsrl.graph.graph_file import saved_experiment
from jsrl.references.importing import spawn_environment
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.tuning.child import Child, start_runs

RUN_NAME = "trial"
FOREVER_STEPS = 10**12
MOST_UPDATES = 2**22  # far more than a trial makes, and few enough for schedules of int32, such as those of optax
POLL_S = 0.05
RISE = 0.1  # a later half of the measurement that is this much faster than the earlier one: the run is not warm yet


@dataclass(frozen=True)
class Limits:
    """Time limits of a trial.

    Attributes:
      seconds: least duration of the measurement. updates: least number of updates. warm_s: after the first update, not
        counted; where the speed still rises, its earlier half is not counted either, and the trial goes on.
      start_s: until the first update. longest_s: for the measurement, even with slow updates.
    """

    seconds: float = 3.0
    updates: int = 4
    warm_s: float = 1.0
    start_s: float = 60.0
    longest_s: float = 12.0


@dataclass(frozen=True)
class Trial:
    """One measurement.

    Attributes:
      env_steps_per_s: trained; 0: it failed, and `error` says why. seconds, updates: of the measurement.
      start_s: from the command to the first update. means: of the run's metrics, once it was warm.
    """

    env_steps_per_s: float = 0.0
    seconds: float = 0.0
    updates: int = 0
    start_s: float = 0.0
    means: dict[str, float] = field(default_factory=dict)
    error: str = ""


def measure(experiment: Experiment, limits: Limits = Limits()) -> Trial:
    """Run an experiment in fresh processes and return how fast it trains; its own limits are ignored."""
    with (
        tempfile.TemporaryDirectory(prefix="jsrl-trial-") as folder,
        contextlib.closing(start(experiment, Path(folder))) as child,
    ):
        return _follow(child, limits)


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
    output = runs / "output.txt"
    return start_runs(command, [folder], output, variables=spawn.variables, cwd=spawn.working_directory)[0]


def _follow(child: Child, limits: Limits) -> Trial:
    """Watch a run's metrics until there are enough, it fails, or its time is up."""
    begin_s = time.monotonic()
    progress = Progress(limits)
    while True:
        waited_s = time.monotonic() - begin_s
        ended = child.ended  # before its last lines are read
        for line in child.new_lines():
            progress.take(line, waited_s)
        if progress.enough:
            return progress.trial()
        if ended:
            return Trial(error=child.last_line or f"the run ended with status {child.status}")
        if not progress.begun and waited_s > limits.start_s:
            return Trial(error=f"no update within {limits.start_s:.0f} s")
        if progress.begun and waited_s - progress.start_s > limits.warm_s + limits.longest_s:
            trial = progress.trial()
            return trial if trial.updates else Trial(error="fewer than 2 updates in the time given")
        time.sleep(POLL_S)


class Progress:
    """Progress of a trial, from its lines of metrics: `learner/trained_s` is the time at which the last of `updates` ended.

    Attributes:
      warm: the lines count. start_s: when the first update was seen.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: list[dict[str, float]] = []  # since the first update; once it is warm, those that count
        self.warm = False
        self.start_s = 0.0

    def take(self, line: dict[str, float], waited_s: float) -> None:
        """Take a line; `waited_s`: since the trial began."""
        if "learner/trained_s" not in line or not line["updates"]:
            return
        if not self._lines:
            self.start_s = waited_s
        self._lines.append(line)
        if not self.warm and _seconds(self._lines[0], line) >= self._limits.warm_s:
            self._lines, self.warm = [line], True
        elif self.enough:
            self._drop_slower_half()

    def _drop_slower_half(self) -> None:
        first, last = self._lines[0], self._lines[-1]
        at = next(i for i, line in enumerate(self._lines) if 2 * _seconds(first, line) >= _seconds(first, last))
        middle = self._lines[at]
        if _seconds(middle, last) > 0 and _speed(middle, last) > (1 + RISE) * _speed(first, middle):
            self._lines = self._lines[at:]

    @property
    def begun(self) -> bool:
        return bool(self._lines)

    @property
    def enough(self) -> bool:
        """Return whether the measurement is as long as it should be at least."""
        if not self.warm:
            return False
        first, last = self._lines[0], self._lines[-1]
        return (
            _seconds(first, last) >= self._limits.seconds and last["updates"] - first["updates"] >= self._limits.updates
        )

    def trial(self) -> Trial:
        """Return the measurement so far; before the run is warm, of everything since the first update."""
        if len(self._lines) < 2:
            return Trial(start_s=round(self.start_s, 2))
        first, *others = self._lines
        numbers = [{name: v for name, v in line.items() if isinstance(v, int | float)} for line in others]
        names = dict.fromkeys(name for line in numbers for name in line)
        return Trial(
            env_steps_per_s=round(_speed(first, others[-1]), 2),
            seconds=round(_seconds(first, others[-1]), 3),
            updates=int(others[-1]["updates"] - first["updates"]),
            start_s=round(self.start_s, 2),
            means={name: statistics.fmean(line[name] for line in numbers if name in line) for name in names},
        )


def _seconds(one: dict[str, float], two: dict[str, float]) -> float:
    return two["learner/trained_s"] - one["learner/trained_s"]


def _speed(one: dict[str, float], two: dict[str, float]) -> float:
    passed_s = _seconds(one, two)
    return (two["env_steps"] - one["env_steps"]) / passed_s if passed_s > 0 else 0.0


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
