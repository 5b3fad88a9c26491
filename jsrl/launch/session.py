"""What serial and process execution share: the run folder's files, the counters, and the question of when to stop."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import psutil

from jsrl.experiment import Experiment
from jsrl.launch.result import Result, ledger_lines
from jsrl.metrics.display import Display
from jsrl.metrics.display_state import DisplayState, WorkerRow
from jsrl.metrics.metrics import MetricsHub
from jsrl.metrics.phases import of_main_thread
from jsrl.runs.control import AnyMessage, Event, Report
from jsrl.runs.files import write_atomic
from jsrl.runs.runs import RunFolder
from jsrl.transport.ledger.hops import SAMPLES, read_hops
from jsrl.workers.kinds import Kind, catalogue

LINE_S = 1.0
LOOK_S = 0.02
MOST_PROGRESS = 4096  # points of env steps by updates


class Session:
    """One run as the launching process sees it.

    Attributes:
      env_steps, updates: trained so far. finals: workers whose last task is done.
      reason: why it shall end (None: it shall not). evaluation: the last score,
      or the one that reached `stop_at_return`.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        display: Display,
        sinks: tuple[Any, ...] = (),
        *,
        kinds: Mapping[str, Kind] | None = None,
        start_updates: int = 0,
    ) -> None:
        """Take the run's experiment, folder and display; `kinds`: of each worker, by its name."""
        self._kinds = dict(kinds or {})
        self.experiment, self.folder, self.display = experiment, folder, display
        self.hub = MetricsHub(
            folder.metrics_path,
            tensorboard=folder.tensorboard,
            sinks=sinks,
            catalogue=catalogue(dict.fromkeys(self._kinds.values())),
            on_warning=functools.partial(display.message, level="warning"),
        )
        self.updates = self.start_updates = start_updates
        self.env_steps = start_updates // experiment.updates_per_batch * experiment.rows_per_update
        self.reason: str | None = None
        self.evaluation: dict[str, float] = {}
        self.curve: list[tuple[int, float]] = []
        self._progress = [(self.updates, self.env_steps)]
        self._stages: dict[str, str] = {}
        self.final: dict[str, float] = {}
        self.finals: set[str] = set()
        self.ledger: dict[str, Any] = {}
        self.hops: dict[str, dict[str, Any]] = {}
        self._begin_s = self.now()
        self._trained_s: float | None = None  # when the first update of this life was heard of
        self._limit_s = math.inf if experiment.max_minutes is None else experiment.max_minutes * 60
        self._line_s = time.monotonic() + LINE_S
        self._look_s = 0.0
        self._warned: set[str] = set()
        self._most = most_counts(experiment, self.updates, self.env_steps)
        self.finished_s: float | None = None
        self._closed = False

    @property
    def elapsed_s(self) -> float:
        """Return the wall-clock seconds of this life of the run, up to its end."""
        return (self.finished_s or time.monotonic()) - self._begin_s

    @property
    def line_due(self) -> bool:
        """Return whether the next tick writes a line."""
        return self.now() >= self._line_s

    def now(self) -> float:
        """Return the clock that the session goes by."""
        return time.monotonic()

    def report(self, message: Report) -> None:
        """Take a worker's report."""
        self.hub.receive(message.worker, self._kinds[message.worker].prefix, message.metrics)
        self.facts(message.facts)

    def implausible(self, message: AnyMessage) -> str:
        """Return why a worker's counts cannot be those of this run; empty: they can."""
        facts: dict[str, Any] = getattr(message, "facts", {})
        for name, most in self._most.items():
            if isinstance(facts.get(name), int) and facts[name] > most:
                return f"{name} is {facts[name]}, more than this run can have ({most})"
        return ""

    def facts(self, facts: dict[str, Any]) -> None:
        """Take counters from a report or a worker's last words."""
        self.env_steps = max(self.env_steps, facts.get("env_steps", 0) if "updates" in facts else 0)
        self.updates = max(self.updates, facts.get("updates", 0))
        if self._trained_s is None and self.updates > self.start_updates:
            self._trained_s = self.now()
        if self.experiment.has_replay_workers and self.updates > self._progress[-1][0]:
            self._progress.append((self.updates, self.env_steps))
            if len(self._progress) > MOST_PROGRESS:
                del self._progress[1:-1:2]  # what is between is interpolated anyway

    def event(self, message: Event) -> None:
        """Take an event: scores, the end of the updates, warnings."""
        facts = message.facts
        if message.name.endswith(" finally"):
            self.finals.add(message.worker)
        if message.name == "evaluated":
            self._evaluated(facts)
        elif message.name == "evaluated finally":
            self.final = dict(facts)
            line = {f"evaluator/final_{name}": value for name, value in facts.items()}
            self.hub.write(line, self.env_steps, self.updates)
        elif message.name == "filmed":
            env_steps = self._env_steps_before(facts["updates"], facts["env_steps"])
            self.hub.write(facts["metrics"], env_steps, facts["updates"])
        elif message.name == "finished":
            self.facts(facts)
            self.end("total_env_steps")
        elif message.name == "warning":
            self._warning(message)
        elif message.name == "note":
            self.display.message(f"{message.worker}: {message.text}")

    def _warning(self, message: Event) -> None:
        """Show a warning once; of those with the fact `once` the first of a worker is shown."""
        once = message.facts.get("once")
        key = message.text if once is None else f"{message.worker} {once}"
        if key not in self._warned:
            self._warned.add(key)
            self.display.message(f"{message.worker}: {message.text}", "warning")

    def _evaluated(self, facts: dict[str, Any]) -> None:
        metrics = facts["metrics"]
        facts = facts | {"env_steps": self._env_steps_before(facts["updates"], facts["env_steps"])}
        if self.reason is None:
            self.evaluation = {k: v for k, v in facts.items() if k not in ("metrics", "updates")}
        self.curve.append((facts["env_steps"], facts["return_mean"]))
        self.hub.write(metrics, facts["env_steps"], facts["updates"])
        goal = self.experiment.stop_at_return
        trained = facts["updates"] > self.start_updates  # params that a run began with are no reason to end it
        if goal is not None and trained and facts["return_mean"] >= goal:
            self.end("stop_at_return")

    def _env_steps_before(self, updates: int, env_steps: int) -> int:
        """Return the env steps before a number of updates, which does not say it where replay workers stand between."""
        if not self.experiment.has_replay_workers:
            return env_steps
        known_updates, known_steps = zip(*self._progress, strict=True)
        return int(np.interp(updates, known_updates, known_steps))

    def lose(self, worker: str, notice: str) -> None:
        """Go on without a worker: say why, and count it."""
        kind = self._kinds[worker]
        self.finals.add(worker)
        self._stages.pop(worker, None)
        self.hub.receive(worker, kind.prefix, {f"{kind.prefix}/lost": 1.0})
        whom = worker if worker == kind.title else f"{kind.title} {worker}"
        self.display.message(f"{notice}\n(the run goes on without the {whom})", "warning")

    def end(self, reason: str) -> None:
        """Note why the run ends; the first reason stays."""
        if self.reason is None:
            self.reason, self.finished_s = reason, time.monotonic()

    def fail(self, error: BaseException) -> None:
        """Note that the run failed: result.json says so, and so does the controller's log."""
        self.reason, self.finished_s = "failed", self.finished_s or time.monotonic()
        result = self.result(f"{type(error).__name__}: {error}")
        for line in ledger_lines(result.ledger, result.hops):
            self.display.message(line)

    def read_ledgers(self) -> list[str]:
        """Read the ledgers of all hops anew from the pages in the run folder; return a line for each."""
        self.hops = {name: ledger.counts for name, ledger in read_hops(self.folder.path).items()}
        self.ledger = self.hops.pop(SAMPLES, {})
        return ledger_lines(self.ledger, self.hops)

    def stage(self, worker: str, stage: str) -> None:
        """Note which stage a worker is in; `ready` ends its start."""
        self._stages[worker] = stage

    def tick(self) -> None:
        """Write a line of metrics every second, refresh the display, look at the clock; may be called all the time."""
        if self.now() < self._look_s:
            return
        self._look_s = self.now() + LOOK_S
        if self._trained_s is not None and self.now() - self._trained_s >= self._limit_s:
            self.end("max_minutes")
        self.display.update(self.state())
        if self.line_due:
            self._line_s = self.now() + LINE_S
            if self.updates:
                self.hub.tick(self.env_steps, self.updates)

    def state(self) -> DisplayState:
        """Return what the display shows."""
        workers = [self._kinds[worker] for worker in self._stages]
        waiting = [f"{worker}: {stage}" for worker, stage in self._stages.items() if stage != "ready"]
        started_s = (self._trained_s or self.now()) - self._begin_s
        return DisplayState(
            run=self.folder.name,
            elapsed_s=self.elapsed_s,
            env_steps=self.env_steps,
            updates=self.updates,
            total_env_steps=self.experiment.total_env_steps,
            total_s=None if self._limit_s == math.inf else started_s + self._limit_s,
            workers={kind.name: workers.count(kind) for kind in workers},
            rows={kind.name: row_of(kind) for kind in workers},
            metrics=dict(self.hub.latest),
            evaluations=self.curve,
            stage=", ".join(waiting[:2]),
        )

    def result(self, error: str = "") -> Result:
        """Return the outcome, and write it down as result.json, which keeps the error of a failed run as well.

        The ledgers are what the pages in the run folder say, which killed workers have left up to date as well.
        """
        self.read_ledgers()
        result = Result(
            folder=self.folder.path,
            ended=self.reason or "interrupted",
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=round(self.elapsed_s, 3),
            process_s=round(self._process_s(), 3),
            ledger=self.ledger,
            hops=self.hops,
            evaluation=self.evaluation,
            final=self.final,
        )
        facts = dataclasses.asdict(result) | {"folder": str(result.folder)} | ({"error": error} if error else {})
        text = json.dumps(facts, indent=2, default=float)
        try:
            write_atomic(self.folder.path / "result.json", f"{text}\n".encode())
        except OSError as unwritten:  # a full disk: the result is there all the same
            self.display.message(f"result.json could not be written: {unwritten}", "warning")
        return result

    def _process_s(self) -> float:
        """Return the seconds from this process's start to the end of the training."""
        age_s = time.time() - psutil.Process().create_time()
        return age_s - (time.monotonic() - (self.finished_s or time.monotonic()))

    def close(self) -> None:
        """Write the last line and close files and display, once."""
        if self._closed:
            return
        self._closed = True
        if self.updates:
            self.hub.tick(self.env_steps, self.updates)
        self.hub.close()
        self.display.update(self.state())
        self.display.close()


def row_of(kind: Kind) -> WorkerRow:
    """Return what the live display shows of a kind of worker."""
    prefix, headline = kind.prefix, kind.headline
    shown = [a for a in of_main_thread(kind.activities) if a.phase == "wait" or a.name in headline.others]
    return WorkerRow(
        rate=f"{prefix}/{headline.rate}" if headline.rate else "",
        unit=headline.unit,
        queue=f"{prefix}/{headline.queue}" if headline.queue else "",
        waits=tuple((a.waits_for or a.name, f"{prefix}/{a.name}_share") for a in shown),
    )


def most_counts(experiment: Experiment, updates: int, env_steps: int) -> dict[str, int]:
    """Return what updates and env steps of a run stay below, whatever it began with; generous, as nobody stops to the step.

    How many updates replay workers allow for an env step is not known where nothing limits that.
    """
    most = {"env_steps": 2 * (env_steps + experiment.total_env_steps + experiment.rows_per_update)}
    if not experiment.has_replay_workers:
        most["updates"] = 2 * (updates + experiment.total_updates + experiment.updates_per_batch)
    return most
