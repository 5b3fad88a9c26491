"""A storm over a run: its workers are killed and stopped; a score card shows how it recovers."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsrl.control.result import contradicted, ledger_lines
from jsrl.errors import ConfigError
from jsrl.fields import NonNegativeFinite, PositiveFinite, PositiveInt, UnitFloat, option, suggesting
from jsrl.graph.graph_file import graph_of
from jsrl.tools.chaos.outside import ObservedRun, ObservedWorker
from jsrl.transport.ledger.legs import SAMPLES, read_legs
from jsrl.workers.jobs import kind_of
from jsrl.workers.kinds import Kind, own_kinds

MEAN_REST_S, STEP_S = 0.5, 0.1
METRICS, SCORE = "metrics.jsonl", "evaluator/return_mean"
HARMED_SHARE = 0.1  # by which share of the best score before the storm the best one during it may be lower
FLOWING = 3  # trajectories of each sample stream that arrive after a replacement before the run counts as recovered


@suggesting
@dataclass(frozen=True)
class ChaosSettings:
    """Settings of a storm."""

    # fmt: off
    storm_s: PositiveFinite = option(60.0, "Seconds during which faults are injected.")
    calm_s: NonNegativeFinite = option(10.0, "Seconds without faults before that, to measure the undisturbed throughput.")
    every_s: PositiveFinite = option(5.0, "Mean seconds between a recovery and the next fault.")
    kinds: tuple[str, ...] | None = option(None, "Kinds of workers to hit, such as actor,learner; none: all whose kind "
        "allows it. Each of these workers is hit once, in random order, before one is hit again.")
    pauses: UnitFloat = option(0.25, "Share of faults that stop a process instead of killing it.")
    hangs: UnitFloat = option(0.0, "Share of faults that stop only the main thread, so that the process is alive and does "
        "nothing.")
    storm_seed: int = option(0, "Seed of the faults.")
    patience_s: PositiveFinite = option(60.0, "Seconds within which the run must recover from a fault.")
    faults: PositiveInt | None = option(None, "The storm ends after so many faults; none: it lasts as long as it may.")
    # fmt: on


@dataclass
class InjectedFault:
    """A fault injected into one worker: how (`kill`, `pause`, `hang`), and seconds until recovery (None: no recovery).

    others: learners of other policies that were replaced too, after a fault of a learner.
    """

    worker: str
    how: str
    recovered_s: float | None = None
    others: tuple[str, ...] = ()


@dataclass
class ScoreCard:
    """The result of a storm over a run.

    Attributes:
      calm_per_s, storm_per_s: trajectories produced per second before and during the storm. result: the run's own.
      left: processes that remained after the run. ended: why it ended before the storm did; empty: it did not.
      scores: evaluations before and since the storm began.
    """

    faults: list[InjectedFault] = field(default_factory=list)
    calm_per_s: float = 0.0
    storm_per_s: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    ended: str = ""
    scores: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def passed(self) -> bool:
        """Return whether the run recovered from every fault, nothing else was harmed, and nothing remained."""
        recovered = all(fault.recovered_s is not None and not fault.others for fault in self.faults)
        return bool(self.faults) and recovered and self.learns and self.accounted and not self.left and not self.ended

    @property
    def learns(self) -> bool:
        """Return whether scores since the storm began reach those before it (also True without scores)."""
        before, since = self.scores
        return not (before and since) or max(since) >= max(before) - HARMED_SHARE * abs(max(before))

    @property
    def accounted(self) -> bool:
        """Return whether the run's ledgers balance: the producers' and consumers' counts match, except for unknown ones."""
        return not contradicted(self.result)

    def text(self) -> str:
        lines = [f"score card: {'passed' if self.passed else 'FAILED'}", *self._fault_lines()]
        share = self.storm_per_s / self.calm_per_s if self.calm_per_s else 0.0
        lines.append(
            f"  throughput: {self.calm_per_s:.1f} trajectories/s before, {self.storm_per_s:.1f} during the storm ({share:.0%})"
        )
        ledgers = ledger_lines(self.result.get("ledger") or {}, self.result.get("legs") or {})
        lines += [f"  {line}" for line in ledgers or ["ledger: none was left"]]
        lines += self._learning_lines()
        if self.ended:
            lines.append(f"  the run ended before the storm: {self.ended}")
        if self.left:
            lines.append(f"  left behind: {', '.join(self.left)}")
        return "\n".join(lines)

    def _fault_lines(self) -> list[str]:
        groups: dict[str, list[InjectedFault]] = {}
        for fault in self.faults:
            groups.setdefault(f"{fault.how} {kind_of(fault.worker)}", []).append(fault)
        width = max([18, *map(len, groups)])
        lines = [f"  {'fault':<{width}} count  recovered  p50 s  p95 s"]
        for name, faults in [*sorted(groups.items()), ("all", self.faults)]:
            times = sorted(fault.recovered_s for fault in faults if fault.recovered_s is not None)
            p50, p95 = (f"{quantile(times, q):.1f}" if times else "-" for q in (0.5, 0.95))
            lines.append(f"  {name:<{width}} {len(faults):>5}  {len(times):>9}  {p50:>5}  {p95:>5}")
        for fault in self.faults:
            if fault.others:
                lines.append(f"    {fault.how} {fault.worker}: {', '.join(fault.others)} had to be replaced too")
        return lines

    def _learning_lines(self) -> list[str]:
        before, since = self.scores
        lines = []
        if before or since:
            first, second = (f"{max(s):.1f} ({len(s)})" if s else "none" for s in (before, since))
            harmed = "" if self.learns else ": HARMED"
            lines.append(f"  learning: best score {first} before, {second} since the storm began{harmed}")
        score = self.result.get("final") or self.result.get("evaluation") or {}
        if "return_mean" in score:
            lines.append(f"  return: {score['return_mean']:.1f} after {self.result.get('env_steps', 0):,} env steps")
        return lines


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of sorted values does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


class ChaosRun:
    """A run in its own processes, and the faults injected into it.

    Args:
      command: starts the run. runs_dir, run_name: where its folder will be.
    """

    def __init__(
        self,
        command: list[str],
        runs_dir: Path,
        run_name: str,
        settings: ChaosSettings,
    ) -> None:
        self._settings, self._runs_dir, self._run_name = settings, runs_dir, run_name
        self._rng = random.Random(settings.storm_seed)
        self.card = ScoreCard()
        self._popen = subprocess.Popen(command)
        self._seen = ObservedRun(self._popen.pid)
        self._calm_lines = 0

    def run(self) -> ScoreCard:
        """Wait for calm and storm, stop the run cleanly; return the score card."""
        try:
            if self._await_start():
                self._measure()
        finally:
            self._stop()
        with contextlib.suppress(OSError, ValueError, StopIteration):
            self.card.result = json.loads((self._folder() / "result.json").read_text())
        self.card.scores = self._scores()
        self.card.left = self._seen.left()
        return self.card

    def _await_start(self) -> bool:
        while self._popen.poll() is None:
            if self._produced() > FLOWING:
                return True
            time.sleep(STEP_S)
        self.card.ended = f"exit status {self._popen.poll()} in its start"
        return False

    def _measure(self) -> None:
        self.card.calm_per_s = self._rate_of_rest(self._settings.calm_s)
        self._calm_lines = self._lines()
        self._storm()
        if self._popen.poll() is not None:
            self.card.ended = f"exit status {self._popen.poll()}"

    def _storm(self) -> None:
        begun_s, before = time.monotonic(), self._produced()
        until = begun_s + self._settings.storm_s
        most = self._settings.faults
        while time.monotonic() < until and self._popen.poll() is None and len(self.card.faults) != most:
            self._pause(min(self._rng.expovariate(1.0 / self._settings.every_s), until - time.monotonic()))
            if time.monotonic() < until:
                self._inject_fault()
        self.card.storm_per_s = (self._produced() - before) / (time.monotonic() - begun_s)

    def _rate_of_rest(self, duration_s: float) -> float:
        begun_s, before = time.monotonic(), self._produced()
        self._pause(duration_s)
        return (self._produced() - before) / (time.monotonic() - begun_s)

    def _pause(self, duration_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, duration_s))

    def _inject_fault(self) -> None:
        """Hit one worker, and wait until it has been replaced and trajectories arrive again."""
        workers = {name: worker for name, worker in self._seen.workers().items() if self._is_hit(name)}
        if not workers:
            return
        hits = Counter(fault.worker for fault in self.card.faults)
        fewest = min(hits[name] for name in workers)
        name = self._rng.choice(sorted(name for name in workers if hits[name] == fewest))
        others, victim, begun_s = self._other_learners(name), workers[name], time.monotonic()
        fault = InjectedFault(name, self._next_kind())
        self.card.faults.append(fault)
        inject(victim, fault)
        try:
            self._await_recovery(fault, victim, begun_s)
            now = self._seen.workers()
            fault.others = tuple(sorted(other for other, worker in others.items() if now.get(other) != worker))
        finally:
            victim.release()

    def _is_hit(self, worker: str) -> bool:
        """Return whether a worker may be hit: by the settings, else by its kind."""
        kind = self._kind(worker)
        if self._settings.kinds is not None:
            return (kind_of(worker) if kind is None else kind.name) in self._settings.kinds
        return kind is None or kind.lifecycle.loss_ends_run

    def _other_learners(self, worker: str) -> dict[str, ObservedWorker]:
        """Return the learners that must survive a fault of this one, if it is a learner."""
        if not self._is_learner(worker):
            return {}
        return {name: one for name, one in self._seen.workers().items() if name != worker and self._is_learner(name)}

    def _is_learner(self, worker: str) -> bool:
        kind = self._kind(worker)
        return kind is not None and kind.trains

    def _kind(self, worker: str) -> Kind | None:
        """Return the kind of a worker of the run; None: it is not known."""
        graph = graph_of(self._folder())
        if graph is not None:
            return graph.kinds.get(worker)
        return next((kind for kind in own_kinds() if kind.name == kind_of(worker)), None)

    def _next_kind(self) -> str:
        drawn, settings = self._rng.random(), self._settings
        return "pause" if drawn < settings.pauses else "hang" if drawn < settings.pauses + settings.hangs else "kill"

    def _await_recovery(self, fault: InjectedFault, victim: ObservedWorker, begun_s: float) -> None:
        """Wait until the victim has been replaced and trajectories of every stream arrive again, and record the time."""
        name, arrived = fault.worker, dict[str, int]()
        while self._popen.poll() is None and time.monotonic() - begun_s < self._settings.patience_s:
            found = self._seen.workers().get(name)
            if not victim.alive and found is not None and found != victim:
                now = self._produced_by_stream()
                arrived = arrived or now
                if now and all(now.get(stream, 0) >= before + FLOWING for stream, before in arrived.items()):
                    fault.recovered_s = time.monotonic() - begun_s
                    return
            time.sleep(STEP_S)

    def _folder(self) -> Path:
        return next(self._runs_dir.glob(f"*/{self._run_name}"))

    def _produced(self) -> int:
        """Return the trajectories that the learner's producers have sent; of several policies, those of the first."""
        return self._produced_by_stream().get(SAMPLES, 0)

    def _produced_by_stream(self) -> dict[str, int]:
        """Return the number of trajectories sent on each sample stream; {} before the run has a folder."""
        try:
            return {name: ledger.produced for name, ledger in read_legs(self._folder()).items()}
        except StopIteration:
            return {}

    def _lines(self) -> int:
        with contextlib.suppress(OSError, StopIteration):
            return len((self._folder() / METRICS).read_bytes().splitlines())
        return 0

    def _scores(self) -> tuple[list[float], list[float]]:
        """Return the evaluations' mean returns before and since the end of the calm."""
        before, since = list[float](), list[float]()
        with contextlib.suppress(OSError, StopIteration):
            for number, text in enumerate((self._folder() / METRICS).read_bytes().splitlines()):
                with contextlib.suppress(ValueError):
                    score = json.loads(text).get(SCORE)
                    if isinstance(score, int | float):
                        (before if number < self._calm_lines else since).append(float(score))
        return before, since

    def _stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(self._settings.patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            self.card.ended = f"it did not stop within {self._settings.patience_s:g} s of SIGTERM"
        self._pause(MEAN_REST_S)


def inject(victim: ObservedWorker, fault: InjectedFault) -> None:
    """Kill, pause or hang a worker. If it cannot be made to hang, it is paused, and `fault` is changed."""
    if fault.how == "hang":
        try:
            return victim.hang()
        except OSError:
            fault.how = "pause"
    return victim.pause() if fault.how == "pause" else victim.kill()


def run_command(args: list[str], runs_dir: Path, run_name: str, *, hangs: bool = False) -> list[str]:
    """Return the command of a run with restarts, with the user's options added.

    `hangs`: the run must detect hanging workers within ten seconds, however long its updates are.
    """
    if not args or args[0].startswith("-"):
        raise ConfigError("name an experiment first, such as: jsrl dev chaos ppo_cartpole")
    given = {arg.partition("=")[0].replace("_", "-") for arg in args}
    restarts = {"--restart": "1000", "--supervision.max-backoff-s": "1"}
    defaults = {
        "--deadlines.silence-s": "3",
        "--snapshots.period-s": "2",
        "--total-env-steps": "1000000000",
        "--display": "plain",
        "--stop-at-return": "none",
    }
    defaults |= {"--deadlines.stuck-s": "10"} if hangs else {}
    defaults |= restarts if "--restart" not in given else {}
    added = [arg for name, value in defaults.items() if name not in given for arg in (name, value)]
    program = [sys.executable, "-P", "-m", "jsrl", "run"]
    return [*program, *args, "--runs-dir", str(runs_dir), "--run-name", run_name, *added]
