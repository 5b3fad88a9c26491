"""A storm over a run: its workers are killed and stopped at random times, and a score card says how it took that."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from jsrl.errors import ConfigError, SnapshotError
from jsrl.launch.result import ledger_text
from jsrl.transport.ledger_page import LEDGER, read_page

KINDS = ("actor", "inference", "learner", "replay", "evaluator", "parameter-server")
MEAN_REST_S, STEP_S = 0.5, 0.1
FLOWING = 3  # trajectories that arrive after a replacement: the run works again


@dataclass(frozen=True)
class StormSettings:
    """What a storm does.

    Attributes:
      storm_s: its duration. calm_s: before it, to measure the undisturbed throughput. every_s: mean time between blows.
      kinds: of workers that are hit. pauses: share of blows that stop a process instead of killing it. seed: of the storm.
      patience_s: within which a run must work again after a blow.
    """

    storm_s: float = 60.0
    calm_s: float = 10.0
    every_s: float = 5.0
    kinds: tuple[str, ...] = KINDS
    pauses: float = 0.25
    seed: int = 0
    patience_s: float = 60.0


@dataclass
class Blow:
    """One worker that was hit: how (`kill` or `pause`), and after which time the run worked again (None: it did not)."""

    worker: str
    how: str
    recovered_s: float | None = None


@dataclass
class ScoreCard:
    """What a storm did to a run.

    Attributes:
      calm_per_s, storm_per_s: trajectories produced per second before and during the storm. result: the run's own.
      left: processes that outlived the run. ended: why it ended before the storm did; empty: it did not.
    """

    blows: list[Blow] = field(default_factory=list)
    calm_per_s: float = 0.0
    storm_per_s: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def passed(self) -> bool:
        """Return whether every blow was recovered from, the ledger balances and nothing was left behind."""
        recovered = all(blow.recovered_s is not None for blow in self.blows)
        return bool(self.blows) and recovered and self.balanced and not self.left and not self.ended

    @property
    def balanced(self) -> bool:
        """Return whether the run's ledger says what became of every trajectory."""
        ledger = self.result.get("ledger") or {}
        if "produced" not in ledger:
            return False
        found = ledger["consumed"] + sum(ledger.get("dropped", {}).values()) + ledger.get("in_flight", 0)
        return bool(ledger["produced"] == found)

    def text(self) -> str:
        """Return the card for people."""
        lines = [
            f"score card: {'passed' if self.passed else 'FAILED'}",
            "  blow               count  recovered  p50 s  p95 s",
        ]
        groups: dict[str, list[Blow]] = {}
        for blow in self.blows:
            groups.setdefault(f"{blow.how} {kind_of(blow.worker)}", []).append(blow)
        for name, blows in [*sorted(groups.items()), ("all", self.blows)]:
            times = sorted(blow.recovered_s for blow in blows if blow.recovered_s is not None)
            p50, p95 = (f"{quantile(times, q):.1f}" if times else "-" for q in (0.5, 0.95))
            lines.append(f"  {name:<18} {len(blows):>5}  {len(times):>9}  {p50:>5}  {p95:>5}")
        share = self.storm_per_s / self.calm_per_s if self.calm_per_s else 0.0
        lines.append(
            f"  throughput: {self.calm_per_s:.1f} trajectories/s before, {self.storm_per_s:.1f} during the storm ({share:.0%})"
        )
        ledger = self.result.get("ledger")
        lines.append(f"  ledger: {ledger_text(ledger) if ledger else 'none was left'}")
        score = self.result.get("final") or self.result.get("evaluation") or {}
        if "return_mean" in score:
            lines.append(f"  return: {score['return_mean']:.1f} after {self.result.get('env_steps', 0):,} env steps")
        if self.ended:
            lines.append(f"  the run ended before the storm: {self.ended}")
        if self.left:
            lines.append(f"  left behind: {', '.join(self.left)}")
        return "\n".join(lines)


def kind_of(worker: str) -> str:
    """Return `actor` for `actor-3`."""
    head, _, tail = worker.rpartition("-")
    return head if tail.isdigit() else worker


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of sorted values does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


class Storm:
    """A run in processes of its own, and what is done to them.

    Args:
      command: what starts the run. runs_dir, run_name: where its folder will be.
    """

    def __init__(self, command: list[str], runs_dir: Path, run_name: str, settings: StormSettings) -> None:
        self._settings, self._runs_dir, self._run_name = settings, runs_dir, run_name
        self._rng = random.Random(settings.seed)
        self.card = ScoreCard()
        self._popen = subprocess.Popen(command)
        self._seen: dict[int, psutil.Process] = {}

    def run(self) -> ScoreCard:
        """Wait for calm, storm, stop the run in order; return the score card."""
        try:
            if self._await_start():
                self._measure()
        finally:
            self._stop()
        with contextlib.suppress(OSError, ValueError, StopIteration):
            self.card.result = json.loads((self._folder() / "result.json").read_text())
        self.card.left = [f"process {pid}" for pid, process in self._seen.items() if _runs(process)]
        return self.card

    def _await_start(self) -> bool:
        while self._popen.poll() is None:
            if self._produced() > FLOWING:
                return True
            time.sleep(STEP_S)
        self.card.ended = f"exit status {self._popen.poll()} in its start"
        return False

    def _measure(self) -> None:
        begun_s, before = time.monotonic(), self._produced()
        self._rest(self._settings.calm_s)
        self.card.calm_per_s = (self._produced() - before) / (time.monotonic() - begun_s)
        begun_s, before = time.monotonic(), self._produced()
        until = begun_s + self._settings.storm_s
        while time.monotonic() < until and self._popen.poll() is None:
            self._rest(min(self._rng.expovariate(1.0 / self._settings.every_s), until - time.monotonic()))
            if time.monotonic() < until:
                self._strike()
        self.card.storm_per_s = (self._produced() - before) / (time.monotonic() - begun_s)
        if self._popen.poll() is not None:
            self.card.ended = f"exit status {self._popen.poll()}"

    def _rest(self, duration_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, duration_s))

    def _strike(self) -> None:
        """Hit one worker, and wait until it has been replaced and trajectories arrive again."""
        workers = {name: p for name, p in self._workers().items() if kind_of(name) in self._settings.kinds}
        if not workers:
            return
        name = self._rng.choice(sorted(workers))
        blow = Blow(name, "pause" if self._rng.random() < self._settings.pauses else "kill")
        begun_s, victim = time.monotonic(), workers[name]
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGSTOP if blow.how == "pause" else signal.SIGKILL)
        self.card.blows.append(blow)
        arrived: int | None = None
        while self._popen.poll() is None and time.monotonic() - begun_s < self._settings.patience_s:
            found = self._workers().get(name)
            if found is not None and found.pid != victim.pid:
                arrived = self._produced() if arrived is None else arrived
                if self._produced() >= arrived + FLOWING:
                    blow.recovered_s = time.monotonic() - begun_s
                    return
            time.sleep(STEP_S)

    def _workers(self) -> dict[str, psutil.Process]:
        """Return worker name -> its living process (those that a host forked cannot be told apart, and are left alone)."""
        found: dict[str, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._popen.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = child.cmdline()
                    self._seen[child.pid] = child
                    if "--name" in words and child.status() != psutil.STATUS_ZOMBIE:
                        found[words[words.index("--name") + 1]] = child
        return found

    def _folder(self) -> Path:
        return next(self._runs_dir.glob(f"*/{self._run_name}"))

    def _produced(self) -> int:
        try:
            life = read_page(self._folder() / LEDGER)
        except (StopIteration, SnapshotError):
            return 0
        return life.ledger.produced if life is not None else 0

    def _stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(self._settings.patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            self.card.ended = f"it did not stop within {self._settings.patience_s:g} s of SIGTERM"
        self._rest(MEAN_REST_S)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def storm_command(script: Path, words: list[str], runs_dir: Path, run_name: str) -> list[str]:
    """Return the command of a run that repairs itself, with what the user asked for on top.

    Raises:
      ConfigError: no experiment was named, or the run would have no processes to hit.
    """
    if not words or words[0].startswith("-"):
        raise ConfigError("name an experiment first, such as: python experiments/chaos.py ppo_cartpole")
    if "serial" in words:
        raise ConfigError("a serial run is one process; take --placement served, inline or apart.")
    defaults = {
        "--restart": "1000",
        "--deadlines.silence-s": "3",
        "--snapshots.period-s": "2",
        "--supervision.max-backoff-s": "1",
        "--total-env-steps": "1000000000",
        "--display": "plain",
    }
    added = [word for name, value in defaults.items() if name not in words for word in (name, value)]
    return [sys.executable, str(script), *words, "--runs-dir", str(runs_dir), "--run-name", run_name, *added]
