"""The common part of serial and process execution: the run folder's files, the counters, and the conditions to stop."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import psutil

from jsrl.control.hooks import Hooks, LiveRun, SavedSnapshot
from jsrl.control.progress import Progress, RunState
from jsrl.control.result import STOPPED, Result, ledger_lines
from jsrl.control.status_writer import RatedPlayers, Stages, StatusWriter, frames_per_step, other_policy, rarity
from jsrl.envs.config import split_metric
from jsrl.errors import RunDeleted, users_traceback
from jsrl.experiment import Experiment
from jsrl.graph.policies import PolicyPart
from jsrl.intervals import score_name, score_of
from jsrl.services.metrics.display import Display
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.metrics.metrics import MetricsHub
from jsrl.services.runs.control_bodies import FINAL, Event, ForwardedCommand, Report
from jsrl.services.runs.files import plain_options, write_atomic
from jsrl.services.runs.message_limits import printable
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import RESULT, WorkerSummary, is_whole
from jsrl.transport.ledger.legs import SAMPLES, read_legs
from jsrl.transport.stream import POLICY
from jsrl.types import version_updates
from jsrl.workers.kinds import Kind, catalogue

LINE_S = 1.0
LOOK_S = 0.02
Forwards: TypeAlias = list[tuple[str, str, dict[str, Any]]]  # worker, command, facts
OF_FIRST = ("saving", "evaluated")  # events that other workers receive of the first policy only


class RunRecord:
    """What the launching process knows of a run, and writes of it.

    Attributes:
      run: what is known of it.
      hooks: of the run. outcome: the result, once there is one. stop_asked: `jsrl stop` asked for the end, as Ctrl-C does.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        display: Display,
        sinks: Sequence[Any] = (),
        *,
        kinds: Mapping[str, Kind] | None = None,
        policies: Sequence[Progress] = (),
        policy_of: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Take the run's experiment, folder and display.

        Args:
          sinks: further places for metrics. kinds: of each worker, by its name. policies: of the run; none: the
            experiment's only one. policy_of: worker -> its policy; other workers belong to the first. hooks: of the run.
        """
        self._kinds = dict(kinds or {})
        self._receivers = [worker for worker, kind in self._kinds.items() if kind.receives]
        own = list(policies) or [Progress(PolicyPart(POLICY, "", experiment, (), ""))]
        self.run = RunState(own, policy_of or {}, self.now())
        self.experiment, self.folder, self.display = experiment, folder, display
        self.hooks = hooks or Hooks()
        self.hub = MetricsHub(
            folder.metrics_path,
            tensorboard=folder.tensorboard,
            sinks=sinks,
            catalogue=catalogue(dict.fromkeys(self._kinds.values()), [p.policy.folder for p in self.run.others]),
            on_warning=functools.partial(display.message, level="warning"),
            on_note=display.message,
            on_line=self.hooks.write,
        )
        if self.hub.latest.get("env_steps", 0) > self.run.env_steps:
            self.hub.latest.clear()  # of updates after the snapshot, which are lost
        self._stages = Stages(self._kinds)
        self.ledger: dict[str, Any] = {}
        self.legs: dict[str, dict[str, Any]] = {}
        self._limit_s = math.inf if experiment.max_minutes is None else experiment.max_minutes * 60
        self._rarity = rarity(len(self._kinds))
        self._line_s = self.now() + self._rarity * LINE_S
        self._look_s, self._closed = 0.0, False
        self._warned: set[str] = set()
        self.outcome: Result | None = None
        self._status, self._players = StatusWriter(folder.path), RatedPlayers(folder.path)
        self._was_whole = is_whole(folder.path)
        self.stop_asked = False

    @property
    def elapsed_s(self) -> float:
        return self.run.elapsed_s(self.now())

    @property
    def line_due(self) -> bool:
        """Return whether the next tick writes a line; measurements for lines are made then, once per line."""
        return self.now() >= max(self._line_s, self._look_s)

    @property
    def time_is_over(self) -> bool:
        """Return whether the training has had its `max_minutes`."""
        return self.run.trained_s is not None and self.now() - self.run.trained_s >= self._limit_s

    def now(self) -> float:
        return time.monotonic()

    def report(self, message: Report) -> Forwards:
        self._receive(message.worker, message.metrics)
        self.facts(message.worker, message.facts)
        if FINAL in message.facts and message.worker not in self.run.finals:  # the event was lost
            return self.event(Event(message.worker, message.incarnation, FINAL, facts=message.facts[FINAL]))
        return []

    def _receive(self, worker: str, metrics: dict[str, float]) -> None:
        policy = self.run.progress_of(worker).policy
        named = {policy.named(name): value for name, value in metrics.items()}
        self.hub.receive(worker, policy.named(self._kinds[worker].prefix), named)

    def _trains(self, worker: str) -> bool:
        """Return whether a worker's facts count the training; those of a user's worker may have the same names."""
        return worker not in self._kinds or self._kinds[worker].lifecycle.must_finish

    def facts(self, worker: str, facts: dict[str, Any]) -> None:
        if self._trains(worker):
            self.run.facts(worker, facts, self.now())

    def event(self, message: Event) -> Forwards:
        """Process an event: scores, the end of the updates, warnings; return commands of workers to workers."""
        facts, progress = message.facts, self.run.progress_of(message.worker)
        forwards = self._forwards(message)
        if message.name.endswith(" finally"):
            self.run.finals.add(message.worker)
        if message.name == "evaluated":
            self._evaluated(progress, facts)
        elif message.name == "confirmed":
            self._confirmed(progress, facts)
        elif message.name == FINAL:
            if "version_updates" in facts:
                facts = facts | {"version_updates": progress.made(facts["version_updates"])}
            progress.final = dict(facts)
            line = {f"evaluator/final_{name}": value for name, value in facts.items()}
            self._write(progress, line, progress.env_steps, progress.updates)
            counts = {"env_steps": progress.env_steps, "updates": progress.updates}
            self._show_score(progress, facts | counts, final=True)
        elif message.name == "filmed":
            facts = progress.counted(facts)
            self._write(progress, facts["metrics"], facts["env_steps"], facts["updates"])
            self.hub.sinks.video(self.folder.videos / progress.policy.folder / Path(facts["file"]).name)
        elif message.name == "saved":
            self._saved(progress, facts)
        elif message.name == "finished":
            self.facts(message.worker, facts | {"finished": True})
        elif message.name == "stand_in":
            forwards += [(worker, "stand_in", facts) for worker, kind in self._kinds.items() if kind.plays]
        elif message.name == "warning":
            self._warning(message)
        elif message.name == "note":
            self.display.message(f"{message.worker}: {message.text}")
        return forwards

    def _forwards(self, message: Event) -> Forwards:
        """Return an event as commands for workers that listen to it, and its own command to another worker.

        A director's state belongs to snapshots of the first policy, and a video's score is that policy's, so `saving` and
        `evaluated` of other policies are not passed on.
        """
        left_out = message.name in OF_FIRST and self.run.progress_of(message.worker) is not self.run.first
        told = message.facts | {"worker": message.worker, "incarnation": message.incarnation}
        listeners = [
            worker for worker in self._receivers if message.name in self._kinds[worker].receives and not left_out
        ]
        forwards: Forwards = [(worker, message.name, told) for worker in listeners]
        if message.worker not in self._receivers:
            return forwards
        if message.name == "command":
            command = msgspec.convert(message.facts, ForwardedCommand)
            progress = self.run.policies.get(command.policy)
            worker = progress.policy.learner if progress is not None else command.worker
            forwards += [(worker, command.command, command.facts)] if worker in self._kinds else []
        elif message.name == "stop":
            self.end(": ".join(filter(None, (f"{STOPPED} {message.worker}", message.facts.get("why")))))
        return forwards

    def _warning(self, message: Event) -> None:
        """Show a warning once; of warnings with the fact `once`, only a worker's first is shown."""
        once = message.facts.get("once")
        key = message.text if once is None else f"{message.worker} {once}"
        if key not in self._warned:
            self._warned.add(key)
            self.display.message(f"{message.worker}: {message.text}", "warning")

    def _evaluated(self, progress: Progress, facts: dict[str, Any]) -> None:
        facts = progress.counted(facts)
        progress.evaluated(facts)
        self._write(progress, facts["metrics"], facts["env_steps"], facts["updates"])
        self._show_score(progress, facts, final=False)

    def _confirmed(self, progress: Progress, facts: dict[str, Any]) -> None:
        line = progress.confirmed(facts)
        waits = self.run.end_at_goals(progress, self.now(), shared=len(self.experiment.policies) > 1)
        if line:
            line = f"policy {progress.policy.name}: {line}" if progress is not self.run.first else line
            self.display.message(f"{line}; not yet those of {', '.join(waits)}" if waits else line)
        metric = {f"evaluator/confirmation_{score_name(facts)}": score_of(facts)}
        self._write(progress, metric, progress.env_steps, progress.updates)

    def _show_score(self, progress: Progress, facts: dict[str, Any], *, final: bool) -> None:
        """Pass a score to the hooks."""
        score = {name: value for name, value in facts.items() if name != "metrics"}
        self.hooks.evaluated(score | {"policy": progress.policy.name, "final": final})

    def _saved(self, progress: Progress, facts: dict[str, Any]) -> None:
        """Pass a written snapshot to the hooks."""
        policy, version = progress.policy, facts["version"]
        path = self.folder.snapshots / policy.folder / facts["store"] / str(version)
        updates = progress.made(version_updates(version))
        tags = tuple(facts["tags"])
        self.hooks.saved(SavedSnapshot(path, tags, updates, policy.name, facts["store"] == "state"))

    def _write(self, progress: Progress, metrics: dict[str, float], env_steps: int, updates: int) -> None:
        if self._is_deleted:
            return
        if progress is self.run.first:
            self.hub.write(metrics, env_steps, updates)
            return
        counters = dict(zip(progress.counters, (env_steps, updates), strict=True))
        line = counters | {progress.policy.named(name): value for name, value in metrics.items()}
        self.hub.write(line, self.run.env_steps, self.run.updates)

    def lose(self, worker: str, notice: str) -> None:
        """Continue without a worker: show why, and count it."""
        kind = self._kinds[worker]
        self.run.finals.add(worker)
        self._stages.remove(worker)
        self._receive(worker, {f"{kind.prefix}/lost": 1.0})
        title = worker if worker == kind.title else f"{kind.title} {worker}"
        self.display.message(f"{notice}\n(the run continues without the {title})", "warning")

    def end(self, reason: str) -> None:
        """Record why the run ends; the first reason stays."""
        self.run.end(reason, self.now())

    def cut(self, unsaved: Iterable[str]) -> None:
        """End at once. `unsaved`: learners that have not written their final snapshot; after training its loss is told."""
        self.end("interrupted")
        if self.run.reason != "interrupted":
            self.run.unsaved |= dict.fromkeys(unsaved, "it was interrupted before it had written its final snapshot")

    def fail(self, error: BaseException) -> None:
        self.run.reason, self.run.finished_s = "failed", self.run.finished_s or self.now()
        what = printable(f"{type(error).__name__}: {error}")
        result = self.result(what)
        for line in ledger_lines(result.ledger, result.legs):
            self.display.message(line)
        self.display.message(users_traceback(error) + what, "log")  # whoever started the run shows it himself

    def read_ledgers(self) -> list[str]:
        """Read the ledgers of all legs again from the pages in the run folder; return a line for each."""
        self.legs = {
            name: ledger.placed(self.run.place_of).counts for name, ledger in read_legs(self.folder.path).items()
        }
        self.ledger = self.legs.pop(SAMPLES, {})
        return ledger_lines(self.ledger, self.legs)

    def note_end(self, worker: str, incarnation: int) -> None:
        self.run.note_end(worker, incarnation, time.strftime("%Y-%m-%d %H:%M"))

    def stage(self, worker: str, stage: str, pid: int = 0) -> None:
        self._stages.set(worker, stage, self.now())
        if pid:
            self.run.pids[worker] = pid

    def call(self, worker: str, name: str, for_s: float) -> None:
        """Record the call that a worker is in (empty: none), and for how long."""
        self._stages.call(worker, name, for_s, self.now())

    def tick(self, *, writes: bool = True) -> None:
        """Write a line of metrics when it is due, refresh the display, check the clock; may be called at any rate.

        Args:
          writes: False after the workers' last reports, which belong to the last line.
        """
        if self.now() < self._look_s:
            return
        line_due, self._look_s = self.line_due, self.now() + LOOK_S
        if line_due:
            self._check_folder()
        if self.time_is_over:
            self.end("max_minutes")
        self._poll_hooks()
        self.hub.show_messages()
        self.show()
        if self._status.stop_asked and not self.stop_asked:
            self.stop_asked = True
            self.display.message("`jsrl stop` asked this run to end")
            self.end("interrupted")
        if line_due and writes:
            self._line_s = self.now() + self._rarity * LINE_S
            self._tick()

    @property
    def _is_deleted(self) -> bool:
        """Return whether the run folder is gone, of which parts may be left while it is deleted."""
        try:
            return self._was_whole and not is_whole(self.folder.path)
        except OSError:  # the disk does not answer now
            return False

    def _check_folder(self) -> None:
        """Raise RunDeleted if the run folder is gone."""
        if self._is_deleted:
            raise RunDeleted(f"the run folder {self.folder.path} was deleted or moved while the run went on.")

    def show(self, *, now: bool = False) -> None:
        """Update the display, and the status for other processes; `now`: even if the last ones are new."""
        state = self.state()
        self.display.update(state, now=now)
        if self._is_deleted:
            return
        self._status.update(state, self._worker_summaries, self.run.reason or "", now=now)

    def _worker_summaries(self) -> list[WorkerSummary]:
        found, now = [], self.now()
        for name, stage, since_s in self._stages:
            place = self.run.restarts.get(name, 0), self.run.hosts.get(name, ""), self.run.pids.get(name, 0)
            found.append(WorkerSummary(name, self._kinds[name].name, stage, round(now - since_s, 1), *place))
        return found

    def _poll_hooks(self) -> None:
        """Show messages of the hooks; end the run if one requests it."""
        for text, level in self.hooks.messages():
            self.display.message(text, level)
        if self.hooks.stop_reason:
            self.end(self.hooks.stop_reason)

    def begin(self) -> None:
        """Tell hooks and sinks that the run starts."""
        config = {"run": self.folder.name, "folder": str(self.folder.path), "options": plain_options(self.experiment)}
        self.show(now=True)
        self.hub.sinks.start(config | {"end_s": self.experiment.deadlines.sinks_s})
        self.hooks.start(LiveRun(self.run, self.folder, self.experiment))

    def finish(self) -> None:
        """Tell hooks and sinks the outcome, and wait for them as long as `deadlines` allows."""
        self.hooks.end(self.outcome, self.experiment.deadlines.hooks_s)
        self._poll_hooks()
        self.hub.end(summary_of(self.outcome), self.experiment.deadlines.sinks_s)

    def _tick(self) -> None:
        """Write a line of the workers' reports, once something was trained."""
        if self._is_deleted:
            return
        for progress in self.run.others:
            self.hub.receive(f"policy {progress.policy.name}", progress.policy.folder, progress.counters)
        if any(progress.number for progress in self.run.policies.values()):
            self.hub.tick(self.run.env_steps, self.run.updates)

    @property
    def _first_name(self) -> str:
        """Return the name of the first of several policies of the experiment; empty: there is one."""
        return self.run.first.policy.name if len(self.experiment.policies) > 1 else ""

    def state(self) -> DisplayState:
        return DisplayState(
            run=self.folder.name,
            elapsed_s=self.elapsed_s,
            env_steps=self.run.env_steps,
            updates=self.run.updates,
            total_env_steps=self.experiment.total_env_steps,
            total_s=None if self._limit_s == math.inf else self._limit_s,
            start_env_steps=self.run.trained_steps,
            start_s=None if self.run.trained_s is None else self.run.trained_s - self.run.begun_s,
            action_repeat=frames_per_step(self.experiment.env),
            workers={name: count for name, count in self._stages.counts.items() if count},
            rows=dict(self._stages.rows),
            metrics=dict(self.hub.latest),
            evaluations=self.run.first.curve,
            episode_metric=next((split_metric(one)[0] for one in self.experiment.env.episode_metrics), ""),
            policy=self._first_name,
            others=tuple(map(other_policy, self.run.others)),
            players=self._players.rows() if self.experiment.director is not None else (),
            waiting=self._stages.waiting(self.now()),
            long_calls=self._stages.long_calls(self.now()),
        )

    def result(self, error: str = "") -> Result:
        """Return the outcome, and write it as result.json, which also keeps the error of a failed run.

        The ledgers come from the pages in the run folder, which are up to date even for killed workers.
        """
        if not error:
            self._check_folder()
        self.read_ledgers()
        result = Result(
            folder=self.folder.path,
            ended=self.run.reason or "interrupted",
            env_steps=self.run.first.kept["env_steps"],
            updates=self.run.first.kept["updates"],
            wall_s=round(self.elapsed_s, 3),
            process_s=round(self._process_s(), 3),
            ledger=self.ledger,
            legs=self.legs,
            evaluation=self.run.first.evaluation,
            final=self.run.first.final,
            unsaved="; ".join(f"{worker}: {why}" for worker, why in self.run.unsaved.items() if why),
            best=self.run.first.best(self.folder.path),
            others={progress.policy.name: progress.outcome(self.folder.path) for progress in self.run.others},
            first_policy=self._first_name,
            restarts=self.run.restarts,
        )
        self.outcome = result
        facts = result.facts | ({"error": error} if error else {})
        text = json.dumps(facts, indent=2, default=float)
        try:
            if not self._is_deleted:  # else RunDeleted says so
                write_atomic(self.folder.path / RESULT, f"{text}\n".encode())
        except OSError as unwritten:  # a full disk: the result is returned all the same
            self.display.message(f"result.json could not be written: {unwritten}", "warning")
        return result

    def _process_s(self) -> float:
        """Return the seconds from this process's start to the end of the training."""
        age_s = time.time() - psutil.Process().create_time()
        return age_s - (self.now() - (self.run.finished_s or self.now()))

    def close(self) -> None:
        """Write the last line and close files and display, once."""
        if self._closed:
            return
        self._closed = True
        self._tick()
        self.hub.close()
        self.show(now=True)
        self.display.close()


def summary_of(result: Result | None) -> dict[str, Any]:
    """Return the facts for sinks at the end: why it ended, counters, and existing scores."""
    if result is None:
        return {"ended": "failed"}
    counters = {name: getattr(result, name) for name in ("ended", "env_steps", "updates", "wall_s")}
    scores = {"evaluation": result.evaluation, "final": result.final, "best": result.best}
    scores |= {f"{name}/final": facts["final"] for name, facts in result.others.items()}
    return counters | {f"{title}/{name}": v for title, facts in scores.items() for name, v in facts.items()}
