"""Whole runs of run.py, watched from outside: trained env steps, CPU seconds and memory of the process tree, metrics."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import process_tree
from benchmarks.throughput.arithmetic import Sample, rates
from jsrl.errors import JsrlError
from jsrl.services.metrics.phases import by_phase
from jsrl.workers.kinds import find_kind

RUN = Path(__file__).resolve().parents[2] / "experiments" / "run.py"
START_LIMIT_S = 300.0
POLL_S = 0.05
ENDLESS = 10**12  # env steps
LEAST_SAMPLES = 4
# Training only: no evaluation, no snapshots in between, no end before the watcher's own (unless it was killed).
ALWAYS = (
    "--max-minutes",
    "60",
    "--evaluator.enabled",
    "false",
    "--stop-at-return",
    "none",
    "--snapshots.period-s",
    "1e9",
    "--display",
    "quiet",
)
OTHERS_TURN = "wait_turn"  # serial placement: one process is never idle because another worker is running
KINDS = ("actor", "inference", "learner")


class BenchmarkError(JsrlError):
    """A run did not give the expected result."""


def command(name: str, placement: str, folder: Path, env_steps: int, options: Sequence[str]) -> list[str]:
    """Return the command line of one run."""
    words = [sys.executable, str(RUN), name, "--placement", placement, "--runs-dir", str(folder), "--run-name", "bench"]
    return [*words, "--total-env-steps", str(env_steps), *ALWAYS, *options]


def last_lines(text: str, number: int = 15) -> str:
    """Return the end of a process's output."""
    return "\n".join(text.splitlines()[-number:])


class Watched:
    """A child process whose whole tree is ended when the block is left."""

    def __init__(self, words: Sequence[str], **variables: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the block)
        self._popen = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        process_tree.end_tree(self.pid)
        self._popen.wait()
        self._errors.close()

    def check(self) -> None:
        """Check that it is alive.

        Raises:
          BenchmarkError: it has ended; the message has the end of its output.
        """
        if self._popen.poll() is not None:
            raise BenchmarkError(f"the run ended with status {self._popen.returncode}:\n{self.error_output()}")

    def error_output(self) -> str:
        """Return the end of its standard error."""
        self._errors.seek(0)
        return last_lines(self._errors.read())

    def leave(self, timeout_s: float) -> None:
        """Ask it to end in order, and wait; remaining processes are killed at the end of the block."""
        self._popen.send_signal(signal.SIGTERM)  # read even where interrupts are ignored, as in a background job
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass

    def finish(self, timeout_s: float) -> None:
        """Wait until it ends by itself.

        Raises:
          BenchmarkError: it does not end, or not in order.
        """
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"the run did not end within {timeout_s:g} s:\n{self.error_output()}") from None
        if status:
            raise BenchmarkError(f"the run ended with status {status}:\n{self.error_output()}")


class Tail:
    """The lines of a metrics.jsonl as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read, self._rest = folder, 0, ""
        self._path: Path | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Return the new lines; an incomplete line waits for its end."""
        if self._path is None:
            self._path = next(iter(self._folder.glob("*/bench/metrics.jsonl")), None)
        if self._path is None or self._path.stat().st_size == self._read:
            return []
        with self._path.open() as file:
            file.seek(self._read)
            text = file.read()
            self._read = file.tell()
        *whole, self._rest = (self._rest + text).split("\n")
        return [json.loads(line) for line in whole]


def watch(run: Watched, folder: Path, seconds: float, warm_up_s: float) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Return samples of a window of `seconds` after the warm-up, and the metrics' lines in it.

    Raises:
      BenchmarkError: the run ended, or trained too little in ten times the time.
    """
    tail, begin = Tail(folder), time.monotonic()
    samples: list[Sample] = []
    lines: list[dict[str, Any]] = []
    first_s: float | None = None
    while time.monotonic() - begin < START_LIMIT_S + 10 * (seconds + warm_up_s):
        time.sleep(POLL_S)
        run.check()
        new = tail.lines()
        now = time.monotonic()
        if not new:
            continue
        first_s = first_s or now
        if now - first_s < warm_up_s:
            continue
        samples.append(Sample(now, float(new[-1]["env_steps"]), process_tree.cpu_seconds(run.pid)))
        lines += new
        trained = samples[-1].env_steps > samples[0].env_steps
        if trained and len(samples) >= LEAST_SAMPLES and now - samples[0].time_s >= seconds:
            return samples, lines
    raise BenchmarkError(f"the run trained too little to be measured in {time.monotonic() - begin:.0f} s")


def end_to_end(name: str, placement: str, seconds: float, warm_up_s: float, options: Sequence[str]) -> dict[str, float]:
    """Return the figures of one run in a placement: rates, memory, lag, batch size, shares of each worker's time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Watched(command(name, placement, Path(folder), ENDLESS, options)) as run,
    ):
        samples, lines = watch(run, Path(folder), seconds, warm_up_s)
        used = process_tree.usage(run.pid)
        run.leave(30.0)
    return {**rates(samples), "pss_mb": used.pss_mb, "processes": float(used.processes), **summary(lines)}


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return lag, inference batch, and for each kind of worker the share of time in each phase."""

    def column(name: str) -> list[float]:
        return [float(line[name]) for line in lines if isinstance(line.get(name), int | float)]

    def mean(name: str) -> float:
        values = column(name)
        return sum(values) / len(values) if values else math.nan

    found = {
        "lag_p50": mean("learner/policy_lag_p50"),
        "lag_p95": max(column("learner/policy_lag_p95"), default=math.nan),
        "inference_batch_rows": mean("inference/batch_rows_mean"),
        "dropped": max(column("ledger/dropped"), default=0.0),
    }
    for kind in KINDS:
        activities = find_kind(kind).all_activities
        shares = {activity.name: mean(f"{kind}/{activity.name}_share") for activity in activities}
        known = {activity: share for activity, share in shares.items() if not math.isnan(share)}
        if known:
            found |= {f"{kind}_{phase}_share": share for phase, share in by_phase(activities, known).items()}
            found[f"{kind}_idle_share"] = found[f"{kind}_wait_share"] - known.get(OTHERS_TURN, 0.0)
    return found


def start_s(name: str, placement: str, options: Sequence[str], *, rows_per_update: int, cache: Path) -> float:
    """Return the seconds from the start of a command that makes one update to the end of that update.

    Args:
      cache: folder of compiled programs; empty for a cold start.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [*command(name, placement, Path(folder), rows_per_update, options), "--evaluator.final-episodes", "0"]
        with Watched(
            words, JAX_COMPILATION_CACHE_DIR=str(cache), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.2"
        ) as run:
            run.finish(START_LIMIT_S)
        result = json.loads(next(Path(folder).glob("*/bench/result.json")).read_text())
    return float(result["process_s"])


def starts(name: str, placement: str, options: Sequence[str], rows_per_update: int) -> dict[str, float]:
    """Return the seconds to the first update without compiled programs, and with those of the run before."""
    with tempfile.TemporaryDirectory() as cache:
        once: Callable[[], float] = lambda: start_s(  # noqa: E731
            name, placement, options, rows_per_update=rows_per_update, cache=Path(cache)
        )
        return {"start_cold_s": once(), "start_warm_s": once()}
