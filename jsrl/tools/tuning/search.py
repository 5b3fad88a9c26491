"""The search: Optuna proposes values, each trial is one run or several, and a trial behind the median is ended early."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError, TrialsFailed
from jsrl.extras import require_extra
from jsrl.fields import PositiveInt, option, suggesting
from jsrl.interrupts import interrupts
from jsrl.services.runs.files import file_lock
from jsrl.tools.tuning.child import Child, child_command, start_runs
from jsrl.tools.tuning.ranges import Range

JOURNAL, RUNS, OUTPUT, LOCK, ASKING = "optuna.journal", "runs", "output", "running", "asking"  # in a search's folder
POLL_S = 0.1
STEPS = 20  # parts of a run, after each of which its score is compared
FREE_STEPS = 5  # parts of a run before it may be pruned
FREE_TRIALS = 5  # trials before one may be pruned
PART = "part"  # attribute of a trial: number of the process that runs it, if several share the search
MOST_FAILURES = 3  # failed trials at the start, without any success, that end the search


@suggesting
@dataclass(frozen=True)
class SearchOptions:
    """How a search runs."""

    # fmt: off
    vary: dict[str, str] = option(help="An option to vary: OPTION=log:LOW:HIGH, lin:LOW:HIGH, int:LOW:HIGH, "
        "log-int:LOW:HIGH, or values such as OPTION=0.5,1,10 (with | between values that have commas). Give it several "
        "times.", factory=dict)
    space: str | None = option(None, "JSON file with further options to vary: an object of option and range.")
    trials: PositiveInt = option(20, "Trials in total; a resumed search counts its finished ones.")
    parallel: PositiveInt = option(1, "Trials at the same time, each in its own processes.")
    seeds_per_trial: PositiveInt = option(1, "Runs of each trial, one after another; the first one has --seed, the next one "
        "--seed + 1. Their mean score counts.")
    prune: bool = option(True, "End a trial early if it scores less than the median of the others at the same time.")
    searches_dir: str = option("searches", "Folder of all searches; a search goes to SEARCHES_DIR/EXPERIMENT/SEARCH.")
    search_name: str | None = option(None, "Name of this search (default: the time).")
    resume: str | None = option(None, "Continue a search: its folder, SEARCHES_DIR/EXPERIMENT/SEARCH. Only --trials, "
        "--parallel and --launcher may be given with it.")
    part: int | None = option(None, "With --resume: number of this process in a search of several processes; a job "
        "array sets it.")
    # fmt: on


@dataclass(frozen=True)
class Setup:
    """Settings of a search.

    Attributes:
      folder: of the search. experiment: name of the runs' folder. ranges: varied options. total_env_steps, seed: of a run.
      words: (option -> value as text, seed, name of the run, folder of runs) -> the arguments of `jsrl run`; ConfigError if
        these values exclude each other.
      together: the trials at the same time share one process and compiled program.
    """

    folder: Path
    experiment: str
    ranges: Sequence[Range]
    total_env_steps: int
    seed: int
    words: Callable[[dict[str, str], int, str, Path], list[str]]
    together: bool = False


@dataclass
class _Trial:
    """A running trial; `part`: of its current run, the last one reported."""

    asked: Any
    values: dict[str, str]
    begun_s: float
    child: Child | None = None
    scores: list[float] = field(default_factory=list)
    part: int = -1
    pruned: bool = False
    latest: str = "starting"

    @property
    def number(self) -> int:
        return self.asked.number


class Search:
    """One search, new or continued."""

    def __init__(
        self,
        setup: Setup,
        options: SearchOptions,
        notify: Callable[[str], None],
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Open the study of the search's folder; `notify` gets a line at each event, `show` how far the trials are."""
        self._setup, self._options, self._notify, self._show = setup, options, notify, show
        self.study = _open_study(setup.folder, setup.seed, options.part)
        self._running: list[_Trial] = []
        self.interrupted = False

    def run(self) -> None:
        """Run trials until all requested ones are finished; Ctrl-C ends the running ones cleanly.

        Raises:
          ConfigError: the search is running already. TrialsFailed: the first trials all failed; the message says why.
        """
        (self._setup.folder / OUTPUT).mkdir(exist_ok=True)
        with held(self._setup.folder, shared=self._options.part is not None), interrupts(self._interrupt):
            with self._asking():
                _begin_again(self.study, self._options.part)
            try:
                while not self.interrupted and (self._running or self._missing > 0):
                    self._start_missing()
                    for trial in list(self._running):
                        if trial.child is not None:
                            self._look_at(trial, trial.child)
                    self._show("; ".join(f"trial {trial.number}: {trial.latest}" for trial in self._running))
                    time.sleep(POLL_S)
            finally:
                self._close()

    @property
    def _missing(self) -> int:
        """Return how many trials must be started; those of other processes count as started."""
        running = sum(trial.state.name == "RUNNING" for trial in self.study.trials)
        return self._options.trials - len(finished(self.study)) - running

    def _interrupt(self) -> None:
        self.interrupted = True

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        """Hold what one process at a time may do: count the missing trials, and begin one."""
        return file_lock(self._setup.folder / ASKING)

    def _ask(self) -> Any:
        with self._asking():
            if self._missing <= 0:
                return None
            asked = self.study.ask({r.option: r.distribution for r in self._setup.ranges})
            if self._options.part is not None:
                asked.set_user_attr(PART, self._options.part)
            return asked

    def _start_missing(self) -> None:
        """Start the runs that may start; those that share a program start when no other one runs."""
        if self._setup.together and any(trial.child for trial in self._running):
            return
        while len(self._running) < self._options.parallel and (asked := self._ask()) is not None:
            values = {r.option: r.text(asked.params[r.option]) for r in self._setup.ranges}
            trial = _Trial(asked, values, time.monotonic())
            self._running.append(trial)
            text = ", ".join(f"{option} {value}" for option, value in values.items())
            self._notify(f"trial {trial.number}: {text}")
        runs = [run for trial in list(self._running) if trial.child is None and (run := self._run_of(trial))]
        for together in [runs] if self._setup.together and runs else [[run] for run in runs]:
            self._start(together)

    def _run_of(self, trial: _Trial) -> tuple[_Trial, str, list[str]] | None:
        """Return a trial, the name of its next run and its arguments; None: the trial has failed."""
        setup, seed = self._setup, self._setup.seed + len(trial.scores)
        name = f"trial-{trial.number}-seed{seed}"
        try:
            return trial, name, setup.words(trial.values, seed, name, setup.folder / RUNS)
        except ConfigError as error:  # values that are each valid, but not together
            self._fail(trial, str(error))
            return None

    def _start(self, runs: Sequence[tuple[_Trial, str, list[str]]]) -> None:
        """Start a process with the runs of some trials."""
        setup = self._setup
        folders = [setup.folder / RUNS / setup.experiment / name for _, name, _ in runs]
        output = setup.folder / OUTPUT / f"{runs[0][1]}.txt"
        at_once = 1 if setup.together else self._options.parallel
        children = start_runs(child_command(*(words for _, _, words in runs)), folders, output, at_once)
        for (trial, _, _), child in zip(runs, children, strict=True):
            trial.child, trial.part = child, -1

    def _look_at(self, trial: _Trial, child: Child) -> None:
        """Report the scores of a trial's run; its next one may start when it has ended."""
        ended = child.ended
        for env_steps, score in child.new_scores():
            self._report(trial, env_steps, score)
        if trial.pruned:
            child.stop()
        if ended and not self.interrupted:  # a signal to all processes of a job is no failure of the trial
            self._ended(trial, child)

    def _report(self, trial: _Trial, env_steps: int, score: float) -> None:
        trial.latest = f"{score:.4g} at {min(1.0, env_steps / self._setup.total_env_steps):.0%} of its env steps"
        part = min(STEPS, env_steps * STEPS // self._setup.total_env_steps)
        for reached in range(trial.part + 1, part + 1):
            trial.asked.report(score, len(trial.scores) * (STEPS + 1) + reached)
        if part > trial.part and self._options.prune and not trial.pruned:
            trial.pruned = trial.asked.should_prune()
        trial.part = max(trial.part, part)

    def _ended(self, trial: _Trial, child: Child) -> None:
        score, why = child.outcome()
        child.close()
        if trial.pruned:
            self._notify(f"trial {trial.number}: pruned after {trial.part * 100 // STEPS}% of a run, behind the median")
            self._finish(trial, state="PRUNED")
        elif score is None:
            self._fail(trial, why)
        else:
            trial.scores.append(score)
            trial.child = None
            if len(trial.scores) >= self._options.seeds_per_trial:
                mean = sum(trial.scores) / len(trial.scores)
                self._finish(trial, value=mean)
                self._notify(f"trial {trial.number}: {mean:.4g} (best: {self.study.best_value:.4g})")

    def _fail(self, trial: _Trial, why: str) -> None:
        trial.asked.set_user_attr("why", why)
        self._notify(f"trial {trial.number}: failed: {why}")
        self._finish(trial, state="FAIL")
        done = finished(self.study)
        if len(done) >= MOST_FAILURES and all(one.state.name == "FAIL" for one in done):
            raise TrialsFailed(f"all {len(done)} trials have failed, the last one with: {why}")

    def _finish(self, trial: _Trial, value: float | None = None, state: str = "COMPLETE") -> None:
        from optuna.trial import TrialState

        trial.asked.set_user_attr("scores", trial.scores)
        trial.asked.set_user_attr("wall_s", round(time.monotonic() - trial.begun_s, 1))
        self.study.tell(trial.asked, value, TrialState[state])
        self._running.remove(trial)

    def _close(self) -> None:
        """End everything that runs; these trials start again on a resume."""
        for trial in self._running:
            if trial.child is not None:
                trial.child.stop()
        for trial in list(self._running):
            if trial.child is not None:
                trial.child.close()
            self._finish(trial, state="FAIL")


def _open_study(folder: Path, seed: int, part: int | None = None) -> Any:
    """Return the Optuna study of a search's folder, for one of several processes if `part` is its number."""
    require_extra("search", "a search")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials) + 10_007 * (part or 0))
    study.pruner = optuna.pruners.MedianPruner(FREE_TRIALS, FREE_STEPS)
    return study


def finished(study: Any) -> list[Any]:
    """Return the trials that count: all that the end of the search did not interrupt."""
    return [
        trial
        for trial in study.trials
        if trial.state.name in ("COMPLETE", "PRUNED") or (trial.state.name == "FAIL" and "why" in trial.user_attrs)
    ]


def _begin_again(study: Any, part: int | None = None) -> None:
    """Queue the values of trials that the end of the search interrupted, once each; with `part` only its own ones."""
    from optuna.trial import TrialState

    again = {trial.user_attrs.get("again") for trial in study.trials}
    for trial in study.trials:
        if part is not None and trial.user_attrs.get(PART) != part:
            continue
        if trial.state is TrialState.RUNNING:  # the search was killed
            study.tell(trial.number, state=TrialState.FAIL)
        elif trial.state is not TrialState.FAIL or "why" in trial.user_attrs:
            continue
        if trial.params and trial.number not in again:
            study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


@contextlib.contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the folder of a search, alone or together with others that share it."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"the search {folder} is running already; wait for it, or end it with Ctrl-C.") from None
        yield
